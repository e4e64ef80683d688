#include "carillon/research/unit_device.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::research {

UnitDevice::UnitDevice(int units, std::size_t streams, const UnitDeviceOptions& options, std::uint64_t seed,
                       std::vector<UnitObserver*> observers)
    : units_(units),
      free_(units),
      options_(options),
      observers_(std::move(observers)),
      random_(seed),
      streams_(streams),
      pipes_(static_cast<std::size_t>(options.pipes)) {
  CARILLON_ASSERT(units >= 1 && options.pipes >= 1);
}

void UnitDevice::schedule(TimePoint at, What what, Queue queue, std::uint64_t generation,
                          std::uint32_t round) {
  timers_.push(
      {.at = at, .order = order_++, .what = what, .queue = queue, .generation = generation, .round = round});
}

void UnitDevice::launch(const ShareCommand& command, std::span<const Duration> rounds, TimePoint now) {
  Stream& stream = streams_[command.queue];
  CARILLON_ASSERT(!stream.evicting && command.blocks >= 1);
  CARILLON_ASSERT(command.spread.units >= 1 && command.spread.units <= units_);
  CARILLON_ASSERT(command.spread.depth >= 1 && command.spread.depth <= static_cast<int>(rounds.size()));
  stream.queue.push_back({.command = command, .rounds = rounds, .left = command.blocks});
  if (stream.queue.size() > 1) return;
  TimePoint ready = now + options_.dispatch;
  if (command.priority) ready = std::max(ready, *std::ranges::max_element(pipes_));
  schedule(ready, What::ready, command.queue, stream.generation);
}

void UnitDevice::evict(Queue queue, bool kill, TimePoint now) {
  Stream& stream = streams_[queue];
  CARILLON_ASSERT(!stream.evicting);
  tell([&](UnitObserver& observer) { observer.evicting(queue, kill, now); });
  stream.evicting = true;
  const bool runs = !stream.queue.empty() && stream.queue.front().units_running > 0;
  const std::size_t kept = runs ? 1 : 0;
  const auto dismissed = static_cast<std::int64_t>(stream.queue.size() - kept);
  while (stream.queue.size() > kept) {
    tell([&](UnitObserver& observer) { observer.launch_dismissed(queue, stream.queue.back().command, now); });
    stream.queue.pop_back();
  }
  stream.killing = kill;
  if (!runs || kill) std::erase(waiting_, queue);
  if (!runs) ++stream.generation;
  if (!kill && runs) {
    stream.to_dismiss = dismissed;
    return;
  }
  const TimePoint done = dismiss(dismissed, now);
  schedule(kill ? done + options_.kill : done, What::evicted, queue, stream.generation);
}

TimePoint UnitDevice::dismiss(std::int64_t count, TimePoint now) {
  TimePoint& pipe = *std::ranges::min_element(pipes_);
  pipe = std::max(pipe, now + options_.reset_host) + options_.dismiss * count;
  return pipe;
}

TimePoint UnitDevice::next() const {
  return timers_.empty() ? TimePoint::max() : timers_.top().at;
}

void UnitDevice::make_ready(Queue queue) {
  const auto goes_before = [&](Queue a, Queue b) {
    const bool urgent_a = streams_[a].queue.front().command.priority;
    const bool urgent_b = streams_[b].queue.front().command.priority;
    return urgent_a && !urgent_b;
  };
  waiting_.insert(std::ranges::upper_bound(waiting_, queue, goes_before), queue);
}

void UnitDevice::dispatch(TimePoint now) {
  while (free_ > 0 && !waiting_.empty()) {
    const Queue queue = waiting_.front();
    const Entry& first = streams_[queue].queue.front();
    const ShareCommand& command = first.command;
    const int wanted = std::min(command.spread.units - first.units_running, first.left);
    if (wanted <= 0) {  // it has all that it may; it comes back as a round of it ends
      waiting_.erase(waiting_.begin());
      continue;
    }
    if (command.priority && free_ < wanted) return;
    start(queue, std::min(wanted, free_), now);
  }
}

