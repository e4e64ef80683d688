#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/row_rules.h"
#include "carillon/graph/rows.h"
#include "carillon/graph/specialize.h"
#include "carillon/graph/testing.h"

// What the table in row_rules.cpp promises, by brute force: random graphs of all operators, run by plain
// kernels with rows together and with each alone. Of every value that is said to keep rows apart, each row's
// part must be what that row alone gives, bit for bit.
namespace carillon::graph {
namespace {

using testing::Onnx;
using Axes = std::vector<std::int64_t>;

// A value of the graph under construction, with its shape at a batch of two.
struct Known {
  std::string name;
  TensorType type;
};

class RowMaker {
 public:
  explicit RowMaker(std::uint64_t seed) : random_(seed), file_(20, seed) {
    file_.input("x", {"B", "2", "3"}).input("v", {"B", "4"}).input("s", {"B", "3", "4"});
    file_.input("m", {"B", "2", "4", "4"}).input("z", {"B", "2", "3"});
    file_.input("i", {"B", "2"}, DataType::i64).input("b", {"B", "2", "3"}, DataType::boolean);
    file_.node("Identity", {"x"}, {"y"}).output("y");
    const bool begun = look();
    EXPECT_TRUE(begun);
  }

  // Adds nodes that fit, out of `tries`, each by one of the makers below.
  void grow(int tries);
  const std::string& bytes() const { return bytes_; }

  static std::vector<std::string_view> tried_operators();

 private:
  using Maker = void (*)(RowMaker&, const std::string& op);
  struct Way {
    std::vector<std::string> ops;
    Maker make;
  };
  static const std::vector<Way>& ways();

  // --- For makers

