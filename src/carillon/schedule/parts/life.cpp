#include "carillon/schedule/parts/life.h"

#include <variant>

#include "carillon/schedule/parts/tries.h"
#include "carillon/schedule/state/book.h"

namespace carillon::schedule::parts {
void Life::hear(const Event& event, Orders& out) {
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const Request& request = arrival->request;
    if (!out.ledger().model(request.model).served) return out.refuse(request.id, Reason::no_model);
    waiting_.put(request);
    watch(request.model, request.cls);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    if (!waiting_.remove(gone->request)) return;
    for (const Class cls : all_classes) watch(gone->model, cls);
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
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
  waiting_.put(request.told);
  watch(request.told.model, request.told.cls);
}

std::vector<RequestId> Life::take(ModelId model, Class cls, TimePoint from, std::size_t count) {
  auto taken = waiting_.take(model, cls, from, count);
  watch(model, cls);
  return taken;
}

void Life::refuse_all(ModelId model, Reason reason, Orders& out) {
  for (const RequestId id : waiting_.all(model)) {
    waiting_.remove(id);
    out.refuse(id, reason);
  }
  for (const Class cls : all_classes) watch(model, cls);
}

// expire() finds out when the line's first is late.
void Life::watch(ModelId model, Class cls) {
  const Waiting::Head* const head = waiting_.head(model, cls);
  if (head == nullptr || head->deadline == TimePoint::max())
    late_.remove(line_of(model, cls));
  else
    late_.set(line_of(model, cls), TimePoint::min());
}

void Life::expire(Orders& out) {
  while (late_.top_at() <= out.time()) {
    const auto [model, cls] = Waiting::of_line(late_.top());
    const Waiting::Head& head = *waiting_.head(model, cls);
    const Times times = by_chance_ ? Times::by_chance(out.ledger(), streams(cls), nullptr, out.time())
                                   : Times(out.ledger(), streams(cls));
    const auto latest = [&] { return saturating_add(head.deadline, -times.alone(model)); };
    if (latest() < out.time()) out.doubt(model, streams(cls), head.deadline - out.time());
    if (latest() >= out.time())
      late_.set(late_.top(), saturating_add(latest(), Duration{1}));
    else
      refuse_late(head, times.alone(model), out);
  }
}

void Life::refuse_late(const Waiting::Head& head, Duration alone, Orders& out) {
  const Request& request = out.ledger().request(head.id)->told;
  const Reason reason = Book::reason_of(request, alone);
  waiting_.remove(request.id);
  watch(request.model, request.cls);
  out.refuse(request.id, reason, out.time() + alone);
}

}  // namespace carillon::schedule::parts
