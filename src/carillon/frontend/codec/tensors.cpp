#include "carillon/frontend/codec/tensors.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/output_shape.h"
#include "carillon/frontend/codec/text_elements.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::frontend {
namespace {

constexpr std::int64_t not_given = -1;  // an extent, so far

std::string in_quotes(std::string_view name) {
  constexpr std::size_t longest = 128;  // a name from outside may be any length
  return "'" + std::string(name.substr(0, longest)) + (name.size() > longest ? "...'" : "'");
}

std::string names_of(const std::vector<graph::TensorSpec>& specs) {
  std::string text;
  for (const auto& spec : specs) text += (text.empty() ? "" : ", ") + in_quotes(spec.name);
  return text;
}

std::size_t find(const std::vector<graph::TensorSpec>& specs, std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(specs, name, &graph::TensorSpec::name) - specs.begin());
}

// "1 to 256", or "16, 32 or 64"
std::string wanted_length(const repository::ModelConfig& config) {
  if (config.padding) return "1 to " + std::to_string(config.lengths.back());
  std::string text;
  for (std::size_t i = 0; i < config.lengths.size(); ++i)
    text += (i == 0                           ? ""
             : i + 1 == config.lengths.size() ? " or "
                                              : ", ") +
            std::to_string(config.lengths[i]);
  return text;
}

// "[-1,3,224,224] with 1 to 16 in place of -1"
std::string wanted_shape(const repository::ModelConfig& config, const graph::TensorSpec& spec) {
  auto text = graph::to_text(spec.open_shape());
  if (config.by_rows())
    text += " with 1 to " + std::to_string(std::max(config.max_batch_size, config.whole_rows)) +
            " in place of " + (spec.varies() ? "the first -1" : "-1");
  if (spec.varies())
    text += std::string(config.max_batch_size > 0 ? " and " : " with ") + wanted_length(config) +
            " in place of " + (config.max_batch_size > 0 ? "the other" : "-1");
  else if (std::ranges::any_of(std::span(spec.shape).subspan(config.whole_rows > 0 ? 1 : 0), graph::is_free))
    text += std::string(config.by_rows() ? " and anything" : " with anything") + " in place of " +
            (config.by_rows() ? "the others" : "-1");
  return text;
}

bool takes_length(const repository::ModelConfig& config, std::int64_t length) {
  return config.padding ? length >= 1 && length <= config.lengths.back()
                        : std::ranges::binary_search(config.lengths, length);
}

std::string given_shape(std::span<const std::int64_t> shape) {
  constexpr std::size_t longest = 16;
  if (shape.size() <= longest) return graph::to_text(shape);
  return graph::to_text(shape.first(longest)) + " and " + std::to_string(shape.size() - longest) + " more";
}

// A mask without padding.
std::vector<std::byte> ones(const graph::TensorSpec& spec, int rows, std::int64_t length) {
  const std::size_t count = elements_of(spec.shape_at(rows, length));
  if (spec.type == graph::DataType::boolean) return std::vector<std::byte>(count, std::byte{1});
  const graph::Tensor one = graph::scalar_of(spec.type, 1);
  std::vector<std::byte> out;
  out.reserve(count * one.bytes().size());
  for (std::size_t i = 0; i < count; ++i) out.insert(out.end(), one.bytes().begin(), one.bytes().end());
  return out;
}

std::string input_text(const repository::ModelConfig& config, const InputCheck::Slot& slot) {
  return "input '" + config.inputs[slot.index].name + "' of model '" + config.name + "' has shape " +
         graph::to_text(slot.shape) + " and";
}

// What the extents of a tensor that has one of 0 may be together, the others multiplied.
constexpr std::size_t most_of_nothing = std::size_t{1} << 20;

Result<> check_size(const repository::ModelConfig& config, const InputCheck::Slot& slot, std::size_t bytes) {
  if (bytes == slot.bytes) return {};
  return invalid("input '" + config.inputs[slot.index].name + "' of model '" + config.name + "' has " +
                 std::to_string(bytes) + " bytes; shape " + graph::to_text(slot.shape) + " of " +
                 std::string(graph::kserve_name(slot.type)) + " takes " + std::to_string(slot.bytes));
}

void mend_booleans(const InputCheck::Slot& slot, std::span<std::byte> bytes) {
  if (slot.type != graph::DataType::boolean) return;
  for (auto& b : bytes) b = b == std::byte{0} ? std::byte{0} : std::byte{1};
}

