#include "carillon/controller/models/warm_up.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/controller/models/loaded_aside.h"
#include "carillon/engine/host/memory.h"
#include "carillon/engine/zero_operands.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/repository/sequence_batching.h"
#include "carillon/repository/warmup.h"

namespace carillon::controller {
namespace {

using graph::DataType;
using graph::Shape;
using graph::TensorSpec;
using repository::ModelConfig;
using repository::Warmup;

// One element, as it would be written in a scalar of that type.
void write_number(DataType type, float value, std::byte* to) {
  if (type == DataType::boolean) {
    *to = static_cast<std::byte>(value != 0);
    return;
  }
  const graph::Tensor number = graph::scalar_of(type, value);
  std::memcpy(to, number.bytes().data(), number.bytes().size());
}

bool is_whole(DataType type) {
  return type != DataType::f32 && type != DataType::f16 && type != DataType::bf16 && type != DataType::f64;
}

// The data of one row.
Result<std::vector<std::byte>> row_of(const Warmup::Input& input, Random& random) {
  const std::size_t element = graph::size_of(input.type);
  const auto count = static_cast<std::size_t>(graph::TensorType{input.type, input.dims}.elements());
  if (input.data == Warmup::Input::Data::file) {
    if (input.bytes.size() == count * element) return input.bytes;
    return invalid("file '" + input.file + "' has " + std::to_string(input.bytes.size()) + " bytes; dims " +
                   graph::to_text(input.dims) + " of " + std::string(graph::kserve_name(input.type)) +
                   " take " + std::to_string(count * element));
  }
  std::vector<std::byte> out(count * element);
  if (input.data == Warmup::Input::Data::random)
    for (std::size_t i = 0; i < count; ++i)
      write_number(input.type,
                   is_whole(input.type) ? static_cast<float>(random.below(2))
                                        : static_cast<float>(random.below(1 << 16)) / (1 << 16),
                   out.data() + i * element);
  return out;
}

// What of a model's input shape is open, as a request fixes it.
struct Fixed {
  std::int64_t length = 0;
  graph::Extents extents;
};

Result<> fix(const TensorSpec& spec, const Warmup::Input& given, const ModelConfig& config, Fixed& fixed) {
  const bool batched =
      config.max_batch_size > 0 && !spec.shape.empty() && spec.shape[0] == graph::batch_dimension;
  const std::size_t skip = batched || config.whole_rows > 0 ? 1 : 0;
  bool fits = given.type == spec.type && given.dims.size() + skip == spec.shape.size();
  for (std::size_t d = 0; fits && d < given.dims.size(); ++d) {
    const std::int64_t extent = spec.shape[d + skip];
    std::int64_t* known = nullptr;
    if (graph::is_free(extent))
      known = &fixed.extents[graph::free_number(extent)];
    else if (extent == graph::length_dimension)
      known = &fixed.length;
    if (known == nullptr)
      fits = extent == given.dims[d];
    else if (*known == 0)
      *known = given.dims[d];
    else
      fits = *known == given.dims[d];
  }
  if (fits) return {};
  return invalid("it is " + std::string(graph::kserve_name(given.type)) + graph::to_text(given.dims) +
                 (skip > 0 ? ", without the batch" : "") + "; the model's is " +
                 std::string(graph::kserve_name(spec.type)) + graph::to_text(spec.open_shape()) +
                 (spec.varies() || std::ranges::any_of(spec.shape, graph::is_free)
                      ? ", with the same extents in all inputs that share one"
                      : ""));
}

// Runs a model for one request after the other.
class WarmUp {
 public:
  WarmUp(const ModelConfig& config, engine::Engine& engine, const engine::CompiledModel& compiled)
      : config_(config),
        engine_(engine),
        compiled_(compiled),
        specs_(config.sequence != nullptr ? config.sequence->inputs : config.inputs) {}

  Result<> prepare(int threads) {
    auto loaded = load_aside(engine_, compiled_, threads);
    if (!loaded) return std::unexpected(loaded.error());
    loaded_.emplace(std::move(*loaded));
    return {};
  }

  Result<> run(const Warmup& warmup) {
    Fixed fixed;
    fixed.extents.resize(compiled_.reference().size());
    if (config_.whole_rows > 0) {
      if (warmup.rows > config_.whole_rows)
        return invalid("batch_size is " + std::to_string(warmup.rows) + "; the model's max_batch_size is " +
                       std::to_string(config_.whole_rows));
      fixed.extents[graph::free_number(specs_.front().shape.front())] = warmup.rows;
    }
    Random random(1);
    std::vector<std::vector<std::byte>> rows(specs_.size());
    for (const Warmup::Input& input : warmup.inputs) {
      const auto at = std::ranges::find(specs_, input.name, &TensorSpec::name);
      if (at == specs_.end()) return invalid("the model has no input '" + input.name + "'");
      if (auto ok = fix(*at, input, config_, fixed); !ok)
        return in_context("input '" + input.name + "'", ok.error());
    }
    // What the server gives itself may be left out: zeros.
    for (const TensorSpec& input : config_.inputs)
      if (std::ranges::find(warmup.inputs, input.name, &Warmup::Input::name) == warmup.inputs.end() &&
          input.name != config_.mask)
        return invalid("input '" + input.name + "' is missing");
    std::vector<std::unique_ptr<const engine::Plan>> made;
    const auto plan = plan_for(config_.whole_rows > 0 ? 1 : warmup.rows, fixed, made);
    if (!plan) return std::unexpected(plan.error());
    if (auto room = has_room(**plan); !room) return room;
    for (const Warmup::Input& input : warmup.inputs) {
      const auto at = std::ranges::find(specs_, input.name, &TensorSpec::name);
      auto row = row_of(input, random);
      if (!row) return in_context("input '" + input.name + "'", row.error());
      rows[static_cast<std::size_t>(at - specs_.begin())] = std::move(*row);
    }
    return run(**plan, warmup, rows);
  }

