#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "carillon/graph/text.h"
#include "carillon/repository/config.h"
#include "carillon/repository/config_text.h"
#include "carillon/repository/config_types.h"
#include "carillon/repository/queue_policies.h"
#include "carillon/repository/sequence_batching.h"
#include "carillon/repository/warmup.h"

namespace carillon::repository {
namespace {

using graph::batch_dimension;
using graph::DataType;
using graph::element_count;
using graph::is_text;
using graph::kserve_name;
using graph::Shape;
using graph::TensorSpec;
using graph::to_text;
using inference::ModelInstanceGroup;
using std::to_string;
using Message = inference::ModelConfig;

constexpr std::size_t notes_at_most = 50;  // of one config
constexpr double shortest_slo_ms = 1e-3;
constexpr double longest_slo_ms = 24.0 * 3600 * 1000;

struct Words {
  std::string_view field;
  std::string_view text;
};

// What changes a model's meaning, so that serving it without would be wrong.
constexpr Words unsupported_fields[] = {
    {"batch_input", "batch_input is not supported; only the request's own inputs reach the model"},
    {"batch_output", "batch_output is not supported; outputs are split by row"},
};
// What serving goes on without.
constexpr Words ignored_fields[] = {
    {"optimization", "every graph is optimised in the same way"},
    {"cc_model_filenames", "default_model_filename serves all devices"},
    {"metric_tags", "metrics carry the model's name and version"},
    {"model_operations", "no operator libraries are loaded"},
    {"model_repository_agents", "there are no repository agents"},
    {"model_metrics", "the metrics are the same for all models"},
    {"runtime", "there is one runtime"},
};

// What an ensemble cannot say, as it has no file and no instance of its own.
Result<> check_ensemble_fields(const Message& message) {
  if (!message.platform().empty() && message.platform() != "ensemble")
    return invalid("platform is '" + message.platform() + "', but ensembles have 'ensemble', or none");
  if (!message.backend().empty())
    return invalid("backend is '" + message.backend() + "', but ensembles have none");
  if (message.instance_group_size() > 0)
    return invalid("instance_group: an ensemble has no instances; its steps' models have");
  return {};
}

// The fields that are set, by what we do about them.
Result<> check_fields(const Message& message, std::vector<std::string>& ignored) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const auto* field : set) {
    for (const Words& words : unsupported_fields)
      if (field->name() == words.field) return fail(ErrorCode::unsupported, std::string(words.text));
    for (const Words& words : ignored_fields)
      if (field->name() == words.field) ignored.push_back(field->name() + ": " + std::string(words.text));
  }
  if (message.has_ensemble_scheduling()) return check_ensemble_fields(message);
  if (message.platform() == "ensemble")
    return invalid("platform is 'ensemble', but ensemble_scheduling, which says its steps, is missing");
  if (!message.platform().empty() && message.platform() != "onnxruntime_onnx")
    return fail(ErrorCode::unsupported,
                "platform '" + message.platform() +
                    "' is not supported; ONNX models have 'onnxruntime_onnx', or none");
  if (!message.backend().empty() && message.backend() != "onnxruntime" && message.backend() != "openvino")
    return fail(ErrorCode::unsupported,
                "backend '" + message.backend() +
                    "' is not supported; ONNX models have 'onnxruntime', or none, OpenVINO's 'openvino'");
  return {};
}

