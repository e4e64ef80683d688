#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/effort.h"
#include "carillon/base/time.h"

namespace carillon::profile {

// A run of a model whose inputs have many sizes, as far as it is known before it runs.
struct SizedRun {
  int runs = 1;  // it takes: rows of one size run as one batch, one size after the other
  int rows = 1;
  Effort effort;  // of all rows together
};

// What runs of one model take by their sizes: fitted to measurements of several, to tell of sizes that were
// not measured.
//
// A run takes a time for itself, and so much for each operation and for each byte, none of them below 0: a
// least-squares fit of relative errors, in which what lies far off counts for less. For sizes alone that are
// too much alike to tell operations and bytes apart, both count by Effort::size(). Of alike runs (to a
// quarter of a power of two, and of as many rows) the last few count; one alone that is more than twice as
// long as all of them does not.
//
// expected() is not the mean but what is promised: what runs were as much longer than the fit as all but one
// of a hundred are. Deterministic. Adding is O(kept), the first question after it some tens of microseconds.
class SizeFit {
 public:
  static constexpr std::size_t most_kinds = 96;  // of alike runs; beyond them the oldest go
  static constexpr std::size_t window = 6;       // of alike runs that count

  void add(const SizedRun& run, Duration took);  // > 0
  // Runs of so many rows are not as those that were measured any more.
  void forget(int rows);
  bool known() const { return !kinds_.empty(); }
  // Greater whenever one was added, or some were forgotten.
  std::uint64_t measurements() const { return added_; }
  // 0 where nothing was measured.
  Duration expected(const SizedRun& run) const;

 private:
  struct Kind {
    int step = 0, runs = 1, rows = 1;
    std::uint64_t newest = 0;
    struct Sample {
      Effort effort;
      Duration took;
    };
    std::vector<Sample> samples;  // a ring
    std::size_t next = 0;
  };
  struct Fitted {
    bool both = false;  // operations and bytes by themselves
    double run = 0, operation = 0, byte = 0;
    double longer = 1;  // what is promised over the fit
    double at(int runs, const Effort& effort) const;
  };
  Fitted fit() const;

  std::vector<Kind> kinds_;
  std::uint64_t added_ = 0;
  mutable Fitted fitted_;
  mutable std::uint64_t fitted_at_ = 0;  // `added_` when it was
};

// The step of a size: equal for sizes within a quarter of a power of two, greater for greater ones.
int size_step(const Effort& effort);

}  // namespace carillon::profile
