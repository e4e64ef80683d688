#pragma once

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "carillon/base/result.h"
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
  // Not empty: a rule leaves the test out. The rules: an operator that we do not claim, a type that we do not
  // have (strings, sequences, optionals), training, an output whose shape depends on data, an input without
  // elements (a served model has none), data that is not what the model declares.
  std::string left_out;
  // Graphs are static here: a graph input that decides a shape (Reshape's shape, Slice's starts, ...) has
  // become an initializer with the test's data, and is not among the inputs any more.
  std::filesystem::path model;
  graph::ImportOptions options;
  std::vector<graph::Tensor> inputs;
  std::vector<graph::Tensor> outputs;  // as they should be
};

// `scratch`: a folder for the rewritten models. An error: the test's own files are not as they should be.
Result<Prepared> prepare(const Case& test, const std::filesystem::path& scratch);

// An error tells the first difference: type, shape, or an element by more than ONNX's runner allows (relative
// 1e-3, absolute 1e-5; integers and booleans exactly), or for bfloat16 by more than a unit in its last place.
Result<> compare(std::size_t output, const graph::Tensor& got, const graph::Tensor& wanted);

// Runs a model at batch 1 on inputs in the model's order.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual Result<std::vector<graph::Tensor>> run(const graph::Model& model,
                                                 const std::vector<graph::Tensor>& inputs) = 0;
};

// The graph node by node with plain kernels, and the CPU engine.
std::unique_ptr<Backend> make_plain_backend();
std::unique_ptr<Backend> make_cpu_backend();

// Imports, runs and compares. An error says what went wrong.
Result<> run_prepared(const Prepared& test, Backend& backend);

}  // namespace carillon::onnx_node
