#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <openvino/openvino.hpp>

namespace carillon::engine::second {

// Results of a model that are inputs as they are, because OpenVINO takes out all that is between: Dropout,
// Sum of one operand, Einsum "a->a", a Cast to the same type, an output that is an input. OpenVINO's CPU
// plugin leaves the memory that such a result is bound to unwritten. It may also write the input to memory
// that an earlier run had, where another client's data may be by now. (Found by running each so. Identity,
// Reshape and the like keep an operator and are safe.)
//
// So such results are taken out of the model, and whoever runs it copies the inputs. Constant once it is
// made.
class PassedOn {
 public:
  using Compile = std::function<ov::CompiledModel(const std::shared_ptr<ov::Model>&)>;

  // Compiles `model` without such results, which it takes out of `model`. `into` is empty where no result is
  // left. Renames all results. Throws what `compile` throws; std::runtime_error where the compiled model does
  // not say what its results are.
  static PassedOn compile(const std::shared_ptr<ov::Model>& model, const Compile& compile,
                          std::optional<ov::CompiledModel>& into);

  // Results are counted as `model` had them. The input that the result is, or nothing.
  std::optional<std::size_t> input_of(std::size_t result) const { return input_of_[result]; }
  // The output of the compiled model that any other result is.
  std::size_t output_of(std::size_t result) const { return output_of_[result]; }

 private:
  std::vector<std::optional<std::size_t>> input_of_;
  std::vector<std::size_t> output_of_;
};

}  // namespace carillon::engine::second
