#include "carillon/graph/kernel.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/recurrence.h"

namespace carillon::graph {
namespace {

using plain::Finder;

const std::unordered_map<std::string_view, Finder>& operators() {
  static const auto table = [] {
    std::unordered_map<std::string_view, Finder> made;
    for (const auto family :
         {plain::unary_operators(),     plain::binary_operators(),      plain::logic_operators(),
          plain::cast_operators(),      plain::reduce_operators(),      plain::order_operators(),
          plain::softmax_operators(),   plain::convolution_operators(), plain::pool_operators(),
          plain::norm_operators(),      plain::matmul_operators(),      plain::einsum_operators(),
          plain::quantize_operators(),  plain::move_operators(),        plain::pad_operators(),
          plain::index_operators(),     plain::resize_operators(),      plain::generate_operators(),
          plain::recurrent_operators(), plain::tree_operators(),        plain::score_operators(),
          plain::label_operators(),     plain::deciding_operators(),    plain::loss_operators(),
          plain::training_operators(),  plain::signal_operators(),      plain::sample_operators(),
          plain::word_operators(),      plain::byte_operators()}) {
      for (const plain::Operator& op : family) made.emplace(op.name, op.find);
    }
    return made;
  }();
  return table;
}

// Only these may lack their first output and still make another.
bool may_lack_first(std::string_view op) {
  static constexpr std::array<std::string_view, 16> all{"Adagrad",
                                                        "Adam",
                                                        "Dropout",
                                                        "DynamicQuantizeLinear",
                                                        "LayerNormalization",
                                                        "LinearScores",
                                                        "MaxPool",
                                                        "Momentum",
                                                        "SoftmaxCrossEntropyLoss",
                                                        "Split",
                                                        "SvmScores",
                                                        "TopK",
                                                        "TrainingBatchNormalization",
                                                        "TrainingDropout",
                                                        "TreeClassifier",
                                                        "Unique"};
  return std::ranges::find(all, op) != all.end() || is_recurrent(op);
}

// Those that move elements as they are, and those that look texts up. All others compute with what they read.
bool takes_texts(std::string_view op) {
  static constexpr std::array<std::string_view, 18> all{
      "Concat",   "Expand",       "Flatten",         "Gather",        "GatherElements", "GatherND",
      "Identity", "LabelEncoder", "Merge",           "OneHotEncoder", "Reshape",        "Slice",
      "Split",    "Squeeze",      "TfIdfVectorizer", "Transpose",     "Unsqueeze",      "Where"};
  return std::ranges::find(all, op) != all.end();
}

}  // namespace

Result<> check_dimensions(std::span<const TensorType* const> operands) {
  for (const TensorType* type : operands)
    if (type != nullptr && type->shape.size() > plain::max_rank)
      return fail(ErrorCode::unsupported, "a tensor of " + std::to_string(type->shape.size()) +
                                              " dimensions; at most " + std::to_string(plain::max_rank) +
                                              " are supported");
  return {};
}

PlainKernel find_plain_kernel(const Node& node, std::span<const TensorType* const> inputs) {
  if (node.outputs.empty() || (node.outputs[0] == no_value && !may_lack_first(node.op))) return nullptr;
  const auto found = operators().find(node.op);
  if (found == operators().end()) return nullptr;
  if (!check_dimensions(inputs)) return nullptr;
  for (const TensorType* type : inputs)
    if (type != nullptr && type->type == DataType::string && !takes_texts(node.op)) return nullptr;
  return found->second(node, inputs);
}

std::optional<TensorType> plain_workspace(const Node& node, std::span<const TensorType* const> inputs) {
  if (node.op == "SvmScores") return plain::score_workspace(node, inputs);
  return is_recurrent(node.op) ? plain::recurrent_workspace(node, inputs) : std::nullopt;
}

namespace plain {

std::unexpected<Error> failed(const Node& node, std::string_view what) {
  return invalid("node '" + node.name + "' (" + node.op + "): " + std::string(what));
}

std::unexpected<Error> misfit(const Node& node, Inputs inputs, Outputs outputs) {
  std::string text = "operands of shapes";
  for (const ConstView& view : inputs) {
    text += view ? " " + to_text(view.type->shape) : std::string(" (absent)");
  }
  text += " do not fit an output of shape";
  for (const MutableView& view : outputs) {
    text += view ? " " + to_text(view.type->shape) : std::string(" (absent)");
  }
  return failed(node, text);
}

std::string source_of(const ConstView& operand) {
  if (operand.origin == nullptr || operand.origin->input.empty()) return {};
  return ", which comes from input '" + operand.origin->input + "',";
}

Result<> note_index(const Node& node, const MutableView& output, const ConstView& indices, std::int64_t at,
                    std::int64_t extent, bool from_end) {
  const auto say = [&] {
    std::string text = "index " + std::to_string(index_at(indices, at)) + source_of(indices) +
                       " is outside an axis of " + std::to_string(extent) + " elements";
    if (extent > 0)
      text += ": it must be " + std::to_string(from_end ? -extent : 0) + " to " + std::to_string(extent - 1);
    return failed(node, text);
  };
  if (extent == 0) return say();
  return note(output, indices, at, say);
}

std::unexpected<Error> bad_axis(const Node& node, std::size_t rank) {
  return failed(node, "axis " + std::to_string(node.integer("axis", 0)) + " is outside a tensor of rank " +
                          std::to_string(rank));
}

}  // namespace plain
}  // namespace carillon::graph