// One input or output. `Tensor` is ModelInput or ModelOutput.
template <typename Tensor>
Result<TensorSpec> tensor_spec(const Tensor& tensor, bool batched, std::string_view what) {
  if (tensor.name().empty()) return invalid(std::string(what) + " without a name");
  if (!is_text(tensor.name())) return invalid(std::string(what) + " whose name has control characters");
  const std::string where = std::string(what) + " '" + tensor.name() + "'";
  TensorSpec spec;
  spec.name = tensor.name();
  const auto type = from_wire(tensor.data_type());
  if (!type) return invalid(where + ": data_type is missing or unknown; for example TYPE_FP32");
  spec.type = *type;
  if (tensor.dims_size() > 16)
    return invalid(where + ": " + to_string(tensor.dims_size()) + " dims; at most 16");
  if (tensor.dims_size() == 0 && batched)
    return invalid(where + ": dims is missing; it is the shape of one row, without the batch dimension");
  if (batched) spec.shape.push_back(batch_dimension);
  for (const std::int64_t extent : tensor.dims()) {
    if (extent < -1 || extent == 0)
      return invalid(where + ": dims has " + to_string(extent) +
                     "; each is 1 or more, or -1 where the file decides");
    spec.shape.push_back(extent);
  }
  Shape fixed = spec.shape;
  std::ranges::replace(fixed, std::int64_t{-1}, std::int64_t{1});
  if (const auto count = element_count(fixed); !count) return in_context(where + ": dims", count.error());
  if (tensor.is_shape_tensor())
    return fail(ErrorCode::unsupported, where + ": shape tensors are not supported");
  return spec;
}

// What `reshape` of an input or output with these dims says that the file has.
Result<graph::EdgeReshape> edge_reshape(const inference::ModelTensorReshape& message, const TensorSpec& spec,
                                        bool batched, bool is_input) {
  const std::string where = std::string(is_input ? "input '" : "output '") + spec.name + "': reshape";
  if (message.shape_size() > 16)
    return invalid(where + " has " + to_string(message.shape_size()) + " dims; at most 16");
  graph::EdgeReshape out{.name = spec.name, .is_input = is_input, .client = spec.shape, .file = {}};
  if (batched) out.client.erase(out.client.begin());
  for (const std::int64_t extent : message.shape()) {
    if (extent < -1 || extent == 0)
      return invalid(where + " has " + to_string(extent) + "; each is 1 or more, or -1");
    out.file.push_back(extent);
  }
  const auto open = std::ranges::count(out.client, -1);
  if (open > 1 || std::ranges::count(out.file, -1) != open)
    return invalid(where + " makes " + to_text(out.file) + " of dims " + to_text(out.client) +
                   "; each may have one -1, and where one has it the other has it, too");
  // What is beside the -1 must come to as much on both sides, or a request's extent would not be the file's.
  Shape sides[] = {out.client, out.file};
  std::int64_t counts[2];
  for (std::size_t i = 0; i < 2; ++i) {
    std::ranges::replace(sides[i], std::int64_t{-1}, std::int64_t{1});
    const auto count = element_count(sides[i]);
    if (!count) return in_context(where, count.error());
    counts[i] = *count;
  }
  if (counts[0] != counts[1])
    return invalid(where + " makes " + to_text(out.file) + " of dims " + to_text(out.client) +
                   ", which have another number of elements");
  return out;
}

void note_linear(const auto& tensor, const std::string& where, ModelConfig& config) {
  if (tensor.is_non_linear_format_io())
    config.ignored.push_back(where +
                             ": is_non_linear_format_io: tensors are row by row, as the protocols have them");
}

Result<> read_tensors(const Message& message, ModelConfig& config) {
  const bool batched = config.max_batch_size > 0;
  std::set<std::string> names;
  for (const auto& input : message.input()) {
    auto spec = tensor_spec(input, batched, "input");
    if (!spec) return std::unexpected(spec.error());
    if (!names.insert(spec->name).second) return invalid("input '" + spec->name + "' is there twice");
    if (input.has_reshape()) {
      auto edge = edge_reshape(input.reshape(), *spec, batched, true);
      if (!edge) return std::unexpected(edge.error());
      config.reshapes.push_back(*std::move(edge));
    }
    if (input.format() != inference::ModelInput::FORMAT_NONE)
      config.ignored.push_back("input '" + spec->name + "': format: dims alone say the layout");
    if (input.allow_ragged_batch())
      config.ignored.push_back("input '" + spec->name + "': allow_ragged_batch: all rows have one shape");
    note_linear(input, "input '" + spec->name + "'", config);
    if (input.optional()) config.optional.push_back(spec->name);
    config.inputs.push_back(std::move(*spec));
  }
  names.clear();
  for (const auto& output : message.output()) {
    auto spec = tensor_spec(output, batched, "output");
    if (!spec) return std::unexpected(spec.error());
    if (!names.insert(spec->name).second) return invalid("output '" + spec->name + "' is there twice");
    if (output.has_reshape()) {
      auto edge = edge_reshape(output.reshape(), *spec, batched, false);
      if (!edge) return std::unexpected(edge.error());
      config.reshapes.push_back(*std::move(edge));
    }
    note_linear(output, "output '" + spec->name + "'", config);
    if (!output.label_filename().empty()) config.label_files[spec->name] = output.label_filename();
    config.outputs.push_back(std::move(*spec));
  }
  return {};
}

