#include <algorithm>

#include "onnx_node/suite.h"

#include "carillon/engine/openvino/openvino.h"
#include "carillon/engine/second/second_engine.h"

namespace carillon::onnx_node {
namespace {

using graph::Tensor;

// Reads the test's model itself.
class OpenVinoBackend : public Backend {
 public:
  explicit OpenVinoBackend(std::shared_ptr<engine::ReadingEngine> engine) : engine_(std::move(engine)) {}

  std::string_view name() const override { return "openvino"; }

  Result<std::vector<Tensor>> run(const Prepared& test) override {
    const auto model = engine_->read(test.model, test.options);
    if (!model) return in_context("read", model.error());
    const auto compiled = engine_->compile(**model, {.batch_sizes = {1}});
    if (!compiled) return in_context("compile", compiled.error());
    // Inputs and outputs may stand in another order than in the file.
    std::vector<const Tensor*> inputs;
    for (const graph::TensorSpec& spec : (*model)->inputs()) {
      const auto& given = test.options.input_shapes;
      const auto at = std::ranges::find(given, spec.name, [](const auto& input) { return input.first; });
      if (at == given.end()) return invalid("the test has no input '" + spec.name + "'");
      inputs.push_back(&test.inputs[static_cast<std::size_t>(at - given.begin())]);
    }
    auto made = run_compiled(**compiled, inputs);
    if (!made) return made;
    std::vector<Tensor> outputs;
    for (const std::string& name : test.output_names) {
      const auto at = std::ranges::find((*model)->outputs(), name, &graph::TensorSpec::name);
      if (at == (*model)->outputs().end()) return invalid("the model has no output '" + name + "'");
      outputs.push_back(std::move((*made)[static_cast<std::size_t>(at - (*model)->outputs().begin())]));
    }
    return outputs;
  }

 private:
  std::shared_ptr<engine::ReadingEngine> engine_;
};

}  // namespace

std::unique_ptr<Backend> make_openvino_backend() {
  // Thousands of models of one node: a process each would only take time.
  auto engine = engine::make_second_engine(engine::openvino, {.threads = 1, .module = {}, .apart = false});
  if (!engine->available()) return nullptr;
  return std::make_unique<OpenVinoBackend>(std::move(engine));
}

}  // namespace carillon::onnx_node
