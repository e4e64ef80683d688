#include "carillon/schedule/symphony/model_machine.h"

#include <algorithm>

namespace carillon::schedule::symphony {

ModelMachine::ModelMachine(const ModelInfo& info, const Environment& environment)
    : BatchTimes(info, environment), id_(info.id) {}

int ModelMachine::fitting(std::size_t requests, TimePoint start, TimePoint deadline) const {
  int high = index_for(requests);
  if (high < 0 || start + span(high) <= deadline) return high;
  if (start + span(0) > deadline) return -1;
  int low = 0;  // fits
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (start + span(middle) <= deadline ? low : high) = middle;
  }
  return low;
}

// How many requests a batch can have that starts at `start` with what is at place `from` of the queue and
// with what will have come by then.
int ModelMachine::servable(std::size_t from, TimePoint start, TimePoint now) const {
  const std::size_t here = queue_.size() - std::min(queue_.size(), from);
  const auto come = static_cast<std::size_t>(outlook_->rate * to_seconds(start - now));
  const std::size_t most = std::min(here + come, static_cast<std::size_t>(outlook_->size));
  if (most == 0) return 0;
  const int index = here == 0 ? index_for(most) : fitting(most, start, queue_[from].deadline);
  return index < 0 ? 0 : batch_size(index);
}

// The head allows a batch at `index` only, the first after it one at `wanted`. Counts what two batches in a
// row serve, with the heads in between and without. What the second way serves more would have been late only
// where device time is short, so that it counts by the chance of that, and what it drops by the chance that
// there would have been time for it.
bool ModelMachine::serves_more_without_head(int index, int wanted, TimePoint start, TimePoint now) const {
  const TimePoint next = start + outlook_->next_after;
  const auto served = [&](std::size_t from, int size) {
    return size + servable(from + static_cast<std::size_t>(size), next, now);
  };
  const std::size_t dropped = first_after(start + span(wanted));
  if (dropped == queue_.size()) return false;
  const int size = batch_size(std::min(wanted, index_for(queue_.size() - dropped)));
  const int more = served(dropped, size) - served(0, batch_size(index));
  return outlook_->contention * more > (1 - outlook_->contention) * static_cast<double>(dropped);
}

TimePoint ModelMachine::asks_at(TimePoint now, Duration lead, Duration longest_wait) const {
  return std::max(now + environment_.dispatch,
                  std::min({candidate_->exec_at, saturating_add(candidate_->latest, -lead),
                            saturating_add(queue_.front().arrival, longest_wait)}));
}

// The place of the first request whose deadline is not before that.
std::size_t ModelMachine::first_after(TimePoint deadline) const {
  const auto* const found = std::partition_point(queue_.begin(), queue_.end(),
                                                 [&](const Request& r) { return r.deadline < deadline; });
  return static_cast<std::size_t>(found - queue_.begin());
}

// The place of the largest batch size for which there are requests enough that can wait until it ends.
int ModelMachine::fillable(TimePoint start) const {
  const std::size_t most =
      limit_ > 0 ? std::min(queue_.size(), static_cast<std::size_t>(limit_)) : queue_.size();
  int index = index_for(most);
  while (index > 0 &&
         queue_[queue_.size() - static_cast<std::size_t>(batch_size(index))].deadline < start + span(index))
    --index;
  return index;
}

// The head allows a batch at `index`: makes a larger one of those behind it the candidate, where that serves
// more.
bool ModelMachine::fill(int index, TimePoint start, TimePoint now) {
  const int wanted = fillable(start);
  if (index >= wanted || !serves_more_without_head(index, wanted, start, now)) return false;
  const std::size_t first = first_after(start + span(wanted));
  const TimePoint latest = queue_[first].deadline - span(wanted);
  candidate_ = Candidate{
      .size = batch_size(wanted), .exec_at = start, .latest = latest, .order = latest, .first = first};
  return true;
}

const std::optional<Candidate>& ModelMachine::update(TimePoint now, TimePoint free_at,
                                                     std::vector<Request>& dropped) {
  const TimePoint start = std::max(now + environment_.dispatch, free_at);
  candidate_.reset();
  while (!queue_.empty()) {
    const TimePoint deadline = queue_.front().deadline;
    const std::size_t most =
        limit_ > 0 ? std::min(queue_.size(), static_cast<std::size_t>(limit_)) : queue_.size();
    const int index = fitting(most, start, deadline);
    if (index >= 0 && fills_ && outlook_ && fill(index, start, now)) break;
    // What is lost by going on with this head: the batch stays below the target although there are requests
    // enough.
    bool drop = index < 0;
    if (!drop && !fills_ && target_ > 0 && batch_size(index) < target_) {
      const int wanted = index_for(std::min(queue_.size(), static_cast<std::size_t>(target_)));
      drop = index < wanted && (!outlook_ || serves_more_without_head(index, wanted, start, now));
    }
    if (drop) {
      dropped.push_back(queue_.front());
      queue_.pop_front();
      continue;
    }
    const TimePoint latest = deadline - span(index);
    TimePoint frontrun = latest;
    const bool largest =
        index + 1 == batch_count() || (limit_ > 0 && batch_size(index + 1) > limit_);  // it cannot grow
    frontrun = largest ? start : deadline - span(index + 1);
    candidate_ = Candidate{
        .size = batch_size(index), .exec_at = std::max(start, frontrun), .latest = latest, .order = latest};
    break;
  }
  return candidate_;
}

std::optional<Batch> ModelMachine::granted(TimePoint now, TimePoint free_at, std::vector<Request>& dropped,
                                           int most) {
  update(now, free_at, dropped);
  if (!candidate_) return std::nullopt;
  const std::size_t first = candidate_->first;
  if (most > 0 && most < candidate_->size) {
    const int smaller = index_for(static_cast<std::size_t>(most));
    candidate_->size = batch_size(smaller);
    candidate_->latest = queue_[first].deadline - span(smaller);
  }
  Batch batch;
  batch.index = index_for(static_cast<std::size_t>(candidate_->size));
  // It runs as soon as the device can: whoever granted it chose the moment.
  batch.exec_at = std::max(now + environment_.dispatch, free_at);
  batch.latest = candidate_->latest;
  batch.requests.assign(queue_.begin() + first, queue_.begin() + first + candidate_->size);
  queue_.remove(first, static_cast<std::size_t>(candidate_->size));
  candidate_.reset();
  return batch;
}

}  // namespace carillon::schedule::symphony
