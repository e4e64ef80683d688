#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/graph/edge_reshape.h"
#include "carillon/graph/model.h"
#include "carillon/repository/ensemble.h"

namespace carillon::repository {

inline constexpr int derived_max_batch = 16;     // where only the file says that a model batches
inline constexpr int largest_max_batch = 4096;   // that a config may ask for
inline constexpr int largest_plan = 128;         // rows of the largest plan that is made
inline constexpr std::size_t most_lengths = 64;  // that parameter lengths may list
inline constexpr std::int64_t largest_length = 1 << 20;
inline constexpr std::size_t most_plans = 512;  // batch sizes times lengths

inline constexpr std::string_view default_file = "model.onnx";

// The names of an output's classes, by output.
using Labels = std::map<std::string, std::vector<std::string>>;

struct SequenceBatching;  // sequence_batching.h
struct QueuePolicies;     // queue_policies.h
struct Warmup;            // warmup.h

// What `config.pbtxt` says of a model, or what its ONNX file implies where there is none (Triton's layout and
// names).
struct ModelConfig {
  std::string name;
  int max_batch_size = 0;  // 0: no batch dimension
  // Above 0: the config's max_batch_size, which clients see, of a model whose rows are not proven not to see
  // each other. Each request then runs by itself: dimension 0 of its inputs, a free one, is 1 to so many
  // rows, and max_batch_size is 0.
  int whole_rows = 0;
  bool dynamic_batching = false;          // the config has that
  std::vector<graph::TensorSpec> inputs;  // batch dimension first where max_batch_size > 0; -1 elsewhere,
                                          // until completed: the file decides
  std::vector<graph::TensorSpec> outputs;
  std::vector<std::string> optional;  // inputs that it says may be left out
  // Inputs of the file that one of its initializers sets: no request gives them. Once completed.
  std::vector<std::string> fixed;
  std::vector<graph::EdgeReshape> reshapes;  // inputs and outputs that the file has in another shape
  std::vector<int> batch_sizes;  // plans to make: preferred_batch_size, else powers of two up to the maximum
  std::optional<Duration> slo;   // parameter slo_ms
  double miss_rate = 0;          // parameter miss_rate, in (0, 0.5]; 0: the server's
  std::string model_class = "normal";  // parameter class: normal, real_time, best_effort
  // Parameter real_time_requests: whether requests that name priority 1 are real-time whoever sends them.
  // Those of a model of class real_time are.
  bool real_time_requests = false;
  std::string precision = "f32";  // parameter precision: f32, bf16, f16
  // Parameter engine: carillon, openvino, onnxruntime; empty: ours, or another where ours cannot. Of a model
  // that is loaded it is also which other runs it.
  std::string engine;
  std::vector<std::int64_t> lengths;  // parameter lengths: extents of what varies; ascending, often empty
  bool padding = false;  // parameter padding: a request may be padded with zeros to the next of `lengths`
  std::string mask;      // parameter mask: the input that is 1 where a request is, 0 where it is padded
  std::string file{default_file};  // default_model_filename
  std::string serialized;          // the inference.ModelConfig message, completed, for the config endpoints
  // By output: the file of its classes' names (label_filename), and, once it was read, these.
  std::map<std::string, std::string> label_files;
  std::shared_ptr<const Labels> labels;
  std::vector<EnsembleStep> steps;                   // of an ensemble, which has no file; of all others empty
  std::shared_ptr<const SequenceBatching> sequence;  // null: a request has nothing to do with those before it
  std::shared_ptr<const QueuePolicies> queue;        // null: the server's own
  std::shared_ptr<const std::vector<Warmup>> warmup;  // null: none
  bool decoupled = false;                             // served over streams alone
  bool preserve_ordering = false;    // a stream's answers come in the order of their requests
  std::vector<std::string> ignored;  // fields that the file sets and we do not heed, in words
  // Neither a batch size nor inputs are given: whether the model batches is for its file to say (it does if
  // it cannot be imported without a batch), and complete_config() sets max_batch_size.
  bool batch_from_file = false;

  // Whether clients see rows in dimension 0 of all inputs and outputs.
  bool by_rows() const { return max_batch_size > 0 || whole_rows > 0; }
};

// Whether plans for all of its batch sizes are to be there before it serves: for runs before that, sequences,
// lengths, and classes whose runs are measured.
inline bool wants_all_plans(const ModelConfig& config) {
  return config.warmup != nullptr || config.sequence != nullptr || !config.lengths.empty() ||
         config.model_class != "normal" || config.real_time_requests;
}

// Which of a model's version folders are served.
struct VersionPolicy {
  enum class Kind : std::uint8_t { latest, all, specific } kind = Kind::latest;
  std::int64_t latest = 1;             // how many of the newest
  std::vector<std::int64_t> specific;  // ascending
};

struct ConfigFile {
  ModelConfig config;
  VersionPolicy versions;
};

// What a config.pbtxt says, before the model's own file is seen (`text`: protobuf text format of
// inference.ModelConfig; empty where there is no config.pbtxt). `folder` is the model's folder's name, which
// the config must agree with. Nothing in the text is trusted. Errors: syntax, with line and column
// (invalid_argument); values out of range, with what would be right (invalid_argument); what we cannot serve
// (unsupported).
Result<ConfigFile> parse_config(std::string_view text, std::string_view folder);

// A config in JSON (protobuf's mapping, as Triton's clients send it to override a file) as the text that
// parse_config() reads. Errors (invalid_argument): not JSON, or not such a message.
Result<std::string> config_from_json(std::string_view json);

// What versions are made of goes without version_policy, which only says which of them are served.
std::string without_version_policy(const ModelConfig& config);
// Whether both say that, as clients are told it, in the same way; and makes `to` say it as `from` does.
bool same_version_policy(const ModelConfig& a, const ModelConfig& b);
void take_version_policy(const ModelConfig& from, ModelConfig& to);

// 1, 2, 4, ... up to `max_batch_size`, at most largest_plan; 1 alone for a model without a batch.
std::vector<int> default_batch_sizes(int max_batch_size);

// What there is to know of a file's inputs that its initializers set (graph::OnnxGraph::fixed), before the
// config is held against its other inputs: those that the config lists go from its inputs. An error where the
// config has another type or shape.
Result<ModelConfig> without_fixed_inputs(ModelConfig config, const std::vector<graph::TensorSpec>& fixed);

// A config for a model without config.pbtxt, from its imported file; and the completion of one that leaves
// inputs or outputs out. An error where the two disagree: says what the file has and what the config says.
Result<ModelConfig> complete_config(ModelConfig config, const graph::Model& model);

// A config that another host completed, from its `serialized`, with the tensors that complete_config() had
// from the model. Its files (labels, warm-ups) stay there. Errors: as parse_config().
Result<ModelConfig> completed_config(std::string_view serialized, std::string_view folder,
                                     std::vector<graph::TensorSpec> inputs,
                                     std::vector<graph::TensorSpec> outputs);

}  // namespace carillon::repository
