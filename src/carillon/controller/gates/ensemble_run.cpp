#include "carillon/controller/gates/ensemble_run.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/output_shape.h"
#include "carillon/graph/bounded.h"

namespace carillon::controller {
namespace {

using graph::Shape;
using graph::TensorSpec;
using repository::ModelConfig;

// An extent that no input has said yet.
constexpr std::int64_t not_given = -1;

constexpr std::uint64_t bit_of(std::size_t step) {
  return std::uint64_t{1} << step;
}

// Extents of an input of `call` by the config's shape, with `rows` first where it batches.
Shape shape_of(const ModelConfig& config, const TensorSpec& spec, const InferCall& call) {
  Shape shape = spec.shape;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (graph::is_free(shape[d]))
      shape[d] = call.extents[graph::free_number(shape[d])];
    else if (shape[d] == graph::length_dimension)
      shape[d] = call.length;
  if (config.max_batch_size > 0 && !shape.empty()) shape.front() = call.rows;
  return shape;
}

bool takes_length(const ModelConfig& config, std::int64_t length) {
  return config.padding ? length >= 1 && length <= config.lengths.back()
                        : std::ranges::binary_search(config.lengths, length);
}

// Whether `given` fits what is free in an input, and what follows for the call. What earlier inputs of the
// call said stands.
bool fit(const ModelConfig& config, const TensorSpec& spec, const Shape& given, InferCall& call, bool& rows) {
  if (given.size() != spec.shape.size()) return false;
  for (std::size_t d = 0; d < given.size(); ++d) {
    const std::int64_t extent = spec.shape[d];
    if (d == 0 && config.max_batch_size > 0 && extent == graph::batch_dimension) {
      if (given[0] < 1 || given[0] > config.max_batch_size) return false;
      if (std::exchange(rows, true) && call.rows != given[0]) return false;
      call.rows = static_cast<int>(given[0]);
    } else if (graph::is_free(extent)) {
      if (d == 0 && config.whole_rows > 0 && (given[0] < 1 || given[0] > config.whole_rows)) return false;
      std::int64_t& known = call.extents[graph::free_number(extent)];
      if (given[d] < 0 || (known != not_given && known != given[d])) return false;
      known = given[d];
    } else if (extent == graph::length_dimension) {
      if (!takes_length(config, given[d]) || (call.length != 0 && call.length != given[d])) return false;
      call.length = given[d];
    } else if (extent != given[d]) {
      return false;
    }
  }
  return true;
}

}  // namespace

EnsembleRun::EnsembleRun(std::shared_ptr<const Ensemble> ensemble, InferCall& call)
    : ensemble_(std::move(ensemble)),
      rows_(call.rows),
      outputs_wanted_(call.outputs_wanted),
      needed_(steps_for(*ensemble_, outputs_wanted_)),
      tensors_(ensemble_->tensors.size()) {
  for (std::size_t i = 0; i < ensemble_->outputs.size(); ++i)
    if (call.wants(i)) ++tensors_[ensemble_->outputs[i]].wanted;
  for (std::size_t i = 0; i < ensemble_->steps.size(); ++i)
    if ((needed_ & bit_of(i)) != 0)
      for (const std::size_t tensor : ensemble_->steps[i].inputs) ++tensors_[tensor].wanted;
  const ModelConfig& config = ensemble_->config;
  CARILLON_ASSERT(call.inputs.size() == config.inputs.size());
  for (std::size_t i = 0; i < config.inputs.size(); ++i) {
    Tensor& tensor = tensors_[ensemble_->inputs[i]];
    tensor.shape = shape_of(config, config.inputs[i], call);
    tensor.bytes = std::move(call.inputs[i]);
  }
}

std::vector<std::size_t> EnsembleRun::take_ready() {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < ensemble_->steps.size(); ++i) {
    if ((needed_ & bit_of(i)) == 0 || (taken_ & bit_of(i)) != 0 || (ensemble_->steps[i].from & ~done_) != 0)
      continue;
    taken_ |= bit_of(i);
    out.push_back(i);
  }
  return out;
}

std::size_t EnsembleRun::bytes() const {
  std::size_t sum = 0;
  for (const Tensor& tensor : tensors_) sum += tensor.bytes.size();
  return sum;
}