void UnitDevice::start(Queue queue, int units, TimePoint now) {
  Stream& stream = streams_[queue];
  Entry& first = stream.queue.front();
  const int depth = std::min(first.command.spread.depth, (first.left + units - 1) / units);
  const int blocks = std::min(first.left, units * depth);
  if (first.units_running == 0 && first.left == first.command.blocks)
    first.slower = free_ < units_ ? 1 + options_.interference : 1;
  first.left -= blocks;
  first.units_running += units;
  free_ -= units;
  double factor = first.slower;
  if (options_.noise > 0) factor *= std::max(0.5, 1 + options_.noise * random_.normal());
  const Duration time =
      from_ns(static_cast<double>(first.rounds[static_cast<std::size_t>(depth) - 1].count()) * factor);
  std::uint32_t index = 0;
  if (free_rounds_.empty()) {
    index = static_cast<std::uint32_t>(rounds_.size());
    rounds_.emplace_back();
  } else {
    index = free_rounds_.back();
    free_rounds_.pop_back();
  }
  rounds_[index] = {
      .queue = queue, .generation = stream.generation, .units = units, .blocks = blocks, .started = now};
  schedule(now + time, What::round, queue, stream.generation, index);
  tell([&](UnitObserver& observer) {
    observer.round_started(queue, first.command, units, blocks, now, now + time);
  });
  if (first.left == 0) std::erase(waiting_, queue);
}

// The first in the stream's queue has gone: the next may start at once.
void UnitDevice::first_goes(Stream& stream, Queue queue, TimePoint now) {
  stream.queue.pop_front();
  ++stream.generation;
  if (!stream.queue.empty()) make_ready(queue);
  if (stream.to_dismiss >= 0)
    schedule(dismiss(stream.to_dismiss, now), What::evicted, queue, stream.generation);
}

std::optional<UnitDevice::Event> UnitDevice::empty(Queue queue, TimePoint now) {
  Stream& stream = streams_[queue];
  if (!stream.queue.empty()) {
    const Entry& first = stream.queue.front();
    for (Round& round : rounds_) {
      if (round.units == 0 || round.queue != queue || round.generation != stream.generation) continue;
      tell([&](UnitObserver& observer) {
        observer.round_killed(queue, first.command, round.units, round.blocks, round.started, now);
      });
      free_ += round.units;
      round.units = 0;  // its timer finds it so
    }
    tell([&](UnitObserver& observer) { observer.launch_killed(queue, first.command, now); });
    std::erase(waiting_, queue);
    stream.queue.clear();
    ++stream.generation;
  }
  stream.evicting = stream.killing = false;
  stream.to_dismiss = -1;
  tell([&](UnitObserver& observer) { observer.evicted(queue, now); });
  dispatch(now);
  return Event{.kind = Event::Kind::evicted, .queue = queue, .at = now};
}

std::optional<UnitDevice::Event> UnitDevice::step() {
  const Timer timer = timers_.top();
  timers_.pop();
  Stream& stream = streams_[timer.queue];
  switch (timer.what) {
    case What::ready:
      if (timer.generation != stream.generation || stream.queue.empty()) return std::nullopt;
      make_ready(timer.queue);
      dispatch(timer.at);
      return std::nullopt;
    case What::round: {
      Round& round = rounds_[timer.round];
      free_rounds_.push_back(timer.round);
      if (round.units == 0) return std::nullopt;  // killed
      Entry& first = stream.queue.front();
      first.units_running -= round.units;
      free_ += round.units;
      tell([&](UnitObserver& observer) {
        observer.round_ended(timer.queue, first.command, round.units, round.blocks, round.started, timer.at);
      });
      round.units = 0;
      std::optional<Event> event;
      if (first.left == 0 && first.units_running == 0) {
        tell([&](UnitObserver& observer) { observer.launch_ended(timer.queue, first.command, timer.at); });
        first_goes(stream, timer.queue, timer.at);
        event = Event{.kind = Event::Kind::ended, .queue = timer.queue, .at = timer.at};
      } else if (first.left > 0 && !stream.killing &&
                 std::ranges::find(waiting_, timer.queue) == waiting_.end()) {
        make_ready(timer.queue);
      }
      dispatch(timer.at);
      return event;
    }
    case What::evicted:
      return empty(timer.queue, timer.at);
  }
  return std::nullopt;
}

}  // namespace carillon::research
