#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "carillon/engine/cpu/kernel.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine::cpu {

// An LSTM with the usual activations, all sequences of full length: one product of the input and W for all
// steps, then at each step one of the hidden state and R, whose sums go through the gates before they go to
// memory. Weights lie in panels: those of 16 units, all four gates of them, row by row of the depth.
//
// In bytes, as DynamicQuantizeLSTM has it: input and hidden state are rounded to bytes without a sign in the
// range that they have, 0 included; the input's over all steps, the state's at each. Ranges are a row's own,
// so that no row depends on others of its batch.
class LstmStep final : public Kernel {
 public:
  enum class Numbers : std::uint8_t { floats, bytes };
  // Whether the processor (as oneDNN is told to see it) has what the kernel is made of: AVX-512, for bytes
  // its VNNI.
  static bool runs_on_this_processor(Numbers numbers);
  // The most weights of a unit whose products in bytes are sure to fit 32 bits.
  static constexpr std::int64_t most_bytes = 1 << 15;

  struct Shape {
    std::int64_t steps = 1, batch = 1, width = 1, hidden = 1;  // all at least 1
    std::int64_t directions = 1;
    bool reverse = false;      // the first direction runs backwards; a second one always does
    bool batch_first = false;  // x is [batch, steps, width], else [steps, batch, width]
    Numbers numbers = Numbers::floats;
  };
  // Absent ones are never placed. b: from pack_bias(). h and c, y_h and y_c: [directions, batch, hidden]. y:
  // [steps, batch, directions, hidden]. room: of room(shape) bytes, whatever is in them.
  enum Operand : std::uint8_t { x, w, r, b, h, c, y, y_h, y_c, room_at, operands };
  static std::uint64_t room(const Shape& shape);

  // `threads`: those that may share a run's work, at least 1.
  LstmStep(const Shape& shape, int threads) : shape_(shape), threads_(threads) {}

  // ONNX's W or R, [directions, 4 * hidden, depth] of floats, in panels.
  static graph::Tensor pack(const graph::Tensor& weights);
  // The same in bytes: each weight is a whole number times its scale, of which there is one, or one a
  // direction, or one a row of each direction. An empty tensor where that is not so, or where numbers do not
  // fit i8.
  static graph::Tensor pack_bytes(const graph::Tensor& weights, std::span<const float> scales);
  // The sum of ONNX's biases, [directions, 8 * hidden], or zeros for nullptr.
  static graph::Tensor pack_bias(const graph::Tensor* biases, std::int64_t directions, std::int64_t hidden);

  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return true; }
  // It looks for a stop between steps.
  int pieces() const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override { at_[static_cast<std::size_t>(operand)] = address; }
  int operand_count() const override { return Operand::operands; }
  bool may_lack(int operand) const override {
    return operand == b || operand == h || operand == c || operand == y || operand == y_h || operand == y_c;
  }

 private:
  class Sequence;

  Shape shape_;
  int threads_;
  std::array<std::byte*, operands> at_{};
};

}  // namespace carillon::engine::cpu
