#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "carillon/graph/kernel.h"
#include "carillon/graph/recurrence.h"

// Lengths of an LSTM's or a GRU's sequences for kernels that know of none. The kernels run over all steps, but
// behind a row's end the state stays. For this X has one column more: 1 behind the end, 0 before. The column's
// weights are very large, so the gate of the old state becomes 1, and the gate of the new one 0. A reversed
// direction begins with the padding, and keeps the first state meanwhile. So a run may take any number of steps
// in which the longest sequence fits.
namespace carillon::engine::cpu {

// Whether that keeps the operator's results. An LSTM's hidden state stays only where its cell state is 0, so
// padding in front of a sequence must meet no first state; the last hidden state is read from Y.
bool may_have_lengths(const graph::Recurrence& shape, bool initial_states);

// For how many steps there are kernels, the most first, halves down to an eighth: a run takes the last that
// is long enough.
std::vector<std::int64_t> spans_of(std::int64_t steps);

// W with a column more, [directions, gates * hidden, width + 1]. Gates are in the order of oneDNN.
graph::Tensor weights_with_lengths(const graph::Tensor& w, const graph::Recurrence& shape);

// Plain kernels of a recurrent node.
// Inputs: X, float, as the node has it; its lengths, i32. Outputs: [steps, batch, width + 1], zeros behind a
// row's end but for the last column; and a byte for each of spans_of(steps), of which that is 1 which the run
// takes, the others 0. Lengths that are no lengths are noted.
Result<> mark_ends(const graph::Node& node, std::span<const graph::ConstView> inputs,
                   std::span<const graph::MutableView> outputs);
// Inputs: the lengths. Outputs, changed where they lie: Y, [steps, batch, directions, hidden], becomes 0
// behind a row's end; the last states, [directions, batch, hidden] each, absent or not, become 0 where a
// length is 0, as in onnxruntime, and an LSTM's Y_h is read from Y.
Result<> cut_at_ends(const graph::Node& node, std::span<const graph::ConstView> inputs,
                     std::span<const graph::MutableView> outputs);

}  // namespace carillon::engine::cpu
