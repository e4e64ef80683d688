#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/engine/cpu/eltwise.h"
#include "carillon/engine/cpu/kernel.h"
#include "carillon/engine/cpu/layout.h"

// What becomes of NaN. x86's max and min give their second operand where one is NaN, so oneDNN's ReLU, Clip,
// max pools and a few more turn it into a number, and a model would answer with numbers that mean nothing. It
// says nothing of that afterwards, and a pass of our own behind each convolution would cost a good part of
// its time. But NaN comes from somewhere: from an input, or from an operation that can make it from numbers
// (a logarithm, a quotient). A plan watches these: a flag in its workspace tells whether the run has met
// anything but ordinary numbers. Where it has, kernels that lose NaN are followed by one that puts it back,
// or replaced by one that keeps it; in other runs these are passed over like the kernels of a branch that is
// not taken.
namespace carillon::engine::cpu {

// Whether the function makes a number of NaN. That depends on the processor, so oneDNN is asked.
bool loses_nan(const dnnl::engine& engine, const Eltwise& eltwise);
// Whether the operator, as it is lowered, may do so (its post-ops aside).
bool loses_nan(const dnnl::engine& engine, std::string_view op);
// Whether the operator can make NaN or an infinity from numbers that are neither.
bool makes_nan(std::string_view op);
// Whether an element of a floating-point tensor is NaN.
bool has_nan(const graph::Tensor& tensor);

// Elements of a pass that are done at a time: about 10 us where they come from memory.
inline constexpr std::uint64_t piece = 1 << 14;
constexpr int pieces_of(std::uint64_t elements) {
  return static_cast<int>((elements + piece - 1) / piece);
}
// Whether a pass over so many elements is divided: below that it takes longer to call helpers.
constexpr bool worth_dividing(std::uint64_t elements) {
  return elements > 2 * piece;
}

// Elements that lie one behind the other.
struct Elements {
  graph::DataType type = graph::DataType::f32;
  std::uint64_t count = 0;
};
// All of a descriptor's bytes, f32 or bf16.
Elements elements_of(const Desc& desc);

// Sets a flag, a byte, where one of some tensors holds NaN, an infinity, or a number so large that products
// with it may become one; or where the flag of an earlier kernel is set. Operands: the flag; the earlier flag
// (it may be absent); the tensors.
class WatchKernel final : public Kernel {
 public:
  // `always`: sets the flag whatever the tensors hold.
  WatchKernel(std::vector<Elements> tensors, bool always);
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override;
  int pieces() const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return static_cast<int>(2 + tensors_.size()); }
  bool may_lack(int operand) const override { return operand == 1; }

 private:
  std::vector<Elements> tensors_;
  bool always_;
  std::byte* flag_ = nullptr;
  const std::byte* before_ = nullptr;
  std::vector<const std::byte*> data_;
};

// Notes in operand 1, a bit an element, where operand 0 holds NaN; with `more`, beside what is noted there.
class NoteNanKernel final : public Kernel {
 public:
  static std::uint64_t bytes(const Elements& elements) { return (elements.count + 7) / 8; }
  NoteNanKernel(Elements elements, bool more) : elements_(elements), more_(more) {}
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return worth_dividing(elements_.count); }
  int pieces() const override { return pieces_of(elements_.count); }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return 2; }

 private:
  Elements elements_;
  bool more_;
  const std::byte* data_ = nullptr;
  std::uint8_t* bits_ = nullptr;
};

// Writes NaN to operand 1 where such bits, operand 0, say so.
class RestoreNanKernel final : public Kernel {
 public:
  explicit RestoreNanKernel(Elements elements) : elements_(elements) {}
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return worth_dividing(elements_.count); }
  int pieces() const override { return pieces_of(elements_.count); }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return 2; }

 private:
  Elements elements_;
  const std::uint8_t* bits_ = nullptr;
  std::byte* data_ = nullptr;
};

// Writes NaN to operand 1 where operand 0 holds it: element by element where both lie alike, else by
// `reached`, which tells the elements on which one of operand 0 has a say, as ranges of indices, one a
// dimension.
class SpreadNanKernel final : public Kernel {
 public:
  using Index = std::vector<std::int64_t>;
  struct Range {
    std::int64_t first = 0, last = 0, step = 1;  // first, first + step, ... below last
  };
  using Reached = std::function<void(const Index& from, std::vector<Range>& to)>;
  // From an elementwise operator's operand, which may broadcast.
  static std::unique_ptr<Kernel> elementwise(const Desc& from, const Desc& to);
  // From a pool's source to its result. All lists have an entry a spatial dimension.
  struct Window {
    Dims kernel, strides, dilations, pads;  // dilations as oneDNN counts them: 0 is none; pads: in front
  };
  static std::unique_ptr<Kernel> pool(const Desc& from, const Desc& to, Window window);

  SpreadNanKernel(const Desc& from, const Desc& to, Reached reached);
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return worth_dividing(divided().count); }
  int pieces() const override { return pieces_of(divided().count); }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return 2; }

 private:
  // Over which the pass goes that is divided: where there is NaN at all, or where it is put.
  Elements divided() const { return elements_of(reached_ ? from_ : to_); }

  Desc from_, to_;
  Reached reached_;  // empty: the operands lie alike
  const std::byte* source_ = nullptr;
  std::byte* result_ = nullptr;
};

// Makes all of a softmax's line NaN where its source, operand 0, holds NaN or +infinity, as the sum of the
// line's exponentials is then. Both operands are row-major, seen as [outer, extent, inner]; the softmax is
// over `extent`.
class SoftmaxNanKernel final : public Kernel {
 public:
  SoftmaxNanKernel(graph::DataType type, std::int64_t outer, std::int64_t extent, std::int64_t inner)
      : type_(type), outer_(outer), extent_(extent), inner_(inner) {}
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override {
    return worth_dividing(static_cast<std::uint64_t>(outer_ * extent_ * inner_));
  }
  int pieces() const override {
    return std::min(static_cast<int>(outer_),
                    pieces_of(static_cast<std::uint64_t>(outer_ * extent_ * inner_)));
  }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return 2; }

 private:
  graph::DataType type_;
  std::int64_t outer_, extent_, inner_;
  const std::byte* source_ = nullptr;
  std::byte* result_ = nullptr;
};

// Kernels that run as one, because alone they would not be idempotent. Operands: those of all, in order.
class SequenceKernel final : public Kernel {
 public:
  struct Part {
    std::unique_ptr<Kernel> kernel;
    int operands = 0;
  };
  explicit SequenceKernel(std::vector<Part> parts) : parts_(std::move(parts)) {}
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override;
  bool may_lack(int operand) const override;

 private:
  std::vector<Part> parts_;
};

}  // namespace carillon::engine::cpu
