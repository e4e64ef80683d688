#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "carillon/schedule/parts/free.h"
#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/order.h"
#include "carillon/schedule/parts/times.h"

namespace carillon::schedule::parts {

// Sends what was chosen of the head's line, which starts at `earliest`, or when the device comes to it.
inline void send(Life& life, DeviceId device, const Waiting::Head& head, const Choice& choice,
                 TimePoint earliest, Orders& out) {
  const auto [cls, deadline, id, model] = head;
  const ModelId whole = life.model(model);
  out.infer(device, whole, life.take(model, cls, choice.deadline, choice.batch.rows),
            {earliest, std::max(out.time(), choice.latest())}, choice.batch.exec, life.streams(cls),
            whole == model ? std::nullopt : std::optional(model));
}

// Devices and lines that are looked at for one request that overtakes.
inline constexpr std::size_t overtaking_looks_at = 64;

// The devices on which a run may make way: all that are alive. Of more devices than are looked at in an
// event, the next ones come in the next. O(devices that are looked at). Not thread-safe.
class InTurn {
 public:
  // Valid until the next call.
  std::span<const DeviceId> next(const Free& free, const ledger::Ledger& ledger) {
    found_.clear();
    const std::size_t devices = ledger.devices();
    if (devices <= overtaking_looks_at) {
      free.visit_alive([&](DeviceId device) {
        found_.push_back(device);
        return false;
      });
      return found_;
    }
    for (std::size_t i = 0; i < overtaking_looks_at; ++i) {
      last_ = (last_ + 1) % devices;
      const DeviceId device{static_cast<std::uint32_t>(last_)};
      if (ledger.device(device).alive) found_.push_back(device);
    }
    return found_;
  }

 private:
  std::vector<DeviceId> found_;
  std::size_t last_ = 0;  // the device that was looked at last
};

struct Overtaken {
  DeviceId device;
  Waiting::Head head;
};

// Preemption by deadline: the most urgent request that would be late behind what all of the devices run goes
// before the first such run that may wait. Further requests of its model go in the same batch, as many as
// that run's deadline allows. Returns the device and the request's line. What a device will be free for
// counts for every request, so this looks at `overtaking_looks_at` lines and devices at most: O(those), but
// mostly O(devices).
inline std::optional<Overtaken> overtake(Life& life, std::span<const DeviceId> devices, const Times& times,
                                         Orders& out) {
  const ledger::Ledger& ledger = out.ledger();
  struct Found {
    DeviceId device;
    Overtaking over;
    Choice choice;
  };
  // None: it waits for a device, or cannot overtake anything.
  const auto find = [&](const Waiting::Head& head) -> std::optional<Found> {
    std::optional<Found> found;
    for (const DeviceId device : devices.first(std::min(devices.size(), overtaking_looks_at))) {
      if (!runs_there(ledger, device, life.model(head.model))) continue;
      const Duration dispatch = times.dispatch(device);
      const auto alone = times.batch(device, head.model, 0);
      const TimePoint free = free_at(ledger, device, ledger::Lane::exec, dispatch, out.time());
      if (saturating_add(std::max(free, out.time() + dispatch), alone.span) <= head.deadline)
        return std::nullopt;
      if (found) continue;
      const auto over = overtaking(ledger, device, alone.exec, dispatch, out.time());
      if (!over || saturating_add(over->start, alone.span) > head.deadline) continue;
      found = Found{device, *over, {alone, head.deadline}};
      const auto rows = life.waiting().size(head.model, head.cls);
      const auto batch = times.fitting(device, head.model, rows, over->start, head.deadline);
      if (batch && overtaking(ledger, device, batch->exec, dispatch, out.time()))
        found->choice.batch = *batch;
    }
    return found;
  };
  std::size_t looked_at = 0;
  for (const Waiting::Head& head : life.waiting().heads()) {
    if (++looked_at > overtaking_looks_at) break;
    if (life.streams(head.cls) != Class::normal) continue;
    const auto found = find(head);
    if (!found) continue;
    const Waiting::Head taken = head;
    send(life, found->device, taken, found->choice, found->over.order, out);
    out.preempt(ledger.at(found->over.run), found->over.order + Duration{1});
    return Overtaken{found->device, taken};
  }
  return std::nullopt;
}

}  // namespace carillon::schedule::parts
