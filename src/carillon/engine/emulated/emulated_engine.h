#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/clock.h"
#include "carillon/engine/emulated/breaker.h"
#include "carillon/engine/engine.h"

namespace carillon::engine {

// How one model behaves on the device that is emulated.
struct EmulatedModel {
  Bytes weights;
  // By batch size, each >= 1. Between two, times are interpolated; above the largest the last slope goes on
  // (with one entry: in proportion to the batch); below the smallest, its time.
  std::map<int, Duration> execution;
  // By length, for models with lengths, likewise; at a length between two, times are those of the next.
  // Empty: `execution` is for the longest, and others take in proportion to their length.
  std::map<std::int64_t, std::map<int, Duration>> by_length;
  // Of all its weights: what write_weights() waits for, a part at a time, and writes nothing (no plan reads
  // it). None: it writes zeros, as fast as it can.
  std::optional<Duration> load;
};

struct EmulatedOptions {
  std::map<std::string, EmulatedModel, std::less<>> models;  // by name
  std::optional<EmulatedModel> other_models;                 // for names that `models` does not have
  double noise = 0;  // standard deviation of a run's time over its mean, in [0, 1); cut off at three of them
  std::uint64_t seed = 1;
  int kernels = 1;  // of every plan, of equal length; >= 1
  // Waits until about the time given. Empty: sleeps, and never spins, so that many devices fit onto few
  // cores; a sleep ends as late as timers do, which here is held against the next.
  std::function<void(const Clock& clock, TimePoint until)> wait;
  std::shared_ptr<Breaker> breaker;  // of the device; none: it never breaks
};

// What a plan of `model` takes at `batch` (>= 1) and `length` (of `longest`; 0 where the model has no
// lengths), without noise. Requires that `model.execution`, and each table of `model.by_length`, is not
// empty.
Duration emulated_duration(const EmulatedModel& model, int batch, std::int64_t length = 0,
                           std::int64_t longest = 0);

// An engine whose plans take time and compute nothing: outputs are zeros, weights are zeros of the right
// size. For work on schedulers without the hardware. `clock` outlives the engine and all that it compiled.
//
// compile() fails with `not_found` for a model that has no profile, `invalid_argument` for options out of
// range.
std::unique_ptr<Engine> make_emulated_engine(EmulatedOptions options, const Clock& clock);

}  // namespace carillon::engine
