#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "carillon/ledger/environment.h"
#include "carillon/ledger/model_info.h"

namespace carillon::schedule::symphony {

// What a model's batches take, by place in its list of batch sizes.
class BatchTimes {
 public:
  BatchTimes(const ledger::ModelInfo& info, const ledger::Environment& environment);

  // Time of EXEC by place in the list of batch sizes.
  void set_exec(int index, Duration exec);
  // What is allowed for besides EXEC is another now. O(batch sizes).
  void set_environment(const ledger::Environment& environment);
  Duration exec(int index) const { return exec_[static_cast<std::size_t>(index)]; }
  int batch_size(int index) const { return sizes_[static_cast<std::size_t>(index)]; }
  int batch_count() const { return static_cast<int>(sizes_.size()); }
  // The place of the largest batch size <= requests, which is at least 1.
  int index_for(std::size_t requests) const {
    return dense_ ? static_cast<int>(std::min(requests, sizes_.size())) - 1 : find_index(requests);
  }
  // From the start of EXEC until the client has its answer.
  Duration span(int index) const { return span_[static_cast<std::size_t>(index)]; }
  // Of EXEC, for each request of a batch of that size.
  double each(int index) const { return each_[static_cast<std::size_t>(index)]; }

 protected:
  ledger::Environment environment_;
  std::vector<int> sizes_;

 private:
  int find_index(std::size_t requests) const;
  void find_span(std::size_t index);

  bool dense_ = true;  // batch sizes are 1, 2, 3, ...
  std::vector<Duration> exec_, span_;
  std::vector<double> each_;
};

}  // namespace carillon::schedule::symphony
