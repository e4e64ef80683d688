#include "carillon/frontend/codec/infer_codec_grpc.h"

#include <cstring>
#include <limits>
#include <utility>

#include "infer.pb.h"

#include "carillon/frontend/codec/classification.h"
#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/codec/reading_room.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/codec/text_elements.h"

namespace carillon::frontend {
namespace {

using Contents = inference::InferTensorContents;

Result<ParameterValue> parameter_of(std::string_view name, const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return parameter.bool_param();
    case inference::InferParameter::kInt64Param:
      return ParameterValue{std::int64_t{parameter.int64_param()}};
    case inference::InferParameter::kStringParam:
      return std::string_view(parameter.string_param());
    case inference::InferParameter::kDoubleParam:
      return parameter.double_param();
    case inference::InferParameter::kUint64Param:
      return ParameterValue{std::uint64_t{parameter.uint64_param()}};
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return invalid("parameter '" + std::string(name) + "' has no value");
}

// A field of typed contents: what it is called and how much is in it.
struct Field {
  const char* name;
  int size;
};

std::vector<Field> filled_fields(const Contents& contents) {
  const Field all[] = {{"bool_contents", contents.bool_contents_size()},
                       {"int_contents", contents.int_contents_size()},
                       {"int64_contents", contents.int64_contents_size()},
                       {"uint_contents", contents.uint_contents_size()},
                       {"uint64_contents", contents.uint64_contents_size()},
                       {"fp32_contents", contents.fp32_contents_size()},
                       {"fp64_contents", contents.fp64_contents_size()},
                       {"bytes_contents", contents.bytes_contents_size()}};
  std::vector<Field> filled;
  for (const auto& field : all)
    if (field.size > 0) filled.push_back(field);
  return filled;
}

// Copies `from` into elements of type T, which may be narrower.
template <typename T, typename Repeated>
Result<std::vector<std::byte>> copy_typed(const std::string& where, const InputCheck::Slot& slot,
                                          const Repeated& from, std::string_view field,
                                          const Contents& contents) {
  for (const auto& filled : filled_fields(contents))
    if (filled.name != field)
      return invalid(where + " has data in " + filled.name + "; " +
                     std::string(graph::kserve_name(slot.type)) + " goes into " + std::string(field));
  if (static_cast<std::size_t>(from.size()) != slot.elements)
    return invalid(where + " has " + std::to_string(from.size()) + " elements; shape " +
                   graph::to_text(slot.shape) + " takes " + std::to_string(slot.elements));
  std::vector<std::byte> bytes(slot.bytes);
  std::byte* out = bytes.data();
  for (int i = 0; i < from.size(); ++i) {
    const auto given = from.Get(i);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (!std::in_range<T>(given))
        return invalid(where + ": element " + std::to_string(i) + " is " + std::to_string(given) +
                       ", which is not a value of " + std::string(graph::kserve_name(slot.type)));
    }
    const T value = static_cast<T>(given);
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  }
  return bytes;
}

Result<std::vector<std::byte>> copy_texts(const std::string& where, const InputCheck::Slot& slot,
                                          const Contents& contents, std::vector<std::byte>* own) {
  for (const auto& filled : filled_fields(contents))
    if (filled.name != std::string_view("bytes_contents"))
      return invalid(where + " has data in " + filled.name + "; BYTES goes into bytes_contents");
  if (static_cast<std::size_t>(contents.bytes_contents_size()) != slot.elements)
    return invalid(where + " has " + std::to_string(contents.bytes_contents_size()) + " elements; shape " +
                   graph::to_text(slot.shape) + " takes " + std::to_string(slot.elements));
  std::vector<std::byte> handles;
  handles.reserve(slot.bytes);
  for (const std::string& text : contents.bytes_contents()) put_handle(handles, handle_of(text, own));
  return handles;
}

Result<std::vector<std::byte>> take_typed(const std::string& where, const InputCheck::Slot& slot,
                                          const Contents& contents, std::vector<std::byte>* own) {
  const auto copy = [&]<typename T>(T, const auto& from, std::string_view field) {
    return copy_typed<T>(where, slot, from, field, contents);
  };
  switch (slot.type) {
    case graph::DataType::boolean:
      return copy(bool{}, contents.bool_contents(), "bool_contents");
    case graph::DataType::i8:
      return copy(std::int8_t{}, contents.int_contents(), "int_contents");
    case graph::DataType::i16:
      return copy(std::int16_t{}, contents.int_contents(), "int_contents");
    case graph::DataType::i32:
      return copy(std::int32_t{}, contents.int_contents(), "int_contents");
    case graph::DataType::i64:
      return copy(std::int64_t{}, contents.int64_contents(), "int64_contents");
    case graph::DataType::u8:
      return copy(std::uint8_t{}, contents.uint_contents(), "uint_contents");
    case graph::DataType::u16:
      return copy(std::uint16_t{}, contents.uint_contents(), "uint_contents");
    case graph::DataType::u32:
      return copy(std::uint32_t{}, contents.uint_contents(), "uint_contents");
    case graph::DataType::u64:
      return copy(std::uint64_t{}, contents.uint64_contents(), "uint64_contents");
    case graph::DataType::f32:
      return copy(float{}, contents.fp32_contents(), "fp32_contents");
    case graph::DataType::f64:
      return copy(double{}, contents.fp64_contents(), "fp64_contents");
    case graph::DataType::f16:
    case graph::DataType::bf16:
      return invalid(where + " is " + std::string(graph::kserve_name(slot.type)) +
                     ", which typed contents cannot carry; send it in raw_input_contents");
    case graph::DataType::string:
      return copy_texts(where, slot, contents, own);
  }
  return fail(ErrorCode::internal, where + " has no known type");
}

// Where in shared memory a tensor is, if it is there.
Result<std::optional<SharedPart>> shared_part(const std::string& place, const auto& tensor,
                                              const Surroundings& around) {
  SharedParameters shared;
  for (const auto& [name, parameter] : tensor.parameters()) {
    if (!SharedParameters::heeds(name)) continue;
    const auto value = parameter_of(name, parameter);
    if (!value) return in_context(place, value.error());
    if (auto set = shared.set(name, *value); !set) return in_context(place, set.error());
  }
  if (!shared.given()) return std::nullopt;
  auto part = shared.find(around.regions, around.key);
  if (!part) return in_context(place, part.error());
  return std::move(*part);
}

Result<> read_inputs(const repository::ModelConfig& config, const inference::ModelInferRequest& message,
                     const Surroundings& around, InferRequest& request) {
  controller::InferCall& call = *request.call;
  const int raw = message.raw_input_contents_size();
  int taken = 0;  // of the raw entries
  const std::size_t size = message.ByteSizeLong();
  InputCheck check(config, size);
  ReadingRoom reading(around.room, size);
  for (int i = 0; i < message.inputs_size(); ++i) {
    const auto& input = message.inputs(i);
    const auto part = shared_part("inputs[" + std::to_string(i) + "]", input, around);
    if (!part) return std::unexpected(part.error());
    const auto slot = check.claim(input.name(), input.datatype(),
                                  {input.shape().data(), static_cast<std::size_t>(input.shape_size())},
                                  *part ? std::optional((*part)->bytes) : std::nullopt);
    if (!slot) return std::unexpected(slot.error());
    const std::string where =
        "input '" + config.inputs[slot->index].name + "' of model '" + config.name + "'";
    if (!*part)
      if (auto room = reading.take_copy(slot->bytes, where); !room) return room;
    Result<std::vector<std::byte>> bytes;
    if (*part) {
      if (!filled_fields(input.contents()).empty())
        return invalid(where + " has typed contents beside shared_memory_region; give one of them");
      bytes = take_shared(config, *slot, **part, around.room, request);
    } else if (raw > 0) {
      if (!filled_fields(input.contents()).empty())
        return invalid(where + " has typed contents beside raw_input_contents; give one of them");
      if (taken == raw)
        return invalid("raw_input_contents has " + std::to_string(raw) + " entries for " +
                       std::to_string(message.inputs_size()) +
                       " inputs; it needs one for each that is not in shared memory");
      const std::string& blob = message.raw_input_contents(taken++);
      bytes = take_raw(config, *slot, std::as_bytes(std::span(blob)), call);
    } else {
      bytes = take_typed(where, *slot, input.contents(), own_texts(config, call));
    }
    if (!bytes) return std::unexpected(std::move(bytes.error()));
    call.inputs[slot->index] = std::move(*bytes);
  }
  if (taken < raw)
    return invalid("raw_input_contents has " + std::to_string(raw) + " entries for " +
                   std::to_string(message.inputs_size()) +
                   " inputs; it needs one for each that is not in shared memory");
  return check.complete(call);
}

}  // namespace

