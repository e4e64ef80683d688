#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/frontend/infer_request.h"
#include "carillon/repository/repository.h"

namespace carillon::frontend {

// Checks the inputs of one request, one at a time, against what the model takes. No size here is the client's
// alone: bytes and elements follow from the config and a batch that was held against its maximum, or, where
// the model is open, are held against what the request could hold.
class InputCheck {
 public:
  // `most_elements`: of an input whose size the model leaves open; what the request could hold at most.
  InputCheck(const repository::ModelConfig& config, std::size_t most_elements);

  struct Slot {
    std::size_t index = 0;  // into ModelConfig::inputs
    graph::DataType type = graph::DataType::f32;
    graph::Shape shape;
    std::size_t elements = 0;
    std::size_t bytes = 0;
  };

  // The slot of input `name`. Errors (invalid_argument unless said): unknown name, one given twice, a
  // datatype or shape that is not the model's, a batch outside 1..max_batch_size or unlike the other inputs',
  // a length that the model has no plan for or unlike the other inputs', a free dimension unlike another of
  // the same name, more elements than the request can hold; unsupported: BYTES.
  Result<Slot> claim(std::string_view name, std::string_view datatype, std::span<const std::int64_t> shape);

  // Gives `call` the rows and the length, and, where the mask was left out, a mask of ones. Error: an input
  // of the model was not given.
  Result<> complete(controller::InferCall& call) const;

 private:
  Result<> claim_extents(std::size_t index, std::span<const std::int64_t> shape);

  const repository::ModelConfig& config_;
  std::vector<bool> given_;
  int rows_ = 0;             // 0: not known yet
  std::int64_t length_ = 0;  // likewise
  std::size_t most_elements_;
  graph::Extents extents_;          // of free dimensions; 0: not known yet
  std::vector<std::size_t> first_;  // likewise: the input that told
};

// Adds the output `name` to `chosen`. Errors: unknown, or already there.
Result<> choose_output(const repository::ModelConfig& config, std::string_view name, bool binary,
                       std::vector<OutputChoice>& chosen);
// All outputs, in the model's order.
std::vector<OutputChoice> all_outputs(const repository::ModelConfig& config, bool binary);

// The extents of an output of `call`.
graph::Shape output_shape(const repository::ModelConfig& config, std::size_t index,
                          const controller::InferCall& call);

// Whether the call's outputs are there and of the right sizes. Error (internal): names the output.
Result<> check_outputs(const repository::ModelConfig& config, const controller::InferCall& call);

// Takes `data` as the bytes of an input; any nonzero byte of a BOOL becomes 1, which is what C++ needs.
// Error: not slot.bytes long.
Result<std::vector<std::byte>> take_raw(const repository::ModelConfig& config, const InputCheck::Slot& slot,
                                        std::span<const std::byte> data);

}  // namespace carillon::frontend
