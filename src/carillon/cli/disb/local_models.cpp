#include "carillon/cli/disb/local_models.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "carillon/base/random.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/model.h"
#include "carillon/repository/repository.h"

namespace carillon::cli {
namespace {

Result<LocalModel> compile_local(const repository::RepositoryEntry& entry, engine::Engine& engine,
                                 std::optional<double> stop_cost) {
  if (!entry.config) return std::unexpected(entry.config.error());
  repository::ModelConfig config = *entry.config;
  graph::ImportOptions options{
      .input_shapes = {}, .lengths = config.lengths, .batched = config.max_batch_size > 0};
  for (const graph::TensorSpec& input : config.inputs)
    options.input_shapes.emplace_back(input.name, input.shape);
  const std::filesystem::path& file = entry.versions.back().file;
  auto model = graph::import_onnx(file, options);
  if (!model && config.batch_from_file) {
    options.batched = true;
    model = graph::import_onnx(file, options);
  }
  if (!model) return std::unexpected(model.error());
  const auto completed = repository::complete_config(std::move(config), **model);
  if (!completed) return std::unexpected(completed.error());
  auto compiled = engine.compile(
      **model, {.batch_sizes = {1},
                .precision = engine::precision_of(completed->precision),
                .pads = completed->padding,
                .stop_cost = stop_cost,
                // What is not to be stopped is real-time work: it leaves room where that costs it little.
                .room_cost = stop_cost ? std::nullopt : std::optional(engine::usual_room_cost)});
  if (!compiled) return std::unexpected(compiled.error());
  const auto lengths = (*compiled)->lengths();
  const std::int64_t length = lengths.empty() ? 0 : lengths[lengths.size() / 2];
  return LocalModel{.name = entry.name, .compiled = std::move(*compiled), .length = length};
}

std::vector<graph::Tensor> row_tensors(std::span<const graph::TensorSpec> specs) {
  std::vector<graph::Tensor> made;
  for (const graph::TensorSpec& spec : specs) {
    const auto bytes = static_cast<std::int64_t>(graph::memory_of(spec.type, spec.shape).count);
    made.emplace_back(graph::has_bounded(spec.shape) ? graph::TensorType{graph::DataType::u8, {bytes}}
                                                     : graph::TensorType{spec.type, spec.shape});
  }
  return made;
}

}  // namespace

Result<std::vector<LocalModel>> compile_local_models(
    const std::filesystem::path& directory, std::span<const std::string> names, engine::Engine& engine,
    std::span<const std::optional<double>> stop_costs,
    const std::function<bool(const std::string& name)>& tell) {
  const auto entries = repository::read_repository(directory);
  if (!entries) return std::unexpected(entries.error());
  std::vector<LocalModel> models;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    const auto entry = std::ranges::find(*entries, name, &repository::RepositoryEntry::name);
    if (entry == entries->end())
      return fail(ErrorCode::not_found, "there is no model '" + name + "' in " + directory.string() +
                                            "; samples are made by: PYTHONPATH=python .venv/bin/python -m "
                                            "carillon_samples --out " +
                                            directory.string() + " --models " + name);
    if (!tell(name)) return fail(ErrorCode::cancelled, "interrupted while models were compiled");
    try {
      auto model = compile_local(*entry, engine, stop_costs[i]);
      if (!model) return in_context("model " + name, model.error());
      models.push_back(std::move(*model));
    } catch (const std::exception& error) {
      // Most likely memory: a file may ask for more than there is.
      return fail(ErrorCode::resource_exhausted,
                  "model " + name + ": while reading and compiling it: " + error.what());
    }
  }
  return models;
}

LocalRow::LocalRow(const LocalModel& model, std::uint64_t seed)
    : length_(model.length),
      inputs_(row_tensors(model.plan().inputs())),
      outputs_(row_tensors(model.plan().outputs())) {
  Random random(seed);
  for (graph::Tensor& tensor : inputs_) {
    input_pointers_.push_back(tensor.bytes().data());
    if (tensor.type().type == graph::DataType::f32) {
      for (float& value : tensor.as<float>()) value = static_cast<float>(random.normal());
      continue;
    }
    const std::size_t size = graph::size_of(tensor.type().type);
    for (std::size_t i = 0; i < tensor.bytes().size(); i += size)
      tensor.bytes()[i] = std::byte(random.below(2));
  }
  for (graph::Tensor& tensor : outputs_) output_pointers_.push_back(tensor.bytes().data());
}

}  // namespace carillon::cli
