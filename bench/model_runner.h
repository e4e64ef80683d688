#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/model.h"

// What the programs share that run a model without a server: compile, find memory, run.
namespace carillon::bench {

// The memory of one plan at a time, filled and read by the program.
class Runner {
 public:
  static Result<Runner> load(const std::filesystem::path& file, const engine::CpuOptions& cpu,
                             const engine::CompileOptions& options) {
    // As a batch where it can be one; else with whatever sizes it has.
    auto model = graph::import_onnx(file, {});
    if (!model) model = graph::import_onnx(file, {.open = true, .batch_from_file = true});
    if (!model) return std::unexpected(model.error());
    Runner runner;
    runner.engine_ = engine::make_cpu_engine(cpu);
    engine::CompileOptions fitting = options;
    if (!(*model)->batched()) fitting.batch_sizes = {1};
    auto compiled = runner.engine_->compile(**model, fitting);
    if (!compiled) return std::unexpected(compiled.error());
    runner.compiled_ = *compiled;
    runner.open_.assign((*model)->free_dimensions().begin(), (*model)->free_dimensions().end());
    auto team = runner.engine_->make_team({.threads = threads_of(cpu)});
    if (!team) return std::unexpected(team.error());
    runner.team_ = std::move(*team);
    runner.weights_ = block(runner.compiled_->weights().count);
    runner.compiled_->write_weights(0, runner.weights_->bytes().first(runner.compiled_->weights().count));
    return runner;
  }

  const engine::CompiledModel& compiled() const { return *compiled_; }
  // The names of the free dimensions; empty where the model is not open.
  const std::vector<std::string>& open() const { return open_; }

  // Makes room for `batch`; inputs are zeros. False: no plan for it.
  bool select(int batch) {
    plan_ = compiled_->plan(batch);
    if (plan_ == nullptr) return false;
    use();
    return true;
  }
  // Of an open model: makes the plan of one row at these extents, and room for it.
  Result<> select_new(std::span<const std::int64_t> extents) {
    const int one = 1;
    auto made = compiled_->make_plans(extents, {&one, 1}, nullptr);
    if (!made) return std::unexpected(made.error());
    state_.reset();
    made_ = std::move(made->front());
    plan_ = made_.get();
    use();
    return {};
  }
  const engine::Plan& plan() const { return *plan_; }
  std::vector<graph::Tensor>& inputs() { return inputs_; }
  std::vector<graph::Tensor>& outputs() { return outputs_; }

  // Floats from a normal distribution, whole numbers 0 or 1 (valid as tokens, as masks, as flags).
  void fill_inputs(std::uint64_t seed) {
    Random random(seed);
    for (auto& tensor : inputs_) {
      const auto type = tensor.type().type;
      if (type == graph::DataType::f32) {
        for (float& x : tensor.as<float>()) x = static_cast<float>(random.normal());
        continue;
      }
      const std::size_t size = graph::size_of(type);
      for (std::size_t i = 0; i < tensor.bytes().size(); i += size)
        tensor.bytes()[i] = std::byte(random.below(2));
    }
  }

  Result<> run(std::span<Duration> durations = {}, engine::StopSignal* stop = nullptr) {
    return plan_->run({0, plan_->kernels()},
                      {.inputs = input_pointers_,
                       .outputs = output_pointers_,
                       .workspace = workspace_->bytes().data(),
                       .weights = weights_->bytes().data(),
                       .state = state_.get()},
                      durations, stop);
  }

 private:
  static int threads_of(const engine::CpuOptions& cpu) {
    return cpu.threads > 0 ? cpu.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  static std::unique_ptr<graph::Tensor> block(std::uint64_t size) {
    return std::make_unique<graph::Tensor>(graph::TensorType{
        graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1))}});
  }
  static std::vector<graph::Tensor> tensors(std::span<const graph::TensorSpec> specs) {
    std::vector<graph::Tensor> made;
    for (const auto& spec : specs) {
      const auto bytes = static_cast<std::int64_t>(graph::memory_of(spec.type, spec.shape).count);
      made.emplace_back(graph::has_bounded(spec.shape) ? graph::TensorType{graph::DataType::u8, {bytes}}
                                                       : graph::TensorType{spec.type, spec.shape});
    }
    return made;
  }

  // Room for the plan; inputs are zeros.
  void use() {
    inputs_ = tensors(plan_->inputs());
    outputs_ = tensors(plan_->outputs());
    workspace_ = block(plan_->workspace().count);
    state_ = plan_->make_state(team_.get());
    input_pointers_.clear();
    output_pointers_.clear();
    for (auto& t : inputs_) input_pointers_.push_back(t.bytes().data());
    for (auto& t : outputs_) output_pointers_.push_back(t.bytes().data());
  }

  std::unique_ptr<engine::Engine> engine_;
  std::shared_ptr<const engine::CompiledModel> compiled_;
  std::vector<std::string> open_;
  std::unique_ptr<const engine::Plan> made_;  // by select_new()
  const engine::Plan* plan_ = nullptr;
  std::unique_ptr<engine::Team> team_;
  std::unique_ptr<engine::RunState> state_;
  std::unique_ptr<graph::Tensor> weights_, workspace_;
  std::vector<graph::Tensor> inputs_, outputs_;
  std::vector<const std::byte*> input_pointers_;
  std::vector<std::byte*> output_pointers_;
};

}  // namespace carillon::bench
