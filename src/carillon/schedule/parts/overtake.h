#pragma once

#include <algorithm>
#include <optional>

#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/order.h"
#include "carillon/schedule/parts/times.h"

namespace carillon::schedule::parts {

// Sends what was chosen of the head's line, which starts at `earliest`, or when the device comes to it.
inline void send(Life& life, DeviceId device, const Waiting::Head& head, const Choice& choice,
                 TimePoint earliest, Orders& out) {
  const auto [cls, deadline, id, model] = head;
  out.infer(device, model, life.take(model, cls, choice.deadline, choice.batch.rows),
            {earliest, std::max(out.time(), choice.latest())}, choice.batch.exec, life.streams(cls));
}

// Preemption by deadline: the most urgent request that would be late behind what the device runs goes before
// it, alone, where that may wait. Returns whose it was. O(lines that wait), but mostly O(1).
inline std::optional<Waiting::Head> overtake(Life& life, DeviceId device, const Times& times, Orders& out) {
  for (const Waiting::Head& head : life.waiting().heads()) {
    if (life.streams(head.cls) != Class::normal || !runs_there(out.ledger(), device, head.model)) continue;
    const auto alone = times.batch(device, head.model, 0);
    const auto over = overtaking(out.ledger(), device, alone.exec, times.dispatch(device), out.time());
    if (!over || saturating_add(over->behind, alone.span) <= head.deadline) return std::nullopt;
    if (saturating_add(over->start, alone.span) > head.deadline) continue;
    const Waiting::Head taken = head;
    send(life, device, taken, {alone, taken.deadline}, over->order, out);
    out.preempt(out.ledger().at(over->run), over->order + Duration{1});
    return taken;
  }
  return std::nullopt;
}

}  // namespace carillon::schedule::parts
