#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/graph/tensor.h"

namespace carillon::graph {

using ValueId = Id<struct ValueTag, std::uint32_t>;
inline constexpr ValueId no_value{0xffffffffU};  // an optional input or output that is absent

// One tensor of the graph. Its type is known: a graph exists at one batch size, and every shape is static, or
// the most that it can be (bounded.h).
struct Value {
  std::string name;  // as in the ONNX file, or made up by a pass
  TensorType type;
  SharedTensor constant;  // set for weights and folded constants
};

using Attribute = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>,
                               std::vector<float>, std::vector<std::string>, SharedTensor>;

// What a fused consumer does to its producer's result, element by element, in order.
struct PostOp {
  enum class Kind : std::uint8_t {
    relu,
    leaky_relu /* alpha */,
    clip /* [alpha, beta] */,
    sigmoid,
    tanh,
    elu /* alpha */,
    gelu_erf,
    gelu_tanh,
    hard_sigmoid /* alpha*x + beta */,
    hard_swish,
    silu /* x * sigmoid(x) */,
    linear /* alpha*x + beta */,
    add /* + operand */,
    mul /* * operand */,
    at_most /* the operand where that is less, or this is NaN */,
    at_least /* the operand where that is greater, or this is NaN */
  };
  Kind kind{};
  float alpha = 0;
  float beta = 0;
  ValueId operand = no_value;  // of those with one: broadcasts to the node's output (ONNX rules)
};
bool takes_operand(PostOp::Kind kind);

// One operation, named by its ONNX operator ("Conv", "MatMul", ...), in the canonical form below.
//
// Canonical form (what import and the passes leave behind; engines and kernels rely on it):
//  - Operands that ONNX takes as inputs in newer and as attributes in older opsets keep their newest form:
//  inputs.
//    (Squeeze, Unsqueeze, Reduce*: axes; Slice: starts, ends, axes, steps; Clip: min, max; Pad: pads, value,
//    axes; TopK: k; Split: split; Reshape and Expand: shape; Dropout: ratio; Upsample becomes Resize, ...) An
//    import from an older opset adds constants. Operands that decide a shape are constants, else
//    specialisation fails and names the node.
//  - auto_pad is resolved into explicit `pads` for Conv, ConvTranspose and pooling; `kernel_shape`,
//  `strides`,
//    `dilations`, `pads` and `group` are always present there. Global pools stay as they are.
//  - Identity, Dropout at inference, no-op Cast/Reshape/Transpose/Expand/Pad/Concat-of-one are gone. Flatten,
//  Squeeze,
//    Unsqueeze and Reshape all are "Reshape" with one input: the output's type says the rest.
//  - Constant, ConstantOfShape, Shape, Size and everything that depends only on constants are folded.
//  - BatchNormalization (inference) that follows a Conv, ConvTranspose or Gemm with constant weights is in
//  its weights.
//  - Where the data of a run decide extents, types have the most that these can be, and the nodes that read
//  or make such values are "Bounded" (bounded.h), which no pass changes.
//  - If, Loop and Scan are gone: their bodies' nodes stand in the list under guards (below). "Merge"
//    (condition, then_value, else_value; our own operator) is what a value becomes whose maker depends on a
//    condition. Where the branches have unlike shapes, what reads the value stands there once for each
//    branch, and an output is a "Choose" (bounded.h). "Unfit" stands where a branch's shapes do not fit
//    together.
//  - QLinearConv and QLinearMatMul may lack the result's scale and zero point: then the result is real.
//    QLinearMatMul may have a bias as QLinearConv's. Of our own, one scale for each tensor: ByteLookup (X, a
//    table of 256 bytes), QLinearAdd and QLinearMul (A, B, result: each with scale and zero point; B may be
//    real), and QLinearGlobalAveragePool (X, result).
//  - `post_ops` are set only on Conv, ConvTranspose, Gemm, MatMul, Add, Mul, Sub, Div, BatchNormalization and
//    LayerNormalization, and on QLinearConv and QLinearMatMul with real results. Fused patterns: "Gelu"
//    (attribute approximate: "none" or "tanh"), "LayerNormalization" (X, Scale, B?; axis, epsilon; X and Y
//    only).
struct Subgraph;
struct Node {
  std::string name;  // never empty: ONNX's, or "<op>_<index>"
  std::string op;
  std::vector<ValueId> inputs;   // no_value where an optional one is absent
  std::vector<ValueId> outputs;  // likewise
  std::map<std::string, Attribute, std::less<>> attributes;
  std::vector<PostOp> post_ops;
  int guard = -1;  // index in Graph::guards of what must hold for the node to run; -1: it always runs
  // Before specialisation only. If: then_branch and else_branch; Loop and Scan: body.
  std::vector<Subgraph> subgraphs;

  // The attribute, or `fallback` where it is absent. Asserts the type: import has checked it.
  std::int64_t integer(std::string_view attribute, std::int64_t fallback) const;
  float real(std::string_view attribute, float fallback) const;
  std::string_view text(std::string_view attribute, std::string_view fallback) const;
  std::span<const std::int64_t> integers(std::string_view attribute) const;  // empty where absent
  std::span<const float> reals(std::string_view attribute) const;
  bool has(std::string_view attribute) const { return attributes.find(attribute) != attributes.end(); }
};

// A graph inside a node, as ONNX nests them. Its values are in the one table of the outermost graph; it reads
// those of the graphs around it by their ids. Nodes are in order.
struct Subgraph {
  std::vector<Node> nodes;
  std::vector<ValueId> inputs;   // what the node around it gives a value to at each run
  std::vector<ValueId> outputs;  // may be an input, a constant, or a value from outside
};

// What must hold for some nodes to run: the condition is `when`, and `parent` (an earlier guard; -1: none)
// holds too. The condition is made wherever the parent holds. Nodes are pure: whether one runs although its
// guard does not hold changes no result, but it may fail (an index out of range) or read what nobody made.
struct Guard {
  ValueId condition;  // a boolean of one element
  bool when = true;
  int parent = -1;

  friend bool operator==(const Guard&, const Guard&) = default;
};

// A checked graph at one batch size. Nodes are in an order in which every value is made before it is used.
// Invariants (checked by validate()): ids are in range; each value is an input, a constant or made by exactly
// one node; shapes are static; inputs and outputs are named and typed. A graph output may be an input or a
// constant. What a node reads is made whenever the node runs: by a node under the same guard or one around
// it, or one whose conditions all hold there, too; or, for the values of a Merge or a Choose, where its
// conditions are as that value needs them. Graph outputs are made always.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Guard> guards;  // parents before their children
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;

  const Value& value(ValueId id) const { return values[id.index()]; }
  Value& value(ValueId id) { return values[id.index()]; }
  bool is_constant(ValueId id) const { return id != no_value && value(id).constant != nullptr; }
};

// The invariants above; the error names the node or value that breaks them.
Result<> validate(const Graph& graph);

// For people: one line a node.
std::string to_text(const Graph& graph);

}  // namespace carillon::graph
