#include "carillon/research/sharing/sharing.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::research {
namespace {

// Launches that a stream may have whose number no option bounds: what a host's queue holds.
constexpr std::size_t most_in_flight = 512;

}  // namespace

Sharing::Sharing(const SharingOptions& options) : options_(options) {}

std::uint32_t Sharing::add_plan(KernelPlan plan) {
  plans_.push_back(std::move(plan));
  return static_cast<std::uint32_t>(plans_.size() - 1);
}

Queue Sharing::add_queue(Class cls, std::size_t waiting) {
  CARILLON_ASSERT(queues_.size() < 1024 && waiting >= 1);
  const auto queue = static_cast<Queue>(queues_.size());
  Stream& stream = queues_.emplace_back();
  stream.cls = cls == Class::real_time ? cls : Class::best_effort;
  stream.waiting.set_capacity(waiting);
  stream.flight.set_capacity(most_in_flight);
  by_class_[cls == Class::real_time ? 0 : 1].push_back(queue);
  queue_added(queue);
  return queue;
}

bool Sharing::full(Queue queue) const {
  return queues_[queue].waiting.full();
}

TimePoint Sharing::submit(Queue queue, const RunSpec& spec, TimePoint now, ShareCommands& out) {
  Stream& to = queues_[queue];
  CARILLON_ASSERT(!to.waiting.full() && spec.plan < plans_.size());
  to.waiting.push_back({.spec = spec, .order = asked_++, .at = now});
  if (to.cls == Class::real_time) ++real_time_open_;
  return submitted(queue, now, out);
}

TimePoint Sharing::ended(Queue queue, TimePoint now, ShareCommands& out) {
  Stream& of = queues_[queue];
  CARILLON_ASSERT(of.active && !of.flight.empty());
  const Flight flight = of.flight.front();
  of.flight.pop_front();
  const KernelPlan& plan = plan_of(of);
  const int after = flight.first + flight.blocks;
  const bool kernel_over = after == plan.kernel(flight.kernel).blocks;
  const int ran = kernel_over ? flight.kernel + 1 : flight.kernel;
  const int ran_first = kernel_over ? 0 : after;
  if (std::pair(of.kernel_ran, of.first_ran) < std::pair(ran, ran_first)) {
    of.kernel_ran = ran;
    of.first_ran = ran_first;
  }
  if (ran == plan.kernels()) {
    CARILLON_ASSERT(of.flight.empty());
    of.active = false;
    if (of.cls == Class::real_time) --real_time_open_;
    out.push_back({.kind = ShareCommand::Kind::finished, .queue = queue, .run = of.run.spec.run});
  }
  return advanced(queue, flight, now, out);
}

TimePoint Sharing::evicted(Queue queue, TimePoint now, ShareCommands& out) {
  Stream& of = queues_[queue];
  CARILLON_ASSERT(of.evicting);
  of.evicting = false;
  if (!of.flight.empty()) killed(queue, of.flight.front());
  if (of.active) {
    if (options_.knows_kernel) {
      if (!of.flight.empty()) {
        of.kernel = of.flight.front().kernel;
        of.first = of.flight.front().first;
      }
    } else if (!of.flight.empty()) {
      // Known are the last kernel that was launched, and how many launches had not ended.
      const int last = of.first > 0 ? of.kernel : of.kernel - 1;
      const int back = std::min(options_.in_flight, static_cast<int>(of.flight.size()));
      of.kernel = std::max(of.resumed, last + 1 - back);
      of.first = 0;
      of.resumed = of.kernel;
    }
  }
  of.flight.clear();
  return emptied(queue, now, out);
}

TimePoint Sharing::tick(TimePoint now, ShareCommands& out) {
  return ticked(now, out);
}

bool Sharing::begin(Stream& stream) {
  if (stream.active) return true;
  if (stream.waiting.empty()) return false;
  stream.run = stream.waiting.front();
  stream.waiting.pop_front();
  stream.active = true;
  stream.kernel = stream.first = stream.kernel_ran = stream.first_ran = stream.resumed = 0;
  return true;
}

void Sharing::launch(Queue queue, int blocks, const Spread& spread, bool priority, TimePoint now,
                     ShareCommands& out) {
  Stream& on = queues_[queue];
  const KernelPlan::Kernel& kernel = plan_of(on).kernel(on.kernel);
  CARILLON_ASSERT(on.active && !on.evicting && blocks >= 1 && on.first + blocks <= kernel.blocks);
  CARILLON_ASSERT(spread.units >= 1 && spread.depth >= 1 && spread.depth <= kernel.deepest);
  const TimePoint begin = on.flight.empty() ? now + options_.dispatch : std::max(now, on.flight.back().end);
  on.flight.push_back({.kernel = on.kernel,
                       .first = on.first,
                       .blocks = blocks,
                       .spread = spread,
                       .end = begin + spread.time});
  out.push_back({.kind = ShareCommand::Kind::launch,
                 .queue = queue,
                 .priority = priority,
                 .again = std::pair(on.kernel, on.first + blocks) <= std::pair(on.kernel_ran, on.first_ran) ||
                          on.kernel < on.kernel_ran,
                 .run = on.run.spec.run,
                 .plan = on.run.spec.plan,
                 .kernel = on.kernel,
                 .first = on.first,
                 .blocks = blocks,
                 .spread = spread});
  on.first += blocks;
  if (on.first == kernel.blocks) {
    ++on.kernel;
    on.first = 0;
  }
}

void Sharing::launch_whole(Queue queue, bool priority, TimePoint now, ShareCommands& out) {
  const Stream& on = queues_[queue];
  const KernelPlan& plan = plan_of(on);
  const KernelPlan::Kernel& kernel = plan.kernel(on.kernel);
  const int blocks = kernel.blocks - on.first;
  Spread spread = kernel.alone;
  spread.time = plan.time(kernel, blocks, spread.units, spread.depth);
  launch(queue, blocks, spread, priority, now, out);
}

void Sharing::evict(Queue queue, bool kill, TimePoint, ShareCommands& out) {
  Stream& of = queues_[queue];
  CARILLON_ASSERT(!of.evicting);
  of.evicting = true;
  out.push_back({.kind = ShareCommand::Kind::evict, .queue = queue, .kill = kill});
}

std::optional<Queue> Sharing::most_urgent() const {
  std::optional<Queue> best;
  std::pair<TimePoint, std::uint64_t> earliest;
  for (const Queue queue : of(Class::real_time)) {
    const Stream& stream = queues_[queue];
    if (!stream.wants()) continue;
    const Asked& asked = stream.active ? stream.run : stream.waiting.front();
    const std::pair key{asked.spec.deadline, asked.order};
    if (!best || key < earliest) {
      best = queue;
      earliest = key;
    }
  }
  return best;
}

}  // namespace carillon::research
