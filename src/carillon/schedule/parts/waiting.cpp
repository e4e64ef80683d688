#include "carillon/schedule/parts/waiting.h"

#include "carillon/base/assert.h"

namespace carillon::schedule::parts {

void Waiting::know(ModelId as, ModelId model) {
  know(as);
  if (as.index() >= owners_.size()) owners_.resize(as.index() + 1);
  std::optional<ModelId>& owner = owners_[as.index()];
  if (owner == model) return;
  if (owner) std::erase(names_[owner->index()], as);
  owner = model;
  if (model.index() >= names_.size()) names_.resize(model.index() + 1);
  names_[model.index()].push_back(as);
}

bool Waiting::put(const Request& request, ModelId as) {
  const std::size_t at = line_of(as, request.cls);
  know(as);
  places_.open(request.id) = {at, request.deadline};
  return lines_[at].line.insert({request.deadline, request.id}) && list(at);
}

bool Waiting::remove(RequestId id) {
  const Place* const found = places_.find(id);
  if (found == nullptr) return false;
  const Place place = *found;
  places_.close(id);
  lines_[place.line].line.erase({place.deadline, id});
  list(place.line);
  return true;
}

std::vector<RequestId> Waiting::take(ModelId model, Class cls, TimePoint from, std::size_t count) {
  const std::size_t at = line_of(model, cls);
  Line& line = lines_[at].line;
  const auto first = line.lower_bound({from, RequestId{0}});
  CARILLON_ASSERT(line.count_from(first, count) == count);
  std::vector<RequestId> taken;
  taken.reserve(count);
  line.erase_from(first, count, [&](const Line::Entry& entry) {
    taken.push_back(entry.second);
    places_.close(entry.second);
  });
  list(at);
  return taken;
}

void Waiting::move(ModelId from, ModelId to, Class cls) {
  const std::size_t at = line_of(from, cls), there = line_of(to, cls);
  if (at >= lines_.size() || lines_[at].line.empty()) return;
  know(to);
  Line& line = lines_[at].line;
  const auto first = line.begin();
  line.erase_from(first, line.size(), [&](const Line::Entry& entry) {
    places_.find(entry.second)->line = there;
    lines_[there].line.insert(entry);
  });
  list(at);
  list(there);
}

std::size_t Waiting::size(ModelId model) const {
  std::size_t all = 0;
  for (const Class cls : all_classes) visit_names(model, [&](ModelId as) { all += size(as, cls); });
  return all;
}

std::vector<RequestId> Waiting::all(ModelId model) const {
  std::vector<RequestId> found;
  visit(model, [&](const Line& line) {
    for (const auto& [deadline, id] : line) found.push_back(id);
  });
  return found;
}

const Waiting::Head* Waiting::head(ModelId model) const {
  for (const Class cls : all_classes) {
    const Head* first = nullptr;
    visit_names(model, [&](ModelId as) {
      const Head* const found = head(as, cls);
      if (found != nullptr && (first == nullptr || *found < *first)) first = found;
    });
    if (first != nullptr) return first;
  }
  return nullptr;
}

// The line's first is another than before, perhaps. True: it is.
bool Waiting::list(std::size_t at) {
  Lined& l = lines_[at];
  if (l.listed && !l.line.empty() && l.head.id == l.line.begin()->second) return false;
  if (ordered_ && l.listed) heads_.erase(l.head);
  l.listed = !l.line.empty();
  if (!l.listed) return true;
  const auto [model, cls] = of_line(at);
  l.head = {cls, l.line.begin()->first, l.line.begin()->second, model};
  if (ordered_) heads_.insert(l.head);
  return true;
}

}  // namespace carillon::schedule::parts
