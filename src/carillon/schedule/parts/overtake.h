#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

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

struct Overtaken {
  DeviceId device;
  Waiting::Head head;
};

// Preemption by deadline: the most urgent request that would be late behind what all of the devices run goes
// before the first such run that may wait. Further requests of its model go in the same batch, as many as
// that run's deadline allows. Returns the device and the request's line. What a device will be free for
// counts for every request, so this looks at `most_looked_at` lines and devices at most: O(those), but mostly
// O(devices).
inline std::optional<Overtaken> overtake(Life& life, std::span<const DeviceId> devices, const Times& times,
                                         Orders& out) {
  constexpr std::size_t most_looked_at = 64;
  const ledger::Ledger& ledger = out.ledger();
  struct Found {
    DeviceId device;
    Overtaking over;
    Choice choice;
  };
  // None: it waits for a device, or cannot overtake anything.
  const auto find = [&](const Waiting::Head& head) -> std::optional<Found> {
    std::optional<Found> found;
    for (const DeviceId device : devices.first(std::min(devices.size(), most_looked_at))) {
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
    if (++looked_at > most_looked_at) break;
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
