#pragma once

#include <cstddef>
#include <iterator>
#include <optional>

#include "carillon/schedule/parts/times.h"
#include "carillon/schedule/parts/waiting.h"
#include "carillon/schedule/policy.h"

namespace carillon::schedule::parts {

// What a device runs of a line.
struct Choice {
  Times::Batch batch;
  TimePoint deadline;  // of the batch's first request: the batch takes requests from there on
  // When it has to start at the latest.
  TimePoint latest() const { return saturating_add(deadline, -batch.span); }
};

// The line's first requests, in the largest batch that is in time for the first of all. But once a line is
// too long for its deadlines, its first requests leave ever less time, and ever smaller batches would serve
// ever fewer of them. So a larger batch of later requests goes first, where it would come too late behind the
// first one. None: no request of the line is in time on that device from `start` on. O(batch sizes x (rows of
// a batch + log line)).
inline std::optional<Choice> choose(const Waiting::Line& line, const Times& times, DeviceId device,
                                    ModelId model, TimePoint start) {
  const TimePoint deadline = line.begin()->first;
  const auto first = times.fitting(device, model, line.size(), start, deadline);
  for (std::size_t i = times.model(model).batches.size(); i-- > 0;) {
    const Times::Batch batch = times.batch(device, model, i);
    if (batch.rows > line.size()) continue;
    if (first && batch.rows <= first->rows) break;
    auto last = line.lower_bound({saturating_add(start, batch.span), RequestId{0}});
    const auto from = last;
    std::size_t in_time = 0;
    for (; in_time < batch.rows && last != line.end(); ++last) ++in_time;
    if (in_time < batch.rows) continue;
    if (first && std::next(line.begin(), static_cast<std::ptrdiff_t>(first->rows))->first >=
                     saturating_add(start, first->exec + batch.span))
      break;
    return Choice{batch, from->first};
  }
  if (!first) return std::nullopt;
  return Choice{*first, deadline};
}

// The same of the head's line. Where no request would be in time on the device, its estimates are
// doubted first: else a device whose estimates are too long gets nothing that could mend them.
inline std::optional<Choice> choose(const Waiting& waiting, const Waiting::Head& head, const Times& times,
                                    DeviceId device, TimePoint start, Orders& out) {
  const Waiting::Line& line = waiting.line(head.model, head.cls);
  const auto choice = choose(line, times, device, head.model, start);
  if (choice || !out.doubt(head.model, times.streams(), head.deadline - start)) return choice;
  return choose(line, times, device, head.model, start);
}

}  // namespace carillon::schedule::parts