// The bytes of an input that lies in shared memory, as the model takes it.
Result<std::vector<std::byte>> read_part(const repository::ModelConfig& config, const InputCheck::Slot& slot,
                                         const SharedPart& part, controller::InferCall& call) {
  std::vector<std::byte> bytes(part.bytes);
  if (auto read = part.read(bytes); !read) return std::unexpected(std::move(read.error()));
  if (slot.type == graph::DataType::string)
    return read_texts(input_text(config, slot), slot.elements, bytes, own_texts(config, call));
  mend_booleans(slot, bytes);
  return bytes;
}

// Whether an output of so many bytes fits into the shared memory that is to take it.
Result<> check_part(const repository::ModelConfig& config, const OutputChoice& choice, std::size_t bytes) {
  if (bytes <= choice.shared->bytes) return {};
  return invalid("output '" + config.outputs[choice.index].name + "' of model '" + config.name + "' has " +
                 std::to_string(bytes) + " bytes; shared_memory_byte_size gives it only " +
                 std::to_string(choice.shared->bytes));
}

}  // namespace

std::size_t elements_of(std::span<const std::int64_t> shape) {
  std::size_t n = 1;
  for (const auto extent : shape) n *= static_cast<std::size_t>(extent);
  return n;
}

InputCheck::InputCheck(const repository::ModelConfig& config, std::size_t most_elements)
    : config_(config), given_(config.inputs.size()), most_elements_(most_elements) {
  for (const auto& spec : config.inputs)
    for (const std::int64_t extent : spec.shape)
      if (graph::is_free(extent)) extents_.resize(std::max(extents_.size(), graph::free_number(extent) + 1));
  std::ranges::fill(extents_, not_given);
  first_.resize(extents_.size());
}

// Takes the free dimensions of an input into `extents`.
Result<> InputCheck::claim_extents(std::size_t index, std::span<const std::int64_t> shape,
                                   std::size_t most_elements) {
  const auto& spec = config_.inputs[index];
  const std::string where = "input '" + spec.name + "' of model '" + config_.name + "'";
  // Without elements it takes no bytes, and its other extents may be what they are: within bounds, as results
  // may be as large.
  const bool empty = std::ranges::find(shape, 0) != shape.end();
  if (empty) most_elements = std::max(most_elements, most_of_nothing);
  std::size_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent == 0) continue;
    if (static_cast<std::uint64_t>(extent) > most_elements / elements)
      return invalid(
          where + " has shape " + given_shape(shape) +
          (empty ? ", whose other extents are more than " + std::to_string(most_elements) + " together"
                 : ", more elements than the request has bytes"));
    elements *= static_cast<std::size_t>(extent);
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!graph::is_free(spec.shape[d])) continue;
    const std::size_t number = graph::free_number(spec.shape[d]);
    if (extents_[number] != not_given && extents_[number] != shape[d])
      return invalid(where + " has shape " + given_shape(shape) + ": dimension " + std::to_string(d) +
                     " must be " + std::to_string(extents_[number]) + ", as in input '" +
                     config_.inputs[first_[number]].name + "', where it has the same name in the model");
    if (extents_[number] == not_given) first_[number] = index;
    extents_[number] = shape[d];
  }
  return {};
}

Result<InputCheck::Slot> InputCheck::claim(std::string_view name, std::string_view datatype,
                                           std::span<const std::int64_t> shape,
                                           std::optional<std::size_t> outside) {
  const std::size_t index = find(config_.inputs, name);
  if (index == config_.inputs.size() && std::ranges::find(config_.fixed, name) != config_.fixed.end())
    return invalid("input " + in_quotes(name) + " of model '" + config_.name +
                   "' is set by an initializer of its file, which requests cannot change; leave it out");
  if (index == config_.inputs.size())
    return invalid("model '" + config_.name + "' has no input " + in_quotes(name) + "; its inputs are " +
                   names_of(config_.inputs));
  const auto& spec = config_.inputs[index];
  const std::string where = "input '" + spec.name + "' of model '" + config_.name + "'";
  if (given_[index]) return invalid(where + " is given twice");
  if (datatype != graph::kserve_name(spec.type))
    return invalid(where + " is given as " + in_quotes(datatype) + "; it must be " +
                   std::string(graph::kserve_name(spec.type)));

  const auto wrong_shape = [&] {
    return invalid(where + " has shape " + given_shape(shape) + "; it must be " +
                   wanted_shape(config_, spec));
  };
  if (shape.size() != spec.shape.size()) return wrong_shape();
  bool batches = false;
  if (config_.max_batch_size > 0 && !spec.shape.empty() && spec.shape[0] == graph::batch_dimension) {
    if (shape[0] < 1 || shape[0] > config_.max_batch_size) return wrong_shape();
    if (rows_ != 0 && shape[0] != rows_)
      return invalid(where + " has a batch of " + std::to_string(shape[0]) + ", the inputs before it " +
                     std::to_string(rows_) + "; all inputs must have the same");
    batches = true;
  }
  std::int64_t length = length_;
  for (std::size_t d = batches ? 1 : 0; d < shape.size(); ++d) {
    const bool open = spec.shape[d] == graph::length_dimension;
    if (graph::is_free(spec.shape[d])) {
      if (shape[d] < 0) return wrong_shape();  // 0: an empty past, no boxes
      const bool rows = d == 0 && config_.whole_rows > 0;
      if (rows && (shape[0] < 1 || shape[0] > config_.whole_rows)) return wrong_shape();
      continue;
    }
    if (open ? !takes_length(config_, shape[d]) : shape[d] != spec.shape[d]) return wrong_shape();
    if (!open) continue;
    if (length != 0 && shape[d] != length)
      return invalid(where + " has a length of " + std::to_string(shape[d]) + ", the inputs before it " +
                     std::to_string(length) + "; all inputs must have the same");
    length = shape[d];
  }
  if (!extents_.empty())
    if (auto ok = claim_extents(index, shape, outside.value_or(most_elements_)); !ok)
      return std::unexpected(ok.error());
  length_ = length;

  if (batches) rows_ = static_cast<int>(shape[0]);
  given_[index] = true;
  Slot slot{.index = index, .type = spec.type, .shape = {shape.begin(), shape.end()}};
  slot.elements = elements_of(slot.shape);
  slot.bytes = slot.elements * graph::size_of(spec.type);
  return slot;
}

