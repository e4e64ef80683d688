#include "carillon/graph/model.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/free_dimensions.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/passes/passes.h"
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
    if (!is_free(extent)) continue;
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

std::string dimension_text(std::size_t d, const Dimension& dimension) {
  return "dimension " + std::to_string(d) +
         (dimension.symbol.empty() ? "" : " ('" + dimension.symbol.substr(0, 100) + "')");
}

class OnnxModel final : public Model {
 public:
  OnnxModel(OnnxGraph source, bool batched) : source_(std::move(source)), batched_(batched) {
    for (Value& value : source_.graph.values)
      if (value.constant != nullptr) value.constant = store_.intern(std::move(value.constant));
  }

  Result<> prepare(const ImportOptions& options) {
    if (auto ok = find_inputs(options); !ok) return ok;
    return find_outputs();
  }

  const std::string& name() const override { return source_.name; }
  const std::vector<TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return batched_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  std::span<const std::string> free_dimensions() const override { return free_.names(); }
  std::span<const std::int64_t> reference() const override { return reference_; }

  Result<Graph> specialize(std::int64_t batch, std::int64_t length) const override {
    Folder folder = make_folder(store_);
    if (free_.any()) return finish(infer_at(batch, reference_, folder), batch, folder);
    return finish(infer(batch, length, folder), batch, folder);
  }
  Result<Graph> specialize_at(std::int64_t batch, std::span<const std::int64_t> extents) const override {
    if (!free_.any()) return Model::specialize_at(batch, extents);
    ConstantStore scratch(&store_);
    Folder folder = make_folder(scratch);
    return finish(infer_at(batch, extents, folder), batch, folder);
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

  Result<> check_batch(std::int64_t batch) const {
    if (batch < 1) return invalid("batch " + std::to_string(batch) + " must be at least 1");
    if (!batched_ && batch != 1)
      return invalid("batch " + std::to_string(batch) + ": the model has no batch dimension");
    if (!fixed_at_one_.empty() && batch != 1)
      return invalid("batch " + std::to_string(batch) + ": dimension 0 of input '" + fixed_at_one_ +
                     "' is fixed at 1 in the file; export the model with a dynamic batch dimension");
    return {};
  }

  Result<Graph> infer(std::int64_t batch, std::int64_t length, Folder& folder) const {
    if (!lengths_.empty() && length < 1)
      return invalid("length " + std::to_string(length) + " must be at least 1");
    if (auto ok = check_batch(batch); !ok) return std::unexpected(ok.error());
    return infer_shapes([&](const TensorSpec& spec) { return spec.shape_at(batch, length); }, batch, folder);
  }

  Result<Graph> infer_at(std::int64_t batch, std::span<const std::int64_t> extents, Folder& folder) const {
    if (auto ok = check_batch(batch); !ok) return std::unexpected(ok.error());
    if (auto ok = free_.check(extents); !ok) return std::unexpected(ok.error());
    return infer_shapes([&](const TensorSpec& spec) { return spec.shape_at(batch, extents); }, batch, folder);
  }

  template <typename ShapeOf>
  Result<Graph> infer_shapes(const ShapeOf& shape_of, std::int64_t batch, Folder& folder) const {
    std::vector<Shape> shapes;
    for (const TensorSpec& spec : inputs_) shapes.push_back(shape_of(spec));
    try {
      return infer_types(source_, shapes, folder);
    } catch (const std::bad_alloc&) {
      return no_memory(batch);
    }
  }

  Result<> find_inputs(const ImportOptions& options) {
    for (const auto& [name, shape] : options.input_shapes) {
      const bool known = std::any_of(source_.inputs.begin(), source_.inputs.end(), [&](const auto& input) {
        return source_.graph.value(input.id).name == name;
      });
      if (!known) return invalid("the model has no input '" + name + "'");
    }
    std::map<std::string, std::int64_t, std::less<>> symbols;
    for (OnnxGraph::Input& input : source_.inputs)
      if (auto ok = apply_option(options, input, symbols); !ok) return ok;
    lengths_ = options.lengths;
    for (const OnnxGraph::Input& input : source_.inputs)
      if (auto ok = add_input(input, symbols, options.open && lengths_.empty()); !ok) return ok;
    if (!lengths_.empty() && std::ranges::none_of(inputs_, &TensorSpec::varies))
      return invalid("lengths are given, but every dimension of the inputs is fixed");
    return {};
  }

  // What the options fix, and which symbols that gives an extent.
  Result<> apply_option(const ImportOptions& options, OnnxGraph::Input& input,
                        std::map<std::string, std::int64_t, std::less<>>& symbols) const {
    const std::string& name = source_.graph.value(input.id).name;
    const std::string where = "input '" + name + "'";
    const auto option = std::find_if(options.input_shapes.begin(), options.input_shapes.end(),
                                     [&](const auto& entry) { return entry.first == name; });
    if (option == options.input_shapes.end()) {
      if (input.ranked) return {};
      return invalid(where + " has no shape in the file; state its dims in the model's config");
    }
    const Shape& wanted = option->second;
    if (!input.ranked) input.dimensions.resize(wanted.size());
    input.ranked = true;
    if (wanted.size() != input.dimensions.size())
      return invalid(where + " has " + std::to_string(input.dimensions.size()) +
                     " dimensions in the file, but " + to_text(wanted) + " was asked for");
    for (std::size_t d = 0; d < wanted.size(); ++d) {
      Dimension& dimension = input.dimensions[d];
      if (wanted[d] == -1) continue;
      if (wanted[d] < 1)
        return invalid(where + ": extent " + std::to_string(wanted[d]) + " must be at least 1");
      if (dimension.extent >= 0 && dimension.extent != wanted[d])
        return invalid(where + ": " + dimension_text(d, dimension) + " is " +
                       std::to_string(dimension.extent) + " in the file, but " + std::to_string(wanted[d]) +
                       " was asked for");
      dimension.extent = wanted[d];
      if (dimension.symbol.empty()) continue;
      const auto [entry, fresh] = symbols.try_emplace(dimension.symbol, wanted[d]);
      if (!fresh && entry->second != wanted[d])
        return invalid(where + ": " + dimension_text(d, dimension) + " is asked to be " +
                       std::to_string(wanted[d]) + ", but elsewhere " + std::to_string(entry->second));
    }
    return {};
  }

  Result<> add_input(const OnnxGraph::Input& input,
                     const std::map<std::string, std::int64_t, std::less<>>& symbols, bool open) {
    TensorSpec spec{.name = source_.graph.value(input.id).name, .type = input.type};
    const std::string where = "input '" + spec.name + "'";
    if (batched_ && input.dimensions.empty())
      return invalid(where + " is a scalar and cannot have a batch dimension; set max_batch_size to 0");
    for (std::size_t d = 0; d < input.dimensions.size(); ++d) {
      const Dimension& dimension = input.dimensions[d];
      if (batched_ && d == 0) {
        if (dimension.extent > 1)
          return invalid(where + ": dimension 0 is fixed at " + std::to_string(dimension.extent) +
                         ", so it is no batch dimension; set max_batch_size to 0");
        if (dimension.extent == 1) fixed_at_one_ = spec.name;
        spec.shape.push_back(batch_dimension);
        continue;
      }
      std::int64_t extent = dimension.extent;
      if (const auto found = symbols.find(dimension.symbol); extent < 0 && found != symbols.end())
        extent = found->second;
      if (extent < 0 && open) {
        const auto number = free_.add(dimension.symbol, where + " dimension " + std::to_string(d), d,
                                      input.dimensions.size());
        if (!number) return std::unexpected(number.error());
        spec.shape.push_back(free_dimension(*number));
        continue;
      }
      if (extent < 0 && lengths_.empty())
        return invalid(
            where + ": " + dimension_text(d, dimension) +
            " has no fixed extent; state it in the dims of the model's config, or give the extents "
            "that it may take in the config's parameter lengths");
      if (extent < 0 && spec.varies())
        return fail(ErrorCode::unsupported,
                    where + ": " + dimension_text(d, dimension) +
                        " is the second that varies; fix one of them in the dims of the model's config");
      spec.shape.push_back(extent < 0 ? length_dimension : extent);
    }
    inputs_.push_back(std::move(spec));
    return {};
  }

  Result<> find_outputs() {
    // In full once, so that every error is told at load; at another batch only as far as shapes.
    if (free_.any())
      if (auto ok = find_reference(); !ok) return ok;
    const std::int64_t length = lengths_.empty() ? 0 : lengths_.front();
    auto one = specialize(1, length);
    if (!one && length > 0) return in_context("at length " + std::to_string(length), one.error());
    if (!one) return std::unexpected(one.error());
    for (const ValueId id : one->outputs) {
      const Value& value = one->value(id);
      outputs_.push_back({value.name, value.type.type, value.type.shape});
    }
    if (auto ok = free_.any() ? find_computed_outputs() : find_varying_outputs(length); !ok) return ok;
    if (!batched_) return {};
    std::vector<Shape> other;
    if (fixed_at_one_.empty()) {
      Folder folder = make_folder(store_);
      auto two = free_.any() ? infer_at(2, reference_, folder) : infer(2, length, folder);
      if (!two) return in_context("at batch 2", two.error());
      for (const ValueId id : two->outputs) other.push_back(two->value(id).type.shape);
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Shape& shape = outputs_[i].shape;
      const Shape seen = shape;
      bool follows = !shape.empty() && shape[0] == 1;
      if (follows) shape[0] = batch_dimension;
      if (follows && !other.empty()) {
        // What is computed may be anything.
        Shape two = outputs_[i].shape_at(2, length);
        follows = two.size() == other[i].size();
        for (std::size_t d = 0; follows && d < two.size(); ++d)
          follows = two[d] == computed_dimension || two[d] == other[i][d];
      }
      if (!follows)
        return invalid("output '" + outputs_[i].name + "' has shape " + to_text(seen) + " at batch 1" +
                       (other.empty() ? "" : " and " + to_text(other[i]) + " at batch 2") +
                       ": its dimension 0 (and only that) must be the batch; for a model that does not batch "
                       "set max_batch_size to 0, and state the inputs' dims where the file leaves them open");
    }
    return {};
  }

  // Extents at which the operators fit together, as models commonly have them.
  Result<> find_reference() {
    std::optional<Error> first;
    for (const Extents& extents : free_.guesses()) {
      ConstantStore scratch(&store_);
      Folder folder = make_folder(scratch);
      const auto graph = infer_at(1, extents, folder);
      if (graph) {
        reference_ = extents;
        return {};
      }
      // What no extents would help with.
      if (graph.error().code == ErrorCode::resource_exhausted) return std::unexpected(graph.error());
      if (!first) first = in_context("at " + free_.text(extents), graph.error()).error();
    }
    return std::unexpected(*first);
  }

  // Marks the dimensions of outputs that change with the extents; the outputs are those at the reference.
  Result<> find_computed_outputs() {
    bool any = false;
    std::vector<Shape> seen;
    for (const TensorSpec& output : outputs_) seen.push_back(output.shape);
    for (const Extents& extents : free_.others(reference_)) {
      ConstantStore scratch(&store_);
      Folder folder = make_folder(scratch);
      const auto graph = infer_at(1, extents, folder);
      if (!graph) continue;
      any = true;
      for (std::size_t i = 0; i < outputs_.size(); ++i) {
        const Shape& other = graph->value(graph->outputs[i]).type.shape;
        if (other.size() != seen[i].size())
          return fail(ErrorCode::unsupported,
                      "output '" + outputs_[i].name + "' has " + std::to_string(seen[i].size()) +
                          " dimensions at " + free_.text(reference_) + " and " +
                          std::to_string(other.size()) + " at " + free_.text(extents));
        for (std::size_t d = 0; d < other.size(); ++d)
          if (other[d] != seen[i][d]) outputs_[i].shape[d] = computed_dimension;
      }
    }
    // Then nobody knows what changes.
    if (!any)
      for (TensorSpec& output : outputs_)
        for (std::size_t d = batched_ ? 1 : 0; d < output.shape.size(); ++d)
          output.shape[d] = computed_dimension;
    return {};
  }

  // Marks the dimensions of outputs that follow the length; the outputs are those at `length`.
  Result<> find_varying_outputs(std::int64_t length) {
    if (lengths_.empty()) return {};
    const auto at = [&](std::int64_t other) {
      Folder folder = make_folder(store_);
      return infer(1, other, folder);
    };
    std::int64_t another = lengths_.size() > 1 ? lengths_.back() : 2 * length;
    auto graph = at(another);
    if (!graph && lengths_.size() == 1 && length > 1) {
      // Nobody asked for either: the one may be too long, the other no multiple of what the model wants.
      another = length - 1;
      graph = at(another);
      if (!graph) return {};  // then nothing is seen to vary
    }
    if (!graph) return in_context("at length " + std::to_string(another), graph.error());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Shape& shape = outputs_[i].shape;
      const Shape seen = shape;
      const Shape& other = graph->value(graph->outputs[i]).type.shape;
      bool follows = seen.size() == other.size();
      int varying = 0;
      for (std::size_t d = 0; follows && d < seen.size(); ++d) {
        if (seen[d] == other[d]) continue;
        follows = seen[d] == length && other[d] == another && ++varying == 1;
        shape[d] = length_dimension;
      }
      if (!follows)
        return fail(ErrorCode::unsupported,
                    "output '" + outputs_[i].name + "' has shape " + to_text(seen) + " at length " +
                        std::to_string(length) + " and " + to_text(other) + " at length " +
                        std::to_string(another) +
                        ": at most one dimension may vary, and it must be the length");
    }
    return {};
  }

  OnnxGraph source_;
  bool batched_;
  std::vector<std::int64_t> lengths_;
  FreeDimensions free_;
  Extents reference_;
  std::string fixed_at_one_;  // an input
  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
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
    auto model = std::make_shared<OnnxModel>(std::move(source), options.batched);
    if (auto ok = model->prepare(options); !ok) return std::unexpected(ok.error());
    return model;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, "not enough memory to prepare it");
  }
}

}  // namespace carillon::graph
