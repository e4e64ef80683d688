// Tree ensembles: lists of nodes in attributes become one packed list that the kernel walks.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
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

// A node that is part of a cycle. LightGBM's converter lets several nodes share a child: no tree, but every
// walk ends. A cycle has no end.
std::optional<std::uint32_t> on_a_cycle(const std::vector<TreeNode<double>>& nodes) {
  enum class State : std::uint8_t { fresh, open, done };
  std::vector<State> states(nodes.size(), State::fresh);
  std::vector<std::uint32_t> path;
  for (std::uint32_t start = 0; start < nodes.size(); ++start) {
    if (states[start] != State::fresh) continue;
    path.assign(1, start);
    while (!path.empty()) {
      const std::uint32_t at = path.back();
      const auto& node = nodes[at];
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
        if (states[next] == State::open) return next;
        if (states[next] == State::fresh) path.push_back(next);
      }
    }
  }
  return std::nullopt;
}

// TreeEnsembleClassifier and TreeEnsembleRegressor: leaves are nodes, and children are found by tree and
// number.
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
    if (node_.failed()) return {};
    if (const auto at = on_a_cycle(forest_.nodes)) fail_at(*at, "it is part of a cycle");
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

  MlNode& node_;
  std::string target_;
  Forest forest_;
  std::vector<std::int64_t> trees_, ids_;
  std::unordered_map<TreeKey, std::uint32_t, TreeKeyHash> places_;
};

// TreeEnsemble: children are found by their places among the branches or among the leaves, each of which has
// one weight. In `Forest::nodes` the leaves come after the branches.
class EnsembleReader {
 public:
  explicit EnsembleReader(MlNode& node) : node_(node) {}

  Forest read(std::int64_t targets) {
    const auto features = node_.integers("nodes_featureids");
    const auto missing = node_.integers("nodes_missing_value_tracks_true");
    const auto modes = node_.byte_tensor("nodes_modes");
    yes_ = {node_.integers("nodes_truenodeids"), node_.integers("nodes_trueleafs"), "true"};
    no_ = {node_.integers("nodes_falsenodeids"), node_.integers("nodes_falseleafs"), "false"};
    bool wide_weights = false, wide_members = false, ignored = false;
    const auto splits = node_.real_tensor("nodes_splits", forest_.wide);
    forest_.weights = node_.real_tensor("leaf_weights", wide_weights);
    forest_.targets = node_.integers("leaf_targetids");
    members_ = node_.real_tensor("membership_values", wide_members);
    static_cast<void>(node_.real_tensor("nodes_hitrates", ignored));
    forest_.roots = node_.integers("tree_roots");
    branches_ = features.size();
    leaves_ = forest_.weights.size();
    for (const Side* side : {&yes_, &no_}) {
      expect("nodes_" + std::string(side->name) + "nodeids", side->places.size(), branches_);
      expect("nodes_" + std::string(side->name) + "leafs", side->leaf.size(), branches_);
    }
    expect("nodes_modes", modes.size(), branches_);
    expect("nodes_splits", splits.size(), branches_);
    if (!missing.empty()) expect("nodes_missing_value_tracks_true", missing.size(), branches_);
    if (forest_.targets.size() != leaves_)
      node_.fail("'leaf_targetids' has " + std::to_string(forest_.targets.size()) +
                 " elements, but 'leaf_weights' " + std::to_string(leaves_));
    // What a set of members adds is counted with it.
    const std::size_t all = branches_ + leaves_ + members_.size();
    if (branches_ == 0 || leaves_ == 0 || all > std::numeric_limits<std::int32_t>::max())
      node_.fail("it has " + std::to_string(branches_) + " nodes and " + std::to_string(leaves_) + " leaves");
    if (wide_weights != forest_.wide || (wide_members != forest_.wide && !members_.empty()))
      node_.fail("'nodes_splits', 'leaf_weights' and 'membership_values' must be of one type");
    for (const std::int64_t target : forest_.targets)
      if (target < 0 || target >= targets)
        node_.fail("'leaf_targetids' has " + std::to_string(target) + "; it must be 0 to " +
                   std::to_string(targets - 1));
    for (const std::int64_t root : forest_.roots)
      if (root < 0 || root >= static_cast<std::int64_t>(branches_))
        node_.fail("'tree_roots' has " + std::to_string(root) + "; it must be 0 to " +
                   std::to_string(branches_ - 1));
    if (node_.failed()) return {};
    forest_.nodes.resize(branches_ + leaves_);
    for (std::size_t i = 0; i < branches_ && !node_.failed(); ++i)
      read_branch(i, features[i], modes[i], splits[i], !missing.empty() && missing[i] != 0);
    for (std::size_t i = 0; i < leaves_; ++i) {
      auto& leaf = forest_.nodes[branches_ + i];
      leaf.what = static_cast<std::uint32_t>(Branch::leaf) << branch_shift;
      leaf.value = forest_.weights[i];
      leaf.yes = static_cast<std::uint32_t>(i);
      leaf.no = 1;
    }
    if (node_.failed()) return {};
    if (const auto at = on_a_cycle(forest_.nodes)) fail_at(*at, "it is part of a cycle");
    return std::move(forest_);
  }

 private:
  struct Side {
    std::vector<std::int64_t> places, leaf;
    std::string_view name;
  };
  static constexpr std::uint8_t member = 6;  // of nodes_modes; the others are as Branch has them

