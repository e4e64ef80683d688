#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "carillon/engine/cpu/kernel.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine::cpu {

// A product of bytes with constant weights, exact on every processor with AVX2: sums are those of whole
// numbers of 32 bits, which wrap.
//
// Without VNNI the fast instruction adds two products in 16 bits, which saturate where two neighbouring
// weights of a column have one sign and more than 128 in sum. pack() finds these neighbours and puts them
// into two steps, one behind the other, in place of one. Where that were many, runs look at the source
// instead: two of its neighbours that are no more than 255 in sum saturate with no weights. A step of which
// this is so in all rows of a tile is narrow, and takes bytes; the others are wide, and take 16 bits of both.
// So the time depends on the data, but not the sums. Weights lie in panels of columns: for each step as many
// columns as a panel has, four neighbours of the depth each.
class ByteProduct final : public Kernel {
 public:
  // Which instructions do it. They decide how weights are packed.
  enum class Instructions : std::uint8_t { none, avx2, avx512, vnni };
  // The best that the processor has, as oneDNN is told to see it.
  static Instructions of_this_processor();

  // What comes out of the sums. Real ones and bytes are multiplied by factors and have a bias added.
  enum class Made : std::uint8_t { whole, real, bytes, signed_bytes };
  // Further steps on real results. An operand is f32 and has one element for the whole result, for each row,
  // for each column, or for each element.
  struct After {
    enum class Kind : std::uint8_t { add, mul, at_most, at_least, relu, clip /* to [low, high] */ };
    Kind kind = Kind::relu;
    std::int64_t row_step = 0, column_step = 0;  // of those with an operand: between its elements
    float low = 0, high = 0;
  };
  static constexpr std::size_t most_after = 4;

  // Of a convolution: what rows are made of. The source is [images, height, width, channels]; a row has the
  // pixels under a window, [kernel, kernel, channels filled up to whole steps].
  struct Window {
    std::int64_t images = 1, height = 1, width = 1, channels = 1;
    std::array<std::int64_t, 2> kernel{1, 1}, strides{1, 1}, dilations{1, 1};  // down and across
    std::array<std::int64_t, 2> before{}, behind{};                            // pixels of padding

    std::int64_t filled() const { return (channels + 3) / 4 * 4; }
    std::int64_t padded_height() const { return height + before[0] + behind[0]; }
    std::int64_t padded_width() const { return width + before[1] + behind[1]; }
    std::int64_t depth() const { return kernel[0] * kernel[1] * filled(); }
    // Of the result's height (0) and width (1).
    std::int64_t places(std::size_t axis) const {
      const std::int64_t padded = axis == 0 ? padded_height() : padded_width();
      return (padded - dilations[axis] * (kernel[axis] - 1) - 1) / strides[axis] + 1;
    }
  };

  struct Shape {
    std::int64_t rows = 1, depth = 1, columns = 1;  // all at least 1
    bool signed_source = false;
    bool shifted_weights = false;  // see shifts()
    bool sorted = false;           // see is_sorted()
    Made made = Made::whole;
    std::int32_t x_zero = 0;  // where x_zero is no operand
    std::int32_t y_zero = 0;  // of bytes
    // Rows and depth are the window's then, and weights may not be shifted.
    std::optional<Window> window;
  };
  // Weights, [depth, columns] of i8 or u8, and their zero points (nullptr: 0; one, or one a column), in an
  // order of its own.
  static graph::Tensor pack(const graph::Tensor& weights, const graph::Tensor* zeros, Instructions with);
  // Whether such weights, made bytes with a sign, still have zero points, which cost the sums of the source's
  // rows.
  static bool shifts(const graph::Tensor& weights, const graph::Tensor* zeros);
  // Whether runs sort the steps of packed weights.
  static bool is_sorted(const graph::Tensor& packed);
  // A convolution's weights, [columns, channels, kernel...], as [window.depth(), columns] for pack(). They
  // must not be shifted.
  static graph::Tensor by_depth(const graph::Tensor& weights, const Window& window);
  // Where the steps of packed weights begin in a source that is seen through the window.
  static graph::Tensor offsets(const graph::Tensor& packed, const Window& window, std::int64_t columns,
                               Instructions with);
  // Factors or biases, one a column or one for all, as many as the panels have columns.
  static graph::Tensor by_column(std::span<const float> values, std::int64_t columns, Instructions with);
  // Bytes of room that a run needs.
  static std::uint64_t room(const Shape& shape);

  // x: [rows, depth] of bytes. x_zero: one byte; x_scale: one float, by which factors are multiplied. w:
  // packed. steps: from offsets(), of convolutions. factors and biases: from by_column(); whole results have
  // none. y: [rows, columns]. From `after` on: the operands of `After`, absent ones of those that have none.
  enum Operand : std::uint8_t { x, x_zero, x_scale, w, steps, factors, biases, y, room_at, after };
  static constexpr int operands = Operand::after + static_cast<int>(most_after);

  ByteProduct(const Shape& shape, Instructions with, std::vector<After> behind);

  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return units_ > 1; }
  int pieces() const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override { at_[static_cast<std::size_t>(operand)] = address; }
  int operand_count() const override { return operands; }
  bool may_lack(int operand) const override;

 private:
  std::int32_t zero_of_x() const;
  void prepare(std::int64_t first, std::int64_t last) const;
  void prepare_lines(std::int64_t first, std::int64_t last) const;
  struct Columns;
  void open(std::int64_t p, std::int32_t base, Columns& panel) const;
  void put(const Columns& panel, std::int64_t first, std::int64_t rows, const std::int32_t* sums) const;
  void multiply(std::int64_t unit) const;
  template <std::int64_t rows>
  void multiply_sorted(std::int64_t first_panel, std::int64_t last_panel, std::int64_t first_row,
                       std::int64_t last_row) const;

  Shape shape_;
  Instructions with_;
  std::vector<After> behind_;
  // A run's units: each is some panels' columns of some rows.
  std::int64_t rows_of_unit_ = 0, panels_of_unit_ = 0, units_ = 0;
  std::array<std::byte*, static_cast<std::size_t>(operands)> at_{};
};

}  // namespace carillon::engine::cpu
