// Tree ensembles: rows go down trees, and what the leaves hold is added up.

#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "carillon/graph/ml/tree.h"
#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/post_transform.h"

namespace carillon::graph::plain {
namespace {

using ml::Branch;
using ml::TreeNode;

// Where a row of features ends. T: what nodes compare in the file; X: the data. Doubles on either side
// compare as such.
template <bool only_leq, typename X, typename T>
inline const TreeNode<T>& leaf_of(const TreeNode<T>* nodes, std::size_t root, const X* row) {
  using C = std::conditional_t<std::is_same_v<X, double>, double, T>;
  const TreeNode<T>* at = nodes + root;
  constexpr auto leaf = static_cast<std::uint32_t>(Branch::leaf) << ml::branch_shift;
  while (at->what < leaf) {
    if constexpr (only_leq) {
      at = nodes + (static_cast<C>(row[at->what]) <= static_cast<C>(at->value) ? at->yes : at->no);
    } else {
      const C x = static_cast<C>(row[at->feature()]);
      const C y = static_cast<C>(at->value);
      bool yes = false;
      switch (at->branch()) {
        case Branch::leq:
          yes = x <= y;
          break;
        case Branch::lt:
          yes = x < y;
          break;
        case Branch::gte:
          yes = x >= y;
          break;
        case Branch::gt:
          yes = x > y;
          break;
        case Branch::eq:
          yes = x == y;
          break;
        case Branch::neq:
          yes = x != y;
          break;
        case Branch::leaf:
          break;
      }
      if (x != x && at->missing_is_yes()) yes = true;
      at = nodes + (yes ? at->yes : at->no);
    }
  }
  return *at;
}

enum class Join { sum, least, most };

// A tile of rows and targets: each tree is walked by all of its rows, so that it is read from memory once.
template <typename T>
struct Tile {
  static constexpr std::int64_t room = 2048;
  static constexpr std::int64_t most_rows = 64;
  std::array<T, room> sums;
  std::array<bool, room> there;  // whether any leaf had something for it

  void join(std::int64_t at, T weight, Join how) {
    T& sum = sums[static_cast<std::size_t>(at)];
    bool& had = there[static_cast<std::size_t>(at)];
    if (how == Join::sum || !had)
      sum += weight;
    else if (how == Join::least ? weight < sum : weight > sum)
      sum = weight;
    had = true;
  }
};

// Calls finish(row, first target, count, sums, there) for each row and stretch of targets, rows in order
// within.
template <typename X, typename T, typename Finish>
void walk(const Node& node, Inputs inputs, std::int64_t rows, Join how, Finish&& finish) {
  const auto* nodes = inputs[1].as<TreeNode<T>>();
  const auto* roots = inputs[2].as<std::int64_t>();
  const std::int64_t trees = inputs[2].type->elements();
  const auto* targets = inputs[3].as<std::int64_t>();
  const T* weights = inputs[4].as<T>();
  const X* x = inputs[0].as<X>();
  const std::int64_t columns = inputs[0].type->shape.back();
  const std::int64_t all = node.integer("targets", 1);
  const bool only_leq = node.integer("only_leq", 0) != 0;
  using Sum = std::conditional_t<std::is_same_v<X, double>, double, T>;
  Tile<Sum> tile;
  const std::int64_t width = std::min(all, Tile<Sum>::room);
  const std::int64_t height = std::min(Tile<Sum>::room / width, Tile<Sum>::most_rows);
  for (std::int64_t r0 = 0; r0 < rows; r0 += height) {
    const std::int64_t some = std::min(height, rows - r0);
    for (std::int64_t t0 = 0; t0 < all; t0 += width) {
      const std::int64_t wide = std::min(width, all - t0);
      std::fill_n(tile.sums.begin(), some * wide, Sum{});
      std::fill_n(tile.there.begin(), some * wide, false);
      const auto descend = [&]<bool leq>() {
        for (std::int64_t t = 0; t < trees; ++t) {
          const auto root = static_cast<std::size_t>(roots[t]);
          for (std::int64_t r = 0; r < some; ++r) {
            const TreeNode<T>& leaf = leaf_of<leq>(nodes, root, x + (r0 + r) * columns);
            if (all == 1) {
              tile.join(r, static_cast<Sum>(leaf.value), how);
              continue;
            }
            for (std::uint32_t w = leaf.yes; w < leaf.yes + leaf.no; ++w) {
              const std::int64_t target = targets[w] - t0;
              if (target >= 0 && target < wide)
                tile.join(r * wide + target, static_cast<Sum>(weights[w]), how);
            }
          }
        }
      };
      if (only_leq)
        descend.template operator()<true>();
      else
        descend.template operator()<false>();
      for (std::int64_t r = 0; r < some; ++r)
        finish(r0 + r, t0, wide, tile.sums.data() + r * wide, tile.there.data() + r * wide);
    }
  }
}

template <typename X, typename T, typename Y>
Result<> regress(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t targets = node.integer("targets", 1);
  const std::int64_t rows = outputs[0].type->elements() / targets;
  const std::string_view function = node.text("aggregate_function", "SUM");
  const Join how = function == "MIN" ? Join::least : function == "MAX" ? Join::most : Join::sum;
  const double trees = function == "AVERAGE" ? static_cast<double>(inputs[2].type->elements()) : 1.0;
  const T* base = inputs[5].as<T>();
  const bool has_base = inputs[5].type->elements() == targets;
  const PostTransform transform = post_transform_of(node);
  Y* y = outputs[0].as<Y>();
  walk<X, T>(node, inputs, rows, how,
             [&](std::int64_t r, std::int64_t t0, std::int64_t count, const auto* sums, const bool* there) {
               using S = std::remove_cvref_t<decltype(*sums)>;
               for (std::int64_t t = 0; t < count; ++t) {
                 // Without a leaf that says anything of a target its result is 0, as onnxruntime has it. ONNX
                 // does not say.
                 const S more = has_base && there[t] ? static_cast<S>(base[t0 + t]) : S{};
                 y[r * targets + t0 + t] = static_cast<Y>(sums[t] / static_cast<S>(trees) + more);
               }
               if (t0 + count == targets) transform_scores(transform, y + r * targets, targets);
             });
  return {};
}

// Labels and scores of one row whose sums are in `z`, as onnxruntime gives them for two classes.
struct TwoClasses {
  bool binary = false;    // only one class has weights
  bool positive = false;  // no weight is below 0
  PostTransform transform = PostTransform::none;

