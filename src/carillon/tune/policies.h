#pragma once

#include <memory>

#include "carillon/tune/tuning.h"

// A maker a policy: for registry.cpp and its tests alone. Options are in their ranges.
namespace carillon::tune {

// One trial a device, in the order of coming.
std::unique_ptr<Tuning> make_fifo(const TuneOptions& options);
// Algorithm 3.1, and with `dynamic` Algorithm 3.2 where nothing waits.
std::unique_ptr<Tuning> make_fluid(const TuneOptions& options, bool dynamic);
// Ours.
std::unique_ptr<Tuning> make_best(const TuneOptions& options);

}  // namespace carillon::tune
