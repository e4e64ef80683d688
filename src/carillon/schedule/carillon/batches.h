#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/order.h"

namespace carillon::schedule {

// What the batch of a line is: how many requests it has at most, and whether the first ones are passed over
// for a larger batch (parts::Heads). Keeps nothing. Costs what Heads::choose() costs, or O(1).
class Batches {
  using Choice = parts::Choice;
  using Times = parts::Times;
  using Waiting = parts::Waiting;

 public:
  explicit Batches(const View& view) : view_(view) {}

  // What the device can run of the line from `start` on; none: no request of the line is in time there.
  // `hope`: if no answer can be promised to the first request, then what may be in time (InTime::accepted()).
  // Estimates by which all would be late may be doubted before.
  std::optional<Choice> choose(const Waiting::Head& head, const Times& times, DeviceId device,
                               TimePoint start, bool hope, Orders& out) const;
  // What is in time by `times` as they are.
  std::optional<Choice> first_batch(const Waiting::Head& head, const Times& times, DeviceId device,
                                    TimePoint start, const ledger::Ledger& ledger, TimePoint now) const;
  // So many requests a batch of the line may have, for the sake of others; 0: as many as it likes.
  std::size_t largest_batch(std::uint32_t line, TimePoint now) const;
  // In a batch of so many no request is passed over; 0: by no size (parts::Outlook::enough).
  std::size_t enough(ModelId model, const ledger::Ledger& ledger, TimePoint now) const;
  // Requests that are passed over for this batch are to be refused.
  bool refuses_passed(const Waiting::Head& head, const Choice& choice, const ledger::Ledger& ledger,
                      TimePoint now) const;

 private:
  std::optional<Choice> promised(const Waiting::Head& head, const Times& times, DeviceId device,
                                 TimePoint start, Orders& out) const;

  const View view_;
};

}  // namespace carillon::schedule
