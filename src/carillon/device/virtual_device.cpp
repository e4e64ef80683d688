#include "carillon/device/virtual_device.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::device {

VirtualDevice::VirtualDevice(const Limits& limits, Duration clock, Host& host,
                             std::optional<Duration> stops_within)
    : core_(limits),
      clock_(clock),
      host_(host),
      stops_within_(stops_within),
      turns_(first_stream + limits.streams, TimePoint::max()) {}

void VirtualDevice::plan(TimePoint at, What what, std::uint32_t stamp, std::uint32_t detail) {
  host_.plan(at, (static_cast<std::uint64_t>(what) << 56) |
                     (static_cast<std::uint64_t>(stamp & 0xffffffU) << 32) | detail);
}

void VirtualDevice::take(Slot slot, const Work& work, TimePoint now) {
  if (runs_.size() <= slot) runs_.resize(slot + 1);
  Run& run = runs_[slot];
  run = {.work = work, .start = now, .end = now, .stamp = run.stamp + 1};
}

bool VirtualDevice::submit(const LoadAction& action, const Work& work, TimePoint now) {
  const Slot slot = core_.submit(action, shown(now), commands_);
  if (slot == no_slot) return false;
  take(slot, work, now);
  run(now);
  return true;
}

bool VirtualDevice::submit(const UnloadAction& action, std::uint64_t tag, TimePoint now) {
  const Slot slot = core_.submit(action, shown(now), commands_);
  if (slot == no_slot) return false;
  take(slot, {.tag = tag}, now);
  run(now);
  return true;
}

bool VirtualDevice::submit(const InferAction& action, const Work& work, TimePoint now) {
  CARILLON_ASSERT(work.kernels >= 1);
  const Slot slot = core_.submit(action, shown(now), commands_);
  if (slot == no_slot) return false;
  take(slot, work, now);
  run(now);
  return true;
}

void VirtualDevice::evict(ActionId id, After after, TimePoint order, TimePoint now) {
  core_.evict(id, after, order, shown(now), commands_);
  run(now);
}

bool VirtualDevice::cancel(ActionId id, TimePoint now) {
  const bool cancelled = core_.cancel(id, shown(now), commands_);
  run(now);
  return cancelled;
}

void VirtualDevice::event(std::uint64_t what, TimePoint now) {
  const auto detail = static_cast<std::uint32_t>(what);
  const auto stamp = static_cast<std::uint32_t>(what >> 32) & 0xffffffU;
  switch (static_cast<What>(what >> 56)) {
    case What::turn: {
      const auto executor = static_cast<Executor>(detail);
      if (turns_[executor] > now) return;  // another was planned; this one may come late
      turns_[executor] = TimePoint::max();
      turn(executor, now);
      break;
    }
    case What::gathered:
      gathered(detail, now);
      break;
    case What::end: {
      Run& r = runs_[detail];
      if (!r.running || (r.stamp & 0xffffffU) != stamp) return;
      r.running = false;
      r.end = now;
      r.busy += now - r.segment;
      if (core_.kind(detail) == ActionKind::load) {
        end(r, r.work.outcome);
        core_.copied(detail, r.work.outcome == ActionStatus::success, shown(now), commands_);
      } else {
        const Executor stream = core_.executor(detail);
        const bool whole = r.next == r.work.kernels;
        if (whole || core_.dropped(detail)) end(r, whole ? r.work.outcome : ActionStatus::stopped);
        core_.ended(detail, r.next, whole && r.work.outcome == ActionStatus::failed, shown(now), commands_);
        // What waits starts, or is refused, before anybody hears of the end.
        ended_ = detail;
        turn(stream, now);
      }
      break;
    }
  }
  run(now);
}

void VirtualDevice::gathered(Slot slot, TimePoint now) {
  const Work& work = runs_[slot].work;
  const bool there = work.outcome != ActionStatus::no_memory;
  core_.gathered(slot,
                 {.status = there ? ActionStatus::success : ActionStatus::no_memory, .kernels = work.kernels},
                 shown(now), commands_);
}

void VirtualDevice::end(Run& run, ActionStatus status) {
  if (!std::exchange(run.told, true)) host_.ends(run.work.tag, status);
}

void VirtualDevice::stall(Executor executor, Duration extra) {
  for (Slot slot = 0; slot < runs_.size(); ++slot) {
    Run& r = runs_[slot];
    const bool loads = core_.kind(slot) == ActionKind::load;
    if (!r.running || executor != (loads ? load_executor : core_.executor(slot))) continue;
    if (stops_within_ && !loads && r.left == 0) continue;  // it is being stopped
    r.end += extra;
    plan(r.end, What::end, ++r.stamp, slot);
  }
}

