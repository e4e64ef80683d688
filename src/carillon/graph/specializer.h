#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"

namespace carillon::graph {

// Makes a typed graph of an imported one by entering its nodes in order: each is given its operands, its
// results' types, and then folded or kept (specialize.cpp). If and Loop are entered by entering what is in
// them, under guards where that depends on data (specialize_control_flow.cpp).
//
// A loop's body is entered once an iteration, so a value of the file stands for another value of the graph
// each time: `now_` has the present one.
class Specializer {
 public:
  Specializer(const OnnxGraph& source, Folder& folder);

  Result<Graph> run(const std::vector<Shape>& shapes);

 private:
  // specialize.cpp
  Result<> enter(Node node);
  Result<> infer(Node node);
  Result<> settle(Node node);
  Result<> enter_mask(ValueId mask);
  Result<> enter_matrix_softmax(Node node);
  const TensorType& type_of(ValueId id) const { return graph_.value(id).type; }
  void set_constant(ValueId id, Tensor tensor);
  ValueId new_value(std::string name);

  // specialize_control_flow.cpp
  struct Unrolled;
  Result<> enter_source(const Node& node);  // whose operands are the file's
  Result<> enter_if(const Node& node);
  Result<> enter_loop(const Node& node);
  Result<> enter_body(const Subgraph& body);
  Result<std::optional<std::int64_t>> trip_count(const Node& node) const;
  Result<> unroll(const Node& node, Unrolled& loop);
  Result<> finish_loop(const Node& node, const Unrolled& loop);
  Result<> stack(const std::string& where, const std::string& name, std::span<const ValueId> values,
                 ValueId to);
  Result<> same(std::string name, ValueId from, ValueId to);
  Result<> merge(std::string name, ValueId condition, ValueId yes, ValueId no, ValueId to);
  Result<std::optional<bool>> condition(const Node& node, ValueId id) const;
  int guard(ValueId condition, bool when);
  Result<> spend(const Node& node, std::size_t nodes);
  ValueId now(ValueId source) const;
  std::vector<ValueId> now(std::span<const ValueId> sources) const;
  ValueId begin(ValueId source);

  const OnnxGraph& source_;
  Folder& folder_;
  Graph graph_;
  std::vector<ValueId> now_;                              // by the file's values
  std::vector<bool> entered_;                             // likewise: it has stood for a value before
  int guard_ = -1;                                        // of what is entered now
  std::map<std::tuple<ValueId, bool, int>, int> guards_;  // condition, when, parent
  int loops_ = 0;                                         // around what is entered now
  std::string suffix_;                                    // of names: which iteration
  std::size_t spent_ = 0;                                 // nodes that loops have been unrolled to
};

}  // namespace carillon::graph