  void expect(std::string_view what, std::size_t given, std::size_t wanted) {
    if (given != wanted)
      node_.fail("'" + std::string(what) + "' has " + std::to_string(given) +
                 " elements, but 'nodes_featureids' " + std::to_string(wanted));
  }
  void fail_at(std::size_t i, std::string_view what) {
    node_.fail("node " + std::to_string(i) + ": " + std::string(what));
  }
  std::uint32_t child(std::size_t i, const Side& side) {
    const bool leaf = side.leaf[i] != 0;
    const std::size_t count = leaf ? leaves_ : branches_;
    const std::int64_t place = side.places[i];
    if (place >= 0 && static_cast<std::uint64_t>(place) < count)
      return static_cast<std::uint32_t>(place) + (leaf ? static_cast<std::uint32_t>(branches_) : 0);
    fail_at(i, "its " + std::string(side.name) + " node is " + (leaf ? "leaf " : "") + std::to_string(place) +
                   " of " + std::to_string(count));
    return 0;
  }
  void read_branch(std::size_t i, std::int64_t feature, std::uint8_t mode, double split, bool tracks) {
    if (feature < 0 || feature >= missing_bit)
      return fail_at(i, "its feature is " + std::to_string(feature) + "; it must be 0 to " +
                            std::to_string(missing_bit - 1));
    if (mode > member) return fail_at(i, "its mode is " + std::to_string(mode) + ", but must be 0 to 6");
    const Branch branch = mode == member ? Branch::eq : static_cast<Branch>(mode);
    forest_.only_leq = forest_.only_leq && branch == Branch::leq && !tracks;
    forest_.features = std::max(forest_.features, feature + 1);
    TreeNode<double> made;
    made.what = static_cast<std::uint32_t>(branch) << branch_shift | static_cast<std::uint32_t>(feature);
    made.value = split;
    made.yes = child(i, yes_);
    made.no = child(i, no_);
    if (mode == member) ask_members(i, made);
    forest_.nodes[i] = made;
    if (tracks) forest_.nodes[i].what |= missing_bit;
  }
  // Its set is the next one of `membership_values`, up to a NaN. One question a member, each asked where the
  // one before said no; a set of none is asked for NaN, which nothing equals.
  void ask_members(std::size_t i, TreeNode<double>& first) {
    if (next_member_ > members_.size()) return fail_at(i, "'membership_values' has no set for it");
    const std::size_t begin = next_member_;
    while (next_member_ < members_.size() && !std::isnan(members_[next_member_])) ++next_member_;
    const std::span set(members_.data() + begin, next_member_ - begin);
    ++next_member_;
    first.value = set.empty() ? std::numeric_limits<double>::quiet_NaN() : set[0];
    const std::uint32_t otherwise = first.no;
    TreeNode<double> made = first;
    if (set.size() > 1) first.no = static_cast<std::uint32_t>(forest_.nodes.size());
    for (std::size_t k = 1; k < set.size(); ++k) {
      made.value = set[k];
      made.no = k + 1 < set.size() ? static_cast<std::uint32_t>(forest_.nodes.size() + 1) : otherwise;
      forest_.nodes.push_back(made);
    }
  }

  MlNode& node_;
  Forest forest_;
  Side yes_, no_;
  std::size_t branches_ = 0, leaves_ = 0;
  std::vector<double> members_;
  std::size_t next_member_ = 0;
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

constexpr std::array<std::string_view, 4> functions = {"AVERAGE", "SUM", "MIN", "MAX"};

std::int64_t targets_of(MlNode& node) {
  const std::int64_t targets = node.integer("n_targets", 1);
  if (targets < 1 || targets > (std::int64_t{1} << 24))
    node.fail("'n_targets' is " + std::to_string(targets) + "; it must be 1 to 16777216");
  return targets;
}

// An attribute that numbers one of `words`.
template <std::size_t count>
std::string_view numbered(MlNode& node, std::string_view name, std::int64_t fallback,
                          const std::array<std::string_view, count>& words) {
  const std::int64_t given = node.integer(name, fallback);
  if (given >= 0 && given < static_cast<std::int64_t>(count)) return words[static_cast<std::size_t>(given)];
  node.fail("'" + std::string(name) + "' is " + std::to_string(given) + "; it must be 0 to " +
            std::to_string(count - 1));
  return words[0];
}

}  // namespace

void expand_tree_ensemble(MlNode& node) {
  node.counts(1, 1, 1);
  const std::int64_t targets = targets_of(node);
  const std::string_view function = numbered(node, "aggregate_function", 1, functions);
  const std::string_view transform = numbered(node, "post_transform", 0, post_transforms);
  if (node.failed()) return;
  const Forest forest = EnsembleReader(node).read(targets);
  if (node.failed()) return;
  auto& made = node.add("TreeRegressor", operands(node, forest, {}), {node.output(0)});
  set(made, "targets", targets);
  set(made, "features", forest.features);
  set(made, "only_leq", std::int64_t{forest.only_leq});
  set(made, "post_transform", transform);
  set(made, "aggregate_function", function);
  set(made, "wide", std::int64_t{forest.wide});
}

void expand_trees(MlNode& node) {
  const bool classifies = node.op() == "TreeEnsembleClassifier";
  node.counts(1, 1, classifies ? 2 : 1);
  std::vector<std::int64_t> labels;
  std::int64_t targets = 0;
  std::size_t aggregate = 1;
  if (classifies) {
    labels = labels_of(node, "classlabels_int64s");
    targets = static_cast<std::int64_t>(labels.size());
  } else {
    targets = targets_of(node);
    aggregate = node.choice("aggregate_function", "SUM", functions);
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
