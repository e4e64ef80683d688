#include "carillon/engine/cpu/cpu_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <system_error>

#include <sched.h>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/divider.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/plan_builder.h"
#include "carillon/engine/cpu/team.h"

namespace carillon::engine {

namespace {

using namespace cpu;

using Lower = bool (*)(PlanBuilder&, const graph::Node&);

Lower find_lowering(std::string_view op) {
  struct Row {
    std::string_view op;
    Lower lower;
  };
  static constexpr std::array rows{
      Row{"Conv", lower_convolution},
      Row{"ConvTranspose", lower_convolution},
      Row{"MatMul", lower_matmul},
      Row{"Gemm", lower_gemm},
      Row{"MaxPool", lower_pooling},
      Row{"AveragePool", lower_pooling},
      Row{"GlobalAveragePool", lower_pooling},
      Row{"GlobalMaxPool", lower_pooling},
      Row{"ReduceMean", lower_pooling},
      Row{"Relu", lower_eltwise},
      Row{"LeakyRelu", lower_eltwise},
      Row{"Sigmoid", lower_eltwise},
      Row{"Tanh", lower_eltwise},
      Row{"Elu", lower_eltwise},
      Row{"HardSigmoid", lower_eltwise},
      Row{"HardSwish", lower_eltwise},
      Row{"Gelu", lower_eltwise},
      Row{"Sqrt", lower_eltwise},
      Row{"Abs", lower_eltwise},
      Row{"Neg", lower_eltwise},
      Row{"Clip", lower_eltwise},
      Row{"Add", lower_binary},
      Row{"Sub", lower_binary},
      Row{"Mul", lower_binary},
      Row{"Div", lower_binary},
      Row{"Max", lower_binary},
      Row{"Min", lower_binary},
      Row{"BatchNormalization", lower_normalization},
      Row{"LayerNormalization", lower_normalization},
      Row{"LRN", lower_normalization},
      Row{"Softmax", lower_normalization},
      Row{"LogSoftmax", lower_normalization},
      Row{"LSTM", lower_recurrent},
      Row{"GRU", lower_recurrent},
      Row{"RNN", lower_recurrent},
      Row{"Concat", lower_concat},
      Row{"Merge", lower_merge},
      Row{"Reshape", lower_view},
      Row{"Transpose", lower_view},
  };
  const auto row = std::ranges::find(rows, op, &Row::op);
  return row == rows.end() ? nullptr : row->lower;
}

Result<> lower_node(PlanBuilder& builder, const graph::Node& node) {
  builder.enter(node.guard);
  if (const Lower lower = find_lowering(node.op); lower != nullptr) {
    try {
      if (lower(builder, node)) return {};
    } catch (const dnnl::error&) {
      // oneDNN has no implementation for what the lowering asked: plain code then.
      builder.recover(node.guard);
    }
  }
  return builder.emit_plain(node);
}

class CpuModel final : public CompiledModel {
 public:
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return {block_.bytes().size()}; }
  void write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    const auto from = block_.bytes();
    CARILLON_ASSERT(offset <= from.size() && to.size() <= from.size() - offset);
    if (!to.empty()) std::memcpy(to.data(), from.data() + offset, to.size());
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  bool pads() const override { return pads_; }
  bool time_varies() const override { return time_varies_; }
  const Plan* plan(int batch, std::int64_t length) const override {
    const auto b = std::ranges::lower_bound(batch_sizes_, batch) - batch_sizes_.begin();
    const auto l = std::ranges::lower_bound(lengths_, length) - lengths_.begin();
    const auto i = static_cast<std::size_t>(b), j = static_cast<std::size_t>(l);
    if (i == batch_sizes_.size() || batch_sizes_[i] != batch) return nullptr;
    if (lengths_.empty()) return length == 0 ? plans_[i].get() : nullptr;
    return j < lengths_.size() && lengths_[j] == length ? plans_[i * lengths_.size() + j].get() : nullptr;
  }

 private:
  friend class CpuEngine;
  std::vector<graph::TensorSpec> inputs_, outputs_;
  std::vector<int> batch_sizes_;
  std::vector<std::int64_t> lengths_;
  bool pads_ = false;
  bool time_varies_ = false;
  std::vector<std::unique_ptr<CpuPlan>> plans_;  // by batch size, then length
  HostBlock block_;
};

// What clients are told of the tensors, and what their memory is sized by, is what the graph computes: a
// model may change its shapes with the batch or the length otherwise than the sizes that were tried at import
// show.
Result<> check_shapes(const graph::Graph& graph, std::span<const graph::ValueId> values,
                      std::span<const graph::TensorSpec> specs, const char* what) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const graph::TensorType& type = graph.value(values[i]).type;
    if (type.type == specs[i].type && type.shape == specs[i].shape) continue;
    return fail(ErrorCode::unsupported, std::string(what) + " '" + specs[i].name + "' is " +
                                            graph::to_text(type.shape) +
                                            " here, and by the model's other sizes " + "it should be " +
                                            graph::to_text(specs[i].shape));
  }
  return {};
}

