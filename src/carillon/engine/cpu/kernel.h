#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <dnnl.hpp>

#include "carillon/base/result.h"
#include "carillon/graph/kernel.h"
#include "carillon/graph/slices.h"

namespace carillon::engine::cpu {

// Which of a binding's memories a byte lies in.
enum class Where : std::uint8_t {
  workspace,
  weights,
  own,  // constants of the plan's own, beside the model's weights
  input,
  output
};

// A place in one of them, known when a plan is finished.
struct Slot {
  Where where = Where::workspace;
  int index = 0;  // of the input or output
  std::uint64_t offset = 0;
};

// One step of a plan. A plan has it without addresses, and each of its run states a copy, whose operands'
// addresses are patched when the binding's pointers change; run() then uses them. Idempotent: no operand that
// is written overlaps one that is read.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // For another run state: what never changes is shared, no operand has a place yet. Bad data that it meets
  // is noted in `faults`, which must outlive it.
  virtual std::unique_ptr<Kernel> copy(graph::Faults& faults) const = 0;
  // Whether it divides its work among the parts of the arena that it runs in; else it runs in an arena of
  // one.
  virtual bool divides() const { return false; }
  // Into how many parts it can be divided at next to no cost, whatever arena it was made in; 1: it is for its
  // maker to find out.
  virtual int pieces() const { return 1; }
  // Of a copy whose operands all have places. Where it was stopped between parts its result is not complete.
  virtual Result<> run(dnnl::stream& stream) = 0;
  // Operand `operand` (as numbered by whoever made the kernel) now lies at `address`.
  virtual void place(int operand, std::byte* address) = 0;
  // How many operands it has, absent ones counted, and which of them may be absent. A plan whose kernels lack
  // the place of another is refused when it is made.
  virtual int operand_count() const = 0;
  virtual bool may_lack(int /*operand*/) const { return false; }
};

// A oneDNN primitive. Operands are numbered in the order of `arguments`.
class DnnlKernel final : public Kernel {
 public:
  struct Argument {
    int id;  // DNNL_ARG_*
    dnnl::memory::desc desc;
  };
  DnnlKernel(const dnnl::engine& engine, dnnl::primitive primitive, std::vector<Argument> arguments);
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return true; }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return static_cast<int>(made_->arguments.size()); }

 private:
  struct Made {
    dnnl::engine engine;
    dnnl::primitive primitive;
    std::vector<Argument> arguments;
  };
  explicit DnnlKernel(std::shared_ptr<const Made> made);

  std::shared_ptr<const Made> made_;
  std::vector<dnnl::memory> memories_;  // of a copy
  std::unordered_map<int, dnnl::memory> arguments_;
};

// A plain kernel with its node's post-ops. Operands: inputs, then outputs, then the post-ops' operands;
// absent ones are counted, and never placed.
class PlainKernelStep final : public Kernel {
 public:
  // Types are null where an operand is absent.
  PlainKernelStep(graph::Node node, graph::PlainKernel kernel,
                  const std::vector<const graph::TensorType*>& inputs,
                  const std::vector<const graph::TensorType*>& outputs,
                  const std::vector<const graph::TensorType*>& post_op_operands);
  // Copies made from now on note bad data. `origins` are the inputs'; nothing for one that is no request's.
  void take_notes(std::vector<std::optional<graph::Origin>> origins);
  // Divided into so many parts, or as many as there are slices. Before any copy is made.
  void divide(graph::Slices slices, int parts);
  std::uint64_t elements() const;  // of its outputs
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return made_->parts > 1; }
  int pieces() const override { return made_->parts; }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override {
    return static_cast<int>(inputs_.size() + outputs_.size() + post_op_operands_.size());
  }
  bool may_lack(int operand) const override;

 private:
  struct Made {
    graph::Node node;
    graph::PlainKernel kernel;
    std::vector<std::unique_ptr<graph::TensorType>> types;
    std::vector<std::optional<graph::Origin>> origins;
    bool takes_notes = false;
    int parts = 1;
    std::optional<graph::Slices> slices;                      // that the parts are made of,
    std::int64_t fewest = 0;                                  // so many each, or one more:
    std::vector<std::array<graph::TensorType, 2>> of_part{};  // each operand as the one and the other see it
  };
  PlainKernelStep(const PlainKernelStep&) = default;
  Result<> run_part(int part) const;

  std::shared_ptr<Made> made_;  // nobody changes it once there is a copy
  std::vector<graph::ConstView> inputs_;
  std::vector<graph::MutableView> outputs_;
  std::vector<graph::ConstView> post_op_operands_;
};

// Copies bytes from operand 0 to operand 1.
class CopyKernel final : public Kernel {
 public:
  explicit CopyKernel(std::size_t size) : size_(size) {}
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  bool divides() const override { return pieces() > 1; }
  int pieces() const override { return static_cast<int>((size_ + piece - 1) / piece); }
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return 2; }

 private:
  static constexpr std::size_t piece = 1 << 17;

  std::size_t size_;
  std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
};

}  // namespace carillon::engine::cpu