 private:
  // For what a run takes, and the data of one row beside it: a config may say any extents.
  static Result<> has_room(const engine::Plan& plan) {
    std::uint64_t takes = plan.workspace().count;
    for (const TensorSpec& spec : plan.inputs()) takes += 2 * graph::memory_of(spec.type, spec.shape).count;
    for (const TensorSpec& spec : plan.outputs()) takes += graph::memory_of(spec.type, spec.shape).count;
    const auto left = engine::available_memory();
    if (!left || takes <= left->count) return {};
    return fail(ErrorCode::resource_exhausted, "a request of that size takes " + to_text(Bytes{takes}) +
                                                   ", and the machine has " + to_text(*left) + " left");
  }

  Result<const engine::Plan*> plan_for(int rows, const Fixed& fixed,
                                       std::vector<std::unique_ptr<const engine::Plan>>& made) {
    const auto sizes = compiled_.batch_sizes();
    const auto size = std::ranges::lower_bound(sizes, rows);
    if (size == sizes.end())
      return invalid("batch_size is " + std::to_string(rows) + "; the model's largest batch is " +
                     std::to_string(sizes.back()));
    if (compiled_.open() && !std::ranges::equal(fixed.extents, compiled_.reference())) {
      auto plans = compiled_.make_plans(fixed.extents, {&*size, 1}, nullptr);
      if (!plans) return std::unexpected(plans.error());
      made = std::move(*plans);
      return made.front().get();
    }
    const engine::Plan* const plan = compiled_.plan(*size, compiled_.open() ? 0 : fixed.length);
    if (plan == nullptr)
      return invalid("there is no plan for the length " + std::to_string(fixed.length) +
                     "; it must be one of parameter lengths");
    return plan;
  }

  Result<> run(const engine::Plan& plan, const Warmup& warmup,
               const std::vector<std::vector<std::byte>>& rows) {
    // On a device of its own memory it is kernels and graphs that are to be there, whatever they compute.
    if (const auto own = engine_.measure(compiled_, plan, 1))
      return *own ? Result<>{} : std::unexpected(own->error());
    std::vector<graph::Tensor> inputs, outputs;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < plan.inputs().size(); ++i) {
      const TensorSpec& spec = plan.inputs()[i];
      inputs.push_back(engine::zero_block(graph::memory_of(spec.type, spec.shape)));
      const std::size_t bytes = rows[i].size();
      if (bytes > 0) {
        const auto fitting = static_cast<int>(inputs.back().bytes().size() / bytes);
        for (int row = 0; row < std::min(warmup.rows, fitting); ++row)
          std::memcpy(inputs.back().bytes().data() + static_cast<std::size_t>(row) * bytes, rows[i].data(),
                      bytes);
      }
    }
    for (const graph::Tensor& tensor : inputs) from.push_back(tensor.bytes().data());
    for (const TensorSpec& spec : plan.outputs())
      outputs.push_back(engine::zero_block(graph::memory_of(spec.type, spec.shape)));
    for (graph::Tensor& tensor : outputs) to.push_back(tensor.bytes().data());
    graph::Tensor workspace = engine::zero_block(plan.workspace());
    const auto state = plan.make_state(loaded_->team.get());
    graph::Faults faults;
    for (int i = 0; i < warmup.runs; ++i) {
      const engine::Binding binding{.inputs = from,
                                    .outputs = to,
                                    .workspace = workspace.bytes().data(),
                                    .weights = loaded_->weights.bytes().data(),
                                    .faults = &faults,
                                    .state = state.get()};
      if (auto ran = plan.run({0, plan.kernels()}, binding, {}); !ran) return ran;
      for (const graph::Fault& fault : faults.all())
        if (fault.row < warmup.rows) return std::unexpected(fault.error);  // others are filled up with zeros
      faults.clear();
    }
    return {};
  }

  const ModelConfig& config_;
  engine::Engine& engine_;
  const engine::CompiledModel& compiled_;
  const std::vector<TensorSpec>& specs_;  // of the model itself
  std::optional<LoadedAside> loaded_;
};

}  // namespace

Result<> warm_up(const ModelConfig& config, engine::Engine& engine, const engine::CompiledModel& compiled,
                 int threads) {
  if (config.warmup == nullptr) return {};
  WarmUp model(config, engine, compiled);
  if (auto ready = model.prepare(threads); !ready) return in_context("model_warmup", ready.error());
  for (const Warmup& each : *config.warmup)
    if (auto ran = model.run(each); !ran) return in_context("model_warmup '" + each.name + "'", ran.error());
  return {};
}

}  // namespace carillon::controller
