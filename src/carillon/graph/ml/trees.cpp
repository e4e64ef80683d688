// Tree ensembles: lists of nodes in attributes become one packed list that the kernel walks.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <unordered_map>

#include "carillon/graph/ml/node.h"
#include "carillon/graph/ml/tree.h"

namespace carillon::graph::ml {
namespace {

struct TreeKey {
  std::int64_t tree = 0;
  std::int64_t node = 0;
  friend bool operator==(const TreeKey&, const TreeKey&) = default;
};
struct TreeKeyHash {
  std::size_t operator()(const TreeKey& key) const {
    return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(key.tree) * 0x9e3779b97f4a7c15ULL ^
                                      static_cast<std::uint64_t>(key.node));
  }
};

struct Forest {
  std::vector<TreeNode<double>> nodes;
  std::vector<std::int64_t> roots;
  std::vector<std::int64_t> targets;  // of the leaves' weights
  std::vector<double> weights;
  bool wide = false;          // of doubles
  bool only_leq = true;       // every branch compares by <=, and NaN goes the false way
  std::int64_t features = 0;  // how many a row must have
};

class Reader {
 public:
  Reader(MlNode& node, std::string_view target) : node_(node), target_(target) {}

  Forest read(std::int64_t targets) {
    trees_ = node_.integers("nodes_treeids");
    ids_ = node_.integers("nodes_nodeids");
    const auto features = node_.integers("nodes_featureids");
    const auto yes = node_.integers("nodes_truenodeids");
    const auto no = node_.integers("nodes_falsenodeids");
    const auto missing = node_.integers("nodes_missing_value_tracks_true");
    const auto values = node_.wide_reals("nodes_values", forest_.wide);
    const auto& modes = node_.texts("nodes_modes");
    bool ignored = false;
    static_cast<void>(node_.wide_reals("nodes_hitrates", ignored));
    const std::size_t count = trees_.size();
    expect("nodes_nodeids", ids_.size(), count);
    expect("nodes_featureids", features.size(), count);
    expect("nodes_truenodeids", yes.size(), count);
    expect("nodes_falsenodeids", no.size(), count);
    expect("nodes_values", values.size(), count);
    expect("nodes_modes", static_cast<std::size_t>(modes.size()), count);
    if (!missing.empty()) expect("nodes_missing_value_tracks_true", missing.size(), count);
    if (count == 0 || count > std::numeric_limits<std::int32_t>::max())
      node_.fail("it has " + std::to_string(count) + " nodes");
    if (node_.failed()) return {};
    number_nodes();
    forest_.nodes.resize(count);
    for (std::size_t i = 0; i < count && !node_.failed(); ++i) {
      TreeNode<double>& made = forest_.nodes[i];
      const Branch branch = branch_of(modes[static_cast<int>(i)], i);
      made.what = static_cast<std::uint32_t>(branch) << branch_shift;
      if (branch == Branch::leaf) continue;
      if (features[i] < 0 || features[i] >= missing_bit) {
        fail_at(i, "its feature is " + std::to_string(features[i]) + "; it must be 0 to " +
                       std::to_string(missing_bit - 1));
        break;
      }
      made.what |= static_cast<std::uint32_t>(features[i]);
      const bool tracks = !missing.empty() && missing[i] != 0;
      if (tracks) made.what |= missing_bit;
      forest_.only_leq = forest_.only_leq && branch == Branch::leq && !tracks;
      forest_.features = std::max(forest_.features, features[i] + 1);
      made.value = values[i];
      made.yes = child(i, yes[i], "true");
      made.no = child(i, no[i], "false");
    }
    read_weights(targets);
    if (!node_.failed()) check_cycles();
    return std::move(forest_);
  }

