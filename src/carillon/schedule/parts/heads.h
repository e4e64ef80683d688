#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

#include "carillon/schedule/parts/order.h"

namespace carillon::schedule::parts {

// What is to be expected of a line, for weighing whether its first requests are worth a small batch.
struct Outlook {
  Duration next_after{0};   // from the start of one batch until the next can start
  double rate = 0;          // of arrivals, requests a second
  std::size_t planned = 1;  // the planned batch size, at least 1
  double contention = 1;    // the chance that a batch finds all devices busy
  std::size_t enough = 0;   // no request is passed over for a batch that is so large without; 0: by none
};

// All that waits in the line, or as much of it as the largest batch of at most `limit` rows (0: of any size)
// takes, where such a batch is in time for the first request: then Heads would choose that. None: Heads has
// to be asked. O(1).
inline std::optional<Choice> choose_all(const Waiting::Line& line, const Times& times, DeviceId device,
                                        ModelId model, TimePoint start, std::size_t limit) {
  const auto largest = static_cast<std::size_t>(times.model(model).batches.back().batch);
  const std::size_t rows = std::min(line.size(), limit > 0 ? std::min(limit, largest) : largest);
  const TimePoint deadline = line.begin()->first;
  const std::size_t sizes = times.end_of_sizes(model, rows);
  if (sizes == 0 || saturating_add(start, times.span(device, model, 0)) > deadline) return std::nullopt;
  const Times::Batch batch = times.batch(device, model, sizes - 1);
  if (batch.rows != rows || saturating_add(start, batch.span) > deadline) return std::nullopt;
  return Choice{batch, deadline};
}

// The line's first requests, in the largest batch of at most `limit` rows (0: of any size) that is in time
// for the first of all. Where later ones would fill a larger batch, the first are passed over if that serves
// more. Two batches in a row are compared, with the first requests and without. Requests that only the second
// way serves are a gain where device time is short: they count by the chance of that. Requests that it passes
// over are a loss where there would have been time: they count by the chance of that. With `enough` requests
// are passed over one by one until a batch is so large, else all that the largest batch would be too late
// for. None: no request is in time on that device from `start` on. O(batch sizes + rows of three batches +
// log line), with `enough` that for each request passed over.
class Heads {
 public:
  Heads(const Waiting::Line& line, const Times& times, DeviceId device, ModelId model, const Outlook& outlook)
      : line_(line), times_(times), device_(device), model_(model), outlook_(outlook) {}

  std::optional<Choice> choose(TimePoint start, std::size_t limit, TimePoint now) const {
    const auto head = line_.lower_bound({saturating_add(start, span(0)), RequestId{0}});
    if (head == line_.end()) return std::nullopt;
    const auto largest = static_cast<std::size_t>(times_.model(model_).batches.back().batch);
    const std::size_t most = rows_from(head, limit > 0 ? std::min(limit, largest) : largest);
    const auto small = fitting(most, start, head->first);
    if (!small) return std::nullopt;  // fewer rows than the smallest batch
    if (small->rows == most) return Choice{*small, head->first};
    if (outlook_.enough > 0) return one_by_one(head, start, most, now);
    for (std::size_t i = times_.end_of_sizes(model_, most); i-- > 0;) {
      const std::size_t large = size(i);
      if (large <= small->rows) break;
      const auto first = line_.lower_bound({saturating_add(start, span(i)), RequestId{0}});
      if (rows_from(first, large) < large) continue;
      if (serves_more(head, small->rows, first, large, start, now))
        return Choice{times_.batch(device_, model_, i), first->first};
      break;
    }
    return Choice{*small, head->first};
  }

 private:
  using Place = Waiting::Line::const_iterator;
  // Further requests before a place count as so many.
  static constexpr std::size_t most_counted = 256;

  std::optional<Choice> one_by_one(Place head, TimePoint start, std::size_t most, TimePoint now) const {
    std::optional<Choice> choice;
    for (std::size_t passed = 0; passed < most_counted && head != line_.end(); ++passed, ++head) {
      most = rows_from(head, most);
      const auto small = fitting(most, start, head->first);
      if (!small) break;  // fewer rows than the smallest batch
      choice = Choice{*small, head->first};
      if (small->rows >= std::min(outlook_.enough, most)) break;
      const auto large = fillable(small->rows, std::min(outlook_.enough, most), start);
      if (!large || !serves_more(head, small->rows, large->first, large->rows, start, now)) break;
    }
    return choice;
  }
  struct Filled {
    std::size_t rows;
    Place first;  // row
  };
  // The rows of a batch of at most `most`, from the first request on for which that size is in time. None:
  // every size of more than `above` rows is too late for all.
  std::optional<Filled> fillable(std::size_t above, std::size_t most, TimePoint start) const {
    for (std::size_t i = times_.end_of_sizes(model_, most); i-- > 0;) {
      if (size(i) <= above) break;
      const Place first = line_.lower_bound({saturating_add(start, span(i)), RequestId{0}});
      const std::size_t sizes = times_.end_of_sizes(model_, rows_from(first, size(i)));
      if (sizes > 0) return Filled{size(sizes - 1), first};
    }
    return std::nullopt;
  }
  bool serves_more(Place head, std::size_t small, Place first, std::size_t large, TimePoint start,
                   TimePoint now) const {
    const TimePoint next = start + outlook_.next_after;
    const double more = static_cast<double>(large + servable(after(first, large), next, now)) -
                        static_cast<double>(small + servable(after(head, small), next, now));
    return outlook_.contention * more > (1 - outlook_.contention) * passed(head, first);
  }
  double passed(Place from, Place to) const {
    std::size_t count = 0;
    for (; from != to && count < most_counted; ++from) ++count;
    return static_cast<double>(count);
  }
  // So many at most.
  std::size_t rows_from(Place from, std::size_t most) const { return line_.count_from(from, most); }
  Place after(Place from, std::size_t rows) const { return line_.after(from, rows); }
  // Rows of a batch that starts then, of what is left from that place on and of what will have come.
  std::size_t servable(Place from, TimePoint start, TimePoint now) const {
    const std::size_t here = rows_from(from, outlook_.planned);
    const auto come = static_cast<std::size_t>(std::min(1e6, outlook_.rate * to_seconds(start - now)));
    const std::size_t most = std::min(here + come, outlook_.planned);
    if (here == 0) return most;
    const auto batch = fitting(most, start, from->first);
    return batch ? batch->rows : 0;
  }
  // See Times.
  std::optional<Times::Batch> fitting(std::size_t requests, TimePoint start, TimePoint deadline) const {
    for (std::size_t i = times_.end_of_sizes(model_, requests); i-- > 0;)
      if (saturating_add(start, span(i)) <= deadline) return times_.batch(device_, model_, i);
    return std::nullopt;
  }
  // By the place of a batch size: its rows, and its span, which is often asked again.
  std::size_t size(std::size_t place) const {
    return static_cast<std::size_t>(times_.model(model_).batches[place].batch);
  }
  Duration span(std::size_t place) const {
    if (place >= spans_.size()) return times_.span(device_, model_, place);
    const std::uint64_t bit = std::uint64_t{1} << place;
    if ((known_ & bit) == 0) spans_[place] = times_.span(device_, model_, place);
    known_ |= bit;
    return spans_[place];
  }

  const Waiting::Line& line_;
  const Times& times_;
  DeviceId device_;
  ModelId model_;
  const Outlook& outlook_;
  mutable std::uint64_t known_ = 0;         // of spans_
  mutable std::array<Duration, 64> spans_;  // those that are known
};

}  // namespace carillon::schedule::parts
