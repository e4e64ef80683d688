#include "carillon/graph/model.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/origin.h"
#include "carillon/graph/passes/passes.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/signature.h"
#include "carillon/graph/specialize.h"

namespace carillon::graph {

Shape TensorSpec::shape_at(std::int64_t batch, std::int64_t length) const {
  CARILLON_ASSERT(batch >= 1);
  Shape out = shape;
  if (!out.empty() && out[0] == batch_dimension) out[0] = batch;
  for (std::int64_t& extent : out) {
    if (extent != length_dimension) continue;
    CARILLON_ASSERT(length >= 1);
    extent = length;
  }
  return out;
}

Shape TensorSpec::shape_at(std::int64_t batch, std::span<const std::int64_t> extents) const {
  CARILLON_ASSERT(batch >= 1);
  Shape out = shape;
  if (!out.empty() && out[0] == batch_dimension) out[0] = batch;
  for (std::int64_t& extent : out) {
    if (!is_free(extent) || is_bounded(extent)) continue;
    CARILLON_ASSERT(free_number(extent) < extents.size());
    extent = extents[free_number(extent)];
  }
  return out;
}

namespace {

template <typename... At>
std::vector<TensorSpec> all_at(std::span<const TensorSpec> specs, const At&... at) {
  std::vector<TensorSpec> out;
  out.reserve(specs.size());
  for (const TensorSpec& spec : specs)
    out.push_back({.name = spec.name, .type = spec.type, .shape = spec.shape_at(at...)});
  return out;
}

}  // namespace

std::vector<TensorSpec> specs_at(std::span<const TensorSpec> specs, std::int64_t batch, std::int64_t length) {
  return all_at(specs, batch, length);
}

std::vector<TensorSpec> specs_at(std::span<const TensorSpec> specs, std::int64_t batch,
                                 std::span<const std::int64_t> extents) {
  return all_at(specs, batch, extents);
}

Shape TensorSpec::open_shape() const {
  Shape out = shape;
  for (std::int64_t& extent : out) extent = std::max<std::int64_t>(extent, -1);
  return out;
}

namespace {

// Constants computed from a file may take this much more than the file itself; enough to widen 8-bit weights
// and to go through several steps, far from what a hostile file could ask for.
constexpr std::uint64_t budget_floor = std::uint64_t{64} << 20;
constexpr std::uint64_t budget_factor = 16;

// Whether an operator looks at all of a tensor at once, whoever sent its rows: another's rows in a batch, and
// what fills it up, would change the answer.
bool mixes_rows(std::span<const Node> nodes) {
  return std::ranges::any_of(nodes, [](const Node& node) {
    return node.op == "DynamicQuantizeLinear" ||
           std::ranges::any_of(node.subgraphs, [](const Subgraph& inner) { return mixes_rows(inner.nodes); });
  });
}

class OnnxModel final : public SignedModel {
 public:
  explicit OnnxModel(OnnxGraph source) : source_(std::move(source)) {
    for (Value& value : source_.graph.values)
      if (value.constant != nullptr) value.constant = store_.intern(std::move(value.constant));
  }

  Result<> prepare(const ImportOptions& options) {
    std::vector<Signature::Input> inputs;
    for (const OnnxGraph::Input& input : source_.inputs)
      inputs.push_back({.name = source_.graph.value(input.id).name,
                        .type = input.type,
                        .ranked = input.ranked,
                        .dimensions = input.dimensions});
    std::vector<Signature::Input> again = inputs;
    ImportOptions given = options;
    if (options.batch_from_file && mixes_rows(source_.graph.nodes)) {
      given.batch_from_file = false;
      given.batched = false;
    }
    auto found = Signature::find(std::move(inputs), given,
                                 [&](const Signature::Question& question) { return outputs_at(question); });
    // Where only the file says that the model batches, and rows would come to see each other, it does not.
    if (found && given.batch_from_file && found->batched())
      if (const std::string node = mixing_at_two(*found); !node.empty()) {
        given.batch_from_file = false;
        given.batched = false;
        found = Signature::find(std::move(again), given,
                                [&](const Signature::Question& question) { return outputs_at(question); });
        if (!found)
          return in_context(
              node + " makes results of all rows of a batch, so requests are not batched; without",
              found.error());
      }
    if (!found) return std::unexpected(found.error());
    set_signature(std::move(*found));
    return {};
  }

