#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/tensor.h"
#include "carillon/worker/row_buffers.h"

namespace carillon::cli {

// A model of a repository, compiled for requests of one row.
struct LocalModel {
  std::string name;
  std::shared_ptr<const engine::CompiledModel> compiled;
  std::int64_t length = 0;  // of the rows: in the middle of those that the model has; 0: it has none
  const engine::Plan& plan() const { return *compiled->plan(1, length); }
};

// Compiles `names` of the repository at `directory`, in that order, each so that its runs may be stopped
// inside kernels at its one of `stop_costs` of a run's time (engine::CompileOptions). `tell` hears, before
// each, which is next; false ends it all (cancelled). Other errors name the model, and how to make a sample
// that is missing.
Result<std::vector<LocalModel>> compile_local_models(
    const std::filesystem::path& directory, std::span<const std::string> names, engine::Engine& engine,
    std::span<const std::optional<double>> stop_costs,
    const std::function<bool(const std::string& name)>& tell);

// A model's tensors for one row, for one request at a time. Inputs are random: floats from a normal
// distribution, whole numbers 0 or 1, which are valid as tokens and masks.
class LocalRow {
 public:
  LocalRow(const LocalModel& model, std::uint64_t seed);
  // Valid as long as this is not moved or destroyed.
  worker::RowBuffers buffers() const {
    return {.inputs = input_pointers_, .outputs = output_pointers_, .length = length_};
  }

 private:
  std::int64_t length_;
  std::vector<graph::Tensor> inputs_, outputs_;
  std::vector<const std::byte*> input_pointers_;
  std::vector<std::byte*> output_pointers_;
};

}  // namespace carillon::cli