std::size_t EnsembleRun::copied_for(std::size_t step) const {
  std::vector<std::size_t> wanted;
  for (const Tensor& tensor : tensors_) wanted.push_back(tensor.wanted);
  std::size_t sum = 0;
  for (const std::size_t tensor : ensemble_->steps[step].inputs)
    if (--wanted[tensor] > 0) sum += tensors_[tensor].bytes.size();
  return sum;
}

std::vector<std::byte> EnsembleRun::take(Tensor& tensor) {
  CARILLON_ASSERT(tensor.wanted > 0);
  if (--tensor.wanted > 0) return tensor.bytes;
  return std::move(tensor.bytes);
}

Result<std::unique_ptr<InferCall>> EnsembleRun::call_of(std::size_t step, const ModelConfig& model) {
  const Ensemble::Step& of = ensemble_->steps[step];
  auto call = std::make_unique<InferCall>();
  for (const TensorSpec& input : model.inputs)
    for (const std::int64_t extent : input.shape)
      if (graph::is_free(extent))
        call->extents.resize(std::max(call->extents.size(), graph::free_number(extent) + 1), not_given);
  bool rows = false;
  for (std::size_t i = 0; i < of.inputs.size(); ++i) {
    Tensor& tensor = tensors_[of.inputs[i]];
    const TensorSpec& spec = model.inputs[i];
    if (!fit(model, spec, tensor.shape, *call, rows))
      return invalid(
          "tensor '" + ensemble_->tensors[of.inputs[i]].name + "' is " + graph::to_text(tensor.shape) +
          ", which input '" + spec.name + "' of model '" + model.name + "', " +
          graph::to_text(spec.open_shape()) +
          (model.by_rows()
               ? " with at most " + std::to_string(std::max(model.max_batch_size, model.whole_rows)) + " rows"
               : "") +
          ", does not take beside its other inputs");
    call->inputs.push_back(take(tensor));
  }
  call->outputs_wanted = outputs_of_step(*ensemble_, step, needed_, outputs_wanted_);
  return call;
}

Result<> EnsembleRun::done(std::size_t step, const ModelConfig& model, InferCall& answered) {
  const Ensemble::Step& of = ensemble_->steps[step];
  CARILLON_ASSERT((taken_ & bit_of(step)) != 0 && (done_ & bit_of(step)) == 0);
  if (answered.outputs.size() != of.outputs.size())
    return fail(ErrorCode::internal, "model '" + model.name + "' gave " +
                                         std::to_string(answered.outputs.size()) + " outputs; it has " +
                                         std::to_string(of.outputs.size()));
  for (std::size_t i = 0; i < of.outputs.size(); ++i) {
    if (!of.outputs[i]) continue;
    Tensor& tensor = tensors_[*of.outputs[i]];
    if (tensor.wanted == 0) continue;
    auto found = found_shape(model, i, answered);
    if (!found) return in_context("output '" + model.outputs[i].name + "'", found.error());
    tensor.shape = *std::move(found);
    tensor.bytes = std::move(answered.outputs[i]);
    // Behind the elements that data size stand their extents.
    if (graph::has_bounded(promised_shape(model, i, answered)))
      tensor.bytes.resize(graph::TensorType{model.outputs[i].type, tensor.shape}.bytes().count);
  }
  done_ |= bit_of(step);
  return {};
}

Result<> EnsembleRun::finish(InferCall& call) {
  CARILLON_ASSERT(finished());
  auto size = std::make_shared<Size>();
  call.outputs.clear();
  for (std::size_t i = 0; i < ensemble_->outputs.size(); ++i) {
    if (!outputs_wanted_.empty() && !outputs_wanted_[i]) {
      size->outputs.emplace_back();
      call.outputs.emplace_back();
      continue;
    }
    const std::size_t index = ensemble_->outputs[i];
    Tensor& tensor = tensors_[index];
    if (ensemble_->config.max_batch_size > 0 && (tensor.shape.empty() || tensor.shape.front() != rows_))
      return fail(ErrorCode::internal, "output '" + ensemble_->tensors[index].name + "' is " +
                                           graph::to_text(tensor.shape) + ", of a request of " +
                                           std::to_string(rows_) + " rows");
    size->outputs.push_back(tensor.shape);
    call.outputs.push_back(take(tensor));
  }
  call.size = std::move(size);
  return {};
}

}  // namespace carillon::controller
