#pragma once

#include "carillon/graph/kernel.h"

namespace carillon::graph::plain {

// Whether all of a recurrent node's `lengths`, one a row of the batch, are within its sequences of `steps`
// steps. One that is not is noted against its row at `output`, if anybody takes notes, and is the error else.
Result<> check_lengths(const Node& node, const ConstView& lengths, std::int64_t steps,
                       const MutableView& output);
// Row n's, brought to [0, steps].
std::int64_t length_of(const ConstView& lengths, std::int64_t n, std::int64_t steps);

}  // namespace carillon::graph::plain