void VirtualDevice::turn(Executor executor, TimePoint now) {
  const TimePoint next = core_.turn(executor, shown(now), commands_);
  if (next == TimePoint::max()) return;
  const TimePoint at = std::max(now, saturating_add(next, -clock_));
  if (turns_[executor] == at) return;
  turns_[executor] = at;
  plan(at, What::turn, 0, executor);
}

void VirtualDevice::begin(Slot slot, int kernel, TimePoint now) {
  Run& r = runs_[slot];
  const bool infer = core_.kind(slot) == ActionKind::infer;
  const int left = infer ? r.work.kernels - kernel : 1;
  const Duration planned = infer && kernel > 0 ? r.work.time * left / r.work.kernels : r.work.time;
  if (!r.ran) r.start = now;
  r.running = true;
  r.segment = now;
  const Duration takes = host_.begins(r.work.tag, planned, std::exchange(r.ran, true));
  r.left = left;
  r.kernel = takes / left;
  r.end = now + takes;
  r.next = infer ? r.work.kernels : 1;
  plan(r.end, What::end, ++r.stamp, slot);
}

// The run ends before its next kernel, or inside one.
void VirtualDevice::cut(Slot slot, TimePoint now) {
  Run& r = runs_[slot];
  if (r.kernel <= Duration{0} || r.left == 0) return;
  if (stops_within_) {
    if (r.end - now <= *stops_within_) {
      r.left = 0;  // it ends by itself before; no stall keeps it
      return;
    }
    r.next -= static_cast<int>(std::min<std::int64_t>(r.left, (r.end - now + r.kernel - 1ns) / r.kernel));
    r.end = now + *stops_within_;
    r.left = 0;
    plan(r.end, What::end, ++r.stamp, slot);
    return;
  }
  // Of equal kernels, counted from the end, so that rounding makes none longer than the run.
  const std::int64_t left = std::min<std::int64_t>(r.left, (r.end - now) / r.kernel);
  if (left <= 0) return;  // its last has begun
  r.end -= left * r.kernel;
  r.next -= static_cast<int>(left);
  r.left = 0;
  plan(r.end, What::end, ++r.stamp, slot);
}

void VirtualDevice::handle(const Command& command, TimePoint now) {
  using Kind = Command::Kind;
  switch (command.kind) {
    case Kind::wake:
      turn(command.executor, now);
      break;
    case Kind::copy:
      begin(command.slot, 0, now);
      break;
    case Kind::unmap:
      runs_[command.slot].ran = true;
      runs_[command.slot].start = runs_[command.slot].end = now;
      core_.unmapped(command.slot, shown(now), commands_);
      break;
    case Kind::gather: {
      const Work& work = runs_[command.slot].work;
      if (work.input > Duration{0})
        plan(now + work.input, What::gathered, 0, command.slot);
      else
        gathered(command.slot, now);
      break;
    }
    case Kind::launch:
      begin(command.slot, command.kernel, now);
      break;
    case Kind::evict:
      cut(command.slot, now);
      break;
    case Kind::scatter:
      core_.scattered(command.slot, shown(now), commands_);
      break;
    case Kind::report: {
      Run& r = runs_[command.slot];
      end(r, command.status);
      const Done done{.tag = r.work.tag,
                      .status = command.status,
                      .failure = command.failure,
                      .ran = r.ran,
                      .start = r.ran ? r.start : now,
                      // Stopped while it waited to resume, it ends with that.
                      .end = r.ran && command.status != ActionStatus::stopped ? r.end : now,
                      .busy = r.busy};
      if (command.slot == ended_ && command.status == ActionStatus::success)
        last_ = done;
      else
        done_.push_back(done);
      break;
    }
  }
}

// Carries out what the core says, and then tells of what ended: whoever hears of it may submit.
void VirtualDevice::run(TimePoint now) {
  while (handled_ < commands_.size()) handle(Command(commands_[handled_++]), now);
  commands_.clear();
  handled_ = 0;
  ended_ = no_slot;
  if (last_) done_.push_back(*std::exchange(last_, std::nullopt));
  while (told_ < done_.size()) {
    const Done done = done_[told_++];
    host_.done(done);
  }
  done_.clear();
  told_ = 0;
}

}  // namespace carillon::device
