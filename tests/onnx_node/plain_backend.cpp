#include <memory>

#include "onnx_node/suite.h"

#include "carillon/graph/bounded.h"
#include "carillon/graph/guards.h"
#include "carillon/graph/kernel.h"

namespace carillon::onnx_node {
namespace {

using graph::ConstView;
using graph::Graph;
using graph::MutableView;
using graph::no_value;
using graph::Node;
using graph::Tensor;
using graph::TensorType;
using graph::ValueId;

// Keeps every value of the graph in memory of its own and runs node after node.
class PlainBackend : public Backend {
 public:
  std::string_view name() const override { return "plain"; }

  Result<std::vector<Tensor>> run(const Prepared& test) override {
    const auto model = import_test(test);
    if (!model) return std::unexpected(model.error());
    const auto graph = (*model)->specialize(1);
    const std::vector<Tensor>& inputs = test.inputs;
    if (!graph) return in_context("specialize", graph.error());
    std::vector<std::unique_ptr<Tensor>> values(graph->values.size());
    std::vector<const Tensor*> known(graph->values.size(), nullptr);
    for (std::size_t i = 0; i < graph->values.size(); ++i) known[i] = graph->values[i].constant.get();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueId id = graph->inputs[i];
      if (graph->value(id).type != inputs[i].type()) return invalid("input of another type than the model's");
      known[id.index()] = &inputs[i];
    }
    const auto is_true = [&](ValueId id) { return known[id.index()]->bytes()[0] != std::byte{0}; };
    for (const Node& node : graph->nodes) {
      if (!graph::holds(graph->guards, node.guard, is_true)) {
        // A Merge looks at the types of both its values.
        for (const ValueId id : node.outputs) {
          if (id == no_value) continue;
          values[id.index()] = std::make_unique<Tensor>(graph->value(id).type);
          known[id.index()] = values[id.index()].get();
        }
        continue;
      }
      if (const auto ran = run_node(*graph, node, values, known); !ran) return std::unexpected(ran.error());
    }
    std::vector<Tensor> outputs;
    for (const ValueId id : graph->outputs) {
      if (known[id.index()] == nullptr) return invalid("an output that no node makes");
      Tensor copy(known[id.index()]->type());
      std::ranges::copy(known[id.index()]->bytes(), copy.bytes().begin());
      outputs.push_back(std::move(copy));
    }
    return outputs;
  }

 private:
  static Result<> run_node(const Graph& graph, const Node& node, std::vector<std::unique_ptr<Tensor>>& values,
                           std::vector<const Tensor*>& known) {
    const auto view = [&](ValueId id) {
      return id == no_value ? ConstView{}
                            : ConstView{&known[id.index()]->type(), known[id.index()]->bytes().data()};
    };
    if (node.op == graph::bounded_node) return run_bounded(graph, node, view, values, known);
    std::vector<ConstView> from;
    std::vector<const TensorType*> types;
    for (const ValueId id : node.inputs) {
      from.push_back(view(id));
      types.push_back(from.back().type);
    }
    std::vector<ConstView> operands;
    for (const auto& post : node.post_ops) operands.push_back(view(post.operand));
    std::vector<MutableView> to;
    for (const ValueId id : node.outputs) {
      if (id == no_value) {
        to.push_back({});
        continue;
      }
      values[id.index()] = std::make_unique<Tensor>(graph.value(id).type);
      known[id.index()] = values[id.index()].get();
      to.push_back({&graph.value(id).type, values[id.index()]->bytes().data()});
    }
    const graph::PlainKernel kernel = graph::find_plain_kernel(node, types);
    if (kernel == nullptr) {
      return fail(ErrorCode::unsupported, "node '" + node.name + "' (" + node.op + ") has no plain kernel");
    }
    if (const auto ran = kernel(node, from, to); !ran) return ran;
    graph::apply_post_ops(node, operands, to[0]);
    return {};
  }

  template <typename View>
  static Result<> run_bounded(const Graph& graph, const Node& node, const View& view,
                              std::vector<std::unique_ptr<Tensor>>& values,
                              std::vector<const Tensor*>& known) {
    graph::BoundedNode late(graph, node);
    std::vector<ConstView> from;
    for (const ValueId id : node.inputs) from.push_back(view(id));
    std::vector<std::unique_ptr<Tensor>> room;
    std::vector<std::byte*> to;
    for (const ValueId id : node.outputs) {
      room.push_back(id == no_value ? nullptr : std::make_unique<Tensor>(graph.value(id).type));
      to.push_back(id == no_value ? nullptr : room.back()->bytes().data());
    }
    if (const auto ran = late.run(from, to); !ran) return ran;
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (to[i] == nullptr) continue;
      auto found = std::make_unique<Tensor>(late.results()[i]);
      std::ranges::copy(room[i]->bytes().first(found->bytes().size()), found->bytes().begin());
      const std::size_t at = node.outputs[i].index();
      values[at] = std::move(found);
      known[at] = values[at].get();
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Backend> make_plain_backend() {
  return std::make_unique<PlainBackend>();
}

}  // namespace carillon::onnx_node
