#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"
#include "carillon/graph/signature.h"

namespace carillon::graph {

// An ONNX file in the newest form of its operators, before shapes are known: only the types of constants are
// set. Nodes are in an order in which every value is made before it is used.
struct OnnxGraph {
  struct Input {
    ValueId id;
    DataType type = DataType::f32;
    bool ranked = false;
    std::vector<Dimension> dimensions;
  };
  struct Output {
    ValueId id;
    bool typed = false;
    DataType type = DataType::f32;
  };

  std::string name;
  int opset = 0;
  Graph graph;
  std::vector<Input> inputs;  // as graph.inputs: those that no initializer sets
  std::vector<Output> outputs;
  std::vector<TensorSpec> fixed;    // inputs of the file that an initializer sets, as the initializer is
  std::uint64_t bytes_on_disk = 0;  // the file and its external data
};

// Reads and checks `file`; see import_onnx() for the errors.
Result<OnnxGraph> read_onnx(const std::filesystem::path& file);

// What a file takes, for who leaves its operators to another engine.
struct OnnxOutline {
  std::string name;
  std::vector<Signature::Input> inputs;  // those that no initializer sets
  std::vector<TensorSpec> fixed;         // as OnnxGraph::fixed
  std::uint64_t bytes_on_disk = 0;       // the file and its external data
  std::string misread_node;              // by OpenVINO: misread_node() of onnx_check.h
};

// Errors: the file cannot be parsed, inputs that are no tensors of numbers, external data where import_onnx()
// does not look for it, in whatever part of the file; versions and encodings that nobody here knows, or that
// such engines read otherwise (onnx_check.h). Operators, and sizes in the file, are not looked at.
Result<OnnxOutline> outline_onnx(const std::filesystem::path& file);

}  // namespace carillon::graph
