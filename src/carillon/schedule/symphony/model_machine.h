#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/schedule/request_queue.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/symphony/batch_times.h"
#include "carillon/schedule/symphony/options.h"

namespace carillon::schedule::symphony {

// What a model would run next: `size` requests, from `exec_at` (the frontrun moment) to `latest`.
struct Candidate {
  int size = 0;
  TimePoint exec_at;
  TimePoint latest;
  TimePoint order{};      // of those that may run, the earliest goes first; `latest` unless somebody sets it
  std::size_t first = 0;  // place in the queue of the first of them: heads before it are passed over
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// A batch that is to be sent.
struct Batch {
  int index = 0;  // place in the model's list of batch sizes
  std::vector<Request> requests;
  TimePoint exec_at;
  TimePoint latest;  // start at the latest
};

// The ModelThread of Symphony (figure 18): one model's queue and its candidate. A state machine: it is told
// what happens and when, and what it says is passed on to the RankMachine by whoever drives it. Costs O(log
// batch sizes) a call, where heads are passed over O(batch sizes), and O(1) for each request that enters or
// leaves, O(those passed over) where some are. Not thread-safe.
class ModelMachine : public BatchTimes {
 public:
  ModelMachine(const ModelInfo& info, const Environment& environment);

  // With an outlook: passes over heads, where more is served without them, for the largest batch that can be
  // filled; heads are then dropped only when nothing can save them.
  void set_fills(bool fills) { fills_ = fills; }
  // Heads are dropped where else the batch would be smaller than this, and there are requests enough; 0:
  // never.
  void set_target(int size) { target_ = size; }
  int target() const { return target_; }
  // What is to be expected, for weighing whether a head is worth keeping.
  struct Outlook {
    Duration next_after{0};  // from the start of one batch until the next can start
    double rate = 0;         // of arrivals, requests a second
    int size = 0;            // the planned batch size
    double contention = 1;   // the chance that a batch finds all devices busy
  };
  // With an outlook, heads are dropped only where more are served without them: see serves_more_without_head.
  void set_outlook(const Outlook& outlook) { outlook_ = outlook; }
  // No batch is larger than this; 0: as the batch sizes allow.
  void set_limit(int size) { limit_ = size; }

  void enqueue(const Request& request) { queue_.push(request); }
  bool remove(RequestId id) { return queue_.remove(id); }
  void clear() { queue_.clear(); }
  const RequestQueue& queue() const { return queue_; }

  // Finds the candidate anew, seen at `now`, for a device that is free at `free_at` (or any:
  // TimePoint::min()). What can no longer be on time, or is dropped early, is appended to `dropped`.
  const std::optional<Candidate>& update(TimePoint now, TimePoint free_at, std::vector<Request>& dropped);
  const std::optional<Candidate>& candidate() const { return candidate_; }
  // From when on the candidate, which there is, may take a device: from its frontrun moment, or so long
  // before its latest start, but no longer after its head came than `longest_wait`; max() for a lead is at
  // once.
  TimePoint asks_at(TimePoint now, Duration lead, Duration longest_wait) const;
  // When the candidate has to be found anew, because its batch could not start later; max() for never.
  TimePoint refresh_at() const {
    if (!candidate_) return TimePoint::max();
    const TimePoint last = candidate_->first > 0
                               ? std::min(candidate_->latest, queue_.front().deadline - span(0))
                               : candidate_->latest;
    return last + Duration{1};
  }

  // A device was granted that is free at `free_at`: takes the batch out of the queue, of at most `most`
  // requests where that is not 0; none where nothing can be on time any more. The candidate is to be updated
  // afterwards.
  std::optional<Batch> granted(TimePoint now, TimePoint free_at, std::vector<Request>& dropped, int most = 0);

 private:
  // The place of the largest batch size of at most `requests` that ends by `deadline` if it starts at
  // `start`; -1 for none.
  int fitting(std::size_t requests, TimePoint start, TimePoint deadline) const;
  int fillable(TimePoint start) const;
  bool fill(int index, TimePoint start, TimePoint now);
  std::size_t first_after(TimePoint deadline) const;
  int servable(std::size_t from, TimePoint start, TimePoint now) const;
  bool serves_more_without_head(int index, int wanted, TimePoint start, TimePoint now) const;

  ModelId id_;
  RequestQueue queue_;
  int target_ = 0;
  bool fills_ = false;
  std::optional<Outlook> outlook_;
  int limit_ = 0;
  std::optional<Candidate> candidate_;
};

// What a BatchPlan plans by.
inline std::vector<const BatchTimes*> all_times(const std::vector<ModelMachine>& machines) {
  std::vector<const BatchTimes*> all;
  all.reserve(machines.size());
  for (const ModelMachine& machine : machines) all.push_back(&machine);
  return all;
}

}  // namespace carillon::schedule::symphony