std::optional<TimePoint> deadline_in_grpc(const inference::ModelInferRequest& message, TimePoint arrival,
                                          TimePoint transport_deadline) {
  RequestParameters scheduling;
  if (const auto it = message.parameters().find("timeout"); it != message.parameters().end())
    if (const auto value = parameter_of("timeout", it->second); !value || !scheduling.set("timeout", *value))
      return std::nullopt;
  controller::InferCall call;
  scheduling.apply(call, arrival, transport_deadline, false);
  return call.deadline;
}

Result<InferRequest> parse_infer_grpc(const controller::ModelView& model,
                                      const inference::ModelInferRequest& message, TimePoint arrival,
                                      TimePoint transport_deadline, const Surroundings& around) {
  InferRequest request;
  request.id = message.id();
  request.call = std::make_unique<controller::InferCall>();
  request.call->model = model.id;
  request.call->inputs.resize(model.config.inputs.size());

  RequestParameters scheduling;
  for (const auto& [name, parameter] : message.parameters()) {
    if (!RequestParameters::heeds(name)) {
      note_unheeded(request.unheeded, name);
      continue;
    }
    auto value = parameter_of(name, parameter);
    if (!value) return std::unexpected(value.error());
    // Clients in C++ put an id of 64 bits, without a sign, into the parameter with one.
    if (const auto* const id = std::get_if<std::int64_t>(&*value); name == "sequence_id" && id != nullptr)
      value = ParameterValue{static_cast<std::uint64_t>(*id)};
    if (auto set = scheduling.set(name, *value); !set) return std::unexpected(std::move(set.error()));
  }
  if (auto read = read_inputs(model.config, message, around, request); !read)
    return std::unexpected(std::move(read.error()));

  for (const auto& input : message.inputs())
    for (const auto& [name, ignored] : input.parameters())
      if (!SharedParameters::heeds(name)) note_unheeded(request.unheeded, name);
  for (const auto& output : message.outputs()) {
    for (const auto& [name, ignored] : output.parameters())
      if (name != "classification" && !SharedParameters::heeds(name)) note_unheeded(request.unheeded, name);
    OutputChoice how{.binary = true};
    auto part = shared_part("output '" + output.name().substr(0, 128) + "'", output, around);
    if (!part) return std::unexpected(std::move(part.error()));
    how.shared = std::move(*part);
    if (const auto it = output.parameters().find("classification"); it != output.parameters().end()) {
      if (it->second.parameter_choice_case() != inference::InferParameter::kInt64Param)
        return invalid("output '" + output.name().substr(0, 128) +
                       "': 'classification' must be an int64_param: how many classes to answer");
      const auto classes = classes_asked_for(output.name(), it->second.int64_param());
      if (!classes) return std::unexpected(classes.error());
      how.classes = *classes;
    }
    if (auto chosen = choose_output(model.config, output.name(), std::move(how), request.outputs); !chosen)
      return std::unexpected(std::move(chosen.error()));
  }
  if (request.outputs.empty()) request.outputs = all_outputs(model.config, true);
  for (const OutputChoice& choice : request.outputs)
    if (auto ok = check_classes(model.config, choice); !ok) return std::unexpected(ok.error());
  if (auto fits = check_shared_outputs(model.config, request); !fits)
    return std::unexpected(std::move(fits.error()));
  request.call->outputs_wanted = outputs_wanted(model.config, request.outputs);
  scheduling.apply(*request.call, arrival, transport_deadline, may_be_real_time(model.config, around.key));
  request.call->id = request.id;
  drop_sequence(model.config, *request.call, request.unheeded);
  if (auto held = hold_inputs(request, around.room); !held) return std::unexpected(std::move(held.error()));
  return request;
}