Result<> read_batching(const Message& message, ModelConfig& config) {
  if (message.max_batch_size() < 0 || message.max_batch_size() > largest_max_batch)
    return invalid("max_batch_size is " + to_string(message.max_batch_size()) + "; it is 0 (no batch) to " +
                   to_string(largest_max_batch));
  config.max_batch_size = message.max_batch_size();
  config.batch_from_file = message.max_batch_size() == 0 && message.input_size() == 0;
  config.batch_sizes = default_batch_sizes(config.max_batch_size);
  config.dynamic_batching = message.has_dynamic_batching();
  config.preserve_ordering = message.dynamic_batching().preserve_ordering() ||
                             message.sequence_batching().oldest().preserve_ordering();
  if (!config.dynamic_batching) return {};
  const auto& batching = message.dynamic_batching();
  if (batching.preferred_batch_size_size() > 0) {
    const int most = config.batch_from_file ? derived_max_batch : std::max(1, config.max_batch_size);
    std::set<int> sizes{1};  // a row that is left alone must run too
    for (const int size : batching.preferred_batch_size()) {
      if (size < 1 || size > most)
        return invalid("dynamic_batching: preferred_batch_size is " + to_string(size) +
                       "; it is 1 to max_batch_size, here " + to_string(most));
      if (size > largest_plan)
        config.ignored.push_back("dynamic_batching: preferred_batch_size " + to_string(size) +
                                 ": the largest batch is " + to_string(largest_plan));
      else
        sizes.insert(size);
    }
    config.batch_sizes.assign(sizes.begin(), sizes.end());
  }
  const auto ignore = [&](bool set, std::string_view text) {
    if (set) config.ignored.push_back("dynamic_batching: " + std::string(text));
  };
  ignore(batching.max_queue_delay_microseconds() != 0,
         "max_queue_delay_microseconds: how long a request waits follows from its deadline");
  auto policies = read_queue_policies(batching, config.ignored);
  if (!policies) return std::unexpected(policies.error());
  if (*policies) config.queue = std::make_shared<const QueuePolicies>(**std::move(policies));
  return {};
}

// "16,32,64" or "first:last:step".
Result<std::vector<std::int64_t>> read_lengths(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return invalid("parameter lengths is '" + text.substr(0, 100) + "': " + why +
                   "; it is a list such as \"16,32,64\" or a range \"first:last:step\", at most " +
                   to_string(most_lengths) + " extents of 1 to " + to_string(largest_length));
  };
  std::vector<std::int64_t> numbers;
  const char separator = text.find(':') == std::string::npos ? ',' : ':';
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && *at == ' ') ++at;
    std::int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || number < 1 || number > largest_length)
      return wrong("'" + std::string(at, std::min(end, at + 20)) + "' does not start with such an extent");
    if (numbers.size() == most_lengths) return wrong("too many");
    numbers.push_back(number);
    at = next;
    while (at != end && *at == ' ') ++at;
    if (at == end) break;
    if (*at++ != separator) return wrong(std::string("'") + separator + "' is missing between two numbers");
  }
  if (separator == ':') {
    if (numbers.size() != 3 || numbers[1] < numbers[0]) return wrong("not a range");
    const std::int64_t first = numbers[0], last = numbers[1], step = numbers[2];
    if ((last - first) / step + 1 > static_cast<std::int64_t>(most_lengths)) return wrong("too many");
    numbers.clear();
    for (std::int64_t length = first; length <= last; length += step) numbers.push_back(length);
    if (numbers.back() != last) numbers.push_back(last);
  }
  if (std::ranges::adjacent_find(numbers, std::greater_equal<>()) != numbers.end())
    return wrong("they must ascend");
  return numbers;
}

