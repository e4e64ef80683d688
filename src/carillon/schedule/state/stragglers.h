#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/model_info.h"
#include "carillon/workload/request.h"

namespace carillon::schedule {

// Requests that the margins would refuse, and that are on time where all goes as usual. They have what nobody
// else wants: a policy looks at them where a device has room and no other request for it. In the order of
// their last starts, by which they have to be sent, or refused. insert, erase and expire cost O(log n). Not
// thread-safe.
class Stragglers {
 public:
  struct Straggler {
    TimePoint last_start;
    std::uint64_t sequence = 0;  // of arrival: ties
    Request request;

    friend auto operator<=>(const Straggler& a, const Straggler& b) {
      return std::tie(a.last_start, a.sequence) <=> std::tie(b.last_start, b.sequence);
    }
    friend bool operator==(const Straggler& a, const Straggler& b) { return a.sequence == b.sequence; }
  };

  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  std::size_t of(ModelId model) const {
    return model.index() < of_model_.size() ? of_model_[model.index()] : 0;
  }
  TimePoint next_end() const { return waiting_.empty() ? TimePoint::max() : waiting_.begin()->last_start; }

  // One of each id.
  void insert(const Straggler& straggler) {
    const std::size_t model = straggler.request.model.index();
    if (of_model_.size() <= model) of_model_.resize(model + 1);
    ++of_model_[model];
    CARILLON_ASSERT(waiting_.insert(straggler).second && by_id_.insert(straggler.request.id, straggler));
  }
  // False where it is none.
  bool erase(RequestId id) {
    if (by_id_.size() == 0) return false;
    const auto found = by_id_.erase(id);
    if (!found) return false;
    waiting_.erase(*found);
    --of_model_[found->request.model.index()];
    return true;
  }
  // Takes out the first whose last start is not after that.
  std::optional<Straggler> expire(TimePoint now) {
    if (next_end() > now) return std::nullopt;
    const Straggler first = *waiting_.begin();
    erase(first.request.id);
    return first;
  }
  // Takes out those of a model, in order. O(stragglers) where there are any of it.
  std::vector<Request> take(ModelId model) {
    std::vector<Request> taken;
    if (of(model) == 0) return taken;
    for (const Straggler& s : waiting_)
      if (s.request.model == model) taken.push_back(s.request);
    for (const Request& request : taken) erase(request.id);
    return taken;
  }
  // What a device does next that could start at `start`: the batch of the first, among so many, that it has
  // in time, as large as its model's others that wait allow.
  struct Batch {
    ModelId model;
    int index = 0;  // of its size, in the model's list
    std::vector<Request> requests;
    TimePoint latest;  // start
  };
  // Takes it out. batches(model): its batch sizes, from 1 on; none where the device does not have it.
  // span(model, index): from the start of such a batch to its answers.
  template <typename Batches, typename Span>
  std::optional<Batch> first_batch(TimePoint start, std::size_t among, Batches&& batches, Span&& span) {
    std::vector<Request> requests;
    for (const Straggler& s : waiting_) {
      if (among-- == 0) break;
      const ModelId model = s.request.model;
      if (requests.empty()
              ? batches(model).empty() || saturating_add(start, span(model, 0)) > s.request.deadline
              : model != requests.front().model)
        continue;
      requests.push_back(s.request);
    }
    if (requests.empty()) return std::nullopt;
    // Of one model the first has the nearest deadline.
    const ModelId model = requests.front().model;
    const TimePoint deadline = requests.front().deadline;
    const auto sizes = batches(model);
    std::size_t index = 0;
    for (std::size_t i = 1; i < sizes.size() && static_cast<std::size_t>(sizes[i].batch) <= requests.size();
         ++i)
      if (saturating_add(start, span(model, static_cast<int>(i))) <= deadline) index = i;
    requests.resize(static_cast<std::size_t>(sizes[index].batch));
    for (const Request& request : requests) erase(request.id);
    const Duration takes = span(model, static_cast<int>(index));
    return Batch{model, static_cast<int>(index), std::move(requests), saturating_add(deadline, -takes)};
  }
  auto begin() const { return waiting_.begin(); }
  auto end() const { return waiting_.end(); }

 private:
  std::set<Straggler> waiting_;
  IdMap<RequestId, Straggler> by_id_;
  std::vector<std::size_t> of_model_;
};

}  // namespace carillon::schedule
