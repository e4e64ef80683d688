#include "carillon/schedule/symphony/batch_times.h"

#include <algorithm>

namespace carillon::schedule::symphony {

BatchTimes::BatchTimes(const ledger::ModelInfo& info, const ledger::Environment& environment)
    : environment_(environment) {
  for (const ledger::BatchProfile& b : info.batches) {
    sizes_.push_back(b.batch);
    dense_ = dense_ && b.batch == static_cast<int>(sizes_.size());
  }
  exec_.resize(sizes_.size());
  span_.resize(sizes_.size());
  each_.resize(sizes_.size());
  for (std::size_t i = 0; i < sizes_.size(); ++i) set_exec(static_cast<int>(i), info.batches[i].exec);
}

void BatchTimes::set_environment(const ledger::Environment& environment) {
  environment_ = environment;
  for (std::size_t i = 0; i < exec_.size(); ++i) find_span(i);
}

void BatchTimes::find_span(std::size_t i) {
  span_[i] = environment_.span(exec_[i]);
}

void BatchTimes::set_exec(int index, Duration exec) {
  const auto i = static_cast<std::size_t>(index);
  if (exec_[i] == exec) return;
  exec_[i] = exec;
  each_[i] = to_seconds(exec) / sizes_[i];
  find_span(i);
}

int BatchTimes::find_index(std::size_t requests) const {
  const auto above = std::upper_bound(sizes_.begin(), sizes_.end(),
                                      static_cast<int>(std::min<std::size_t>(requests, 1 << 30)));
  return static_cast<int>(above - sizes_.begin()) - 1;
}

}  // namespace carillon::schedule::symphony