  template <typename T>
  int finish(T s0, T s1, bool there1, const T* base, std::int64_t bases, float* z) const {
    bool one = false;
    if (bases == 2 && there1) {
      s1 = base[1] + s0;
      s0 = -s1;
    } else if (bases == 2) {
      s1 += base[1];
      s0 += base[0];
      there1 = true;
    } else {
      if (bases == 1) s0 += base[0];
      one = !there1;
    }
    const T decides = there1 ? s1 : s0;
    const bool yes = binary && positive ? decides > T(0.5) : decides > 0;
    if (!one) {
      z[0] = static_cast<float>(s0);
      z[1] = static_cast<float>(s1);
      transform_scores(transform, z, 2);
    } else {
      second_score(transform, binary && positive, static_cast<float>(s0), z);
    }
    return yes ? 1 : 0;
  }
};

template <typename X, typename T>
Result<> classify(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t classes = node.integer("targets", 1);
  const std::int64_t rows = inputs[0].type->shape.size() == 1 ? 1 : inputs[0].type->shape[0];
  const T* base = inputs[5].as<T>();
  const std::int64_t bases = inputs[5].type->elements();
  const auto* names = inputs[6].as<std::int64_t>();
  const PostTransform transform = post_transform_of(node);
  const TwoClasses two{.binary = node.integer("binary", 0) != 0,
                       .positive = node.integer("positive", 0) != 0,
                       .transform = transform};
  // Either may be unwanted: then its rows all go to one place.
  const MutableView label_out = output(outputs, 0), score_out = output(outputs, 1);
  std::int64_t no_label = 0;
  std::vector<float> no_scores(score_out ? 0 : static_cast<std::size_t>(classes));
  std::int64_t* labels = label_out ? label_out.as<std::int64_t>() : &no_label;
  float* z = score_out ? score_out.as<float>() : no_scores.data();
  const std::int64_t label_step = label_out ? 1 : 0, score_step = score_out ? classes : 0;
  bool found = false;
  double best = 0;
  std::int64_t winner = 0;
  walk<X, T>(node, inputs, rows, Join::sum,
             [&](std::int64_t r, std::int64_t t0, std::int64_t count, const auto* sums, const bool* there) {
               using S = std::remove_cvref_t<decltype(*sums)>;
               float* scores = z + r * score_step;
               std::int64_t& label = labels[r * label_step];
               if (classes == 1) {
                 // Whatever the one label is: onnxruntime answers 1 or 0.
                 const S score = sums[0] + (bases == 1 ? static_cast<S>(base[0]) : S{});
                 label = score > 0 ? 1 : 0;
                 scores[0] = static_cast<float>(score);
                 transform_scores(transform, scores, 1);
                 return;
               }
               if (classes == 2) {
                 const std::array<S, 2> more{bases > 0 ? static_cast<S>(base[0]) : S{},
                                             bases > 1 ? static_cast<S>(base[1]) : S{}};
                 label = names[two.finish<S>(sums[0], sums[1], there[1], more.data(), bases, scores)];
                 return;
               }
               if (t0 == 0) found = false;
               for (std::int64_t t = 0; t < count; ++t) {
                 const bool based = bases == classes || (bases == 1 && t0 + t == 0);
                 const S score = sums[t] + (based ? static_cast<S>(base[t0 + t]) : S{});
                 scores[t0 + t] = static_cast<float>(score);
                 // A class that no leaf had anything for does not win.
                 if ((there[t] || based) && (!found || static_cast<double>(score) > best)) {
                   best = static_cast<double>(score);
                   winner = t0 + t;
                   found = true;
                 }
               }
               if (t0 + count < classes) return;
               label = names[found ? winner : 0];
               transform_scores(transform, scores, classes);
             });
  return {};
}

template <typename T>
PlainKernel find_trees_of(bool classifies, DataType x) {
  return Types<float, double, std::int64_t, std::int32_t>::pick(
      x, [&]<typename X>() -> PlainKernel { return classifies ? &classify<X, T> : &regress<X, T, float>; });
}
PlainKernel find_trees(const Node& node, InputTypes types) {
  const bool classifies = node.op == "TreeClassifier";
  if (types.size() < (classifies ? 7U : 6U)) return nullptr;
  if (node.integer("wide", 0) != 0)
    return types[0]->type == DataType::f64 && types[4]->type == DataType::f64
               ? &regress<double, double, double>
               : nullptr;
  return types[4]->type == DataType::f64 ? find_trees_of<double>(classifies, types[0]->type)
                                         : find_trees_of<float>(classifies, types[0]->type);
}

constexpr Operator operators_of_trees[] = {{"TreeClassifier", &find_trees}, {"TreeRegressor", &find_trees}};

}  // namespace

std::span<const Operator> tree_operators() {
  return operators_of_trees;
}

}  // namespace carillon::graph::plain
