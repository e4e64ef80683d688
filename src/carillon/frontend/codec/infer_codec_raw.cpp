#include "carillon/frontend/codec/infer_codec_raw.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/codec/reading_room.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/graph/tensor.h"

namespace carillon::frontend {
namespace {

// The shape of an input that `bytes` bytes are all of.
Result<std::vector<std::int64_t>> raw_shape(const repository::ModelConfig& config, std::size_t bytes) {
  const graph::TensorSpec& input = config.inputs.front();
  const std::string where = "input '" + input.name + "' of model '" + config.name + "'";
  graph::Shape shape = input.open_shape();
  if (config.max_batch_size > 0) shape.front() = 1;
  const auto open = std::ranges::count(shape, -1);
  if (input.type == graph::DataType::string) {
    std::ranges::replace(shape, -1, 1);
    if (elements_of(shape) == 1) return shape;
    return invalid(where + " has shape " + graph::to_text(input.open_shape()) +
                   "; a body without JSON (Inference-Header-Content-Length: 0) is one element of BYTES");
  }
  if (open == 0) return shape;
  if (open > 1)
    return invalid(where + " has shape " + graph::to_text(input.open_shape()) +
                   ", of which a body without JSON (Inference-Header-Content-Length: 0) leaves " +
                   std::to_string(open) + " extents unknown: it may be one");
  const auto one = std::ranges::find(shape, -1);
  *one = 1;
  const std::size_t step = elements_of(shape) * graph::size_of(input.type);
  if (step == 0 || bytes % step != 0)
    return invalid(where + " has shape " + graph::to_text(input.open_shape()) + " of " +
                   std::string(graph::kserve_name(input.type)) + ": a body without JSON has a multiple of " +
                   std::to_string(step) + " bytes, and this one has " + std::to_string(bytes));
  *one = static_cast<std::int64_t>(bytes / step);
  return shape;
}

// Texts are read with their lengths before them.
std::vector<std::byte> with_length(std::span<const std::byte> text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  std::vector<std::byte> element(sizeof length + text.size());
  std::memcpy(element.data(), &length, sizeof length);
  std::ranges::copy(text, element.begin() + sizeof length);
  return element;
}

}  // namespace

Result<InferRequest> parse_infer_raw(const controller::ModelView& model, const PaddedBytes& body,
                                     TimePoint arrival, const Surroundings& around) {
  const repository::ModelConfig& config = model.config;
  if (config.inputs.size() != 1)
    return invalid(
        "model '" + config.name + "' has " + std::to_string(config.inputs.size()) +
        " inputs: a body without JSON (Inference-Header-Content-Length: 0) is for models with one");
  const graph::TensorSpec& input = config.inputs.front();
  const auto shape = raw_shape(config, body.size());
  if (!shape) return std::unexpected(shape.error());
  InferRequest request;
  request.call = std::make_unique<controller::InferCall>();
  request.call->model = model.id;
  request.call->inputs.resize(1);
  InputCheck check(config, std::max<std::size_t>(body.size(), 1));
  const auto slot = check.claim(input.name, graph::kserve_name(input.type), *shape);
  if (!slot) return std::unexpected(slot.error());
  ReadingRoom reading(around.room, body.size());
  if (auto room = reading.take_copy(body.size(), "input '" + input.name + "'"); !room)
    return std::unexpected(std::move(room.error()));
  const auto data = std::as_bytes(std::span(body.text()));
  auto bytes = input.type == graph::DataType::string
                   ? take_raw(config, *slot, with_length(data), *request.call)
                   : take_raw(config, *slot, data, *request.call);
  if (!bytes) return std::unexpected(std::move(bytes.error()));
  request.call->inputs.front() = std::move(*bytes);
  if (auto complete = check.complete(*request.call); !complete)
    return std::unexpected(std::move(complete.error()));
  request.outputs = all_outputs(config, true);
  RequestParameters().apply(*request.call, arrival, TimePoint::max(), may_be_real_time(config, around.key));
  if (auto held = hold_inputs(request, around.room); !held) return std::unexpected(std::move(held.error()));
  return request;
}

}  // namespace carillon::frontend