Result<> read_parameters(const Message& message, ModelConfig& config) {
  std::set<std::string> others;  // in order: a protobuf map has none
  for (const auto& [key, value] : message.parameters()) {
    const std::string& text = value.string_value();
    if (key == "slo_ms") {
      double ms = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
      if (error != std::errc{} || end != text.data() + text.size() || !(ms >= shortest_slo_ms) ||
          !(ms <= longest_slo_ms))
        return invalid("parameter slo_ms is '" + text +
                       "'; it is a number of milliseconds, at least 0.001 and at most " +
                       to_string(static_cast<std::int64_t>(longest_slo_ms)) + " (a day), such as \"100\"");
      config.slo = from_ms(ms);
    } else if (key == "miss_rate") {
      double share = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
      if (error != std::errc{} || end != text.data() + text.size() || !(share > 0 && share <= 0.5))
        return invalid("parameter miss_rate is '" + text +
                       "'; it is the share of answers that may be late, above 0 and at most 0.5, such as "
                       "\"0.01\"");
      config.miss_rate = share;
    } else if (key == "class") {
      if (text != "normal" && text != "real_time" && text != "best_effort")
        return invalid("parameter class is '" + text + "'; it is normal, real_time or best_effort");
      config.model_class = text;
    } else if (key == "real_time_requests") {
      if (text != "allow" && text != "deny")
        return invalid("parameter real_time_requests is '" + text +
                       "'; it is allow, or deny, as where it is left out");
      config.real_time_requests = text == "allow";
    } else if (key == "precision") {
      if (text != "f32" && text != "bf16" && text != "f16")
        return invalid("parameter precision is '" + text + "'; it is f32, bf16 or (on GPUs) f16");
      config.precision = text;
    } else if (key == "engine") {
      if (text != "carillon" && text != "openvino" && text != "onnxruntime")
        return invalid("parameter engine is '" + text +
                       "'; it is carillon, openvino or onnxruntime; without it models that Carillon's own "
                       "engine cannot run go to the others");
      config.engine = text;
    } else if (key == "lengths") {
      auto lengths = read_lengths(text);
      if (!lengths) return std::unexpected(lengths.error());
      config.lengths = std::move(*lengths);
    } else if (key == "padding") {
      if (text != "none" && text != "zero")
        return invalid("parameter padding is '" + text + "'; it is none or zero");
      config.padding = text == "zero";
    } else if (key == "mask") {
      config.mask = text;
    } else {
      others.insert(key);
    }
  }
  if (config.lengths.empty() && (config.padding || !config.mask.empty()))
    return invalid(std::string("parameter ") + (config.padding ? "padding" : "mask") +
                   " needs parameter lengths, which says to which extents requests are padded");
  std::size_t told = 0;
  for (const std::string& key : others)
    if (++told <= notes_at_most) {
      static constexpr std::string_view known[] = {"slo_ms",    "miss_rate", "class",   "real_time_requests",
                                                   "precision", "engine",    "lengths", "padding",
                                                   "mask"};
      constexpr std::size_t longest_key = 100;  // of those that are compared
      const std::string near = nearest(std::string_view(key).substr(0, longest_key), known);
      config.ignored.push_back("parameter '" + key + "': not known here; " +
                               (near.empty() ? "" : "the nearest is '" + near + "'; ") +
                               "known are slo_ms, miss_rate, class, real_time_requests, precision, engine, "
                               "lengths, padding and mask");
    }
  return {};
}