 private:
  void expect(std::string_view what, std::size_t given, std::size_t wanted) {
    if (given != wanted)
      node_.fail("'" + std::string(what) + "' has " + std::to_string(given) +
                 " elements, but 'nodes_treeids' " + std::to_string(wanted));
  }
  void fail_at(std::size_t i, std::string_view what) {
    node_.fail("node " + std::to_string(ids_[i]) + " of tree " + std::to_string(trees_[i]) + ": " +
               std::string(what));
  }
  // Nodes by tree and number; the first of a tree is its root.
  void number_nodes() {
    places_.reserve(ids_.size());
    std::set<std::int64_t> known;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (!places_.emplace(TreeKey{trees_[i], ids_[i]}, static_cast<std::uint32_t>(i)).second) {
        fail_at(i, "it is there twice");
        return;
      }
      if (i > 0 && trees_[i] == trees_[i - 1]) continue;
      if (!known.insert(trees_[i]).second) {
        fail_at(i, "the tree's nodes do not stand together");
        return;
      }
      forest_.roots.push_back(static_cast<std::int64_t>(i));
    }
  }
  Branch branch_of(const std::string& mode, std::size_t i) {
    constexpr std::string_view names[] = {"BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE", "BRANCH_GT",
                                          "BRANCH_EQ",  "BRANCH_NEQ", "LEAF"};
    const auto* found = std::ranges::find(names, std::string_view(mode));
    if (found != std::end(names)) return static_cast<Branch>(found - names);
    fail_at(i, "its mode is '" + mode.substr(0, 40) +
                   "', but must be BRANCH_LEQ, _LT, _GTE, _GT, _EQ, _NEQ or LEAF");
    return Branch::leaf;
  }
  std::uint32_t child(std::size_t i, std::int64_t id, std::string_view side) {
    const auto found = places_.find(TreeKey{trees_[i], id});
    if (found != places_.end()) return found->second;
    fail_at(i, "its " + std::string(side) + " node " + std::to_string(id) + " is not in the tree");
    return 0;
  }
  // The leaves' weights, leaf by leaf, each in the file's order.
  void read_weights(std::int64_t targets) {
    const auto trees = node_.integers(target_ + "_treeids");
    const auto ids = node_.integers(target_ + "_nodeids");
    const auto which = node_.integers(target_ + "_ids");
    const auto weights = node_.wide_reals(target_ + "_weights", forest_.wide);
    if (trees.size() != ids.size() || trees.size() != which.size() || trees.size() != weights.size())
      node_.fail("'" + target_ + "_treeids', '" + target_ + "_nodeids', '" + target_ + "_ids' and '" +
                 target_ + "_weights' must be of one length");
    if (weights.size() > std::numeric_limits<std::int32_t>::max()) node_.fail("it has too many weights");
    if (node_.failed()) return;
    std::vector<std::uint32_t> leaf(weights.size());
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const auto found = places_.find(TreeKey{trees[w], ids[w]});
      if (found == places_.end() || forest_.nodes[found->second].branch() != Branch::leaf) {
        node_.fail("a weight is of node " + std::to_string(ids[w]) + " of tree " + std::to_string(trees[w]) +
                   ", which is not a leaf there");
        return;
      }
      if (which[w] < 0 || which[w] >= targets) {
        node_.fail("'" + target_ + "_ids' has " + std::to_string(which[w]) + "; it must be 0 to " +
                   std::to_string(targets - 1));
        return;
      }
      leaf[w] = found->second;
      ++forest_.nodes[leaf[w]].no;
      forest_.nodes[leaf[w]].value += weights[w];
    }
    std::uint32_t next = 0;
    for (auto& node : forest_.nodes)
      if (node.branch() == Branch::leaf) {
        node.yes = next;
        next += node.no;
        node.no = 0;
      }
    forest_.targets.resize(weights.size());
    forest_.weights.resize(weights.size());
    for (std::size_t w = 0; w < weights.size(); ++w) {
      auto& node = forest_.nodes[leaf[w]];
      const std::uint32_t at = node.yes + node.no++;
      forest_.targets[at] = which[w];
      forest_.weights[at] = weights[w];
    }
  }
  // LightGBM's converter lets several nodes share a child: no tree, but every walk ends. A cycle has no end.
  void check_cycles() {
    enum class State : std::uint8_t { fresh, open, done };
    std::vector<State> states(forest_.nodes.size(), State::fresh);
    std::vector<std::uint32_t> path;
    for (std::uint32_t start = 0; start < forest_.nodes.size(); ++start) {
      if (states[start] != State::fresh) continue;
      path.assign(1, start);
      while (!path.empty()) {
        const std::uint32_t at = path.back();
        const auto& node = forest_.nodes[at];
        if (states[at] == State::done) {
          path.pop_back();
          continue;
        }
        const bool leaving = states[at] == State::open;
        states[at] = leaving || node.branch() == Branch::leaf ? State::done : State::open;
        if (states[at] == State::done) {
          path.pop_back();
          continue;
        }
        for (const std::uint32_t next : {node.yes, node.no}) {
          if (states[next] == State::open) {
            fail_at(next, "it is part of a cycle");
            return;
          }
          if (states[next] == State::fresh) path.push_back(next);
        }
      }
    }
  }

  MlNode& node_;
  std::string target_;
  Forest forest_;
  std::vector<std::int64_t> trees_, ids_;
  std::unordered_map<TreeKey, std::uint32_t, TreeKeyHash> places_;
};

