#include "carillon/graph/model.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/passes/passes.h"
#include "carillon/graph/row_proof.h"
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
  if (has_open_rank(shape)) return {-1};
  Shape out = shape;
  for (std::int64_t& extent : out) extent = std::max<std::int64_t>(extent, -1);
  return out;
}

namespace {

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
    auto found = Signature::find(
        std::move(inputs), options, [&](const Signature::Question& question) { return outputs_at(question); },
        [&](const Signature& signature, std::span<const int> sizes) {
          return why_not_row_by_row(source_, signature, sizes, &store_);
        });
    if (!found) return std::unexpected(found.error());
    set_signature(std::move(*found));
    proves_ = options.wants_proof();
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
    Result<Graph> graph = infer(*question, folder);
    if (auto ok = prove_at(batch, extents, graph, scratch); !ok) return std::unexpected(ok.error());
    return finish(std::move(graph), batch, folder);
  }
  void visit_constants(const std::function<void(const SharedTensor&)>& visit) const override {
    for (const Value& value : source_.graph.values)
      if (value.constant != nullptr) visit(value.constant);
    store_.visit(visit);
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
    return Folder(store, folding_budget(source_.bytes_on_disk));
  }

  Result<Graph> infer(const Signature::Question& question, Folder& folder) const {
    try {
      return infer_types(source_, question.inputs, folder);
    } catch (const std::bad_alloc&) {
      return no_memory(question.batch);
    }
  }

  // That rows are proven apart at these extents, too, where they are at the reference.
  Result<> prove_at(std::int64_t batch, std::span<const std::int64_t> extents, const Result<Graph>& graph,
                    const ConstantStore& store) const {
    if (!proves_ || !signature().batched() || !signature().unproven().empty()) return {};
    return prove_rows_at(source_, signature(), batch, extents, &graph, &store);
  }

  Result<std::vector<TensorSpec>> outputs_at(const Signature::Question& question) const {
    ConstantStore scratch(&store_);
    Folder folder = make_folder(question.trial ? scratch : store_);
    auto graph = infer(question, folder);
    // At a batch of 1 in full, so that every error is told at load; else only as far as shapes.
    if (!question.trial && question.batch == 1) graph = finish(std::move(graph), question.batch, folder);
    if (!graph) return std::unexpected(graph.error());
    std::vector<TensorSpec> out;
    const std::vector<Shape> shapes = marked_shapes(*graph);
    for (const ValueId id : graph->outputs) {
      const Value& value = graph->value(id);
      out.push_back({value.name, value.type.type, shapes[id.index()]});
    }
    return out;
  }

  OnnxGraph source_;
  bool proves_ = false;          // that rows are apart is to be proven
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
