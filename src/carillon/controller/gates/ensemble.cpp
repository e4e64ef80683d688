#include "carillon/controller/gates/ensemble.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

using graph::Shape;
using graph::TensorSpec;
using repository::EnsembleStep;
using repository::ModelConfig;

std::string step_label(std::size_t number, const EnsembleStep& step) {
  return "step '" + step.model + "' (" + std::to_string(number + 1) + " in the order in which they run)";
}

std::string spec_text(graph::DataType type, const Shape& shape) {
  return std::string(graph::kserve_name(type)) + graph::to_text(shape);
}

std::string names_in(const std::vector<TensorSpec>& specs) {
  std::string out;
  for (const TensorSpec& spec : specs) out += (out.empty() ? "'" : ", '") + spec.name + "'";
  return out.empty() ? "none" : out;
}

std::optional<std::size_t> index_of(const std::vector<TensorSpec>& specs, const std::string& name) {
  const auto at = std::ranges::find(specs, name, &TensorSpec::name);
  if (at == specs.end()) return std::nullopt;
  return static_cast<std::size_t>(at - specs.begin());
}

// What is known of a tensor so far: -1 where nobody has said an extent.
struct Known {
  graph::DataType type = graph::DataType::f32;
  Shape shape;
  std::string said_by;  // whoever spoke first
};

// Gathers the tensors, each of which several may speak of.
class Maker {
 public:
  Maker(const ModelConfig& config, Ensemble& out) : config_(config), out_(out) {}

  // `spec` with -1 for all that is open.
  Result<std::size_t> meet(const std::string& name, const TensorSpec& spec, const std::string& who) {
    Shape shape = spec.open_shape();
    const auto [at, fresh] = by_name_.emplace(name, out_.tensors.size());
    if (fresh) {
      out_.tensors.push_back({.name = name});
      known_.push_back({spec.type, std::move(shape), who});
      return at->second;
    }
    Known& known = known_[at->second];
    bool fits = known.type == spec.type && known.shape.size() == shape.size();
    for (std::size_t d = 0; fits && d < shape.size(); ++d)
      fits = known.shape[d] == -1 || shape[d] == -1 || known.shape[d] == shape[d];
    if (!fits)
      return invalid("tensor '" + name + "' is " + spec_text(spec.type, shape) + " as " + who + ", but " +
                     spec_text(known.type, known.shape) + " as " + known.said_by +
                     "; type, number of dimensions and fixed extents must be the same");
    for (std::size_t d = 0; d < shape.size(); ++d) known.shape[d] = std::max(known.shape[d], shape[d]);
    return at->second;
  }

  Result<> add_step(std::size_t number, const EnsembleStep& step, std::shared_ptr<const ModelView> view) {
    const ModelConfig& model = view->config;
    const std::string where = step_label(number, step);
    if (auto ok = check_batch(model, where); !ok) return ok;
    if (view->ensemble != nullptr) {
      out_.nested = std::max(out_.nested, view->ensemble->nested + 1);
      out_.steps_in_all += view->ensemble->steps_in_all;
    }
    Ensemble::Step made{.model = step.model,
                        .version = step.version == 0 ? "" : std::to_string(step.version),
                        .view = std::move(view),
                        .inputs = std::vector<std::size_t>(model.inputs.size()),
                        .outputs = std::vector<std::optional<std::size_t>>(model.outputs.size())};
    std::vector<bool> given(model.inputs.size());
    for (const auto& [own, tensor] : step.inputs) {
      const auto index = index_of(model.inputs, own);
      if (!index)
        return invalid(where + ": input_map names input '" + own +
                       "', which the model does not have; it has " + names_in(model.inputs));
      given[*index] = true;
      const auto met =
          meet(tensor, model.inputs[*index], "input '" + own + "' of model '" + step.model + "'");
      if (!met) return in_context(where, met.error());
      made.inputs[*index] = *met;
    }
    for (std::size_t i = 0; i < given.size(); ++i)
      if (!given[i])
        return invalid(where + ": input_map leaves out input '" + model.inputs[i].name +
                       "', which the model needs; it has " + names_in(model.inputs));
    for (const auto& [own, tensor] : step.outputs) {
      const auto index = index_of(model.outputs, own);
      if (!index)
        return invalid(where + ": output_map names output '" + own +
                       "', which the model does not have; it has " + names_in(model.outputs));
      const auto met =
          meet(tensor, model.outputs[*index], "output '" + own + "' of model '" + step.model + "'");
      if (!met) return in_context(where, met.error());
      made.outputs[*index] = *met;
      take_labels(model, own, tensor);
    }
    out_.steps.push_back(std::move(made));
    return {};
  }