  std::size_t below(std::size_t n) { return random_.below(n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  std::string fresh() { return "t" + std::to_string(next_++); }
  // Any value of that type, the newest more often; of that rank where one is given.
  const Known* any(DataType type, int rank = -1) {
    std::vector<const Known*> fit;
    for (const Known& k : known_)
      if (k.type.type == type && (rank < 0 || static_cast<int>(k.type.shape.size()) == rank))
        fit.push_back(&k);
    if (fit.empty()) return nullptr;
    const std::size_t from = one_in(2) || fit.size() < 3 ? 0 : fit.size() - 3;
    return fit[from + below(fit.size() - from)];
  }
  const Known* real(int rank = -1) { return any(DataType::f32, rank); }
  std::int64_t axis_of(const Known& k) {
    const auto rank = static_cast<std::int64_t>(k.type.shape.size());
    const auto axis = static_cast<std::int64_t>(below(k.type.shape.size()));
    return one_in(3) ? axis - rank : axis;
  }
  std::string ints(const Axes& values, bool scalar = false) {
    const std::string name = fresh();
    file_.i64(name, scalar ? Shape{} : Shape{static_cast<std::int64_t>(values.size())}, values);
    return name;
  }
  std::string floats(const Shape& shape, bool positive = false) {
    const std::string name = fresh();
    file_.random(name, shape, positive);
    return name;
  }
  // A constant that broadcasts to `k`: a scalar, of its last dimension, or of one from the end with ones
  // behind.
  std::string beside(const Known& k) {
    Shape shape;
    const std::size_t rank = k.type.shape.size();
    if (const std::size_t from = below(rank + 1); from < rank) {
      shape.assign(k.type.shape.begin() + static_cast<std::ptrdiff_t>(from), k.type.shape.end());
      for (std::size_t d = 1; d < shape.size(); ++d)
        if (one_in(2)) shape[d] = 1;
    }
    return floats(shape, true);
  }
  // The extents of `k`, made while it runs, with dimension `d` replaced where it is not negative.
  std::string shape_with(const Known& k, int d, std::int64_t extent) {
    const std::string shape = fresh();
    file_.node("Shape", {k.name}, {shape});
    if (d < 0) return shape;
    std::vector<std::string> parts;
    for (int i = 0; i < static_cast<int>(k.type.shape.size()); ++i) {
      parts.push_back(fresh());
      if (i == d)
        file_.i64(parts.back(), {1}, {extent});
      else
        file_.node("Gather", {shape, ints({i})}, {parts.back()});
    }
    const std::string whole = fresh();
    file_.node("Concat", parts, {whole}).set("axis", 0);
    return whole;
  }
  Onnx& node(const std::string& op, const std::vector<std::string>& inputs, int outputs = 1) {
    std::vector<std::string> names;
    for (int i = 0; i < outputs; ++i) names.push_back(fresh());
    return file_.node(op, inputs, names);
  }

  // --- The makers

  static void unary(RowMaker& g, const std::string& op) {
    if (const Known* x = g.real()) g.node(op, {x->name});
  }
  static void of_bools(RowMaker& g, const std::string& op) {
    const Known *a = g.any(DataType::boolean), *b = g.any(DataType::boolean);
    if (op == "Not")
      g.node(op, {a->name});
    else
      g.node(op, {a->name, b->name});
  }
  static void of_ints(RowMaker& g, const std::string& op) {
    const Known *a = g.any(DataType::i64), *b = g.any(DataType::i64);
    if (op == "BitwiseNot") {
      g.node(op, {a->name});
    } else if (op == "BitShift") {
      const std::string x = g.fresh(), y = g.fresh();
      g.file_.node("Cast", {a->name}, {x}).set("to", 12).node("Cast", {b->name}, {y}).set("to", 12);
      g.node(op, {x, y}).set("direction", "LEFT");
    } else {
      g.node(op, {a->name, b->name});
    }
  }
  static void binary(RowMaker& g, const std::string& op) {
    const Known *a = g.real(), *b = g.real();
    const std::string other = g.one_in(2) ? g.beside(*a) : b->name;
    if (g.one_in(2) && op != "PRelu")
      g.node(op, {other, a->name});
    else
      g.node(op, {a->name, other});
    if (op == "Mod") g.file_.set("fmod", 1);
  }
  static void where(RowMaker& g, const std::string& op) {
    const Known *c = g.any(DataType::boolean), *a = g.real(), *b = g.real();
    g.node(op, {c->name, a->name, g.one_in(2) ? g.beside(*a) : b->name});
  }
  static void cast(RowMaker& g, const std::string& op) {
    const DataType from[] = {DataType::boolean, DataType::i64, DataType::f32};
    if (const Known* x = g.any(from[g.below(3)])) g.node(op, {x->name}).set("to", g.one_in(2) ? 1 : 7);
  }
  static void clip(RowMaker& g, const std::string& op) {
    const std::string low = g.fresh();
    g.file_.f32(low, {}, {-0.5F});
    g.node(op, {g.real()->name, low});
  }
  static void is_test(RowMaker& g, const std::string& op) { g.node(op, {g.real()->name}); }
  static void along(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    g.node(op, {x->name}).set("axis", g.axis_of(*x));
    if (op.starts_with("Arg")) g.file_.set("keepdims", static_cast<int>(g.below(2)));
  }
  static void cum_sum(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (!x->type.shape.empty()) g.node(op, {x->name, g.ints({g.axis_of(*x)}, true)});
  }
  static void reduce(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    Axes axes{g.axis_of(*x)};
    if (g.one_in(3)) axes.push_back(g.axis_of(*x));
    const bool none = g.one_in(6);
    if (op == "ReduceSum" || op == "ReduceMax" || op == "ReduceMean" || !none)
      g.node(op, none ? std::vector<std::string>{x->name} : std::vector<std::string>{x->name, g.ints(axes)});
    g.file_.set("keepdims", static_cast<int>(g.below(2)));
  }
  static void top_k(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    g.node(op, {x->name, g.ints({1})}, 2).set("axis", g.axis_of(*x));
  }
  static void layer_norm(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    const std::int64_t axis = g.axis_of(*x);
    const auto rank = static_cast<std::int64_t>(x->type.shape.size());
    const Shape scale(x->type.shape.begin() + (axis < 0 ? axis + rank : axis), x->type.shape.end());
    g.node(op, {x->name, g.floats(g.one_in(2) ? scale : Shape{1})}).set("axis", axis);
  }
  static void mean_variance(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (!x->type.shape.empty()) g.node(op, {x->name}).set("axes", Axes{g.axis_of(*x)});
  }
  static void transpose(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    Axes perm(x->type.shape.size());
    for (std::size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<std::int64_t>(d);
    for (std::size_t d = perm.size(); d-- > 1;) std::swap(perm[d], perm[g.below(d + 1)]);
    g.node(op, {x->name}).set("perm", perm);
  }
  static void reshape(RowMaker& g, const std::string& op) {
    const Known* x = g.one_in(5) ? g.any(DataType::i64) : g.real();
    const Shape& shape = x->type.shape;
    if (shape.empty()) return;
    switch (g.below(7)) {
      case 0:  // all into two, somewhere
        g.node("Flatten", {x->name}).set("axis", g.axis_of(*x));
        break;
      case 1:
        g.node(op, {x->name, g.ints({-1, shape.back()})});
        break;
      case 2:
        g.node(op, {x->name, g.ints({1, -1, shape.back()})});
        break;
      case 3:
        g.node(op, {x->name, g.shape_with(*x, static_cast<int>(g.below(shape.size())), -1)});
        break;
      case 4:
        g.node("Unsqueeze", {x->name, g.ints({static_cast<std::int64_t>(g.below(shape.size() + 1))})});
        break;
      case 5: {
        // Two neighbours become one, or one two.
        Axes to(shape.begin(), shape.end());
        const auto d = static_cast<std::size_t>(g.below(shape.size()));
        if (d + 1 < to.size()) {
          to[d] = -1;
          to.erase(to.begin() + static_cast<std::ptrdiff_t>(d) + 1);
        } else if (to[d] % 2 == 0) {
          to[d] = 2;
          to.push_back(-1);
        }
        g.node(op, {x->name, g.ints(to)});
        break;
      }
      default:
        g.node(op, {x->name, g.ints(g.one_in(2) ? Axes{-1, 2, 3} : Axes{-1, 4})});
        break;
    }
  }
  static void expand(RowMaker& g, const std::string& op) {
    const Known *x = g.real(), *like = g.real();
    g.node(op, {g.one_in(3) ? g.beside(*like) : x->name, g.shape_with(*like, -1, 0)});
  }
  static void tile(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    Axes times(x->type.shape.size(), 1);
    if (!times.empty()) times[g.below(times.size())] = 2;
    g.node(op, {x->name, g.ints(times)});
  }
  static void slice(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    const bool back = g.one_in(4);
    const auto start = static_cast<std::int64_t>(g.below(2));
    const std::int64_t end = g.one_in(2) ? std::int64_t{1} << 40 : static_cast<std::int64_t>(1 + g.below(4));
    g.node(op, {x->name, g.ints({back ? -1 : start}), g.ints({back ? -(std::int64_t{1} << 40) : end}),
                g.ints({g.axis_of(*x)}),
                g.ints({back          ? -1
                        : g.one_in(4) ? 2
                                      : 1})});
  }
  static void split(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (!x->type.shape.empty()) g.node(op, {x->name}, 2).set("axis", g.axis_of(*x)).set("num_outputs", 2);
  }
  static void concat(RowMaker& g, const std::string& op) {
    const Known *a = g.real(), *b = g.real();
    if (a->type.shape.empty()) return;
    g.node(op, {a->name, g.one_in(2) ? a->name : b->name}).set("axis", g.axis_of(*a));
  }
  static void pad(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    Axes pads(2 * x->type.shape.size(), 0);
    pads[g.below(pads.size())] = 1;
    static constexpr const char* modes[] = {"constant", "edge", "wrap", "constant"};
    g.node(op, {x->name, g.ints(pads)}).set("mode", modes[g.below(3)]);
  }
  static void resize(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    static constexpr const char* how[] = {"nearest", "linear", "cubic"};
    static constexpr const char* where[] = {"half_pixel", "asymmetric", "align_corners",
                                            "tf_half_pixel_for_nn"};
    const std::size_t d = g.below(x->type.shape.size());
    if (g.one_in(2)) {
      std::vector<float> scales(x->type.shape.size(), 1);
      scales[d] = 2;
      const std::string name = g.fresh();
      g.file_.f32(name, {static_cast<std::int64_t>(scales.size())}, scales);
      g.node(op, {x->name, "", name});
    } else {
      g.node(op, {x->name, "", "", g.shape_with(*x, static_cast<int>(d), 3)});
    }
    g.file_.set("mode", how[g.below(3)]).set("coordinate_transformation_mode", where[g.below(4)]);
  }
  static void gather(RowMaker& g, const std::string& op) {
    const Known *x = g.real(), *i = g.any(DataType::i64);
    if (x->type.shape.empty()) return;
    if (x->type.shape.size() >= 2 && g.one_in(4)) {
      // Places within each index of dimension 0, in one list of all, or in the next one's.
      const std::string shape = g.fresh(), n = g.fresh(), range = g.fresh(), from = g.fresh(), at = g.fresh(),
                        flat = g.fresh();
      const Axes rest(x->type.shape.begin() + 2, x->type.shape.end());
      Axes to{-1};
      to.insert(to.end(), rest.begin(), rest.end());
      g.file_.node("Shape", {x->name}, {shape}).node("Gather", {shape, g.ints({0}, true)}, {n});
      g.file_.node("Range", {g.ints({0}, true), n, g.ints({1}, true)}, {range});
      g.file_.node("Mul", {range, g.ints({x->type.shape[1]})}, {from});
      g.file_.node("Add", {from, g.ints({g.one_in(4) ? x->type.shape[1] - 1 : 0})}, {at});
      g.file_.node("Reshape", {x->name, g.ints(to)}, {flat});
      g.node(op, {flat, at});
      return;
    }
    switch (g.below(4)) {
      case 0:
        g.node(op, {g.floats({64, 2}), i->name});
        break;
      case 1:
        g.node(op, {x->name, i->name}).set("axis", g.axis_of(*x));
        break;
      case 2:
        g.node(op, {x->name, g.ints({0}, true)}).set("axis", g.axis_of(*x));
        break;
      default:
        g.node(op, {x->name, g.ints({1, 0, 1})}).set("axis", g.axis_of(*x));
        break;
    }
  }
  static void gather_elements(RowMaker& g, const std::string& op) {
    const Known* i = g.any(DataType::i64);
    const auto rank = static_cast<int>(i->type.shape.size());
    if (rank == 0) return;
    const Known* x = g.real(rank);
    const bool table = g.one_in(3) || x == nullptr;
    Shape shape = i->type.shape;
    for (std::int64_t& extent : shape) extent = 8;
    g.node(op, {table ? g.floats(shape) : x->name, i->name}).set("axis", g.axis_of(*i));
  }
  static void gather_nd(RowMaker& g, const std::string& op) {
    const Known *x = g.real(), *i = g.any(DataType::i64);
    switch (g.below(3)) {
      case 0:
        g.node(op, {g.floats({8, 8, 2}), i->name});
        break;
      case 1:
        g.node(op, {x->name, i->name}).set("batch_dims", static_cast<int>(g.below(2)));
        break;
      default: {
        const std::string at = g.fresh();
        g.file_.i64(at, {2, 1}, {1, 0});
        g.node(op, {x->name, at});
        break;
      }
    }
  }
  static void scatter_elements(RowMaker& g, const std::string& op) {
    const Known* i = g.any(DataType::i64);
    const auto rank = static_cast<int>(i->type.shape.size());
    const Known *x = g.real(rank), *u = g.real(rank);
    if (x == nullptr || rank == 0) return;
    const std::string updates = g.fresh();
    g.file_.node("Cast", {i->name}, {updates}).set("to", 1);
    g.node(op, {x->name, i->name, g.one_in(2) ? updates : u->name}).set("axis", g.axis_of(*x));
    if (g.one_in(2)) g.file_.set("reduction", "add");
  }
  static void scatter_nd(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.size() < 2) return;
    const std::string at = g.fresh(), turned = g.fresh(), updates = g.fresh();
    g.file_.i64(at, {1, 1}, {0});
    Axes perm(x->type.shape.size());
    for (std::size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<std::int64_t>(d);
    std::swap(perm[0], perm[1 + g.below(perm.size() - 1)]);
    g.file_.node("Transpose", {x->name}, {turned}).set("perm", g.one_in(3) ? Axes{} : perm);
    if (g.one_in(3)) g.file_.proto.mutable_graph()->mutable_node()->rbegin()->clear_attribute();
    g.file_.node("Slice", {turned, g.ints({1}), g.ints({2}), g.ints({0})}, {updates});
    g.node(op, {turned, at, updates});
  }
  static void one_hot(RowMaker& g, const std::string& op) {
    const Known* i = g.any(DataType::i64);
    const std::string values = g.fresh();
    g.file_.f32(values, {2}, {0, 1});
    g.node(op, {i->name, g.ints({3}, true), values})
        .set("axis", static_cast<int>(g.below(i->type.shape.size() + 1)));
  }
  static void reverse_sequence(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.size() < 2) return;
    const bool first = g.one_in(2);
    const std::string lens = g.fresh();
    if (g.one_in(2)) {
      // Of each row's own making.
      const Known* i = g.any(DataType::i64, 2);
      g.file_.node("ReduceMax", {i->name, g.ints({1})}, {lens}).set("keepdims", 0);
    } else {
      g.file_.i64(lens, {x->type.shape[first ? 0 : 1]},
                  Axes(static_cast<std::size_t>(x->type.shape[first ? 0 : 1]), 2));
    }
    g.node(op, {x->name, lens}).set("batch_axis", first ? 0 : 1).set("time_axis", first ? 1 : 0);
  }
  static void matmul(RowMaker& g, const std::string& op) {
    const Known *a = g.real(), *b = g.real();
    if (a->type.shape.empty()) return;
    switch (g.below(4)) {
      case 0:
        g.node(op, {a->name, g.floats({a->type.shape.back(), 2})});
        break;
      case 1:
        if (a->type.shape.size() > 1)
          g.node(op, {g.floats({3, a->type.shape[a->type.shape.size() - 2]}), a->name});
        break;
      case 2: {
        const std::string turned = g.fresh();
        Axes perm(a->type.shape.size());
        for (std::size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<std::int64_t>(d);
        if (perm.size() > 1) std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
        g.file_.node("Transpose", {a->name}, {turned}).set("perm", perm);
        g.node(op, {a->name, turned});
        break;
      }
      default:
        g.node(op, {a->name, g.one_in(2) ? g.floats({a->type.shape.back()}) : b->name});
        break;
    }
  }
  static void gemm(RowMaker& g, const std::string& op) {
    const Known *a = g.real(2), *b = g.real(2);
    if (a == nullptr) return;
    const bool turn_a = g.one_in(3), turn_b = g.one_in(2);
    const std::int64_t inner = a->type.shape[turn_a ? 0 : 1];
    const std::string w = g.floats(turn_b ? Shape{3, inner} : Shape{inner, 3});
    g.node(op, {a->name, g.one_in(3) ? b->name : w, g.floats({3})});
    g.file_.set("transA", turn_a ? 1 : 0).set("transB", turn_b ? 1 : 0);
  }
  static void einsum(RowMaker& g, const std::string& op) {
    static constexpr const char* one[] = {"ijk->jik", "ijk->ik",    "ijk->jk", "ij->ji",
                                          "ij->i",    "...j->j...", "ijk->kji"};
    static constexpr const char* two[] = {"bij,bik->bjk", "bij,bkj->bik",   "bi,bj->bij",
                                          "bi,bj->ij",    "bi,ci->bc",      "ij,ij->ij",
                                          "bij,cij->bc",  "...i,...i->...", "tbi,tbj->tbij"};
    const Known *a = g.real(), *b = g.real();
    if (g.one_in(2))
      g.node(op, {a->name}).set("equation", one[g.below(std::size(one))]);
    else
      g.node(op, {a->name, g.one_in(3) ? b->name : a->name}).set("equation", two[g.below(std::size(two))]);
  }
  static void image(RowMaker& g, const std::string& op) {
    const Known* x = g.one_in(3) ? g.real(3) : g.real(4);
    if (x == nullptr) return;
    const std::int64_t channels = x->type.shape[1];
    const std::size_t spatial = x->type.shape.size() - 2;
    if (op == "Conv" || op == "ConvTranspose") {
      Shape w{op == "Conv" ? 3 : channels, op == "Conv" ? channels : 3};
      w.insert(w.end(), spatial, 2);
      g.node(op, {x->name, g.floats(w)});
    } else if (op == "BatchNormalization") {
      g.node(op, {x->name, g.floats({channels}), g.floats({channels}), g.floats({channels}),
                  g.floats({channels}, true)});
    } else if (op == "InstanceNormalization") {
      g.node(op, {x->name, g.floats({channels}), g.floats({channels})});
    } else if (op == "GroupNormalization") {
      g.node(op, {x->name, g.floats({1}), g.floats({1})}).set("num_groups", 1);
    } else if (op == "LRN") {
      g.node(op, {x->name}).set("size", 3);
    } else if (op == "DepthToSpace" || op == "SpaceToDepth") {
      g.node(op, {x->name}).set("blocksize", g.one_in(2) ? 2 : 1);
    } else if (op.starts_with("Global")) {
      g.node(op, {x->name});
    } else {
      g.node(op, {x->name}, op == "MaxPool" ? 2 : 1).set("kernel_shape", Axes(spatial, 2));
    }
  }
  static void recurrent(RowMaker& g, const std::string& op) {
    const Known* x = g.real(3);
    if (x == nullptr) return;
    const std::int64_t gates = op == "LSTM" ? 4 : op == "GRU" ? 3 : 1;
    const bool first = g.one_in(2);
    std::vector<std::string> inputs{x->name, g.floats({1, gates * 2, x->type.shape[2]}),
                                    g.floats({1, gates * 2, 2})};
    if (g.one_in(3)) {
      // States that are made of how many there are.
      const std::string zero = g.fresh(), n = g.fresh(), shape = g.fresh(), to = g.fresh();
      g.file_.node("Shape", {x->name}, {shape}).node("Gather", {shape, g.ints({first ? 0 : 1})}, {n});
      const std::string one = g.ints({1}), two = g.ints({2});
      g.file_.node("Concat", first ? std::vector{n, one, two} : std::vector{one, n, two}, {to})
          .set("axis", 0);
      g.file_.node("ConstantOfShape", {to}, {zero});
      inputs.insert(inputs.end(), {"", "", zero});
    }
    g.node(op, inputs, op == "LSTM" ? 3 : 2).set("hidden_size", 2).set("layout", first ? 1 : 0);
  }
  static void quantised(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.empty()) return;
    const std::string q = g.fresh(), scale = g.fresh(), zero = g.fresh();
    const auto axis = static_cast<std::size_t>(g.below(x->type.shape.size()));
    const bool many = g.one_in(3) && op.ends_with("Linear");
    g.file_.random(scale, many ? Shape{x->type.shape[axis]} : Shape{}, true);
    const auto count = static_cast<std::size_t>(many ? x->type.shape[axis] : 1);
    auto* tensor = g.file_.tensor(zero, many ? Shape{x->type.shape[axis]} : Shape{}, DataType::u8);
    tensor->set_raw_data(std::string(count, '\x80'));
    g.file_.node("QuantizeLinear", {x->name, scale, zero}, {q}).set("axis", static_cast<int>(axis));
    const auto weights = [&](const Shape& shape) {
      const std::string name = g.fresh();
      std::string bytes(static_cast<std::size_t>(TensorType{DataType::u8, shape}.elements()), '\0');
      for (char& b : bytes) b = static_cast<char>(g.below(256));
      g.file_.tensor(name, shape, DataType::u8)->set_raw_data(bytes);
      return name;
    };
    if (op.ends_with("eLinear")) {
      g.node("DequantizeLinear", {q, scale, zero}).set("axis", static_cast<int>(axis));
    } else if (op == "MatMulInteger") {
      g.node(op, {q, weights({x->type.shape.back(), 2}), zero, zero});
    } else if (op == "QLinearMatMul") {
      g.node(op, {q, scale, zero, weights({x->type.shape.back(), 2}), scale, zero, scale, zero});
    } else if (x->type.shape.size() == 4) {
      const std::string w = weights({2, x->type.shape[1], 2, 2});
      if (op == "ConvInteger")
        g.node(op, {q, w, zero});
      else
        g.node(op, {q, scale, zero, w, scale, zero, scale, zero});
    }
  }
  static void grid_sample(RowMaker& g, const std::string& op) {
    const Known *x = g.real(4), *other = g.real();
    const std::string grid = g.fresh();
    g.file_.node("Reshape", {other->name, g.ints({-1, 1, 1, 2})}, {grid});
    g.node(op, {x->name, g.one_in(2) ? grid : other->name});
  }
  static void signal(RowMaker& g, const std::string& op) {
    if (op == "Det") {
      const Known* x = g.real();
      g.node(op, {x->name});
    } else if (op == "Trilu") {
      g.node(op, {g.real()->name}).set("upper", static_cast<int>(g.below(2)));
    } else if (op == "TfIdfVectorizer") {
      const Known* i = g.any(DataType::i64);
      g.node(op, {i->name}).set("min_gram_length", 1).set("max_gram_length", 1).set("max_skip_count", 0);
      g.file_.set("mode", "TF").set("ngram_counts", Axes{0}).set("ngram_indexes", Axes{0, 1});
      g.file_.set("pool_int64s", Axes{0, 1});
    } else {
      const Known* x = g.real();
      const std::string u = g.fresh();
      g.file_.node("Unsqueeze", {x->name, g.ints({-1})}, {u});
      if (op == "DFT" && !x->type.shape.empty())
        g.node(op, {u, "", g.ints({static_cast<std::int64_t>(g.below(x->type.shape.size()))}, true)});
      else
        g.node(op, {u, g.ints({1}, true), "", g.ints({2}, true)});
    }
  }
  static void loss(RowMaker& g, const std::string& op) {
    const Known *x = g.real(), *i = g.any(DataType::i64);
    static constexpr const char* how[] = {"none", "none", "mean", "sum"};
    const std::string classes = g.fresh();
    if (g.one_in(2))
      g.file_.node("ReduceMax", {i->name, g.ints({-1})}, {classes}).set("keepdims", 0);
    else
      g.file_.node("Identity", {i->name}, {classes});
    g.node(op, {x->name, classes}, op.starts_with("Soft") ? 2 : 1).set("reduction", how[g.below(4)]);
  }
  // What nobody proves.
  static void mixing(RowMaker& g, const std::string& op) {
    if (op == "DynamicQuantizeLinear") {
      const std::string q = g.fresh(), scale = g.fresh(), zero = g.fresh();
      g.file_.node(op, {g.real()->name}, {q, scale, zero});
      g.node("DequantizeLinear", {q, scale, zero});
    } else {
      // How many there are, as a number.
      const Known* x = g.real();
      const std::string n = g.fresh(), f = g.fresh();
      g.file_.node("Size", {x->name}, {n}).node("Cast", {n}, {f}).set("to", 1);
      g.node("Mul", {x->name, f});
    }
  }
  static void loop(RowMaker& g, const std::string& op) {
    const Known* x = g.real();
    if (x->type.shape.size() < 2) return;
    const std::string n = std::to_string(g.next_++);
    Onnx body;
    if (op == "Loop") {
      body.input("k" + n, {}, DataType::i64).input("go" + n, {}, DataType::boolean).input("h" + n, {});
      body.proto.mutable_graph()->mutable_input(2)->mutable_type()->mutable_tensor_type()->clear_shape();
      body.node("Identity", {"go" + n}, {"on" + n}).node("Tanh", {"h" + n}, {"h2" + n});
      body.output("on" + n, DataType::boolean).output("h2" + n);
      g.node("Loop", {g.ints({2}, true), "", x->name}).set("body", body);
    } else {
      body.input("e" + n, {});
      body.proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
      body.node("Softmax", {"e" + n}, {"o" + n}).set("axis", 0).output("o" + n);
      g.node("Scan", {x->name}).set("num_scan_inputs", 1).set("body", body);
      g.file_.set("scan_input_axes", Axes{g.axis_of(*x)});
      if (g.one_in(2)) g.file_.set("scan_output_axes", Axes{1});
    }
  }

  // Keeps what was added where the file is one, and learns what it has.
  bool look();

  Random random_;
  Onnx file_;
  std::string bytes_;
  std::vector<Known> known_;
  int next_ = 0;
};

const std::vector<RowMaker::Way>& RowMaker::ways() {
  static const std::vector<Way> all{
      {{"Abs",         "Acos",
        "Acosh",       "Asin",
        "Asinh",       "Atan",
        "Atanh",       "Ceil",
        "Celu",        "Cos",
        "Cosh",        "Elu",
        "Erf",         "Exp",
        "Floor",       "Gelu",
        "HardSigmoid", "HardSwish",
        "Identity",    "LeakyRelu",
        "Log",         "Mish",
        "Neg",         "Reciprocal",
        "Relu",        "Round",
        "Selu",        "Shrink",
        "Sigmoid",     "Sign",
        "Sin",         "Sinh",
        "Softplus",    "Softsign",
        "Sqrt",        "Tan",
        "Tanh",        "ThresholdedRelu"},
       unary},
      {{"IsInf", "IsNaN"}, is_test},
      {{"Not", "And", "Or", "Xor"}, of_bools},
      {{"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}, of_ints},
      {{"Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min",
        "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum"},
       binary},
      {{"Where"}, where},
      {{"Cast"}, cast},
      {{"Clip"}, clip},
      {{"Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "ArgMax", "ArgMin"}, along},
      {{"CumSum"}, cum_sum},
      {{"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare"},
       reduce},
      {{"TopK"}, top_k},
      {{"LayerNormalization"}, layer_norm},
      {{"MeanVarianceNormalization"}, mean_variance},
      // The shapes of what others make: often.
      {{"Transpose", "Transpose", "Transpose"}, transpose},
      {{"Reshape", "Reshape", "Reshape", "Reshape"}, reshape},
      {{"Expand", "Expand"}, expand},
      {{"Tile"}, tile},
      {{"Slice", "Slice"}, slice},
      {{"Split", "Split"}, split},
      {{"Concat", "Concat"}, concat},
      {{"Pad"}, pad},
      {{"Resize", "Resize"}, resize},
      {{"Gather", "Gather"}, gather},
      {{"GatherElements", "GatherElements"}, gather_elements},
      {{"GatherND", "GatherND"}, gather_nd},
      {{"ScatterElements", "ScatterElements"}, scatter_elements},
      {{"ScatterND", "ScatterND"}, scatter_nd},
      {{"OneHot"}, one_hot},
      {{"ReverseSequence", "ReverseSequence"}, reverse_sequence},
      {{"MatMul", "MatMul", "MatMul"}, matmul},
      {{"Gemm", "Gemm"}, gemm},
      {{"Einsum", "Einsum"}, einsum},
      {{"AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
        "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool",
        "MaxPool", "SpaceToDepth"},
       image},
      {{"LSTM", "GRU", "RNN"}, recurrent},
      {{"QuantizeLinear", "DequantizeLinear", "MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"},
       quantised},
      {{"GridSample", "GridSample"}, grid_sample},
      {{"DFT", "STFT", "Det", "Trilu", "TfIdfVectorizer"}, signal},
      {{"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}, loss},
      {{"DynamicQuantizeLinear", "Size"}, mixing},
      {{"Loop", "Scan"}, loop},
  };
  return all;
}

std::vector<std::string_view> RowMaker::tried_operators() {
  std::vector<std::string_view> out;
  for (const Way& way : ways()) out.insert(out.end(), way.ops.begin(), way.ops.end());
  return out;
}

void RowMaker::grow(int tries) {
  std::vector<std::pair<std::string_view, Maker>> all;
  for (const Way& way : ways())
    for (const std::string& op : way.ops) all.emplace_back(op, way.make);
  for (int i = 0; i < tries; ++i) {
    const auto& [op, make] = all[below(all.size())];
    const int nodes = file_.proto.graph().node_size();
    make(*this, std::string(op));
    if (file_.proto.graph().node_size() == nodes || look()) continue;
    while (file_.proto.graph().node_size() > nodes) file_.proto.mutable_graph()->mutable_node()->RemoveLast();
  }
}

Result<OnnxGraph> read(const std::string& bytes) {
  const testing::Folder folder;
  return read_onnx(folder.write("model.onnx", bytes));
}

// The graph at a batch, unfused; null where its operators do not fit together there.
Result<Graph> graph_at(const OnnxGraph& source, std::int64_t batch) {
  std::vector<Shape> shapes;
  for (const OnnxGraph::Input& input : source.inputs) {
    Shape& shape = shapes.emplace_back();
    for (const Dimension& d : input.dimensions) shape.push_back(d.extent < 0 ? batch : d.extent);
  }
  ConstantStore store;
  Folder folder(store, folding_budget(source.bytes_on_disk));
  return infer_types(source, shapes, folder);
}

bool RowMaker::look() {
  const std::string bytes = file_.bytes();
  const auto source = read(bytes);
  if (!source) return false;
  const auto two = graph_at(*source, 2);
  if (!two) return false;
  bytes_ = bytes;
  known_.clear();
  std::set<std::string> seen;
  const auto add = [&](ValueId id) {
    const Value& value = two->value(id);
    if (value.constant == nullptr && value.type.elements() > 0 && value.type.elements() < 4096 &&
        seen.insert(value.name).second && value.name.find('.') == std::string::npos)
      known_.push_back({value.name, value.type});
  };
  for (const ValueId id : two->inputs) add(id);
  for (const Node& node : two->nodes)
    for (const ValueId id : node.outputs)
      if (id != no_value) add(id);
  return true;
}

// Rows [first, first + count) of `tensor`, whose dimension 0 they are.
SharedTensor rows_of(const SharedTensor& tensor, std::int64_t first, std::int64_t count) {
  TensorType type = tensor->type();
  const std::size_t each = tensor->bytes().size() / static_cast<std::size_t>(type.shape[0]);
  type.shape[0] = count;
  Tensor out(type);
  std::ranges::copy(tensor->bytes().subspan(static_cast<std::size_t>(first) * each, out.bytes().size()),
                    out.bytes().begin());
  return std::make_shared<const Tensor>(std::move(out));
}

// Row `row` of `together`, laid out thus.
std::vector<std::byte> row_of(const Tensor& together, const RowLayout& layout, std::size_t batch,
                              std::size_t row) {
  std::size_t parts = static_cast<std::size_t>(layout.outer);
  for (int d = 0; d < layout.axis; ++d)
    parts *= static_cast<std::size_t>(together.type().shape[static_cast<std::size_t>(d)]);
  if (parts == 0) return {};
  const std::size_t block = together.bytes().size() / parts / batch;
  std::vector<std::byte> out;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto from = together.bytes().subspan((part * batch + row) * block, block);
    out.insert(out.end(), from.begin(), from.end());
  }
  return out;
}

struct Found {
  std::map<std::string, int> kept;  // values that were compared, by the operator that made them
  int ran = 0;
};

// Compares what is claimed of each value of the file with what happens.
void check(const std::string& bytes, Random& random, Found& found) {
  const auto source = read(bytes);
  ASSERT_TRUE(source.has_value()) << source.error().message;
  for (const std::int64_t batch : {2, 3, 5}) {
    auto together = graph_at(*source, batch);
    auto alone = graph_at(*source, 1);
    if (!together || !alone) continue;
    const RowTrace trace(*together, batch, &*alone);
    std::vector<ValueId> values;
    std::vector<RowState> states;
    std::vector<std::string> makers;
    // What makes such a value reads only such values; the others may fail where a row is alone.
    std::vector<Node> of_together, of_alone;
    for (std::size_t n = 0; n < together->nodes.size(); ++n) {
      const std::size_t before = values.size();
      for (const ValueId id : together->nodes[n].outputs) {
        if (id == no_value) continue;
        const RowState& state = trace.of(id);
        if (state.kind != RowState::Kind::rows && state.kind != RowState::Kind::shared) continue;
        if (together->value(id).type.elements() == 0) {
          // It may be made of what is mixed, and holds nothing.
          for (Graph* graph : {&*together, &*alone})
            graph->value(id).constant = std::make_shared<const Tensor>(graph->value(id).type);
          continue;
        }
        values.push_back(id);
        states.push_back(state);
        makers.push_back(together->nodes[n].op);
      }
      if (values.size() == before) continue;
      of_together.push_back(together->nodes[n]);
      of_alone.push_back(alone->nodes[n]);
    }
    together->nodes = std::move(of_together);
    alone->nodes = std::move(of_alone);
    together->outputs = alone->outputs = values;
    std::vector<SharedTensor> inputs;
    for (const ValueId id : together->inputs) {
      const TensorType& type = together->value(id).type;
      Tensor tensor(type);
      if (type.type == DataType::i64)
        for (std::int64_t& v : tensor.as<std::int64_t>()) v = static_cast<std::int64_t>(random.below(2));
      inputs.push_back(type.type == DataType::i64 ? std::make_shared<const Tensor>(std::move(tensor))
                                                  : testing::random_tensor(type, random));
    }
    const auto all = testing::run_plainly(*together, inputs);
    if (!all) continue;  // an index that is out of range
    ++found.ran;
    for (std::int64_t row = 0; row < batch; ++row) {
      std::vector<SharedTensor> own;
      for (const SharedTensor& input : inputs) own.push_back(rows_of(input, row, 1));
      const auto one = testing::run_plainly(*alone, own);
      ASSERT_TRUE(one.has_value()) << one.error().message;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const RowState& state = states[i];
        const Tensor& mine = *(*all)[i];
        const std::vector<std::byte> part =
            state.kind == RowState::Kind::shared
                ? std::vector<std::byte>(mine.bytes().begin(), mine.bytes().end())
                : row_of(mine, state.layout, static_cast<std::size_t>(batch), static_cast<std::size_t>(row));
        ASSERT_TRUE(std::ranges::equal(part, (*one)[i]->bytes()))
            << "row " << row << " of " << batch << ", '" << together->value(values[i]).name << "' of "
            << makers[i] << ", " << to_text(mine.type().shape) << " with rows at " << state.layout.outer
            << "*N*" << state.layout.inner << " of dimension " << state.layout.axis << "\n"
            << to_text(*together);
        ++found.kept[makers[i]];
      }
    }
  }
}

TEST(RowsAtRandom, AreWhatEachIsAlone) {
  Found found;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RowMaker maker(seed);
    maker.grow(14);
    Random random(seed);
    check(maker.bytes(), random, found);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(found.ran, 1000) << "or next to nothing was tested";
  for (const std::string_view op : RowMaker::tried_operators())
    if (find_row_rule(op) != nullptr) {
      EXPECT_GT(found.kept[std::string(op)], 0) << op << " was never kept";
    }
}

// Who adds an operator to the table adds it to the makers, too. Those of ai.onnx.ml are in tests of their
// own.
TEST(RowsAtRandom, HaveAllOperatorsOfTheTable) {
  const auto made = RowMaker::tried_operators();
  for (const Operator& op : all_operators())
    if (find_row_rule(op.name) != nullptr) {
      EXPECT_NE(std::ranges::find(made, op.name), made.end()) << op.name;
    }
}

}  // namespace
}  // namespace carillon::graph
