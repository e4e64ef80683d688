#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"

namespace carillon::graph {

// Makes a typed graph of an imported one by entering its nodes in order: each is given its operands, its
// results' types, and then folded or kept (specialize.cpp). If and Loop are entered by entering what is in
// them, under guards where that depends on data (specialize_control_flow.cpp).
//
// A loop's body is entered once an iteration, so a value of the file stands for another value of the graph
// each time: `now_` has the present one.
//
// A value without elements is a constant from the start, as nothing about it depends on data: nodes read a
// constant in place of such an input, and a node that makes nothing else is gone.
//
// A value that has unlike shapes in the branches of an If is split: it stands for one value where the
// condition holds, and for another where it does not (specialize_split.cpp). Nodes that read a split value
// are entered for each of its sides, under guards, so that all their types are exact. Results that are of one
// type on both sides become one value again. An output that is split to the end becomes bounded.
//
// Where data decide extents (bounded.h) the graph is typed with the most that they can be, and by the side,
// as far as that goes, with nearly the least. What is not the same is bounded. What a Shape and the like make
// of such extents is supposed, so that the shapes that follow from it have their bounds, too.
class Specializer {
 public:
  Specializer(const OnnxGraph& source, Folder& folder);

  Result<Graph> run(const std::vector<Shape>& shapes);

 private:
  // specialize.cpp
  Result<> enter(Node node);
  Result<> infer(Node node);
  bool settle_empty(Node& node);
  Result<> settle(Node node);
  void find_weights();
  Result<> enter_mask(ValueId mask);
  Result<> enter_matrix_softmax(Node node);
  const TensorType& type_of(ValueId id) const { return graph_.value(id).type; }
  void set_constant(ValueId id, Tensor tensor);
  ValueId new_value(std::string name);
  static std::string counted(const std::string& name, std::size_t i, std::size_t of);  // of result `i`

  // specialize_bounded.cpp
  struct Supposed {
    std::uint64_t dimensions = 0;     // that are bounded, as bits
    SharedTensor contents;            // with the most that all extents can be; nullptr: nobody knows
    std::optional<TensorType> least;  // with nearly the least; nothing: nobody knows
    SharedTensor least_contents;
  };
  const Supposed* supposed(ValueId id) const;
  bool is_bounded(ValueId id) const {
    const Supposed* known = supposed(id);
    return known != nullptr && known->dimensions != 0;
  }
  bool needs_bounds(const Node& node) const;
  Result<> enter_bounded(Node node);
  Result<bool> decide_now(const Node& node);

  // specialize_split.cpp
  struct Split {
    ValueId condition, yes, no;
  };
  const Split* split(ValueId id) const;
  ValueId resolved(ValueId id) const;
  ValueId find_split(std::span<const ValueId> ids) const;
  std::optional<bool> known(ValueId condition) const;
  // Enters something under the condition of a split and under its contrary; gives its results there.
  using EnterSide = std::function<Result<std::vector<ValueId>>(bool when)>;
  Result<> enter_both(const std::string& name, ValueId id, std::span<const ValueId> to,
                      const EnterSide& enter);
  Result<> count_sides(const std::string& what, std::size_t count);
  Result<> enter_sides(Node node, ValueId id, bool whole);
  Result<> enter_source_sides(const Node& node, ValueId id);
  Result<> unfit(const std::string& name, ValueId condition, bool when, const std::string& why, ValueId like,
                 ValueId to);
  Result<> only(const std::string& name, ValueId condition, bool when, const std::string& why, ValueId from,
                ValueId to);
  Result<> combine(const std::string& name, ValueId condition, ValueId yes, ValueId no, ValueId to,
                   bool constants = false);
  Result<> choose(ValueId output);

  // specialize_control_flow.cpp
  struct Unrolled;
  Result<> enter_source(const Node& node);  // whose operands are the file's
  Result<> enter_if(const Node& node);
  Result<> enter_branch(const Subgraph& branch, int guard);
  Result<> enter_only(const Node& node, ValueId condition, bool when, std::string_view why);
  Result<> enter_loop(const Node& node);
  Result<> enter_scan(const Node& node);
  Result<std::vector<ValueId>> scan(const Node& node, const std::string& name, std::vector<ValueId> inputs);
  Result<ValueId> pick(const std::string& name, ValueId from, std::int64_t axis, std::int64_t index);
  Result<> enter_body(const Subgraph& body);
  Result<std::vector<TensorType>> body_types(const Node& node, const Subgraph& body);
  Result<std::optional<std::int64_t>> trip_count(const Node& node) const;
  Result<> unroll(const Node& node, Unrolled& loop);
  Result<> end_before(const Node& node, Unrolled& loop, std::int64_t number, std::string_view why);
  void begin_iteration(const Node& node, const Unrolled& loop, std::int64_t number, ValueId goes_on);
  Result<> type_elements(const Node& node, Unrolled& loop);
  Result<> finish_loop(const Node& node, const Unrolled& loop);
  Result<> stack(const std::string& where, const std::string& name, std::span<const ValueId> values,
                 ValueId to, std::int64_t axis = 0);
  Result<> stack_none(const std::string& where, const TensorType& element, ValueId to, std::int64_t axis = 0);
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
  std::vector<ValueId> now_;        // by the file's values
  std::vector<bool> entered_;       // likewise: it has stood for a value before
  std::vector<bool> only_weights_;  // likewise: products read it as weights, nobody else
  int guard_ = -1;                  // of what is entered now
  std::map<std::tuple<ValueId, bool, int>, int> guards_;  // condition, when, parent
  int loops_ = 0;                                         // around what is entered now
  std::string suffix_;                                    // of names: which iteration
  std::size_t spent_ = 0;                                 // nodes that loops have been unrolled to
  std::map<ValueId, Supposed> supposed_;
  std::map<ValueId, Split> splits_;
  std::size_t sides_ = 0;  // nodes that were entered for one side of a split
};

}  // namespace carillon::graph
