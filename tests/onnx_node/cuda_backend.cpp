#include "onnx_node/suite.h"

#include "carillon/engine/cuda/testing/on_emulated.h"

namespace carillon::onnx_node {
namespace {

namespace cuda = engine::cuda;
using graph::Tensor;
using graph::TensorType;

// Plans of the CUDA engine on an emulated device, whole and cut between all their steps: the two give the
// same bytes, and the device finds nothing wrong.
class CudaBackend : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }

  Result<std::vector<Tensor>> run(const Prepared& test) override {
    const auto model = import_test(test);
    if (!model) return std::unexpected(model.error());
    std::vector<std::span<const std::byte>> inputs;
    for (const Tensor& input : test.inputs) inputs.push_back(input.bytes());
    std::vector<std::vector<std::byte>> whole;
    std::vector<graph::TensorSpec> specs;
    for (const int longest : {0, 1}) {
      auto engine = device_.engine({.longest_segment = longest});
      if (!engine) return in_context("engine", engine.error());
      auto compiled = (*engine)->compile(**model, {.batch_sizes = {1}});
      if (!compiled) return in_context("compile", compiled.error());
      const engine::Plan& plan = *(*compiled)->plan(1);
      auto ran = device_.run(**compiled, plan, inputs, longest == 1);
      if (!ran) return in_context("run", ran.error());
      if (longest == 1 && *ran != whole) return invalid("a run that was cut gave something else");
      whole = std::move(*ran);
      specs.assign(plan.outputs().begin(), plan.outputs().end());
    }
    if (const std::string left = device_.device().left_behind(); !left.empty())
      return invalid("the device was left with " + left);
    std::vector<Tensor> outputs;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      Tensor& output = outputs.emplace_back(TensorType{specs[i].type, specs[i].shape});
      std::ranges::copy(whole[i], output.bytes().begin());
    }
    return outputs;
  }

 private:
  cuda::testing::OnEmulated device_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend() {
  return std::make_unique<CudaBackend>();
}

}  // namespace carillon::onnx_node
