#include "carillon/schedule/carillon/lines.h"

#include <algorithm>
#include <variant>

#include "carillon/schedule/parts/overtake.h"
#include "carillon/schedule/parts/too_late.h"

namespace carillon::schedule {

namespace {

// With more devices than that one will be free soon, and asking them all would take long.
constexpr std::size_t few_devices = 8;
// Models of which a plan, or a device, may change what they can do: so many are looked at in an event.
constexpr std::size_t models_looked_at = 64;
// A line that may start but is late on all devices that are free is looked at again after that time, as they
// may be doubted then.
constexpr Duration doubted_after = 25ms;

}  // namespace

void Lines::hear(const Event& event, const Orders& out) {
  if (const auto* change = std::get_if<ModelChanged>(&event)) {
    deferral_.renew(change->model);
    look_at_all(change->model);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    look_at_all(times->model);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    look_at_all(gone->model);
  } else if (std::holds_alternative<DeviceChanged>(event)) {
    look_at_changed();
  }
  for (const RequestId id : out.ledger().changes().back)
    if (const auto* request = out.ledger().request(id)) look_soon(life_.line_of(request->told));
  for (const std::uint32_t place : out.ledger().changes().ended) {
    const auto& ended = out.ledger().at(place);
    if (ended.kind != ActionKind::infer) look_at_all(ended.model);
  }
}

void Lines::look_soon(std::uint32_t line) {
  if (line >= due_now_.size()) due_now_.resize(line + 1);
  if (due_now_[line]) return;
  due_now_[line] = true;
  due_.push_back(line);
}

void Lines::look_at_all(ModelId model) {
  view_.kinds.visit(model, [&](ModelId as) {
    for (const Class cls : all_classes) {
      const std::uint32_t line = line_of(as, cls);
      if (life_.waiting().head(as, cls) != nullptr || looks_.contains(line)) look_soon(line);
    }
  });
}

void Lines::look_at_next() {
  for (std::size_t i = std::min(changed_, models_looked_at); i > 0; --i, --changed_) {
    if (next_changed_ >= view_.plan.models()) next_changed_ = 0;
    look_at_all(ModelId{static_cast<std::uint32_t>(next_changed_++)});
    ++looked_at_;
  }
}

void Lines::step(Orders& out) {
  if (changed_ > 0) look_at_next();
  while (looks_.top_at() <= out.time()) {
    const std::uint32_t line = looks_.top();
    deferral_.woken(looks_.top_at(), out.time());
    if (!deferral_.held(line) || !waits_on(line, out)) look(line, out);
  }
  for (const std::uint32_t line : due_) {
    due_now_[line] = false;
    look(line, out);
  }
  due_.clear();
  for (const std::uint32_t line : come_) comes(line, out);
  come_.clear();
}

// A request came. Mostly nothing follows from it but that one more waits.
void Lines::comes(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  if (head == nullptr) return look(line, out);
  const std::size_t rows = life_.waiting().size(model, cls);
  if (deferral_.holds(line, *head, rows, out.time())) return count(line, head, rows, out);
  if (!deferral_.waits(line) || !waits_on(line, out)) look(line, out);
}

// True: a batch of the line still waits for more requests, and a look would change nothing but until when.
bool Lines::waits_on(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  if (head == nullptr || tells_too_late(cls, out)) return false;
  const std::size_t rows = life_.waiting().size(model, cls);
  const Times times = view_.in_time.times(life_.streams(cls), out.ledger(), out.time());
  const auto ready = deferral_.with_more(line, *head, rows, times, out);
  if (!ready) return false;
  count(line, head, rows, out);
  looks_.set(line, *ready);
  return true;
}

// So much of the line waits.
void Lines::count(std::uint32_t line, const Waiting::Head* head, std::size_t rows, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const parts::Plan& plan = view_.plan;
  if (cls != Class::best_effort && view_.options.backlog > 0) {
    const auto& times = plan.times(model);
    const int index = plan.known(model)
                          ? std::min(plan.planned(model), times.index_for(std::max<std::size_t>(1, rows)))
                          : 0;
    const double work = static_cast<double>(rows) * times.each(index);
    const TimePoint deadline = head == nullptr ? TimePoint::max() : head->deadline;
    shortage_.waits(line, rows, work, deadline, out.time());
    if (fair_.on()) fair_.waits(line, rows, work, deadline, out.time());
  }
  if (!placing_.any()) return;
  const ModelId whole = view_.kinds.model(model);
  if (whole.index() < out.ledger().models()) placing_.waits(whole, life_.waiting(), out);
}

void Lines::look(std::uint32_t line, Orders& out) {
  ++looked_at_;
  const auto [model, cls] = Waiting::of_line(line);
  ready_.remove(line);
  deferral_.forget(line);
  refuse_too_late(model, cls, out);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  count(line, head, head == nullptr ? 0 : life_.waiting().size(model, cls), out);
  if (head == nullptr || !view_.free.fastest()) {
    looks_.remove(line);
    return deferral_.lost(model, out.time());
  }
  const DeviceId fastest = *view_.free.fastest();
  const Times times = view_.in_time.times(life_.streams(cls), out.ledger(), out.time());
  const TimePoint start = out.time() + times.dispatch(fastest);
  const auto choice = batches_.first_batch(*head, times, fastest, start, out.ledger(), out.time());
  if (!choice) {
    looks_.remove(line);
    // Perhaps another device can.
    return ready_.put({cls, turn_.rest(line, out.time()), head->deadline, line});
  }
  const TimePoint ready = deferral_.starts(*head, *choice, times, start, out);
  if (ready > out.time()) return looks_.set(line, ready);
  ready_.put(turn_.key(line, *choice, out.time()));
  looks_.set(line, std::max(saturating_add(choice->latest(), Duration{1}), out.time() + Duration{1}));
}

// With few devices requests of the class are refused early.
bool Lines::tells_too_late(Class cls, const Orders& out) const {
  return cls == Class::normal && view_.free.fastest() && out.ledger().alive() <= few_devices;
}

// What no device will be free for in time, nor make way for, is told so at once.
void Lines::refuse_too_late(ModelId model, Class cls, Orders& out) {
  if (!tells_too_late(cls, out)) return;
  const Times usual = view_.in_time.times(life_.streams(cls), out.ledger(), out.time());
  const double late = view_.in_time.accepted_of_idle(*view_.free.fastest(), model, usual);
  const Times times = view_.in_time.times(life_.streams(cls), out.ledger(), out.time(), late);
  while (const Waiting::Head* const head = life_.waiting().head(model, cls)) {
    const auto ends = parts::too_late(view_.free, *head, view_.kinds.model(model), times, view_.overtakes,
                                      out.ledger(), out.time());
    if (!ends) return;
    life_.refuse(head->id, Reason::cannot_finish, *ends, out);
  }
}

void Lines::send(std::uint32_t line, DeviceId device, const Choice& choice, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head head = *life_.waiting().head(model, cls);
  deferral_.answered(model, choice.batch.rows, out.time());
  if (fair_.on() && cls != Class::real_time)
    fair_.sent(line, choice.batch.rows, choice.batch.exec, out.time());
  if (batches_.refuses_passed(head, choice, out.ledger(), out.time()))
    life_.refuse_before(model, cls, choice.deadline, out);
  parts::send(life_, device, head, choice, out.time(), out);
}

void Lines::doubt(std::uint32_t line, TimePoint now) {
  looks_.set(line, std::min(looks_.contains(line) ? looks_.at(line) : TimePoint::max(), now + doubted_after));
}

}  // namespace carillon::schedule