// What matters only where it is set to something.
void read_switches(const Message& message, ModelConfig& config) {
  config.decoupled = message.model_transaction_policy().decoupled();
  if (message.response_cache().enable()) config.ignored.push_back("response_cache: answers are not cached");
}

Result<> read_instances(const Message& message, ModelConfig& config) {
  if (message.instance_group_size() > 1)
    config.ignored.push_back(
        "instance_group: " + to_string(message.instance_group_size()) +
        " groups: a model has one copy a device, and runs as often as the scheduler wants");
  for (const auto& group : message.instance_group()) {
    if (group.count() < 0)
      return invalid("instance_group: count is " + to_string(group.count()) +
                     "; it is 1 or more, or left out");
    if (group.count() > 1)
      config.ignored.push_back("instance_group: count " + to_string(group.count()) +
                               ": a model has one copy a device, and runs as often as the scheduler wants");
    if (group.kind() == ModelInstanceGroup::KIND_GPU || group.gpus_size() > 0)
      config.ignored.push_back(
          "instance_group: KIND_GPU: not available; the model runs on the device that the server was started "
          "with");
    if (group.has_rate_limiter())
      config.ignored.push_back("instance_group: rate_limiter: the scheduler knows what the device can do");
    if (group.profile_size() > 0 || group.passive() || group.secondary_devices_size() > 0 ||
        !group.host_policy().empty())
      config.ignored.push_back("instance_group: profile, passive, secondary_devices and host_policy");
  }
  return {};
}

Result<VersionPolicy> read_versions(const Message& message, std::vector<std::string>& ignored) {
  VersionPolicy out;
  const auto& policy = message.version_policy();
  switch (policy.policy_choice_case()) {
    case inference::ModelVersionPolicy::kLatest:
      out.latest = std::max<std::int64_t>(1, policy.latest().num_versions());
      if (policy.latest().num_versions() == 0)
        ignored.emplace_back("version_policy: latest without num_versions, or with 0, is taken for 1");
      break;
    case inference::ModelVersionPolicy::kAll:
      out.kind = VersionPolicy::Kind::all;
      break;
    case inference::ModelVersionPolicy::kSpecific:
      out.kind = VersionPolicy::Kind::specific;
      for (const std::int64_t version : policy.specific().versions()) {
        if (version < 1)
          return invalid("version_policy: specific version " + to_string(version) +
                         "; versions are 1 or more");
        out.specific.push_back(version);
      }
      if (out.specific.empty()) return invalid("version_policy: specific without versions");
      std::ranges::sort(out.specific);
      out.specific.erase(std::ranges::unique(out.specific).begin(), out.specific.end());
      break;
    case inference::ModelVersionPolicy::POLICY_CHOICE_NOT_SET:
      break;
  }
  return out;
}

Result<> read_names(const Message& message, std::string_view folder, ModelConfig& config) {
  if (!message.name().empty() && message.name() != folder)
    return invalid("name is '" + message.name() + "', but the model's folder is '" + std::string(folder) +
                   "'; they must agree, or name be left out");
  config.name = folder;
  // Triton's OpenVINO backend is the same engine; a parameter may say otherwise.
  if (message.backend() == "openvino" && config.engine.empty()) config.engine = "openvino";
  const std::string& file = message.default_model_filename();
  if (file.empty()) return {};
  if (file == "." || file == ".." || file.find('/') != std::string::npos ||
      file.find('\0') != std::string::npos)
    return invalid("default_model_filename is '" + file +
                   "'; it is the name of a file in the version's folder");
  config.file = file;
  return {};
}

Result<> read_warmups(const Message& message, ModelConfig& config) {
  if (message.model_warmup_size() == 0) return {};
  if (message.has_ensemble_scheduling())
    return invalid("model_warmup: an ensemble has nothing to warm up; its steps' models have");
  auto warmups = read_warmup(message);
  if (!warmups) return std::unexpected(warmups.error());
  config.warmup = std::make_shared<const std::vector<Warmup>>(std::move(*warmups));
  return {};
}