  // What batches and what does not.
  Result<> check_rows(std::size_t number, const EnsembleStep& step) const {
    const Ensemble::Step& made = out_.steps[number];
    const ModelConfig& model = made.view->config;
    const std::string where = step_label(number, step);
    for (std::size_t i = 0; i < made.inputs.size(); ++i) {
      const TensorSpec& spec = model.inputs[i];
      if (spec.shape.empty()) continue;
      if (config_.max_batch_size > 0 && model.max_batch_size == 0 && spec.shape.front() >= 0)
        return invalid(where + ": the model does not batch, its input '" + spec.name + "' is always " +
                       spec_text(spec.type, spec.open_shape()) +
                       "; set the ensemble's max_batch_size to 0 and give whole shapes in dims");
      const std::int64_t rows = known_[made.inputs[i]].shape.front();
      if (model.by_rows() && rows > most_rows(model))
        return invalid(where + ": tensor '" + out_.tensors[made.inputs[i]].name + "' is always " +
                       std::to_string(rows) + " rows, and the model takes " +
                       std::to_string(most_rows(model)) + " at most (its max_batch_size)");
    }
    for (std::size_t i = 0; i < made.outputs.size(); ++i)
      if (const TensorSpec& spec = model.outputs[i]; made.outputs[i] && config_.max_batch_size > 0 &&
                                                     model.max_batch_size == 0 && !spec.shape.empty() &&
                                                     spec.shape.front() >= 0)
        return invalid(where + ": the model does not batch, its output '" + spec.name + "' is always " +
                       spec_text(spec.type, spec.open_shape()) +
                       "; set the ensemble's max_batch_size to 0 and give whole shapes in dims");
    return {};
  }

  // The config as clients see it, with the extents that are known now.
  Result<> complete() {
    std::size_t free = 0;
    for (TensorSpec& input : out_.config.inputs) {
      const Shape& known = known_[by_name_.at(input.name)].shape;
      for (std::size_t d = batches() ? 1 : 0; d < input.shape.size(); ++d)
        input.shape[d] = known[d] >= 0 ? known[d] : graph::free_dimension(free++);
    }
    if (free > graph::most_free_dimensions)
      return invalid("the inputs have " + std::to_string(free) + " dimensions that nothing fixes; at most " +
                     std::to_string(graph::most_free_dimensions));
    for (TensorSpec& output : out_.config.outputs) {
      const Shape& known = known_[by_name_.at(output.name)].shape;
      for (std::size_t d = batches() ? 1 : 0; d < output.shape.size(); ++d)
        output.shape[d] = known[d] >= 0 ? known[d] : graph::computed_dimension;
    }
    if (!labels_.empty()) out_.config.labels = std::make_shared<const repository::Labels>(std::move(labels_));
    return {};
  }

  void order_steps() {
    std::vector<std::optional<std::size_t>> maker(out_.tensors.size());
    for (std::size_t i = 0; i < out_.steps.size(); ++i) {
      Ensemble::Step& step = out_.steps[i];
      for (const std::size_t tensor : step.inputs)
        if (maker[tensor]) step.from |= std::uint64_t{1} << *maker[tensor];
      for (const auto& tensor : step.outputs)
        if (tensor) maker[*tensor] = i;
    }
    // From the end: who reads from a step comes after it.
    for (std::size_t i = out_.steps.size(); i-- > 0;)
      for (std::size_t later = i + 1; later < out_.steps.size(); ++later)
        if ((out_.steps[later].from >> i & 1U) != 0)
          out_.steps[i].behind |= (std::uint64_t{1} << later) | out_.steps[later].behind;
  }

 private:
  bool batches() const { return config_.max_batch_size > 0; }
  // Of one request, of a model that counts them.
  static int most_rows(const ModelConfig& model) { return std::max(model.max_batch_size, model.whole_rows); }

  Result<> check_batch(const ModelConfig& model, const std::string& where) const {
    if (!batches() || !model.by_rows() || most_rows(model) >= config_.max_batch_size) return {};
    return invalid(where + ": the ensemble's max_batch_size is " + std::to_string(config_.max_batch_size) +
                   ", and the model's is " + std::to_string(most_rows(model)) +
                   "; set the ensemble's to that, or less");
  }

  // An output's classes are called as the model calls them, where the ensemble does not say it.
  void take_labels(const ModelConfig& model, const std::string& own, const std::string& tensor) {
    if (config_.labels != nullptr) labels_.insert(config_.labels->begin(), config_.labels->end());
    if (model.labels == nullptr || !index_of(config_.outputs, tensor)) return;
    if (const auto at = model.labels->find(own); at != model.labels->end())
      labels_.emplace(tensor, at->second);
  }

  const ModelConfig& config_;
  Ensemble& out_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<Known> known_;  // by tensor
  repository::Labels labels_;
};

}  // namespace

