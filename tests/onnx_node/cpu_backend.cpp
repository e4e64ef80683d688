#include "onnx_node/suite.h"

#include "carillon/engine/cpu/cpu_engine.h"

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

  Result<std::vector<Tensor>> run(const graph::Model& model, const std::vector<Tensor>& inputs) override {
    const auto compiled = engine_->compile(model, {.batch_sizes = {1}});
    if (!compiled) return in_context("compile", compiled.error());
    const engine::Plan* plan = (*compiled)->plan(1);
    if (plan == nullptr) return invalid("no plan for batch 1");
    Tensor weights = bytes_for((*compiled)->weights());
    (*compiled)->write_weights(0, weights.bytes().first((*compiled)->weights().count));
    Tensor workspace = bytes_for(plan->workspace());
    std::vector<const std::byte*> from;
    for (const Tensor& tensor : inputs) from.push_back(tensor.bytes().data());
    std::vector<Tensor> outputs;
    for (const graph::TensorSpec& spec : plan->outputs())
      outputs.emplace_back(TensorType{spec.type, spec.shape});
    std::vector<std::byte*> to;
    for (Tensor& tensor : outputs) to.push_back(tensor.bytes().data());
    const auto state = plan->make_state();
    const engine::Binding binding{.inputs = from,
                                  .outputs = to,
                                  .workspace = workspace.bytes().data(),
                                  .weights = weights.bytes().data(),
                                  .state = state.get()};
    if (const auto ran = plan->run({0, plan->kernels()}, binding, {}); !ran) {
      return in_context("run", ran.error());
    }
    return outputs;
  }

 private:
  std::unique_ptr<engine::Engine> engine_ = engine::make_cpu_engine({.threads = 1});
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace carillon::onnx_node
