#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

using Kind = PostOp::Kind;

constexpr std::size_t most_post_ops = 16;

// Of whole numbers with real results, too: others are never asked.
bool is_heavy(std::string_view op) {
  return op == "Conv" || op == "ConvTranspose" || op == "Gemm" || op == "MatMul" || op == "QLinearConv" ||
         op == "QLinearMatMul";
}

bool carries(std::string_view op) {
  return is_heavy(op) || op == "Add" || op == "Mul" || op == "Sub" || op == "Div" ||
         op == "BatchNormalization" || op == "LayerNormalization";
}

// What a node of two tensors does to the first, or where it `commutes` to either.
struct Binary {
  std::string_view op;
  Kind kind;
  bool commutes;
};
constexpr Binary binaries[] = {{"Add", Kind::add, true},
                               {"Mul", Kind::mul, true},
                               {"AtMost", Kind::at_most, false},
                               {"AtLeast", Kind::at_least, false}};

// What a node with one tensor operand does to it.
std::optional<PostOp> as_activation(const Editor& editor, const Node& node) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (node.op == "Relu") return PostOp{Kind::relu};
  if (node.op == "LeakyRelu") return PostOp{Kind::leaky_relu, node.real("alpha", 0.01F)};
  if (node.op == "Sigmoid") return PostOp{Kind::sigmoid};
  if (node.op == "Tanh") return PostOp{Kind::tanh};
  if (node.op == "Elu") return PostOp{Kind::elu, node.real("alpha", 1)};
  if (node.op == "Gelu")
    return PostOp{node.text("approximate", "none") == "tanh" ? Kind::gelu_tanh : Kind::gelu_erf};
  if (node.op == "HardSwish") return PostOp{Kind::hard_swish};
  if (node.op == "HardSigmoid")
    return PostOp{Kind::hard_sigmoid, node.real("alpha", 0.2F), node.real("beta", 0.5F)};
  if (node.op == "PRelu") {
    float slope = 0;
    if (editor.scalar(node.inputs[1], slope)) return PostOp{Kind::leaky_relu, slope};
  }
  if (node.op == "Clip") {
    PostOp clip{Kind::clip, -infinity, infinity};
    const auto bound = [&](std::size_t i, float& to) {
      return i >= node.inputs.size() || node.inputs[i] == no_value || editor.scalar(node.inputs[i], to);
    };
    if (!bound(1, clip.alpha) || !bound(2, clip.beta)) return std::nullopt;
    if (clip.alpha == 0 && clip.beta == infinity) return PostOp{Kind::relu};
    return clip;
  }
  return std::nullopt;
}

// Arithmetic with one number; `operand` is the other input.
std::optional<PostOp> as_linear(const Editor& editor, const Node& node, std::size_t& operand) {
  if (node.inputs.size() != 2) return std::nullopt;
  float c = 0;
  for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
    if (!editor.scalar(node.inputs[i], c)) continue;
    operand = 1 - i;
    if (node.op == "Add") return PostOp{Kind::linear, 1, c};
    if (node.op == "Mul") return PostOp{Kind::linear, c, 0};
    if (node.op == "Sub") return i == 1 ? PostOp{Kind::linear, 1, -c} : PostOp{Kind::linear, -1, c};
    if (node.op == "Div" && i == 1 && c != 0) return PostOp{Kind::linear, 1 / c, 0};
  }
  return std::nullopt;
}

class Fuser {
 public:
  explicit Fuser(Graph& graph) : editor_(graph) {}

  void run() {
    for (std::size_t i = 0; i < editor_.nodes(); ++i)
      if (editor_.alive(i)) fuse(i);
    editor_.finish();
  }

 private:
  // Whether what makes `id` can do more to it: nobody else (than `users` uses) sees it as it is.
  bool takes(ValueId id, const TensorType& result, std::uint32_t users) const {
    const std::int64_t made = editor_.maker(id);
    if (made < 0 || editor_.uses(id) != users || editor_.type(id) != result) return false;
    const Node& node = editor_.node(static_cast<std::size_t>(made));
    return carries(node.op) && node.post_ops.size() < most_post_ops && node.outputs.size() == 1;
  }

  void attach(std::size_t index, ValueId id, const PostOp& post) {
    Node node = editor_.node(static_cast<std::size_t>(editor_.maker(id)));
    if (!node.post_ops.empty() && post.kind == Kind::linear && node.post_ops.back().kind == Kind::linear) {
      PostOp& last = node.post_ops.back();
      last.alpha *= post.alpha;
      last.beta = last.beta * post.alpha + post.beta;
    } else {
      node.post_ops.push_back(post);
    }
    editor_.replace(index, std::move(node));
  }

  void fuse(std::size_t index) {
    const Node& node = editor_.node(index);
    if (!node.post_ops.empty() || node.inputs.empty() || node.outputs.size() != 1) return;
    const TensorType& result = editor_.type(node.outputs[0]);
    if (result.type != DataType::f32) return;
    if (const auto post = as_activation(editor_, node)) {
      if (takes(node.inputs[0], result, 1)) attach(index, node.inputs[0], *post);
      return;
    }
    std::size_t operand = 0;
    if (const auto post = as_linear(editor_, node, operand)) {
      if (takes(node.inputs[operand], result, 1)) attach(index, node.inputs[operand], *post);
      return;
    }
    const auto* const binary = std::ranges::find(binaries, node.op, &Binary::op);
    if (node.inputs.size() != 2 || binary == std::end(binaries)) return;
    if (node.op == "Mul" && fuse_silu(index)) return;
    fuse_binary(index, *binary);
  }

  bool fuse_silu(std::size_t index) {
    const Node& node = editor_.node(index);
    const TensorType& result = editor_.type(node.outputs[0]);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      const ValueId x = node.inputs[i];
      const ValueId gate = node.inputs[1 - i];
      const Node* sigmoid = editor_.made_by(gate, "Sigmoid");
      if (sigmoid == nullptr || sigmoid->inputs[0] != x || editor_.uses(gate) != 1 || !takes(x, result, 2))
        continue;
      attach(index, x, PostOp{Kind::silu});
      return true;
    }
    return false;
  }

  // Of two operands that could take the other one, the heavier maker does, then the later one: the earlier
  // result is there by then without waiting.
  void fuse_binary(std::size_t index, const Binary& binary) {
    const Node& node = editor_.node(index);
    const TensorType& result = editor_.type(node.outputs[0]);
    std::optional<std::size_t> best;
    std::pair<bool, std::int64_t> best_rank{};
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if ((i > 0 && !binary.commutes) || !takes(node.inputs[i], result, 1)) continue;
      const std::int64_t made = editor_.maker(node.inputs[i]);
      const std::pair rank{is_heavy(editor_.node(static_cast<std::size_t>(made)).op), made};
      if (best && rank <= best_rank) continue;
      best = i;
      best_rank = rank;
    }
    if (!best) return;
    const ValueId other = node.inputs[1 - *best];
    attach(index, node.inputs[*best], PostOp{.kind = binary.kind, .operand = other});
  }

  Editor editor_;
};

}  // namespace

void fuse_post_ops(Graph& graph) {
  Fuser(graph).run();
}

}  // namespace carillon::graph
