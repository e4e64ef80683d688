#include "carillon/schedule/parts/waiting.h"

#include "carillon/base/assert.h"

namespace carillon::schedule::parts {

void Waiting::put(const Request& request) {
  const std::size_t at = line_of(request.model, request.cls);
  if (at >= lines_.size()) {
    lines_.resize(all_classes.size() * (request.model.index() + 1));
    listed_.resize(lines_.size(), heads_.end());
  }
  lines_[at].emplace(request.deadline, request.id);
  places_.insert(request.id, {request.model, request.cls, request.deadline});
  list(request.model, request.cls);
}

bool Waiting::remove(RequestId id) {
  const auto place = places_.erase(id);
  if (!place) return false;
  lines_[line_of(place->model, place->cls)].erase({place->deadline, id});
  list(place->model, place->cls);
  return true;
}

std::vector<RequestId> Waiting::take(ModelId model, Class cls, TimePoint from, std::size_t count) {
  Line& line = lines_[line_of(model, cls)];
  std::vector<RequestId> taken;
  taken.reserve(count);
  for (auto next = line.lower_bound({from, RequestId{0}}); taken.size() < count; next = line.erase(next)) {
    CARILLON_ASSERT(next != line.end());
    taken.push_back(next->second);
    places_.erase(taken.back());
  }
  list(model, cls);
  return taken;
}

std::size_t Waiting::size(ModelId model) const {
  std::size_t all = 0;
  for (const Class cls : all_classes) all += size(model, cls);
  return all;
}

std::vector<RequestId> Waiting::all(ModelId model) const {
  std::vector<RequestId> found;
  for (const Class cls : all_classes)
    if (size(model, cls) > 0)
      for (const auto& [deadline, id] : lines_[line_of(model, cls)]) found.push_back(id);
  return found;
}

const Waiting::Head* Waiting::head(ModelId model) const {
  for (const Class cls : all_classes)
    if (const Head* const found = head(model, cls)) return found;
  return nullptr;
}

// The line's first is another than before, perhaps.
void Waiting::list(ModelId model, Class cls) {
  const std::size_t at = line_of(model, cls);
  const Line& line = lines_[at];
  auto& listed = listed_[at];
  if (listed != heads_.end()) {
    if (!line.empty() && listed->id == line.begin()->second) return;
    heads_.erase(listed);
    listed = heads_.end();
  }
  if (!line.empty()) listed = heads_.insert({cls, line.begin()->first, line.begin()->second, model}).first;
}

}  // namespace carillon::schedule::parts
