#include "carillon/engine/cpu/sequence_lengths.h"

#include <algorithm>

#include "carillon/graph/plain/recurrent.h"

namespace carillon::engine::cpu {

using graph::ConstView;
using graph::MutableView;
using graph::Recurrence;
using graph::plain::length_of;

bool may_have_lengths(const Recurrence& shape, bool initial_states) {
  switch (shape.cell) {
    case Recurrence::Cell::gru:
      return true;
    case Recurrence::Cell::lstm:
      return !initial_states || shape.direction == Recurrence::Direction::forward;
    case Recurrence::Cell::rnn:
      return false;  // has no gates
  }
  return false;
}

std::vector<std::int64_t> spans_of(std::int64_t steps) {
  std::vector<std::int64_t> spans{steps};
  while (spans.size() < 4 && spans.back() > 1) spans.push_back((spans.back() + 1) / 2);
  return spans;
}

graph::Tensor weights_with_lengths(const graph::Tensor& w, const Recurrence& shape) {
  // Beyond all sums that do not become NaN soon, and no infinity, which times 0 were NaN.
  constexpr float large = 1e30F;
  const std::int64_t rows = shape.directions() * shape.gates() * shape.hidden;
  graph::Tensor made(
      {graph::DataType::f32, {shape.directions(), shape.gates() * shape.hidden, shape.width + 1}});
  const float* from = w.as<float>().data();
  float* to = made.as<float>().data();
  for (std::int64_t row = 0; row < rows; ++row, from += shape.width) {
    to = std::copy_n(from, shape.width, to);
    const std::int64_t gate = row / shape.hidden % shape.gates();
    // A GRU's first gate keeps its state; an LSTM's first is for the new, its second keeps the old.
    const float keeps = gate == 0 ? 1 : 0, as_lstm = gate == 0 ? -1 : gate == 1 ? 1 : 0;
    *to++ = large * (shape.cell == Recurrence::Cell::lstm ? as_lstm : keeps);
  }
  return made;
}

Result<> mark_ends(const graph::Node& node, std::span<const ConstView> inputs,
                   std::span<const MutableView> outputs) {
  const graph::Shape& to_shape = outputs[0].type->shape;
  const std::int64_t steps = to_shape[0], batch = to_shape[1], width = to_shape[2] - 1;
  const ConstView& lengths = inputs[1];
  if (auto ok = graph::plain::check_lengths(node, lengths, steps, outputs[0]); !ok) return ok;
  const bool batch_first = node.integer("layout", 0) == 1;
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < batch; ++n) {
    const std::int64_t length = length_of(lengths, n, steps);
    longest = std::max(longest, length);
    for (std::int64_t t = 0; t < steps; ++t) {
      float* const to = outputs[0].as<float>() + (t * batch + n) * (width + 1);
      const float* const from = inputs[0].as<float>() + (batch_first ? n * steps + t : t * batch + n) * width;
      if (t < length)
        std::copy_n(from, width, to);
      else
        std::fill_n(to, width, 0.0F);
      to[width] = t < length ? 0.0F : 1.0F;
    }
  }
  std::int64_t span = steps;  // by halves, as spans_of() has them
  bool taken = false;
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    const std::int64_t next = i + 1 < outputs.size() ? (span + 1) / 2 : -1;
    const bool takes = !taken && next < longest;
    *outputs[i].data = std::byte{takes ? std::uint8_t{1} : std::uint8_t{0}};
    taken = taken || takes;
    span = next;
  }
  return {};
}

Result<> cut_at_ends(const graph::Node& node, std::span<const ConstView> inputs,
                     std::span<const MutableView> outputs) {
  const MutableView& y = outputs[0];
  const graph::Shape& shape = y.type->shape;
  const std::int64_t steps = shape[0], batch = shape[1], directions = shape[2], hidden = shape[3];
  const bool reversed = node.text("direction", "forward") == "reverse";
  for (std::int64_t n = 0; n < batch; ++n) {
    const std::int64_t length = length_of(inputs[0], n, steps);
    const auto at = [&](std::int64_t t, std::int64_t d) {
      return y.as<float>() + ((t * batch + n) * directions + d) * hidden;
    };
    for (std::int64_t t = length; t < steps; ++t) std::fill_n(at(t, 0), directions * hidden, 0.0F);
    for (std::size_t i = 1; i < outputs.size(); ++i)
      for (std::int64_t d = 0; outputs[i] && d < directions; ++d) {
        float* const state = outputs[i].as<float>() + (d * batch + n) * hidden;
        if (length == 0)
          std::fill_n(state, hidden, 0.0F);
        else if (i == 1 && node.op == "LSTM")
          std::copy_n(at(reversed || d == 1 ? 0 : length - 1, d), hidden, state);
      }
  }
  return {};
}

}  // namespace carillon::engine::cpu
