#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/free_dimensions.h"
#include "carillon/graph/model.h"

namespace carillon::graph {

// One extent of an input: a number, or a symbol ("batch"; may be empty) where `extent` is -1.
struct Dimension {
  std::int64_t extent = -1;
  std::string symbol;
};

// What a model takes and gives, as clients see it: found from what its file says of its inputs, what a config
// adds, and the shapes of its outputs at some shapes of its inputs, which whoever knows the operators infers.
class Signature {
 public:
  // An input as a file has it.
  struct Input {
    std::string name;
    DataType type = DataType::f32;
    bool ranked = false;  // else it has no dimensions yet
    std::vector<Dimension> dimensions;
  };
  // Shapes of the inputs at which outputs are asked for.
  struct Question {
    std::vector<Shape> inputs;
    std::int64_t batch = 1;
    bool trial = false;  // to see what changes; nothing of it is needed again
  };
  // The outputs there, all extents known. Errors: the operators do not fit together there.
  using OutputsAt = std::function<Result<std::vector<TensorSpec>>(const Question&)>;

  // Why a model of this signature is not proven to be made row by row at these batch sizes (each >= 2),
  // naming a node; empty where it is.
  using WhyNot = std::function<std::string(const Signature&, std::span<const int> batch_sizes)>;

  // Errors are those of import_onnx() that are about inputs, lengths and outputs. `why_not` is asked where
  // the options want a proof; null: there is none to be had, and nothing is proven.
  static Result<Signature> find(std::vector<Input> inputs, const ImportOptions& options,
                                const OutputsAt& outputs_at, const WhyNot& why_not = nullptr);

  bool batched() const { return batched_; }
  // Whether its free dimension 0 is the rows of a request, which are never batched: see ImportOptions::whole.
  bool whole() const { return whole_; }
  // What stands in the way of a proof that rows do not see each other; empty where it is proven, or nobody
  // asked.
  const std::string& unproven() const { return unproven_; }
  const std::vector<TensorSpec>& inputs() const { return inputs_; }
  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  const FreeDimensions& free() const { return free_; }
  const Extents& reference() const { return reference_; }  // empty where nothing is free

  // The inputs' shapes; errors (invalid_argument): what the model does not take. At the reference where
  // dimensions are free.
  Result<Question> at(std::int64_t batch, std::int64_t length) const;
  // Of a model with free dimensions.
  Result<Question> at_extents(std::int64_t batch, std::span<const std::int64_t> extents) const;

 private:
  static bool may_batch(const std::vector<Input>& inputs);
  static Result<Signature> find_as_given(std::vector<Input> inputs, const ImportOptions& options,
                                         const OutputsAt& outputs_at);
  static Result<Signature> find_by_file(std::vector<Input> inputs, const ImportOptions& options,
                                        const OutputsAt& outputs_at);
  static void make_whole(std::vector<Input>& inputs, const ImportOptions& options);
  std::string ask(const ImportOptions& options, const WhyNot& why_not) const;
  Result<> find_inputs(std::vector<Input> inputs, const ImportOptions& options);
  Result<> find_outputs(const OutputsAt& outputs_at);
  Result<> find_reference(const OutputsAt& outputs_at);
  Result<> find_computed_outputs(const OutputsAt& outputs_at);
  Result<> find_varying_outputs(std::int64_t length, const OutputsAt& outputs_at);
  Result<> find_batched_outputs(std::int64_t length, const OutputsAt& outputs_at);
  Result<> add_input(const Input& input, std::span<const std::pair<std::string, std::int64_t>> symbols,
                     bool open);
  Result<> check_batch(std::int64_t batch) const;

  bool batched_ = false;
  bool whole_ = false;
  std::string unproven_;
  std::vector<std::int64_t> lengths_;
  FreeDimensions free_;
  Extents reference_;
  std::string fixed_at_one_;  // an input whose first dimension is
  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
};

// A model that says of its inputs and outputs what its signature does.
class SignedModel : public Model {
 public:
  const std::vector<TensorSpec>& inputs() const override { return signature_.inputs(); }
  const std::vector<TensorSpec>& outputs() const override { return signature_.outputs(); }
  bool batched() const override { return signature_.batched(); }
  bool whole() const override { return signature_.whole(); }
  std::string_view unproven() const override { return signature_.unproven(); }
  std::span<const std::int64_t> lengths() const override { return signature_.lengths(); }
  std::span<const std::string> free_dimensions() const override { return signature_.free().names(); }
  std::span<const std::int64_t> reference() const override { return signature_.reference(); }
  const Signature& signature() const { return signature_; }

 protected:
  void set_signature(Signature signature) { signature_ = std::move(signature); }

 private:
  Signature signature_;
};

}  // namespace carillon::graph