Result<> InputCheck::complete(controller::InferCall& call) const {
  call.rows = rows_ == 0 ? 1 : rows_;
  call.length = length_;
  call.extents = extents_;
  std::string missing;
  for (std::size_t i = 0; i < given_.size(); ++i)
    if (!given_[i] && config_.inputs[i].name == config_.mask && length_ > 0)
      call.inputs[i] = ones(config_.inputs[i], call.rows, length_);
    else if (!given_[i])
      missing += (missing.empty() ? "" : ", ") + in_quotes(config_.inputs[i].name);
  if (missing.empty()) return {};
  return invalid("model '" + config_.name + "' needs input " + missing + ", which the request does not give");
}

Result<> choose_output(const repository::ModelConfig& config, std::string_view name, OutputChoice how,
                       std::vector<OutputChoice>& chosen) {
  const std::size_t index = find(config.outputs, name);
  if (index == config.outputs.size())
    return invalid("model '" + config.name + "' has no output " + in_quotes(name) + "; its outputs are " +
                   names_of(config.outputs));
  if (std::ranges::find(chosen, index, &OutputChoice::index) != chosen.end())
    return invalid("output " + in_quotes(name) + " is asked for twice");
  how.index = index;
  chosen.push_back(std::move(how));
  return {};
}

std::vector<OutputChoice> all_outputs(const repository::ModelConfig& config, bool binary) {
  std::vector<OutputChoice> chosen;
  for (std::size_t i = 0; i < config.outputs.size(); ++i) chosen.push_back({.index = i, .binary = binary});
  return chosen;
}

std::vector<bool> outputs_wanted(const repository::ModelConfig& config,
                                 const std::vector<OutputChoice>& chosen) {
  if (chosen.size() == config.outputs.size()) return {};  // none is asked for twice
  std::vector<bool> out(config.outputs.size());
  for (const OutputChoice& choice : chosen) out[choice.index] = true;
  return out;
}

bool is_bounded_output(const repository::ModelConfig& config, std::size_t index,
                       const controller::InferCall& call) {
  return graph::has_bounded(controller::promised_shape(config, index, call));
}

graph::Shape output_shape(const repository::ModelConfig& config, std::size_t index,
                          const controller::InferCall& call) {
  auto found = controller::found_shape(config, index, call);
  CARILLON_ASSERT(found);
  return *std::move(found);
}

std::span<const std::byte> output_bytes(const repository::ModelConfig& config, std::size_t index,
                                        const controller::InferCall& call) {
  const std::span<const std::byte> bytes = call.outputs[index];
  if (!is_bounded_output(config, index, call)) return bytes;
  return bytes.first(elements_of(output_shape(config, index, call)) *
                     graph::size_of(config.outputs[index].type));
}

bool goes_as_text(const repository::ModelConfig& config, const OutputChoice& choice) {
  return choice.classes > 0 || config.outputs[choice.index].type == graph::DataType::string;
}

