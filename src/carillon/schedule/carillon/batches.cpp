#include "carillon/schedule/carillon/batches.h"

#include <algorithm>

#include "carillon/schedule/parts/heads.h"

namespace carillon::schedule {
namespace {

// A run that is late with no higher a chance is likely to be in time.
constexpr double likely_late = 0.1;

}  // namespace

std::optional<parts::Choice> Batches::choose(const Waiting::Head& head, const Times& times, DeviceId device,
                                             TimePoint start, bool hope, Orders& out) const {
  auto sure = promised(head, times, device, start, out);
  if (!hope || (sure && sure->deadline <= head.deadline)) return sure;
  const double late = view_.in_time.accepted(device, head.model, times, out.ledger());
  if (late <= 0) return sure;
  const auto first = [&](double chance) {
    const Times hoped = view_.in_time.times(times.streams(), out.ledger(), out.time(), chance);
    return first_batch(head, hoped, device, start, out.ledger(), out.time());
  };
  // Batches are larger where more may be late: what is likely goes before what is large.
  auto choice = first(std::min(likely_late, late));
  if (!choice && late > likely_late) choice = first(late);
  return choice ? choice : sure;
}

// What keeps what is promised. The device's estimates are doubted where the first request would be in time at
// the pace of its other runs: else a device whose estimates are too long gets nothing that could mend them.
std::optional<parts::Choice> Batches::promised(const Waiting::Head& head, const Times& times, DeviceId device,
                                               TimePoint start, Orders& out) const {
  if (auto choice = first_batch(head, times, device, start, out.ledger(), out.time())) return choice;
  const double seed = static_cast<double>(times.model(head.model).batches.front().exec.count());
  const TimePoint end = saturating_add(start, from_ns(seed * view_.plan.paces().of(device, out.time())));
  if (end > head.deadline || !out.doubt(head.model, times.streams(), head.deadline - start))
    return std::nullopt;
  return first_batch(head, times, device, start, out.ledger(), out.time());
}

std::optional<parts::Choice> Batches::first_batch(const Waiting::Head& head, const Times& times,
                                                  DeviceId device, TimePoint start,
                                                  const ledger::Ledger& ledger, TimePoint now) const {
  const parts::Plan& plan = view_.plan;
  const Waiting::Line& line = view_.life.waiting().line(head.model, head.cls);
  const std::size_t limit = largest_batch(line_of(head.model, head.cls), now);
  if (auto all = parts::choose_all(line, times, device, head.model, start, limit)) return all;
  parts::Outlook outlook{.next_after = view_.waits.mean(head.model),
                         .rate = plan.rate(head.model),
                         .contention = view_.shortage.contention(),
                         .enough = enough(head.model, ledger, now)};
  if (plan.known(head.model))
    outlook.planned = static_cast<std::size_t>(plan.times(head.model).batch_size(plan.planned(head.model)));
  if (view_.fair.on() && view_.fair.first(line_of(head.model, head.cls), now)) {  // none is passed over
    outlook.contention = 0;
    outlook.enough = 0;
  }
  return parts::Heads(line, times, device, head.model, outlook).choose(start, limit, now);
}

std::size_t Batches::largest_batch(std::uint32_t line, TimePoint now) const {
  const auto [model, cls] = Waiting::of_line(line);
  const std::size_t most = view_.plan.limit(model);
  if (!view_.fair.on() || cls == Class::real_time) return most;
  const std::size_t least = view_.fair.limit(line, view_.plan.times(model), now);
  return most > 0 && least > 0 ? std::min(most, least) : std::max(most, least);
}

// Arrivals are less regular than the plan takes them for, so that a smaller batch than the planned will do.
// Where more waits than the devices have time for, rates are so much higher than the plan knows: then so much
// larger batches come together in the same time. The plan tells nothing where the rates ask for more than
// there is.
std::size_t Batches::enough(ModelId model, const ledger::Ledger& ledger, TimePoint now) const {
  const parts::Plan& plan = view_.plan;
  if (view_.options.hold <= 0 || !plan.known(model) || plan.contention() >= 1 || !view_.free.alike())
    return 0;
  const double load = view_.shortage.backlog().load(ledger.alive(), now);
  const double size = plan.times(model).batch_size(plan.planned(model)) * view_.options.hold;
  return static_cast<std::size_t>(std::clamp(size * std::max(1.0, load), 1.0, 1e9));
}

// What is passed over would go in a small batch later, and cost the time of a larger. But a faster device may
// have another use for it, and so may the next moment while more waits than there is time for.
bool Batches::refuses_passed(const Waiting::Head& head, const Choice& choice, const ledger::Ledger& ledger,
                             TimePoint now) const {
  return choice.deadline > head.deadline && !view_.shortage.pressed() && enough(head.model, ledger, now) > 0;
}

}  // namespace carillon::schedule
