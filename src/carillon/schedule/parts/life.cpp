#include "carillon/schedule/parts/life.h"

#include <variant>

#include "carillon/schedule/parts/tries.h"
#include "carillon/schedule/state/book.h"

namespace carillon::schedule::parts {
void Life::hear(const Event& event, Orders& out) {
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const Request& request = arrival->request;
    if (!out.ledger().model(request.model).served) return out.refuse(request.id, Reason::no_model);
    const ModelId as = this->as(request);
    if (waiting_.put(request, as)) watch(as, request.cls);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    const auto line = waiting_.line_of(gone->request);
    if (!line || !waiting_.remove(gone->request)) return;
    watch(static_cast<std::uint32_t>(*line));
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
    waiting_.know(change->model);
    if (!change->info) refuse_all(change->model, Reason::no_model, out);
  }
  for (const RequestId id : out.ledger().changes().back) came_back(id, out);
}

// The ledger says so until the next event: where one gives up devices, this hears of a request more than
// once.
void Life::came_back(RequestId id, Orders& out) {
  const auto* const found = out.ledger().request(id);
  if (found == nullptr || found->action != ledger::Ledger::none || waiting_.has(id)) return;
  const auto& request = *found;
  if (!out.ledger().model(request.told.model).served) return out.refuse(id, Reason::no_model);
  if (tried_enough(request.tries))
    return out.refuse(id, request.tries.late >= most_late ? Reason::rejected_late : Reason::device_failed);
  const ModelId as = this->as(request.told);
  waiting_.put(request.told, as);
  watch(as, request.told.cls);
}

void Life::move(ModelId from, ModelId to) {
  for (const Class cls : all_classes) {
    if (waiting_.size(from, cls) == 0) continue;
    waiting_.move(from, to, cls);
    watch(from, cls);
    watch(to, cls);
  }
}

std::vector<RequestId> Life::take(ModelId model, Class cls, TimePoint from, std::size_t count) {
  auto taken = waiting_.take(model, cls, from, count);
  watch(model, cls);
  return taken;
}

void Life::refuse_all(ModelId model, Reason reason, Orders& out) {
  for (const RequestId id : waiting_.all(model)) {
    const auto line = static_cast<std::uint32_t>(*waiting_.line_of(id));
    waiting_.remove(id);
    watch(line);
    out.refuse(id, reason);
  }
}

void Life::refuse_before(ModelId model, Class cls, TimePoint deadline, Orders& out) {
  for (const auto* head = waiting_.head(model, cls); head != nullptr && head->deadline < deadline;
       head = waiting_.head(model, cls))
    refuse_late(Waiting::Head(*head), alone(model, cls, out), out);
}

// expire() finds out when the line's first is late.
void Life::watch(ModelId model, Class cls) {
  watch(line_of(model, cls));
}

void Life::watch(std::uint32_t line) {
  const auto [model, cls] = Waiting::of_line(line);
  if (waiting_.size(model, cls) == 0)
    late_.remove(line);
  else
    changed_.push_back(line);
}

void Life::expire_now(Orders& out) {
  // A line whose first is refused is changed again.
  for (std::size_t i = 0; i < changed_.size(); ++i) look(changed_[i], out);
  changed_.clear();
  while (late_.top_at() <= out.time()) {
    look(late_.top(), out);
    for (std::size_t i = 0; i < changed_.size(); ++i) look(changed_[i], out);
    changed_.clear();
  }
}

void Life::settle_now(const Orders& out) {
  std::erase_if(changed_, [&](std::uint32_t line) {
    const auto [model, cls] = Waiting::of_line(line);
    const Waiting::Head* const head = waiting_.head(model, cls);
    if (head == nullptr || head->deadline == TimePoint::max()) {
      late_.remove(line);
      return true;
    }
    const TimePoint latest = saturating_add(head->deadline, -alone(model, cls, out));
    if (latest >= out.time()) late_.set(line, saturating_add(latest, Duration{1}));
    return latest >= out.time();
  });
}

// Of one request that is ordered now, on the best device.
Duration Life::alone(ModelId model, Class cls, const Orders& out) const {
  return by_chance_ ? out.ledger().chances(streams(cls)).least(model)
                    : Times(out.ledger(), streams(cls)).alone(model);
}

void Life::look(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = waiting_.head(model, cls);
  if (head == nullptr || head->deadline == TimePoint::max()) return late_.remove(line);
  Duration alone = this->alone(model, cls, out);
  const auto latest = [&] { return saturating_add(head->deadline, -alone); };
  if (latest() < out.time()) {
    out.doubt(model, streams(cls), head->deadline - out.time());
    alone = this->alone(model, cls, out);
  }
  if (latest() >= out.time())
    late_.set(line, saturating_add(latest(), Duration{1}));
  else
    refuse_late(*head, alone, out);
}

void Life::refuse_late(const Waiting::Head& head, Duration alone, Orders& out) {
  const Request& request = out.ledger().request(head.id)->told;
  refuse(request.id, Book::reason_of(request, alone), out.time() + alone, out);
}

void Life::refuse(RequestId id, Reason reason, TimePoint ends, Orders& out) {
  const auto line = waiting_.line_of(id);
  waiting_.remove(id);
  if (line) watch(static_cast<std::uint32_t>(*line));
  out.refuse(id, reason, ends);
}

}  // namespace carillon::schedule::parts
