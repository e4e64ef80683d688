#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// What an LSTM, GRU or RNN node asks for, ONNX's defaults filled in. Names are ONNX's where it has any.
struct Recurrence {
  enum class Cell : std::uint8_t { lstm, gru, rnn };
  enum class Direction : std::uint8_t { forward, reverse, bidirectional };
  enum class Function : std::uint8_t {
    relu,
    tanh,
    sigmoid,
    affine,      // alpha * x + beta
    leaky_relu,  // alpha * x below 0
    thresholded_relu,
    scaled_tanh,   // alpha * tanh(beta * x)
    hard_sigmoid,  // alpha * x + beta, within 0 and 1
    elu,
    softsign,
    softplus
  };
  struct Activation {
    Function function = Function::tanh;
    float alpha = 0, beta = 0;

    friend bool operator==(const Activation&, const Activation&) = default;
  };
  // Indices of the operator's inputs.
  enum Operand : std::uint8_t { x, w, r, b, sequence_lens, initial_h, initial_c, p };

  Cell cell = Cell::lstm;
  Direction direction = Direction::forward;
  bool batch_first = false;  // layout 1: the batch is the first dimension of x and of all states
  bool input_forget = false;
  bool linear_before_reset = false;
  float clip = std::numeric_limits<float>::infinity();  // bounds what goes into the gates' activations
  // Function k of direction d is at [d * functions() + k]; of an LSTM f, g and h.
  std::array<Activation, 6> activations{};

  std::int64_t steps = 0, batch = 0, width = 0;  // of x: how long, how many, how wide
  std::int64_t hidden = 0;

  std::int64_t directions() const { return direction == Direction::bidirectional ? 2 : 1; }
  // Products a unit of the hidden state is made of: of an LSTM i, o, f, c; of a GRU z, r, h.
  std::int64_t gates() const { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }
  std::int64_t functions() const { return cell == Cell::lstm ? 3 : cell == Cell::gru ? 2 : 1; }
  // Whether all activations are those that a node has that names none.
  bool usual_activations() const;

  // Of outputs Y, and Y_h and Y_c.
  Shape sequence_shape() const;
  Shape state_shape() const;
};

// Attributes of an LSTM that was DynamicQuantizeLSTM: W and R are whole numbers times these scales, of which
// each has one, or one a direction, or one a row of each direction. What meets them may be rounded to bytes.
inline constexpr std::string_view input_weight_scales = "w_scales";
inline constexpr std::string_view state_weight_scales = "r_scales";

bool is_recurrent(std::string_view op);

// Reads the node, whose inputs have these types (absent ones: nullptr), and checks all of it: attributes,
// element types, shapes, and that all gates at all steps together are no more than a tensor may be. Requires
// is_recurrent(node.op); the error names the node.
Result<Recurrence> recurrence_of(const Node& node, std::span<const TensorType* const> inputs);

}  // namespace carillon::graph
