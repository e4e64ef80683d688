#include "onnx_node/suite.h"

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/graph/bounded.h"

namespace carillon::onnx_node {
namespace {

using graph::DataType;
using graph::Tensor;
using graph::TensorType;

// At least one byte, aligned as a Binding wants it.
Tensor bytes_for(Bytes size) {
  return Tensor(
      TensorType{DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(1, size.count))}});
}

class CpuBackend : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }

  Result<std::vector<Tensor>> run(const Prepared& test) override {
    const auto model = import_test(test);
    if (!model) return std::unexpected(model.error());
    const auto compiled = engine_->compile(**model, {.batch_sizes = {1}});
    if (!compiled) return in_context("compile", compiled.error());
    std::vector<const Tensor*> inputs;
    for (const Tensor& input : test.inputs) inputs.push_back(&input);
    return run_compiled(**compiled, inputs);
  }

 private:
  std::unique_ptr<engine::Engine> engine_ = engine::make_cpu_engine({.threads = 1});
};

}  // namespace

Result<std::vector<Tensor>> run_compiled(const engine::CompiledModel& model,
                                         const std::vector<const Tensor*>& inputs) {
  const engine::Plan* plan = model.plan(1);
  if (plan == nullptr) return invalid("no plan for batch 1");
  Tensor weights = bytes_for(model.weights());
  model.write_weights(0, weights.bytes().first(model.weights().count));
  Tensor workspace = bytes_for(plan->workspace());
  std::vector<const std::byte*> from;
  for (const Tensor* tensor : inputs) from.push_back(tensor->bytes().data());
  std::vector<Tensor> room;
  for (const graph::TensorSpec& spec : plan->outputs()) {
    room.push_back(bytes_for(graph::memory_of(spec.type, spec.shape)));
    // What a run does not write shows.
    std::ranges::fill(room.back().bytes(), std::byte{0xa5});
  }
  std::ranges::fill(workspace.bytes(), std::byte{0xa5});
  std::vector<std::byte*> to;
  for (Tensor& tensor : room) to.push_back(tensor.bytes().data());
  const auto state = plan->make_state();
  const engine::Binding binding{.inputs = from,
                                .outputs = to,
                                .workspace = workspace.bytes().data(),
                                .weights = weights.bytes().data(),
                                .state = state.get()};
  if (const auto ran = plan->run({0, plan->kernels()}, binding, {}); !ran) {
    return in_context("run", ran.error());
  }
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < room.size(); ++i) {
    const graph::TensorSpec& spec = plan->outputs()[i];
    const auto shape = graph::shape_in(spec.type, spec.shape,
                                       room[i].bytes().first(graph::memory_of(spec.type, spec.shape).count));
    if (!shape) return in_context("output '" + spec.name + "'", shape.error());
    Tensor& output = outputs.emplace_back(TensorType{spec.type, *shape});
    std::ranges::copy(room[i].bytes().first(output.bytes().size()), output.bytes().begin());
  }
  return outputs;
}

std::unique_ptr<Backend> make_cpu_backend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace carillon::onnx_node
