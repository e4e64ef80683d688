#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/tune/tuning.h"
#include "carillon/workload/study.h"

// A tuner's trials over devices in virtual time, under the very objects that decide live (tune/tuning.h).
//
// A trial goes iteration after iteration. Alone on a device an iteration takes its time over the device's
// speed and supply; with k - 1 others there, alpha^(k - 1) times that; on w devices, beta^(w - 1) / w of what
// it takes on the slowest of them. Orders take effect at the end of its iteration; where its devices change
// it then stands still for `move_s`, except when it first starts, and when it goes on where its memory lies.
// Events of one instant are handled in the order: iterations that end, trials that have stood, supply, what
// the policy had planned. Same study, policy and seed: same bytes.
namespace carillon::simulate {

struct StudyRunOptions {
  bool timeline = false;  // keep what plots draw
  // Called now and then with the virtual time; ends the run where it returns false.
  std::function<bool(TimePoint)> progress;
  // The same before each event that the policy is told: one of them may take it a while.
  std::function<bool()> go_on;
};

// A trial ran on a device, uninterrupted.
struct DeviceStretch {
  std::uint32_t device = 0, trial = 0;
  TimePoint from, until;
};
struct BestSoFar {
  TimePoint at;
  double metric = 0;
};

struct TrialFigures {
  std::uint32_t epochs = 0;  // done
  double metric = 0;         // its last; not a number where there is none
  Duration ran{0};           // of it at least one device
  Duration stood{0};         // for moves
  std::optional<TimePoint> began;
  TimePoint ended;
  bool finished = false;  // the tuner ended it
};

struct StudyFigures {
  TimePoint last;  // all had ended, or the target was reached
  std::optional<TimePoint> target;
  Duration device_time{0};  // of all devices: at least one trial ran
  Duration supply{0};       // of all devices: their share of time for trials, until the end
  Duration work{0};         // of the iterations that ended: what these take alone on a device of speed 1
  std::uint64_t places = 0, resizes = 0, moves = 0, holds = 0, releases = 0, refused = 0;
  std::uint64_t events = 0;
  std::size_t most_running = 0;
  tune::TuneModel model;  // as the policy had it at the end
  std::vector<TrialFigures> trials;
  std::vector<BestSoFar> best;  // each time that it rose
  std::vector<DeviceStretch> stretches;
};

// The policy's options for this study: as the file has them.
tune::TuneOptions tune_options(const workload::Study& study);

// Runs the study until its tuner wants no more, or its target is reached. `tuning` is new. Errors: it was
// stopped by `progress` or
// `go_on`; an iteration of less than a nanosecond; a policy that comes to no end at one instant; trials that
// nobody runs.
Result<StudyFigures> run_study(const workload::Study& study, tune::Tuning& tuning,
                               const StudyRunOptions& options = {});

}  // namespace carillon::simulate
