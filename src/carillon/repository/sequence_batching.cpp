#include "carillon/repository/sequence_batching.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "model_config.pb.h"

#include "carillon/graph/text.h"
#include "carillon/repository/config.h"
#include "carillon/repository/config_types.h"

namespace carillon::repository {
namespace {

using graph::DataType;
using graph::TensorSpec;
using inference::ModelSequenceBatching;
using Control = SequenceBatching::Control;
using Signal = SequenceBatching::Signal;
using State = SequenceBatching::State;
using std::to_string;

constexpr std::string_view where = "sequence_batching: ";

Signal signal_of(ModelSequenceBatching::Control::Kind kind) {
  switch (kind) {
    case ModelSequenceBatching::Control::CONTROL_SEQUENCE_END:
      return Signal::end;
    case ModelSequenceBatching::Control::CONTROL_SEQUENCE_READY:
      return Signal::ready;
    case ModelSequenceBatching::Control::CONTROL_SEQUENCE_CORRID:
      return Signal::id;
    default:  // protobuf's own values beyond those
      return Signal::start;
  }
}

std::string name_of(ModelSequenceBatching::Control::Kind kind) {
  return ModelSequenceBatching::Control::Kind_Name(kind);
}

Result<Control> read_control(const std::string& input, const ModelSequenceBatching::Control& message) {
  const std::string place = std::string(where) + "control_input '" + input + "', " + name_of(message.kind());
  Control out{.signal = signal_of(message.kind()), .input = input};
  const int given = (message.int32_false_true_size() > 0 ? 1 : 0) +
                    (message.fp32_false_true_size() > 0 ? 1 : 0) +
                    (message.bool_false_true_size() > 0 ? 1 : 0);
  if (out.signal == Signal::id) {
    if (given > 0) return invalid(place + " has no false_true: it is the sequence's id");
    const auto type = from_wire(message.data_type());
    if (type == DataType::string)
      return fail(ErrorCode::unsupported, place + ": TYPE_STRING tensors are not supported; TYPE_UINT64 is");
    constexpr DataType whole[] = {DataType::u64, DataType::i64, DataType::u32, DataType::i32};
    if (!type || std::ranges::find(whole, *type) == std::end(whole))
      return invalid(place + ": data_type must be TYPE_UINT64, TYPE_INT64, TYPE_UINT32 or TYPE_INT32");
    out.type = *type;
    return out;
  }
  const auto take = [&](const auto& values, DataType type) -> Result<> {
    if (values.size() != 2)
      return invalid(place + " has " + to_string(values.size()) +
                     " values; it is [ false's, true's ], such as [ 0, 1 ]");
    out.type = type;
    out.off = static_cast<double>(values.Get(0));
    out.on = static_cast<double>(values.Get(1));
    return {};
  };
  if (given != 1)
    return invalid(place +
                   " must have one of int32_false_true, fp32_false_true and bool_false_true, such as "
                   "int32_false_true: [ 0, 1 ]");
  Result<> taken = message.int32_false_true_size() > 0  ? take(message.int32_false_true(), DataType::i32)
                   : message.fp32_false_true_size() > 0 ? take(message.fp32_false_true(), DataType::f32)
                                                        : take(message.bool_false_true(), DataType::boolean);
  if (!taken) return std::unexpected(taken.error());
  return out;
}

Result<State> read_state(const ModelSequenceBatching::State& message) {
  State out{.input = message.input_name(), .output = message.output_name()};
  for (const std::string& name : {out.input, out.output})
    if (name.empty() || !graph::is_text(name))
      return invalid(std::string(where) +
                     "a state needs input_name and output_name, without control characters");
  const std::string place = std::string(where) + "state '" + out.input + "'";
  const auto type = from_wire(message.data_type());
  if (!type) return invalid(place + ": data_type is missing or unknown; for example TYPE_FP32");
  if (*type == DataType::string)
    return fail(ErrorCode::unsupported, place + ": TYPE_STRING tensors are not supported");
  out.type = *type;
  if (message.dims_size() > 16)
    return invalid(place + ": " + to_string(message.dims_size()) + " dims; at most 16");
  out.dims.assign(message.dims().begin(), message.dims().end());
  if (message.initial_state_size() > 1)
    return invalid(place + " has " + to_string(message.initial_state_size()) +
                   " initial_states; at most one");
  if (message.initial_state_size() == 0) return out;
  const auto& initial = message.initial_state(0);
  if (initial.data_type() != message.data_type())
    return invalid(place + ": the initial_state's data_type must be the state's");
  if (initial.dims_size() > 0 &&
      !std::ranges::equal(initial.dims(), message.dims(),
                          [](auto its, auto states) { return states == -1 || its == states; }))
    return invalid(place + ": the initial_state's dims must be the state's, or be left out");
  switch (initial.state_data_case()) {
    case ModelSequenceBatching::InitialState::kDataFile:
      out.file = initial.data_file();
      if (out.file.empty() || out.file == "." || out.file == ".." ||
          out.file.find('/') != std::string::npos || out.file.find('\0') != std::string::npos)
        return invalid(place + ": data_file is '" + out.file +
                       "'; it is the name of a file in the model's folder " + initial_state_folder);
      return out;
    case ModelSequenceBatching::InitialState::kZeroData:
      return out;
    case ModelSequenceBatching::InitialState::STATE_DATA_NOT_SET:
      return invalid(place + ": initial_state says neither zero_data: true nor data_file");
  }
  return out;
}

std::string spec_text(const TensorSpec& spec) {
  return std::string(graph::kserve_name(spec.type)) + graph::to_text(spec.open_shape());
}

std::string tensor_names(const std::vector<TensorSpec>& specs) {
  std::string out;
  for (const TensorSpec& spec : specs) out += (out.empty() ? "'" : ", '") + spec.name + "'";
  return out.empty() ? "none" : out;
}

Result<const TensorSpec*> find_typed(const std::vector<TensorSpec>& specs, const std::string& name,
                                     DataType type, const std::string& place) {
  const auto at = std::ranges::find(specs, name, &TensorSpec::name);
  if (at == specs.end()) return invalid(place + " is not in the file, which has " + tensor_names(specs));
  if (at->type != type)
    return invalid(place + " is " + std::string(graph::kserve_name(type)) + " by the config, but " +
                   spec_text(*at) + " in the file");
  return &*at;
}

// Bytes of one row, where all extents but the batch's are fixed.
std::size_t row_bytes(const TensorSpec& spec) {
  for (std::size_t d = 0; d < spec.shape.size(); ++d)
    if (spec.shape[d] < 0 && !(d == 0 && spec.shape[d] == graph::batch_dimension)) return 0;
  return graph::TensorType{spec.type, spec.shape_at(1, 1)}.bytes().count;
}

Result<> complete_state(State& state, const ModelConfig& config) {
  const std::string place = std::string(where) + "state ";
  const auto input =
      find_typed(config.inputs, state.input, state.type, place + "input '" + state.input + "'");
  if (!input) return std::unexpected(input.error());
  const auto output =
      find_typed(config.outputs, state.output, state.type, place + "output '" + state.output + "'");
  if (!output) return std::unexpected(output.error());
  const std::size_t bytes = row_bytes(**input);
  if (bytes == 0 || (*output)->shape != (*input)->shape)
    return invalid(place + "input '" + state.input + "' is " + spec_text(**input) + " and output '" +
                   state.output + "' " + spec_text(**output) +
                   " in the file; they must be the same, and fixed but for the batch");
  const graph::Shape& shape = (*input)->shape;
  const bool batched = config.max_batch_size > 0;
  const std::size_t skip = batched ? 1 : 0;
  bool fits = state.dims.size() + skip == shape.size();
  for (std::size_t d = 0; fits && d < state.dims.size(); ++d)
    fits = state.dims[d] == -1 || state.dims[d] == shape[d + skip];
  if (!fits)
    return invalid(place + "input '" + state.input + "' has dims " + graph::to_text(state.dims) +
                   (batched ? ", without the batch," : "") + " by the config, but is " + spec_text(**input) +
                   " in the file");
  if (state.file.empty()) {
    state.initial.assign(bytes, std::byte{0});
  } else if (state.initial.size() != bytes) {
    return invalid(place + "input '" + state.input + "': data_file '" + state.file + "' has " +
                   to_string(state.initial.size()) + " bytes; " + spec_text(**input) + " takes " +
                   to_string(bytes) + " for a row");
  }
  return {};
}

}  // namespace

Result<SequenceBatching> read_sequence_batching(const ModelSequenceBatching& message,
                                                std::vector<std::string>& ignored) {
  SequenceBatching out;
  if (message.iterative_sequence())
    return fail(ErrorCode::unsupported,
                std::string(where) + "iterative_sequence is not supported: a request runs once");
  if (message.max_sequence_idle_microseconds() > 0)
    out.idle = std::chrono::microseconds(
        std::min<std::uint64_t>(message.max_sequence_idle_microseconds(), std::uint64_t{86'400'000'000}));
  std::set<Signal> signals;
  std::set<std::string> inputs;
  for (const auto& each : message.control_input()) {
    if (each.name().empty() || !graph::is_text(each.name()))
      return invalid(std::string(where) + "a control_input needs a name without control characters");
    if (each.control_size() != 1)
      return invalid(std::string(where) + "control_input '" + each.name() + "' has " +
                     to_string(each.control_size()) + " controls; it is told one thing");
    auto control = read_control(each.name(), each.control(0));
    if (!control) return std::unexpected(control.error());
    if (!signals.insert(control->signal).second || !inputs.insert(control->input).second)
      return invalid(std::string(where) + "control_input '" + each.name() + "', " +
                     name_of(each.control(0).kind()) + " is there twice");
    out.controls.push_back(std::move(*control));
  }
  for (const auto& each : message.state()) {
    auto state = read_state(each);
    if (!state) return std::unexpected(state.error());
    if (each.use_same_buffer_for_input_output() || each.use_growable_memory())
      ignored.push_back(
          std::string(where) + "state '" + state->input +
          "': use_same_buffer_for_input_output and use_growable_memory: where a state lies is the "
          "server's own affair");
    if (!inputs.insert(state->input).second)
      return invalid(std::string(where) + "input '" + state->input + "' is there twice");
    out.states.push_back(std::move(*state));
  }
  if (message.has_direct() || message.has_oldest())
    ignored.push_back(std::string(where) + (message.has_direct() ? "direct" : "oldest") +
                      ": requests of different sequences share batches as the scheduler decides");
  return out;
}

Result<> complete_sequence(SequenceBatching sequence, ModelConfig& config) {
  std::set<std::string> hidden_inputs, hidden_outputs;
  for (const Control& control : sequence.controls) {
    const std::string place = std::string(where) + "control_input '" + control.input + "'";
    const auto input = find_typed(config.inputs, control.input, control.type, place);
    if (!input) return std::unexpected(input.error());
    if (row_bytes(**input) != graph::size_of(control.type))
      return invalid(place + " is " + spec_text(**input) + " in the file; it must have one value a row");
    hidden_inputs.insert(control.input);
  }
  for (State& state : sequence.states) {
    if (auto ok = complete_state(state, config); !ok) return ok;
    hidden_inputs.insert(state.input);
    if (!state.shown) hidden_outputs.insert(state.output);
  }
  sequence.inputs = config.inputs;
  sequence.outputs = config.outputs;
  std::erase_if(config.inputs, [&](const TensorSpec& spec) { return hidden_inputs.contains(spec.name); });
  std::erase_if(config.outputs, [&](const TensorSpec& spec) { return hidden_outputs.contains(spec.name); });
  config.sequence = std::make_shared<const SequenceBatching>(std::move(sequence));
  return {};
}

}  // namespace carillon::repository
