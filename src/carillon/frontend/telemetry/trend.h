#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/time.h"

namespace carillon::frontend {

// What became of all of a server's requests in the last hour, by ten seconds: from looks at totals that only
// ever grow. Pure. Its memory is taken once: 34 KiB.
class Trend {
 public:
  static constexpr Duration step = std::chrono::seconds{10};
  static constexpr std::size_t capacity = 360;

  // Since the start, or of a sample in it.
  struct Totals {
    std::uint64_t on_time = 0, late = 0, refused = 0, cancelled = 0, failed = 0,
                  invalid = 0;  // of the failed
    Duration exec{0}, load{0};  // of all devices
  };
  struct Sample {
    TimePoint end;
    Duration span{0};  // `step`, or more where looks are rarer
    Totals in;
    std::size_t devices = 0;
    Bytes resident;  // at its end; 0: nobody knows
  };

  // Looks come in order of time. A sample ends with the first look that is `step` or more after the last
  // one's end. A total that went back, as what it counts was forgotten, counts nothing.
  void look(TimePoint now, const Totals& totals, std::size_t devices, Bytes resident);
  // The number of the next sample: the first one's is 0.
  std::uint64_t next() const { return next_; }
  // Those with number `since` or later that are kept, the oldest first.
  std::vector<Sample> samples(std::uint64_t since) const;

 private:
  std::array<Sample, capacity> ring_{};  // sample n lies at n % capacity
  std::uint64_t next_ = 0;
  bool begun_ = false;
  TimePoint last_;  // the end of the newest sample, or the first look
  Totals before_;   // at that time
};

}  // namespace carillon::frontend