std::span<const std::byte> answer_bytes(const repository::ModelConfig& config, const OutputChoice& choice,
                                        const controller::InferCall& call) {
  if (goes_as_text(config, choice)) return call.outputs[choice.index];
  return output_bytes(config, choice.index, call);
}

Result<> check_outputs(const repository::ModelConfig& config, const controller::InferCall& call) {
  if (call.outputs.size() != config.outputs.size())
    return fail(ErrorCode::internal, "model '" + config.name + "' gave " +
                                         std::to_string(call.outputs.size()) + " outputs; it has " +
                                         std::to_string(config.outputs.size()));
  for (std::size_t i = 0; i < config.outputs.size(); ++i) {
    if (!call.wants(i)) continue;
    const graph::Shape promised = controller::promised_shape(config, i, call);
    const std::size_t want = graph::memory_of(config.outputs[i].type, promised).count;
    if (call.outputs[i].size() != want)
      return fail(ErrorCode::internal, "output '" + config.outputs[i].name + "' of model '" + config.name +
                                           "' has " + std::to_string(call.outputs[i].size()) + " bytes; " +
                                           std::to_string(want) + " were expected");
    if (auto found = controller::found_shape(config, i, call); !found)
      return in_context("output '" + config.outputs[i].name + "' of model '" + config.name + "'",
                        found.error());
  }
  return {};
}

Result<std::vector<std::byte>> take_raw(const repository::ModelConfig& config, const InputCheck::Slot& slot,
                                        std::span<const std::byte> data, controller::InferCall& call) {
  if (slot.type == graph::DataType::string)
    return read_texts(input_text(config, slot), slot.elements, data, own_texts(config, call));
  if (auto fits = check_size(config, slot, data.size()); !fits) return std::unexpected(fits.error());
  std::vector<std::byte> bytes(data.begin(), data.end());
  mend_booleans(slot, bytes);
  return bytes;
}

Result<std::vector<std::byte>> take_shared(const repository::ModelConfig& config,
                                           const InputCheck::Slot& slot, const SharedPart& part,
                                           Reservation* room, InferRequest& request) {
  if (slot.type != graph::DataType::string)
    if (auto fits = check_size(config, slot, part.bytes); !fits) return std::unexpected(fits.error());
  if (room != nullptr && part.bytes > room->most() - std::min(room->most(), room->bytes()))
    return invalid("input '" + config.inputs[slot.index].name + "' has " + std::to_string(part.bytes) +
                   " bytes in shared memory; with the request's own " + std::to_string(room->bytes()) +
                   " that is more than can ever be in flight, " + std::to_string(room->most()) +
                   " (--inflight-limit, or what a key may have)");
  if (room != nullptr && !room->grow(part.bytes))
    return fail(ErrorCode::resource_exhausted, "there is no room now for " + std::to_string(part.bytes) +
                                                   " bytes from shared memory: too many are in flight");
  if (!part.region->on_device()) return read_part(config, slot, part, *request.call);
  request.fetches.push_back({.slot = slot, .from = part});
  return {};
}

Result<> fetch_inputs(const repository::ModelConfig& config, InferRequest& request) {
  for (const Fetch& fetch : request.fetches) {
    auto bytes = read_part(config, fetch.slot, fetch.from, *request.call);
    if (!bytes) return std::unexpected(std::move(bytes.error()));
    request.call->inputs[fetch.slot.index] = std::move(*bytes);
  }
  request.fetches.clear();
  return {};
}

bool shares_on_device(const InferRequest& request) {
  return std::ranges::any_of(request.outputs, [](const OutputChoice& choice) {
    return choice.shared && choice.shared->region->on_device();
  });
}

Result<> check_shared_outputs(const repository::ModelConfig& config, const InferRequest& request) {
  if (!request.call->extents.empty()) return {};
  for (const OutputChoice& choice : request.outputs) {
    // How long texts are is known when they are made.
    if (!choice.shared || goes_as_text(config, choice)) continue;
    const graph::Shape shape = promised_shape(config, choice.index, *request.call);
    if (graph::has_bounded(shape)) continue;
    if (auto fits = check_part(config, choice,
                               elements_of(shape) * graph::size_of(config.outputs[choice.index].type));
        !fits)
      return fits;
  }
  return {};
}

Result<> share_outputs(const repository::ModelConfig& config, const InferRequest& request,
                       const controller::InferCall& call) {
  for (const OutputChoice& choice : request.outputs) {
    if (!choice.shared) continue;
    const std::span<const std::byte> bytes = answer_bytes(config, choice, call);
    if (auto fits = check_part(config, choice, bytes.size()); !fits) return fits;
    if (auto written = choice.shared->write(bytes); !written) return written;
  }
  return {};
}

}  // namespace carillon::frontend
