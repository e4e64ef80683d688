#pragma once

#include <cstddef>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/slots.h"

// Some row of the part that runs has bad data, and nobody knows which: each runs by itself, and its outputs
// go to where the part's lie. `io`: the piece of the I/O cache in which it does, as the host sees it.
namespace carillon::worker {

// Rows of an action are run by themselves for so long at most: less than after what a device counts as hung.
inline constexpr Duration alone_at_most = 500ms;

// By which the rows run: the least batch there is, which the row fills.
PlanLayout& alone_layout(const InferSlot& action);

// Takes the first row from alone.row on for which there is time left to `io`, ready to run; those before it
// are bad rows. False: there is none.
bool next_alone(InferSlot& action, TimePoint now, std::byte* io);

// Of that row, which has run: `done` is the run's result. Brings its outputs to the part's, or it is a bad
// row.
void end_alone(InferSlot& action, const Result<>& done, const std::byte* io);

}  // namespace carillon::worker