template <typename T>
std::string packed(const std::vector<TreeNode<double>>& nodes) {
  std::string bytes(nodes.size() * sizeof(TreeNode<T>), '\0');
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TreeNode<T> node{static_cast<T>(nodes[i].value), nodes[i].what, nodes[i].yes, nodes[i].no};
    // Without what lies between members.
    char* to = bytes.data() + i * sizeof(TreeNode<T>);
    std::memcpy(to, &node.value, sizeof(T));
    std::memcpy(to + offsetof(TreeNode<T>, what), &node.what, 3 * sizeof(std::uint32_t));
  }
  return bytes;
}
template <typename T>
std::string packed_reals(const std::vector<double>& values) {
  const std::vector<T> cast(values.begin(), values.end());
  return {reinterpret_cast<const char*>(cast.data()), cast.size() * sizeof(T)};
}

// Inputs 1 to 5 of the kernel: nodes, roots, targets, weights, base values.
std::vector<std::string> operands(MlNode& node, const Forest& forest, const std::vector<double>& base) {
  const auto count = static_cast<std::int64_t>(forest.nodes.size());
  const auto extent = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  const DataType type = forest.wide ? DataType::f64 : DataType::f32;
  const auto reals = [&](std::string_view what, const std::vector<double>& values) {
    return node.constant_bytes(what, type, {extent(values)},
                               forest.wide ? packed_reals<double>(values) : packed_reals<float>(values));
  };
  const std::int64_t size = forest.wide ? sizeof(TreeNode<double>) : sizeof(TreeNode<float>);
  return {node.input(0),
          node.constant_bytes("nodes", DataType::i32, {count, size / 4},
                              forest.wide ? packed<double>(forest.nodes) : packed<float>(forest.nodes)),
          node.constant("roots", forest.roots, {extent(forest.roots)}),
          node.constant("targets", forest.targets, {extent(forest.targets)}),
          reals("weights", forest.weights),
          reals("base", base)};
}

}  // namespace

void expand_trees(MlNode& node) {
  const bool classifies = node.op() == "TreeEnsembleClassifier";
  node.counts(1, 1, classifies ? 2 : 1);
  std::vector<std::int64_t> labels;
  std::int64_t targets = 0;
  std::size_t aggregate = 1;
  constexpr std::array<std::string_view, 4> functions = {"AVERAGE", "SUM", "MIN", "MAX"};
  if (classifies) {
    labels = labels_of(node, "classlabels_int64s");
    targets = static_cast<std::int64_t>(labels.size());
  } else {
    targets = node.integer("n_targets", 1);
    aggregate = node.choice("aggregate_function", "SUM", functions);
    if (targets < 1 || targets > (std::int64_t{1} << 24))
      node.fail("'n_targets' is " + std::to_string(targets) + "; it must be 1 to 16777216");
  }
  const std::size_t transform = node.choice("post_transform", "NONE", post_transforms);
  if (node.failed()) return;
  Forest forest = Reader(node, classifies ? "class" : "target").read(targets);
  const std::vector<double> base = node.wide_reals("base_values", forest.wide);
  if (base.size() > 1 && static_cast<std::int64_t>(base.size()) != targets)
    node.fail("'base_values' has " + std::to_string(base.size()) + " numbers for " + std::to_string(targets) +
              (classifies ? " classes" : " targets"));
  if (node.failed()) return;
  std::vector<std::string> inputs = operands(node, forest, base);
  std::vector<std::string> outputs{classifies ? labels_output(node) : node.output(0)};
  if (classifies) {
    inputs.push_back(node.constant("labels", labels, {targets}));
    outputs.push_back(node.output(1));
  }
  auto& made = node.add(classifies ? "TreeClassifier" : "TreeRegressor", inputs, outputs);
  set(made, "targets", targets);
  set(made, "features", forest.features);
  set(made, "only_leq", std::int64_t{forest.only_leq});
  set(made, "post_transform", post_transforms[transform]);
  if (!classifies) {
    set(made, "aggregate_function", functions[aggregate]);
    return;
  }
  // Two classes, and weights of one of them: its score decides.
  const bool one = std::ranges::adjacent_find(forest.targets, std::not_equal_to()) == forest.targets.end();
  set(made, "binary", std::int64_t{targets == 2 && one && !forest.targets.empty()});
  set(made, "positive", std::int64_t{std::ranges::all_of(forest.weights, [](double w) { return w >= 0; })});
  name_labels(node);
}

}  // namespace carillon::graph::ml