// As many as this process may use.
int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const CpuOptions& options)
      : threads_(options.threads > 0 ? options.threads : usable_cores()),
        engine_(dnnl::engine::kind::cpu, 0) {}

  std::string_view name() const override { return "cpu"; }

  Result<std::unique_ptr<Team>> make_team(const TeamOptions& options) override {
    if (options.threads < 1)
      return invalid("a team of " + std::to_string(options.threads) + " threads: it must be at least 1");
    try {
      return std::make_unique<CpuTeam>(options);
    } catch (const std::system_error& e) {
      return fail(ErrorCode::resource_exhausted, std::string("the system gives no thread: ") + e.what());
    }
  }

  Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                       const CompileOptions& options) override {
    if (auto checked = check(model, options); !checked) return std::unexpected(checked.error());
    try {
      flush_denormals();
      CpuTeam team({.threads = threads_});  // packs the weights
      Result<std::shared_ptr<const CompiledModel>> built = nullptr;
      std::exception_ptr thrown;
      team.run(team.arena(threads_), [&] {
        try {
          built = build(model, options);
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      if (thrown) std::rethrow_exception(thrown);
      return built;
    } catch (const std::system_error& e) {
      return fail(ErrorCode::resource_exhausted,
                  "model \"" + model.name() + "\": the system gives no thread: " + e.what());
    } catch (const dnnl::error& e) {
      return fail(ErrorCode::internal, "model \"" + model.name() + "\": oneDNN: " + e.what());
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::resource_exhausted, "model \"" + model.name() + "\": out of memory");
    }
  }

 private:
  static Result<> check(const graph::Model& model, const CompileOptions& options) {
    const auto& sizes = options.batch_sizes;
    if (sizes.empty() || sizes.front() < 1 ||
        std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end())
      return invalid("model \"" + model.name() +
                     "\": batch sizes must be ascending, distinct and at least 1");
    if (options.stop_cost && !(*options.stop_cost >= 0 && *options.stop_cost <= 1))
      return invalid("model \"" + model.name() + "\": stop_cost is " + std::to_string(*options.stop_cost) +
                     ": it must be 0 to 1");
    if (options.least_part < std::chrono::microseconds{1})
      return invalid("model \"" + model.name() + "\": least_part is " +
                     std::to_string(to_us(options.least_part)) + " us: it must be at least 1");
    if (!model.batched() && sizes != std::vector{1})
      return invalid("model \"" + model.name() + "\" does not batch: its only batch size is 1");
    return {};
  }

  Result<std::shared_ptr<const CompiledModel>> build(const graph::Model& model,
                                                     const CompileOptions& options) {
    auto compiled = std::make_shared<CpuModel>();
    compiled->inputs_ = model.inputs();
    compiled->outputs_ = model.outputs();
    compiled->batch_sizes_ = options.batch_sizes;
    compiled->lengths_.assign(model.lengths().begin(), model.lengths().end());
    compiled->pads_ = options.pads;
    const std::size_t lengths = std::max<std::size_t>(1, compiled->lengths_.size());
    compiled->plans_.resize(options.batch_sizes.size() * lengths);
    WeightStore weights(engine_);
    Arenas arenas;
    // The largest first: what it packs, the others take over.
    for (std::size_t i = compiled->plans_.size(); i-- > 0;) {
      const int batch = options.batch_sizes[i / lengths];
      const std::int64_t length = compiled->lengths_.empty() ? 0 : compiled->lengths_[i % lengths];
      const std::string where = "model \"" + model.name() + "\" at batch " + std::to_string(batch) +
                                (length > 0 ? " and length " + std::to_string(length) : "");
      const Result<graph::Graph> graph = model.specialize(batch, length);
      if (!graph) return in_context(where, graph.error());
      const auto inputs = graph::specs_at(model.inputs(), batch, length);
      const auto outputs = graph::specs_at(model.outputs(), batch, length);
      if (auto same = check_shapes(*graph, graph->inputs, inputs, "input"); !same)
        return in_context(where, same.error());
      if (auto same = check_shapes(*graph, graph->outputs, outputs, "output"); !same)
        return in_context(where, same.error());
      const auto make = [&](const std::vector<int>& divided) -> Result<PlanParts> {
        PlanBuilder builder(engine_, *graph, batch, weights, options.precision, threads_,
                            {.parts = divided, .arenas = &arenas});
        for (const graph::Node& node : graph->nodes) {
          if (auto lowered = lower_node(builder, node); !lowered) return std::unexpected(lowered.error());
          if (makes_nan(node.op))
            for (const auto id : node.outputs)
              if (id != graph::no_value) builder.watch(id);
        }
        Result<PlanParts> parts = builder.finish();
        if (!parts) return parts;
        parts->batch = batch;
        parts->inputs = inputs;
        parts->outputs = outputs;
        return parts;
      };
      Result<PlanParts> parts = make({});
      if (parts && options.stop_cost)
        parts = Divider(engine_, *options.stop_cost, options.least_part).divide(std::move(*parts), make, [&] {
          return weights.bytes().data();
        });
      if (!parts) return in_context(where, parts.error());
      compiled->time_varies_ = compiled->time_varies_ || length > 0 || parts->branches;
      compiled->plans_[i] = std::make_unique<CpuPlan>(std::move(*parts), engine_);
    }
    compiled->block_ = weights.take();
    return compiled;
  }

  int threads_;
  dnnl::engine engine_;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(const CpuOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace carillon::engine
