#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "carillon/engine/cpu/byte_product.h"
#include "carillon/engine/cpu/kernel.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine::cpu {

// A convolution of bytes whose channels each have a kernel of their own, exact on every processor with AVX2:
// what ByteProduct is for the others. Products of pairs of pixels are added up in 32 bits.
class ByteDepthwise final : public Kernel {
 public:
  struct Shape {
    ByteProduct::Window window;  // that it takes()
    bool signed_source = false, signed_result = false;
    std::int32_t x_zero = 0, y_zero = 0;
  };
  static constexpr std::int64_t block = 16;  // channels at a time; the last overlap those before
  static constexpr std::int64_t most_taps = 49;
  // Whether there are as many channels and no more taps.
  static bool takes(const ByteProduct::Window& window) {
    return window.channels >= block && window.kernel[0] * window.kernel[1] <= most_taps;
  }

  // Weights, [channels, 1, kernel...] of i8 or u8, and their zero points (nullptr: 0; one, or one a channel).
  static graph::Tensor pack(const graph::Tensor& weights, const graph::Tensor* zeros, const Shape& shape);
  // Bytes of room that a run needs.
  static std::uint64_t room(const Shape& shape) { return static_cast<std::uint64_t>(shape.window.channels); }

  // x: [images, height, width, channels] of bytes. w: packed. factors, biases: float, of each channel; biases
  // may be absent. y: bytes, by places of the window.
  enum Operand : std::uint8_t { x, w, factors, biases, y, room_at };
  static constexpr int operands = 6;

  explicit ByteDepthwise(const Shape& shape) : shape_(shape) {}

  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return pieces() > 1; }
  int pieces() const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override { at_[static_cast<std::size_t>(operand)] = address; }
  int operand_count() const override { return operands; }
  bool may_lack(int operand) const override { return operand == biases; }

 private:
  void run_lines(std::int64_t first, std::int64_t last) const;

  Shape shape_;
  std::array<std::byte*, static_cast<std::size_t>(operands)> at_{};
};

}  // namespace carillon::engine::cpu
