#pragma once

#include <cstdint>

#include "carillon/cluster/election/messages.h"

namespace carillon::cluster::election {

// The highest epoch that a member knows. The member obeys nothing of a lower one: the safety of an election
// rests on this and on the coordinator's compare-and-set, and never on time. O(1). Not thread-safe.
class Fence {
 public:
  enum class Verdict : std::uint8_t {
    refused,  // of a lower epoch, or of none that can be; counted
    current,
    higher,  // accepted, and from now on nothing lower is
  };
  // Something of `epoch` has come.
  Verdict pass(Epoch epoch) {
    if (epoch < highest_ || epoch > most_epoch) {
      ++refused_;
      return Verdict::refused;
    }
    if (epoch == highest_) return Verdict::current;
    highest_ = epoch;
    return Verdict::higher;
  }

  Epoch highest() const { return highest_; }
  std::uint64_t refused() const { return refused_; }

 private:
  Epoch highest_;
  std::uint64_t refused_ = 0;
};

}  // namespace carillon::cluster::election