Result<> read_sequence(const Message& message, ModelConfig& config) {
  if (!message.has_sequence_batching()) return {};
  auto sequence = read_sequence_batching(message.sequence_batching(), config.ignored);
  if (!sequence) return std::unexpected(sequence.error());
  for (SequenceBatching::State& state : sequence->states)
    state.shown = std::ranges::find(config.outputs, state.output, &TensorSpec::name) != config.outputs.end();
  config.sequence = std::make_shared<const SequenceBatching>(std::move(*sequence));
  return {};
}

// What there is to know of an ensemble without its steps' models.
Result<> read_ensemble(Message& message, ModelConfig& config) {
  if (!config.reshapes.empty())
    return invalid((config.reshapes.front().is_input ? "input '" : "output '") +
                   config.reshapes.front().name +
                   "': reshape: an ensemble's tensors are as its steps' models have them");
  auto steps = read_steps(message.ensemble_scheduling(), config.inputs, config.outputs);
  if (!steps) return std::unexpected(steps.error());
  config.steps = std::move(*steps);
  config.batch_from_file = false;
  if (message.ensemble_scheduling().max_inflight_requests() > 0)
    config.ignored.emplace_back(
        "ensemble_scheduling: max_inflight_requests: requests are refused where they would be late");
  if (!config.engine.empty() || !config.lengths.empty() || config.precision != "f32" ||
      !message.default_model_filename().empty())
    config.ignored.emplace_back(
        "parameters engine, lengths and precision and default_model_filename: they are of models, and an "
        "ensemble has none of its own");
  for (const std::string& name : config.optional)
    config.ignored.push_back("input '" + name +
                             "': optional: every request to an ensemble gives every input");
  message.set_platform("ensemble");
  if (message.version_policy().policy_choice_case() == inference::ModelVersionPolicy::POLICY_CHOICE_NOT_SET)
    message.mutable_version_policy()->mutable_latest()->set_num_versions(1);
  return {};
}

}  // namespace

std::vector<int> default_batch_sizes(int max_batch_size) {
  std::vector<int> sizes{1};
  while (sizes.back() * 2 <= std::min(max_batch_size, largest_plan)) sizes.push_back(sizes.back() * 2);
  return sizes;
}

Result<ConfigFile> parse_config(std::string_view text, std::string_view folder) {
  ConfigFile out;
  ModelConfig& config = out.config;
  auto message = message_of(text);
  if (!message) return std::unexpected(message.error());
  if (auto ok = check_fields(*message, config.ignored); !ok) return std::unexpected(ok.error());
  if (auto ok = read_names(*message, folder, config); !ok) return std::unexpected(ok.error());
  if (auto ok = read_batching(*message, config); !ok) return std::unexpected(ok.error());
  if (auto ok = read_tensors(*message, config); !ok) return std::unexpected(ok.error());
  if (config.batch_from_file && !config.reshapes.empty())
    return invalid("output '" + config.reshapes.front().name +
                   "': reshape needs max_batch_size or inputs: only they say whether a row's shape is meant");
  if (auto ok = read_parameters(*message, config); !ok) return std::unexpected(ok.error());
  if (auto ok = read_sequence(*message, config); !ok) return std::unexpected(ok.error());
  if (auto ok = read_instances(*message, config); !ok) return std::unexpected(ok.error());
  read_switches(*message, config);
  if (auto ok = read_warmups(*message, config); !ok) return std::unexpected(ok.error());
  auto versions = read_versions(*message, config.ignored);
  if (!versions) return std::unexpected(versions.error());
  out.versions = std::move(*versions);
  if (message->has_ensemble_scheduling())
    if (auto ok = read_ensemble(*message, config); !ok) return std::unexpected(ok.error());
  message->set_name(std::string(folder));
  config.serialized = bytes_of(*message);
  return out;
}

}  // namespace carillon::repository
