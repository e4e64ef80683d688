#include "carillon/graph/row_proof.h"

#include <algorithm>
#include <new>
#include <optional>
#include <vector>

#include "carillon/graph/rows.h"
#include "carillon/graph/specialize.h"

namespace carillon::graph {
namespace {

// The graph for these shapes of the signature's inputs, whose order need not be the file's.
Result<Graph> graph_at(const OnnxGraph& source, const Signature& signature,
                       const Signature::Question& question, ConstantStore& store) {
  std::vector<Shape> shapes;
  for (const OnnxGraph::Input& input : source.inputs) {
    const std::string& name = source.graph.value(input.id).name;
    const auto found = std::ranges::find(signature.inputs(), name, &TensorSpec::name);
    if (found == signature.inputs().end()) return invalid("input '" + name + "' is not asked for");
    shapes.push_back(question.inputs[static_cast<std::size_t>(found - signature.inputs().begin())]);
  }
  try {
    Folder folder(store, folding_budget(source.bytes_on_disk));
    return infer_types(source, shapes, folder);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, "there is not enough memory to look at its graph");
  }
}

std::string compared(const Graph& alone, const Result<Graph>& together, std::int64_t batch) {
  if (together) return why_not_row_by_row(alone, *together, batch);
  return "at a batch of " + std::to_string(batch) + ": " + together.error().message;
}

}  // namespace

std::string why_not_row_by_row(const OnnxGraph& source, const Signature& signature, const AskedGraph& alone,
                               const AskedGraph& together, const ConstantStore* store) {
  ConstantStore scratch(store);
  std::optional<Result<Graph>> made_alone, made_together;
  const auto graph_of = [&](const AskedGraph& asked,
                            std::optional<Result<Graph>>& made) -> const Result<Graph>& {
    return asked.graph != nullptr ? *asked.graph
                                  : made.emplace(graph_at(source, signature, asked.question, scratch));
  };
  const Result<Graph>& one = graph_of(alone, made_alone);
  if (!one) return one.error().message;
  return compared(*one, graph_of(together, made_together), together.question.batch);
}

Result<> prove_rows_at(const OnnxGraph& source, const Signature& signature, std::int64_t batch,
                       std::span<const std::int64_t> extents, const Result<Graph>* graph,
                       const ConstantStore* store) {
  const auto alone = signature.at_extents(1, extents);
  const auto together = signature.at_extents(std::max<std::int64_t>(2, batch), extents);
  if (!alone || !together) return {};  // one row is all that it takes
  const std::string why = why_not_row_by_row(source, signature, {*alone, batch == 1 ? graph : nullptr},
                                             {*together, batch == 1 ? nullptr : graph}, store);
  if (why.empty()) return {};
  return fail(ErrorCode::unsupported,
              why + ", at these sizes alone, so rows cannot be batched; set max_batch_size to 0");
}

std::string why_not_row_by_row(const OnnxGraph& source, const Signature& signature,
                               std::span<const int> batch_sizes, const ConstantStore* store) {
  ConstantStore scratch(store);
  std::vector<std::int64_t> lengths = signature.lengths();
  if (lengths.empty()) lengths.push_back(0);
  for (const std::int64_t length : lengths) {
    const auto at = [&](int batch) -> Result<Graph> {
      const auto question = signature.at(batch, length);
      if (!question) return std::unexpected(question.error());
      return graph_at(source, signature, *question, scratch);
    };
    const auto alone = at(1);
    if (!alone) return alone.error().message;
    for (const int batch : batch_sizes)
      if (std::string why = compared(*alone, at(batch), batch); !why.empty()) return why;
  }
  return {};
}

}  // namespace carillon::graph
