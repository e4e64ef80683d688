#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "carillon/base/time.h"

namespace carillon::cluster {

struct PeerClockOptions {
  // How much faster or slower one clock may run than the other. Two crystals differ by 200 ppm, and a clock
  // that is being set runs 500 ppm off.
  std::int64_t max_drift_ppm = 700;
  // A sample counts for as long as this, and half as long at least. What a small jump makes wrong is right
  // again after it.
  Duration memory = std::chrono::seconds{1};
  int settle_samples = 8;  // in a row that agree, at the start and after a jump
};

// What the clock of another host shows, from samples of four times each. Every sample bounds the difference
// of the clocks from both sides: the request was received after it was sent, and the reply heard after it was
// sent. So nothing is assumed of the way there and back, which may differ; and clocks may drift by
// `max_drift_ppm` against each other. Bounds of all samples hold at once. Where they contradict each other, a
// clock has jumped: only the last sample is believed then, and the clock is not settled until others agree.
// (A jump that is smaller than the bound is within it, or comes to be known once `memory` is over.)
//
// Differences are the peer's time less ours. Every function costs O(1). Not thread-safe. Times of a sample
// may be any: they come from outside.
class PeerClock {
 public:
  explicit PeerClock(const PeerClockOptions& options = {}) : options_(options) {}

  // A request, and the reply to it. By our clock: when the request was sent and the reply heard; by the
  // peer's: when it was received and replied to.
  struct Sample {
    TimePoint sent;
    TimePoint received;
    TimePoint replied;
    TimePoint heard;
  };
  enum class Verdict : std::uint8_t {
    agrees,
    jumped,      // a clock has
    impossible,  // it says that a time came before an earlier one, and is left out
  };
  Verdict add(const Sample& sample);

  bool settled() const { return agreed_ >= options_.settle_samples; }

  // The difference at a time of ours is within `bound` of `offset`. None before the first sample.
  struct Difference {
    Duration offset{0};
    Duration bound{0};
  };
  std::optional<Difference> at(TimePoint ours) const;
  // How much faster the peer's clock runs, and the error of that at most. None before samples span a second.
  struct Drift {
    double ppm = 0;
    double bound_ppm = 0;
  };
  std::optional<Drift> drift() const;

  // A window of the peer's time, by our clock: what is inside is inside the peer's, whatever the difference
  // is within its bound. Open ends stay open. None where nothing is certain to be inside.
  std::optional<Window> inside(const Window& peers) const;

 private:
  // On the difference, as lines over our time: `most` rises, and `least` falls, by the drift.
  struct Bounds {
    std::int64_t least = std::numeric_limits<std::int64_t>::min();
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
  };
  struct Span {
    Duration least, most;
  };
  struct Anchor {
    TimePoint at;
    Difference difference;
  };
  std::int64_t drifted(TimePoint ours) const;
  Span span(TimePoint ours) const;
  void begin(TimePoint sent);

  PeerClockOptions options_;
  TimePoint base_;                       // our time from which drift is counted
  Bounds older_, newer_;                 // of the samples of the last half of `memory`, and of those before
  TimePoint turned_, last_;              // when `newer_` began; the last sample's `heard`
  int agreed_ = 0;                       // samples since the start, or the last jump
  std::optional<Anchor> anchor_, next_;  // for the drift
};

}  // namespace carillon::cluster
