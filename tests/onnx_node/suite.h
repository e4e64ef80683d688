#pragma once

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/model.h"

namespace carillon::onnx_node {

// One ONNX backend node test: a folder with model.onnx and test_data_set_0/{input,output}_<i>.pb.
struct Case {
  std::string name;  // the folder's
  std::filesystem::path folder;

  friend void PrintTo(const Case& test, std::ostream* out) { *out << test.folder; }
};

// Where Debian's libonnx-testdata keeps them.
std::filesystem::path default_folder();

// Every test under `folder`, by name.
Result<std::vector<Case>> find_cases(const std::filesystem::path& folder);

// A test made ready to run, or why it is left out.
struct Prepared {
  std::vector<std::string> operators;  // of its nodes, sorted, each once
  // Not empty: a rule leaves the test out of what our own engine is held to. The rules: an operator that we
  // do not claim, a type that we do not have (strings, sequences, optionals), random numbers.
  std::string left_out;
  // Graphs are static here: a graph input that decides a shape (Reshape's shape, Slice's starts, ...), or has
  // no elements, has become an initializer with the test's data, and is not among the inputs any more.
  std::filesystem::path model;   // empty: its data are of types that nobody here has
  graph::ImportOptions options;  // with a shape for each input, in order
  std::vector<graph::Tensor> inputs;
  std::vector<std::string> output_names;
  std::vector<graph::Tensor> outputs;  // as they should be
};

// `scratch`: a folder for the rewritten models. An error: the test's own files are not as they should be.
Result<Prepared> prepare(const Case& test, const std::filesystem::path& scratch);

// An error tells the first difference: type, shape, or an element by more than ONNX's runner allows (relative
// 1e-3, absolute 1e-5; integers and booleans exactly), or for bfloat16 by more than a unit in its last place.
Result<> compare(std::size_t output, const graph::Tensor& got, const graph::Tensor& wanted);

// Runs a test's model, which is not empty, at batch 1, and gives its outputs in their order.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual Result<std::vector<graph::Tensor>> run(const Prepared& test) = 0;
};

// The graph node by node with plain kernels, and the CPU engine.
std::unique_ptr<Backend> make_plain_backend();
std::unique_ptr<Backend> make_cpu_backend();
// The CUDA engine's plans on an emulated device. What they do not cover fails with `unsupported`.
std::unique_ptr<Backend> make_cuda_backend();
// The second engine; nullptr where the build has none.
std::unique_ptr<Backend> make_openvino_backend();

// The test's model, as our own engine takes it.
Result<std::shared_ptr<const graph::Model>> import_test(const Prepared& test);
// Runs the first plan of `model` with a workspace and weights of its own; inputs in the model's order.
Result<std::vector<graph::Tensor>> run_compiled(const engine::CompiledModel& model,
                                                const std::vector<const graph::Tensor*>& inputs);

// Runs and compares. An error says what went wrong.
Result<> run_prepared(const Prepared& test, Backend& backend);

}  // namespace carillon::onnx_node
