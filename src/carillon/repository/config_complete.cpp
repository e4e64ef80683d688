#include <algorithm>
#include <utility>

#include <google/protobuf/text_format.h>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"
#include "carillon/repository/config.h"
#include "carillon/repository/config_text.h"
#include "carillon/repository/config_types.h"
#include "carillon/repository/sequence_batching.h"

namespace carillon::repository {
namespace {

using graph::batch_dimension;
using graph::DataType;
using graph::kserve_name;
using graph::Model;
using graph::TensorSpec;
using graph::to_text;

struct TypePair {
  inference::DataType wire;
  DataType ours;
};
constexpr TypePair type_pairs[] = {
    {inference::TYPE_BOOL, DataType::boolean},  {inference::TYPE_UINT8, DataType::u8},
    {inference::TYPE_UINT16, DataType::u16},    {inference::TYPE_UINT32, DataType::u32},
    {inference::TYPE_UINT64, DataType::u64},    {inference::TYPE_INT8, DataType::i8},
    {inference::TYPE_INT16, DataType::i16},     {inference::TYPE_INT32, DataType::i32},
    {inference::TYPE_INT64, DataType::i64},     {inference::TYPE_FP16, DataType::f16},
    {inference::TYPE_FP32, DataType::f32},      {inference::TYPE_FP64, DataType::f64},
    {inference::TYPE_STRING, DataType::string}, {inference::TYPE_BF16, DataType::bf16},
};

std::string described(const TensorSpec& spec) {
  return std::string(kserve_name(spec.type)) + to_text(spec.open_shape());
}

std::string names_of(const std::vector<TensorSpec>& specs) {
  std::string out;
  for (const TensorSpec& spec : specs) out += (out.empty() ? "'" : ", '") + spec.name + "'";
  return out.empty() ? "none" : out;
}

const TensorSpec* find(const std::vector<TensorSpec>& specs, std::string_view name) {
  const auto at = std::ranges::find(specs, name, &TensorSpec::name);
  return at == specs.end() ? nullptr : &*at;
}

bool fits(const TensorSpec& config, const TensorSpec& file) {
  // Where the file leaves the rank open, the config may say one.
  graph::Shape shape = file.shape;
  const bool by_data = graph::has_open_rank(shape);
  if (by_data || (!shape.empty() && shape.back() == graph::any_dimensions)) {
    shape.resize(by_data ? 0 : shape.size() - 1);
    shape.resize(std::max(shape.size(), config.shape.size()), graph::computed_dimension);
  }
  return config.type == file.type &&
         std::ranges::equal(config.shape, shape, [](std::int64_t wanted, std::int64_t there) {
           return wanted == -1 || wanted == there || there == graph::computed_dimension ||
                  graph::is_bounded(there);
         });
}

// What the config says of `what` ("input" or "output"), against what the file has.
Result<> agree(const std::vector<TensorSpec>& config, const std::vector<TensorSpec>& file,
               const std::string& what) {
  for (const TensorSpec& said : config) {
    const TensorSpec* there = find(file, said.name);
    if (there == nullptr)
      return invalid(what + " '" + said.name + "' of the config is not in the file, which has " +
                     names_of(file));
    if (!fits(said, *there))
      return invalid(what + " '" + said.name + "' is " + described(said) +
                     " by the config (-1 first where it batches), " + "but " + described(*there) +
                     " in the file");
  }
  return {};
}

// Dimensions as config.pbtxt has them: without the batch.
template <typename Tensor>
void write_tensor(const TensorSpec& spec, bool batched, Tensor& to) {
  to.set_name(spec.name);
  to.set_data_type(to_wire(spec.type));
  to.clear_dims();
  const graph::Shape shape = spec.open_shape();
  for (std::size_t i = batched ? 1 : 0; i < shape.size(); ++i) to.add_dims(shape[i]);
}

// Makes `list` say `specs`, in that order; what it says beyond name, type and dims stays.
template <typename List>
void write_tensors(const std::vector<TensorSpec>& specs, bool batched, List& list) {
  const List old = list;
  list.Clear();
  for (const TensorSpec& spec : specs) {
    auto& tensor = *list.Add();
    for (const auto& was : old)
      if (was.name() == spec.name) tensor = was;
    write_tensor(spec, batched, tensor);
  }
}

// Whether it is an input that the server gives, not the client.
bool of_sequence(const ModelConfig& config, const std::string& input) {
  if (config.sequence == nullptr) return false;
  const auto is_it = [&](const auto& each) { return each.input == input; };
  return std::ranges::any_of(config.sequence->controls, is_it) ||
         std::ranges::any_of(config.sequence->states, is_it);
}

// That the mask, where there is one, is an input that can be made and padded.
Result<> check_mask(const ModelConfig& config) {
  if (config.mask.empty()) return {};
  const TensorSpec* mask = find(config.inputs, config.mask);
  const std::string where = "parameter mask is '" + config.mask + "'";
  if (mask == nullptr) return invalid(where + ", but the model's inputs are " + names_of(config.inputs));
  if (!mask->varies())
    return invalid(where + ", but that input is " + described(*mask) + ": it does not vary with the length");
  if (config.inputs.size() == 1) return invalid(where + ", the only input; another must say the length");
  return {};
}

inference::ModelConfig message_in(const ModelConfig& config) {
  inference::ModelConfig message;
  const bool read = message.ParseFromString(config.serialized);
  CARILLON_ASSERT(read);  // we wrote it
  return message;
}

// The policy that a config which says none has.
void say_versions(inference::ModelConfig& message) {
  if (message.version_policy().policy_choice_case() == inference::ModelVersionPolicy::POLICY_CHOICE_NOT_SET)
    message.mutable_version_policy()->mutable_latest()->set_num_versions(1);
}

}  // namespace

std::string without_version_policy(const ModelConfig& config) {
  inference::ModelConfig message = message_in(config);
  message.clear_version_policy();
  return bytes_of(message);
}

bool same_version_policy(const ModelConfig& a, const ModelConfig& b) {
  inference::ModelConfig one = message_in(a), other = message_in(b);
  say_versions(one);
  say_versions(other);
  return one.version_policy().SerializeAsString() == other.version_policy().SerializeAsString();
}

void take_version_policy(const ModelConfig& from, ModelConfig& to) {
  inference::ModelConfig source = message_in(from), message = message_in(to);
  say_versions(source);
  *message.mutable_version_policy() = source.version_policy();
  to.serialized = bytes_of(message);
}

std::optional<DataType> from_wire(inference::DataType type) {
  for (const TypePair& pair : type_pairs)
    if (pair.wire == type) return pair.ours;
  return std::nullopt;
}

inference::DataType to_wire(DataType type) {
  for (const TypePair& pair : type_pairs)
    if (pair.ours == type) return pair.wire;
  CARILLON_ASSERT(false);
}

Result<ModelConfig> without_fixed_inputs(ModelConfig config, const std::vector<TensorSpec>& fixed) {
  const bool batched = config.max_batch_size > 0;
  for (const TensorSpec& there : fixed) {
    config.fixed.push_back(there.name);
    const auto said = std::ranges::find(config.inputs, there.name, &TensorSpec::name);
    if (said == config.inputs.end()) continue;
    // An initializer has no rows: its dims are its shape.
    TensorSpec whole = *said;
    if (batched) whole.shape.erase(whole.shape.begin());
    if (there.shape.empty() && whole.shape == graph::Shape{1}) whole.shape.clear();  // dims have an entry
    if (!fits(whole, there))
      return invalid("input '" + said->name + "' is " + described(whole) + " by the config, but " +
                     described(there) + " in the file, where an initializer sets it");
    config.ignored.push_back("input '" + said->name +
                             "': an initializer of the file sets it: requests leave it out");
    std::erase(config.optional, said->name);
    std::erase_if(config.reshapes,
                  [&](const auto& edge) { return edge.is_input && edge.name == there.name; });
    config.inputs.erase(said);
  }
  return config;
}

Result<ModelConfig> complete_config(ModelConfig config, const Model& model) {
  if (config.batch_from_file) {
    config.max_batch_size = model.batched() ? derived_max_batch : 0;
    const bool preferred = config.batch_sizes.size() > 1;
    if (!model.batched())
      config.batch_sizes = {1};
    else if (!preferred)
      config.batch_sizes = default_batch_sizes(config.max_batch_size);
    // Outputs that were given without a batch size are those of the whole: they get their batch dimension
    // here.
    if (model.batched())
      for (TensorSpec& output : config.outputs) output.shape.insert(output.shape.begin(), batch_dimension);
    config.batch_from_file = false;
  }
  if (model.whole()) {
    config.whole_rows = std::exchange(config.max_batch_size, 0);
    config.batch_sizes = {1};
  }
  const bool batched = config.max_batch_size > 0;
  if (batched && !model.batched()) {
    std::string shapes;
    for (const TensorSpec& input : model.inputs()) shapes += " '" + input.name + "' " + described(input);
    return invalid(
        "max_batch_size is " + std::to_string(config.max_batch_size) +
        ", but the first dimension of the file's inputs is fixed:" + shapes +
        "; set max_batch_size to 0 and give whole shapes in dims, or export the model with a symbolic "
        "first dimension");
  }
  if (auto ok = agree(config.inputs, model.inputs(), "input"); !ok) return std::unexpected(ok.error());
  if (auto ok = agree(config.outputs, model.outputs(), "output"); !ok) return std::unexpected(ok.error());
  if (!config.inputs.empty())
    for (const TensorSpec& input : model.inputs())
      if (find(config.inputs, input.name) == nullptr && !of_sequence(config, input.name))
        return invalid("the file's input '" + input.name + "' " + described(input) +
                       " is missing from the config, which has " + names_of(config.inputs));
  if (!config.outputs.empty() && config.outputs.size() < model.outputs().size() && config.sequence == nullptr)
    config.ignored.push_back("outputs that the config leaves out are served as well: the file has " +
                             names_of(model.outputs()));
  for (const std::string& name : config.optional)
    config.ignored.push_back(
        "input '" + name +
        "': optional: the file has no value of its own for it, so that every request gives it");
  config.inputs = model.inputs();
  config.outputs = model.outputs();
  if (config.sequence != nullptr)
    if (auto ok = complete_sequence(*config.sequence, config); !ok) return std::unexpected(ok.error());
  if (auto ok = check_mask(config); !ok) return std::unexpected(ok.error());
  if (config.lengths.size() * config.batch_sizes.size() > most_plans)
    return invalid(std::to_string(config.batch_sizes.size()) + " batch sizes at " +
                   std::to_string(config.lengths.size()) + " lengths make more than " +
                   std::to_string(most_plans) + " plans; state fewer preferred_batch_size or lengths");

  inference::ModelConfig message;
  if (!message.ParseFromString(config.serialized))
    return fail(ErrorCode::internal, "the config's own message cannot be read");
  message.set_name(config.name);
  // As Triton completes it: its OpenVINO backend has no platform.
  if (message.backend().empty())
    message.set_backend(config.engine == "openvino" ? "openvino" : "onnxruntime");
  if (message.platform().empty() && message.backend() == "onnxruntime")
    message.set_platform("onnxruntime_onnx");
  message.set_max_batch_size(std::max(config.max_batch_size, config.whole_rows));
  message.set_default_model_filename(config.file);
  say_versions(message);
  write_tensors(config.inputs, config.by_rows(), *message.mutable_input());
  write_tensors(config.outputs, config.by_rows(), *message.mutable_output());
  if (batched && config.sequence == nullptr) {
    auto& preferred = *message.mutable_dynamic_batching()->mutable_preferred_batch_size();
    preferred.Clear();
    for (const int size : config.batch_sizes) preferred.Add(size);
  }
  config.serialized = bytes_of(message);
  return config;
}

Result<ModelConfig> completed_config(std::string_view serialized, std::string_view folder,
                                     std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs) {
  inference::ModelConfig message;
  if (!message.ParseFromArray(serialized.data(), static_cast<int>(serialized.size())))
    return invalid("it is no inference.ModelConfig");
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(message, &text))
    return invalid("it cannot be written as text");
  auto read = parse_config(text, folder);
  if (!read) return std::unexpected(read.error());
  ModelConfig config = std::move(read->config);
  config.inputs = std::move(inputs);
  config.outputs = std::move(outputs);
  config.batch_from_file = false;
  config.label_files.clear();
  config.warmup = nullptr;
  config.serialized = serialized;
  return config;
}

}  // namespace carillon::repository
