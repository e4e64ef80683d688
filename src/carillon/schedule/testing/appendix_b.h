#pragma once

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "carillon/schedule/clockwork/model_queue.h"

namespace carillon::schedule::testing {

// One loaded model on one executor.
struct QueuedModel {
  ModelId model;
  std::vector<Waiting> waiting;
  std::vector<BatchCost> costs;
  TimePoint start;  // when an INFER of it would start
};
struct Eligible {
  ModelId model;
  TimePoint start;  // required
  std::vector<RequestId> members;
};

// Clockwork's appendix B written out: one queue of all strategies by required start, scanned from the front,
// rule by rule. Requests that are enough for a batch size are those that this batch size answers in time.
inline std::optional<Eligible> first_eligible(const std::vector<QueuedModel>& models) {
  struct Entry {
    TimePoint start;
    Waiting request;
    const QueuedModel* model = nullptr;
    std::size_t size = 0;
  };
  std::vector<Entry> queue;
  for (const QueuedModel& m : models)
    for (const Waiting& w : m.waiting)
      for (std::size_t i = 0; i < m.costs.size(); ++i) queue.push_back({w.due - m.costs[i].span, w, &m, i});
  std::stable_sort(queue.begin(), queue.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.start, a.request.priority, a.request.sequence) <
           std::tuple(b.start, b.request.priority, b.request.sequence);
  });
  for (const Entry& entry : queue) {
    const QueuedModel& m = *entry.model;
    const auto enough = [&m](std::size_t size) {
      return std::count_if(m.waiting.begin(), m.waiting.end(), [&](const Waiting& w) {
               return w.due - m.costs[size].span >= m.start;
             }) >= m.costs[size].batch;
    };
    if (!enough(entry.size)) continue;
    bool larger = false;
    for (std::size_t i = entry.size + 1; i < m.costs.size(); ++i) larger |= enough(i);
    if (larger || entry.start < m.start) continue;
    std::vector<Waiting> in_order = m.waiting;
    std::sort(in_order.begin(), in_order.end());
    Eligible found{m.model, entry.start, {}};
    auto member = std::find(in_order.begin(), in_order.end(), entry.request);
    for (int i = 0; i < m.costs[entry.size].batch; ++i) found.members.push_back((member++)->id);
    return found;
  }
  return std::nullopt;
}

}  // namespace carillon::schedule::testing
