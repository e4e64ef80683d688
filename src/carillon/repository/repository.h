#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/graph/model.h"

namespace carillon::repository {

// What `config.pbtxt` says of a model, or what its ONNX file implies where there is none (Triton's layout and
// names).
struct ModelConfig {
  std::string name;
  int max_batch_size = 0;                 // 0: no batch dimension
  std::vector<graph::TensorSpec> inputs;  // batch dimension first where max_batch_size > 0; -1 elsewhere,
                                          // until completed: the file decides
  std::vector<graph::TensorSpec> outputs;
  std::vector<int> batch_sizes;  // plans to make: preferred_batch_size, else powers of two up to the maximum
  std::optional<Duration> slo;   // parameter slo_ms
  std::string model_class = "normal";  // parameter class: normal, real_time, best_effort
  std::string precision = "f32";       // parameter precision: f32, bf16
  std::vector<std::int64_t> lengths;   // parameter lengths: extents of what varies; ascending, often empty
  bool padding = false;  // parameter padding: a request may be padded with zeros to the next of `lengths`
  std::string mask;      // parameter mask: the input that is 1 where a request is, 0 where it is padded
  std::string file = "model.onnx";   // default_model_filename
  std::string serialized;            // the inference.ModelConfig message, completed, for the config endpoints
  std::vector<std::string> ignored;  // fields that the file sets and we do not heed, in words
  // Neither a batch size nor inputs are given: whether the model batches is for its file to say (it does if
  // it cannot be imported without a batch), and complete_config() sets max_batch_size.
  bool batch_from_file = false;
};

// Versions of one model found in its folder, as version_policy (latest 1 by default) selects them.
struct ModelVersion {
  std::int64_t version = 1;
  std::filesystem::path file;
};

struct RepositoryEntry {
  std::string name;
  std::filesystem::path folder;
  Result<ModelConfig> config;          // an error: the entry cannot be served, and why
  std::vector<ModelVersion> versions;  // ascending; empty only where config holds an error
};

// Reads DIR/<model>/[config.pbtxt] and DIR/<model>/<version>/model.onnx for every model, in name order. One
// bad model does not spoil the others: its entry holds the error. An error of the whole: DIR cannot be read.
// Names of models and files, and symbolic links, never lead outside DIR. Plain files in DIR, hidden folders
// and folders of a model that are not named by a positive integer are passed over.
Result<std::vector<RepositoryEntry>> read_repository(const std::filesystem::path& directory);

// A config for a model without config.pbtxt, from its imported file; and the completion of one that leaves
// inputs or outputs out. An error where the two disagree: says what the file has and what the config says.
Result<ModelConfig> complete_config(ModelConfig config, const graph::Model& model);

}  // namespace carillon::repository
