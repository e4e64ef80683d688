#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/frontend/codec/shared_memory.h"
#include "carillon/repository/repository.h"

namespace carillon::frontend {

// The product of extents, none of which is open.
std::size_t elements_of(std::span<const std::int64_t> shape);

// Checks the inputs of one request, one at a time, against what the model takes. No size here is the client's
// alone: bytes and elements follow from the config and a batch that was held against its maximum, or, where
// the model is open, are held against what the request could hold.
class InputCheck {
 public:
  // `most_elements`: of an input whose size the model leaves open; what the request could hold at most.
  InputCheck(const repository::ModelConfig& config, std::size_t most_elements);

  using Slot = InputSlot;

  // The slot of input `name`. Errors (invalid_argument): unknown name, one given twice, a datatype or shape
  // that is not the model's, a batch outside 1..max_batch_size or unlike the other inputs', a length that the
  // model has no plan for or unlike the other inputs', a free dimension unlike another of the same name, more
  // elements than the request can hold. `outside`: how many bytes this input has where they are not in the
  // request.
  Result<Slot> claim(std::string_view name, std::string_view datatype, std::span<const std::int64_t> shape,
                     std::optional<std::size_t> outside = {});

  // Gives `call` the rows and the length, and, where the mask was left out, a mask of ones. Error: an input
  // of the model was not given.
  Result<> complete(controller::InferCall& call) const;

 private:
  Result<> claim_extents(std::size_t index, std::span<const std::int64_t> shape, std::size_t most_elements);

  const repository::ModelConfig& config_;
  std::vector<bool> given_;
  int rows_ = 0;             // 0: not known yet
  std::int64_t length_ = 0;  // likewise
  std::size_t most_elements_;
  graph::Extents extents_;          // of free dimensions; -1: not known yet
  std::vector<std::size_t> first_;  // likewise: the input that told
};

// Adds the output `name` to `chosen`, as `how` says (but for its index). Errors: unknown, or already there.
Result<> choose_output(const repository::ModelConfig& config, std::string_view name, OutputChoice how,
                       std::vector<OutputChoice>& chosen);
// All outputs, in the model's order.
std::vector<OutputChoice> all_outputs(const repository::ModelConfig& config, bool binary);
// InferCall::outputs_wanted of a request that chose these.
std::vector<bool> outputs_wanted(const repository::ModelConfig& config,
                                 const std::vector<OutputChoice>& chosen);

// Whether the data decide the extents of an output of `call`.
bool is_bounded_output(const repository::ModelConfig& config, std::size_t index,
                       const controller::InferCall& call);
// The extents of an output of `call`, which passed check_outputs(), and its elements, row-major.
graph::Shape output_shape(const repository::ModelConfig& config, std::size_t index,
                          const controller::InferCall& call);
std::span<const std::byte> output_bytes(const repository::ModelConfig& config, std::size_t index,
                                        const controller::InferCall& call);

// Whether an output goes out as texts: it is BYTES, or its largest values are asked for (classification.h).
bool goes_as_text(const repository::ModelConfig& config, const OutputChoice& choice);
// What goes out of an output once finish_outputs() has been there: its texts, or output_bytes().
std::span<const std::byte> answer_bytes(const repository::ModelConfig& config, const OutputChoice& choice,
                                        const controller::InferCall& call);

// Whether the call's outputs are there and of the right sizes. Error (internal): names the output.
Result<> check_outputs(const repository::ModelConfig& config, const controller::InferCall& call);

// Takes `data` as the bytes of an input; any nonzero byte of a BOOL becomes 1, which is what C++ needs, and
// texts become handles. Error: not slot.bytes long, or not the texts that the shape takes.
Result<std::vector<std::byte>> take_raw(const repository::ModelConfig& config, const InputCheck::Slot& slot,
                                        std::span<const std::byte> data, controller::InferCall& call);

// The same of an input in shared memory, for which `room` (may be null) grows. One on a device is noted in
// the request's `fetches`, and nothing is given for it yet. Errors: also the region's; resource_exhausted:
// there is no room.
Result<std::vector<std::byte>> take_shared(const repository::ModelConfig& config,
                                           const InputCheck::Slot& slot, const SharedPart& part,
                                           Reservation* room, InferRequest& request);
// Brings what is noted there, and lets the regions go; waits for devices. Errors as take_shared()'s.
Result<> fetch_inputs(const repository::ModelConfig& config, InferRequest& request);

// Whether outputs of the request go to devices: share_outputs() waits for these.
bool shares_on_device(const InferRequest& request);

// Whether what is asked for fits into the shared memory that is to take it, as far as that is known before
// the model has run. Requires a call that passed InputCheck::complete().
Result<> check_shared_outputs(const repository::ModelConfig& config, const InferRequest& request);

// Copies outputs into the shared memory that they are asked for in. Requires outputs that passed
// check_outputs(). Errors: too little room there, and the region's.
Result<> share_outputs(const repository::ModelConfig& config, const InferRequest& request,
                       const controller::InferCall& call);

}  // namespace carillon::frontend