  const std::string& name() const override { return source_.name; }

  Result<Graph> specialize(std::int64_t batch, std::int64_t length) const override {
    const auto question = signature().at(batch, length);
    if (!question) return std::unexpected(question.error());
    Folder folder = make_folder(store_);
    return finish(infer(*question, folder), batch, folder);
  }
  Result<Graph> specialize_at(std::int64_t batch, std::span<const std::int64_t> extents) const override {
    if (!signature().free().any()) return Model::specialize_at(batch, extents);
    const auto question = signature().at_extents(batch, extents);
    if (!question) return std::unexpected(question.error());
    ConstantStore scratch(&store_);
    Folder folder = make_folder(scratch);
    return finish(infer(*question, folder), batch, folder);
  }

 private:
  static Result<Graph> finish(Result<Graph> graph, std::int64_t batch, Folder& folder) {
    if (!graph) return graph;
    try {
      if (auto ok = optimize(*graph, folder); !ok) return std::unexpected(ok.error());
      if (auto ok = validate(*graph); !ok) return std::unexpected(ok.error());
      return graph;
    } catch (const std::bad_alloc&) {
      return no_memory(batch);
    }
  }
  static std::unexpected<Error> no_memory(std::int64_t batch) {
    return fail(ErrorCode::resource_exhausted,
                "not enough memory to prepare the model for batch " + std::to_string(batch));
  }

  Folder make_folder(ConstantStore& store) const {
    return Folder(store,
                  budget_floor + std::min(source_.bytes_on_disk, std::uint64_t{1} << 50) * budget_factor);
  }

  Result<Graph> infer(const Signature::Question& question, Folder& folder) const {
    try {
      return infer_types(source_, question.inputs, folder);
    } catch (const std::bad_alloc&) {
      return no_memory(question.batch);
    }
  }

  // The node by which two rows of a batch see each other, described; empty where none does.
  std::string mixing_at_two(const Signature& signature) const {
    const auto question = signature.at(2, signature.lengths().empty() ? 0 : signature.lengths().front());
    if (!question) return {};  // batches of one alone
    ConstantStore scratch(&store_);
    Folder folder = make_folder(scratch);
    const auto graph = infer(*question, folder);
    const Node* const node = graph ? mixing_node(*graph, 2) : nullptr;
    return node == nullptr ? "" : describe(*node);
  }

  Result<std::vector<TensorSpec>> outputs_at(const Signature::Question& question) const {
    ConstantStore scratch(&store_);
    Folder folder = make_folder(question.trial ? scratch : store_);
    auto graph = infer(question, folder);
    // At a batch of 1 in full, so that every error is told at load; else only as far as shapes.
    if (!question.trial && question.batch == 1) graph = finish(std::move(graph), question.batch, folder);
    if (!graph) return std::unexpected(graph.error());
    std::vector<TensorSpec> out;
    const std::vector<std::uint64_t> bounded = find_bounded(*graph);
    for (const ValueId id : graph->outputs) {
      const Value& value = graph->value(id);
      out.push_back({value.name, value.type.type, marked_shape(value.type, bounded[id.index()])});
    }
    return out;
  }

  OnnxGraph source_;
  mutable ConstantStore store_;  // has a lock of its own
};

}  // namespace

Result<std::shared_ptr<const Model>> import_onnx(const std::filesystem::path& file,
                                                 const ImportOptions& options) {
  auto source = read_onnx(file);
  if (!source) return std::unexpected(source.error());
  auto model = make_model(*std::move(source), options);
  if (!model) return in_context("model file '" + file.string() + "'", model.error());
  return model;
}

Result<std::shared_ptr<const Model>> make_model(OnnxGraph source, const ImportOptions& options) {
  try {
    auto model = std::make_shared<OnnxModel>(std::move(source));
    if (auto ok = model->prepare(options); !ok) return std::unexpected(ok.error());
    return model;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, "not enough memory to prepare it");
  }
}

}  // namespace carillon::graph