Result<std::shared_ptr<const Ensemble>> make_ensemble(const ModelView& view, const FindModel& find) {
  const ModelConfig& config = view.config;
  CARILLON_ASSERT(!config.steps.empty() && config.steps.size() <= repository::most_steps);
  auto out = std::make_shared<Ensemble>();
  out->version = view.version;
  out->config = config;
  out->steps_in_all = config.steps.size();
  Maker maker(config, *out);
  const auto meet_all = [&](const std::vector<TensorSpec>& specs, const char* what,
                            std::vector<std::size_t>& tensors) -> Result<> {
    for (const TensorSpec& spec : specs) {
      const auto met = maker.meet(spec.name, spec, std::string(what) + " of the ensemble");
      if (!met) return std::unexpected(met.error());
      tensors.push_back(*met);
    }
    return {};
  };
  if (auto ok = meet_all(config.inputs, "input", out->inputs); !ok) return std::unexpected(ok.error());
  if (auto ok = meet_all(config.outputs, "output", out->outputs); !ok) return std::unexpected(ok.error());
  for (std::size_t i = 0; i < config.steps.size(); ++i) {
    const EnsembleStep& step = config.steps[i];
    auto model = find(step.model, step.version);
    if (!model) return in_context(step_label(i, step), model.error());
    if (!(*model)->ready)
      return fail(ErrorCode::unavailable,
                  step_label(i, step) + ": the model is not ready: " + (*model)->reason);
    if (auto ok = maker.add_step(i, step, std::move(*model)); !ok) return std::unexpected(ok.error());
  }
  for (std::size_t i = 0; i < config.steps.size(); ++i)
    if (auto ok = maker.check_rows(i, config.steps[i]); !ok) return std::unexpected(ok.error());
  if (out->nested > most_nested)
    return invalid("it nests ensembles " + std::to_string(out->nested) + " deep; at most " +
                   std::to_string(most_nested));
  if (out->steps_in_all > most_steps_in_all)
    return invalid("it has " + std::to_string(out->steps_in_all) +
                   " steps with those of the ensembles in it; "
                   "at most " +
                   std::to_string(most_steps_in_all));
  if (auto ok = maker.complete(); !ok) return std::unexpected(ok.error());
  maker.order_steps();
  return out;
}

std::uint64_t steps_for(const Ensemble& ensemble, const std::vector<bool>& outputs_wanted) {
  std::vector<bool> wanted(ensemble.tensors.size());
  for (std::size_t i = 0; i < ensemble.outputs.size(); ++i)
    if (outputs_wanted.empty() || outputs_wanted[i]) wanted[ensemble.outputs[i]] = true;
  std::uint64_t steps = 0;
  // From the end: each stands after those that it reads from.
  for (std::size_t i = ensemble.steps.size(); i-- > 0;) {
    const Ensemble::Step& step = ensemble.steps[i];
    if (!std::ranges::any_of(step.outputs, [&](const auto& tensor) { return tensor && wanted[*tensor]; }))
      continue;
    steps |= std::uint64_t{1} << i;
    for (const std::size_t tensor : step.inputs) wanted[tensor] = true;
  }
  return steps;
}

std::vector<bool> outputs_of_step(const Ensemble& ensemble, std::size_t step, std::uint64_t steps,
                                  const std::vector<bool>& outputs_wanted) {
  const auto wants = [&](std::size_t tensor) {
    for (std::size_t i = 0; i < ensemble.outputs.size(); ++i)
      if (ensemble.outputs[i] == tensor && (outputs_wanted.empty() || outputs_wanted[i])) return true;
    for (std::uint64_t left = steps; left != 0; left &= left - 1) {
      const Ensemble::Step& other = ensemble.steps[static_cast<std::size_t>(std::countr_zero(left))];
      if (std::ranges::find(other.inputs, tensor) != other.inputs.end()) return true;
    }
    return false;
  };
  std::vector<bool> out;
  for (const auto& tensor : ensemble.steps[step].outputs) out.push_back(tensor && wants(*tensor));
  return out;
}

EnsembleTimes times_of(const Ensemble& ensemble, std::span<const Duration> takes, int lanes) {
  CARILLON_ASSERT(takes.size() == ensemble.steps.size() && lanes >= 1);
  EnsembleTimes out{.after = std::vector<Duration>(takes.size())};
  std::vector<Duration> way(takes.size());  // the longest from a step's start to the end
  Duration longest{0}, all{0};
  for (std::size_t i = takes.size(); i-- > 0;) {
    Duration then{0}, work{0};
    for (std::uint64_t behind = ensemble.steps[i].behind; behind != 0; behind &= behind - 1) {
      const auto later = static_cast<std::size_t>(std::countr_zero(behind));
      then = std::max(then, way[later]);
      work += takes[later];
    }
    out.after[i] = std::max(then, work / lanes);
    way[i] = takes[i] + then;
    longest = std::max(longest, way[i]);
    all += takes[i];
  }
  out.whole = std::max(longest, all / lanes);
  return out;
}

}  // namespace carillon::controller
