#pragma once

#include "carillon/base/result.h"

namespace onnx {
class GraphProto;
}

namespace carillon::graph {

// Puts standard operators in place of those of domain com.microsoft that onnxruntime's quantisers write:
// QLinearAdd becomes two DequantizeLinear, an Add and a QuantizeLinear, and so on. Results are within a step
// of onnxruntime's, which rounds in other places. Other nodes stay as they are; graphs in nodes are left to
// whoever reads these. Scales of an LSTM's weights are read from the initializers, whose data must still be
// there; they become attributes (recurrence.h), which no file may have itself.
//
// Values that come between are named after the first output that the node has. Errors: a node that lacks an operand, or
// asks for what the standard operators cannot say.
Result<> expand_contrib(onnx::GraphProto& graph);

}  // namespace carillon::graph