Result<> write_infer_grpc(const controller::ModelView& model, const InferRequest& request,
                          const controller::InferCall& call, inference::ModelInferResponse& response) {
  constexpr std::size_t most =
      std::numeric_limits<int>::max() - (std::size_t{1} << 20);  // names and shapes beside
  std::size_t size = 0;
  for (const OutputChoice& choice : request.outputs)
    if (!choice.shared) size += call.outputs[choice.index].size();
  if (size > most)
    return invalid(
        "the outputs of model '" + model.name + "' take " + std::to_string(size) +
        " bytes, more than the 2 GiB of a gRPC message; ask for fewer rows or outputs, for outputs in "
        "shared memory, or over HTTP");
  response.set_model_name(model.name);
  response.set_model_version(std::to_string(model.version));
  response.set_id(request.id);
  for (const OutputChoice& choice : request.outputs) {
    const std::size_t index = choice.index;
    const auto& spec = model.config.outputs[index];
    auto& output = *response.add_outputs();
    output.set_name(spec.name);
    const bool classes = choice.classes > 0;
    output.set_datatype(std::string(graph::kserve_name(classes ? graph::DataType::string : spec.type)));
    for (const auto extent :
         classes ? class_shape(model.config, choice, call) : output_shape(model.config, index, call))
      output.add_shape(extent);
    if (choice.shared) {
      response.add_raw_output_contents();  // clients count the entries
      continue;
    }
    const std::span<const std::byte> bytes = answer_bytes(model.config, choice, call);
    response.add_raw_output_contents(bytes.data(), bytes.size());
  }
  return {};
}

}  // namespace carillon::frontend
