#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/engine.h"
#include "carillon/worker/worker.h"

// For the worker's tests: a real model of several kernels, somebody who watches them, and requests of it.
namespace carillon::worker::testing {

// A chain of layers with a residual: each kernel reads what the one before left in the workspace.
inline engine::testing::Graph chain(std::int64_t batch, std::int64_t width, std::uint64_t seed) {
  engine::testing::GraphMaker m;
  Random random(seed);
  auto x = m.input({batch, width});
  const auto first = x;
  for (int layer = 0; layer < 8; ++layer) {
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    x = m.node("MatMul", {x, m.constant(engine::testing::random_tensor({width, width}, random, scale))},
               {batch, width});
    x = m.node(layer % 2 == 0 ? "Tanh" : "Relu", {x}, {batch, width});
    if (layer == 5) x = m.node("Add", {x, first}, {batch, width});
  }
  m.g.outputs = {x};
  return std::move(m.g);
}

// Calls `before` before each kernel, on the stream's thread.
class Watched final : public engine::CompiledModel {
 public:
  explicit Watched(std::shared_ptr<const engine::CompiledModel> inner) : inner_(std::move(inner)) {
    for (const int batch : inner_->batch_sizes())
      plans_.push_back(std::make_unique<WatchedPlan>(*this, *inner_->plan(batch, 0)));
  }
  std::function<void(int kernel)> before;

  const std::vector<graph::TensorSpec>& inputs() const override { return inner_->inputs(); }
  const std::vector<graph::TensorSpec>& outputs() const override { return inner_->outputs(); }
  Bytes weights() const override { return inner_->weights(); }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    return inner_->write_weights(offset, to);
  }
  std::span<const std::byte> packed() const override { return inner_->packed(); }
  std::span<const int> batch_sizes() const override { return inner_->batch_sizes(); }
  const engine::Plan* plan(int batch, std::int64_t) const override {
    for (const auto& plan : plans_)
      if (plan->batch() == batch) return plan.get();
    return nullptr;
  }

 private:
  class WatchedPlan final : public engine::Plan {
   public:
    WatchedPlan(const Watched& model, const engine::Plan& inner) : model_(model), inner_(inner) {}
    int batch() const override { return inner_.batch(); }
    std::span<const graph::TensorSpec> inputs() const override { return inner_.inputs(); }
    std::span<const graph::TensorSpec> outputs() const override { return inner_.outputs(); }
    Bytes workspace() const override { return inner_.workspace(); }
    int kernels() const override { return inner_.kernels(); }
    std::string_view kernel_name(int index) const override { return inner_.kernel_name(index); }
    std::unique_ptr<engine::RunState> make_state(engine::Team* team) const override {
      return inner_.make_state(team);
    }
    Result<> run(engine::KernelRange range, const engine::Binding& binding, std::span<Duration>,
                 engine::StopSignal* stop, engine::Pacer*) const override {
      for (int k = range.first; k < range.last; ++k) {
        if (stop != nullptr && stop->requested()) {
          stop->next = k;
          return {};
        }
        if (model_.before) model_.before(k);
        if (auto done = inner_.run({k, k + 1}, binding, {}); !done) return done;
      }
      if (stop != nullptr) stop->next = range.last;
      return {};
    }

   private:
    const Watched& model_;
    const engine::Plan& inner_;
  };

  std::shared_ptr<const engine::CompiledModel> inner_;
  std::vector<std::unique_ptr<WatchedPlan>> plans_;
};

// One request of one row.
struct Row {
  Row(std::int64_t width, std::uint64_t seed) : input(static_cast<std::size_t>(width)), output(input.size()) {
    Random random(seed);
    for (float& x : input) x = static_cast<float>(random.normal());
    from = reinterpret_cast<const std::byte*>(input.data());
    to = reinterpret_cast<std::byte*>(output.data());
  }
  InferCommand command(std::uint64_t id, ModelId model, Class cls = Class::normal) {
    InferCommand made{.id = {id},
                      .model = model,
                      .window = {TimePoint::min(), TimePoint::max()},
                      .batch = 1,
                      .cls = cls,
                      .rows = {}};
    made.rows[0] = {.inputs = {&from, 1}, .outputs = {&to, 1}};
    return made;
  }
  std::vector<float> input, output;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

}  // namespace carillon::worker::testing
