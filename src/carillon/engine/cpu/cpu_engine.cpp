#include "carillon/engine/cpu/cpu_engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <system_error>

#include "carillon/base/assert.h"
#include "carillon/base/clock.h"
#include "carillon/base/processors.h"
#include "carillon/engine/cpu/bounded_step.h"
#include "carillon/engine/cpu/divider.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/plan_builder.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/engine/cpu/way_selector.h"
#include "carillon/engine/weight_files.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/effort.h"
#include "carillon/graph/empty.h"

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
      Row{"AtMost", lower_binary},
      Row{"AtLeast", lower_binary},
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
      Row{"Resize", lower_resize},
      Row{"Slice", lower_slice},
      Row{"Split", lower_slice},
      Row{"Gather", lower_slice},
      Row{"QLinearConv", lower_quantized_convolution},
      Row{"QLinearMatMul", lower_quantized_matmul},
      Row{"MatMulInteger", lower_byte_product},
      Row{"QuantizeLinear", lower_bytes},
      Row{"DequantizeLinear", lower_bytes},
      Row{"DynamicQuantizeLinear", lower_bytes},
      Row{"ByteLookup", lower_bytes},
      Row{"QLinearAdd", lower_bytes},
      Row{"QLinearMul", lower_bytes},
      Row{"QLinearGlobalAveragePool", lower_bytes},
      Row{"Reshape", lower_view},
      Row{"Transpose", lower_view},
  };
  const auto row = std::ranges::find(rows, op, &Row::op);
  return row == rows.end() ? nullptr : row->lower;
}

Result<> lower_node(PlanBuilder& builder, const graph::Node& node) {
  builder.enter(node.guard);
  if (const Lower lower = find_lowering(node.op);
      lower != nullptr && !graph::has_empty(builder.graph(), node)) {
    try {
      if (lower(builder, node)) return {};
    } catch (const dnnl::error&) {
      // oneDNN has no implementation for what the lowering asked: plain code then.
      builder.recover(node.guard);
    }
  }
  return builder.emit_plain(node);
}

// Makes the plans of one model.
class PlanMaker {
 public:
  PlanMaker(const dnnl::engine& engine, int threads, Precision precision,
            std::shared_ptr<KernelChoices> choices)
      : engine_(engine), threads_(threads), precision_(precision), choices_(std::move(choices)) {}

  // A selector that measures for `budget` in all; nothing where rules alone decide.
  std::unique_ptr<WaySelector> selector(Duration budget) const {
    static const SteadyClock clock;
    return choices_ == nullptr ? nullptr : std::make_unique<WaySelector>(engine_, *choices_, budget, clock);
  }

  struct Wanted {
    int batch = 1;
    std::vector<graph::TensorSpec> inputs, outputs;
    std::optional<double> stop_cost;
    Duration least_part{};
    const std::atomic<bool>* ended = nullptr;
    WaySelector* selector = nullptr;
  };
  // Inside an arena of as many parts as threads.
  Result<PlanParts> make(const graph::Graph& graph, const Wanted& wanted, WeightStore& weights,
                         Arenas& arenas) const {
    if (auto same = check_shapes(graph, graph.inputs, wanted.inputs, "input"); !same)
      return std::unexpected(same.error());
    if (auto same = check_shapes(graph, graph.outputs, wanted.outputs, "output"); !same)
      return std::unexpected(same.error());
    const auto in_ways = [&](WeightStore& store, const Ways& ways,
                             const std::vector<int>& parts) -> Result<PlanParts> {
      PlanBuilder builder(engine_, graph, wanted.batch, store, precision_, threads_,
                          {.parts = parts, .arenas = &arenas}, ways);
      BoundedLowering bounded(builder);
      for (const graph::Node& node : graph.nodes) {
        if (node.op == graph::bounded_node) {
          bounded.lower(node);
          continue;
        }
        if (wanted.ended != nullptr && wanted.ended->load(std::memory_order_relaxed))
          return fail(ErrorCode::cancelled, "nobody wants the plan any more");
        if (auto lowered = lower_node(builder, node); !lowered) return std::unexpected(lowered.error());
        for (const auto id : node.outputs)
          if (id != graph::no_value && (makes_nan(node.op) || builder.shows_input(id))) builder.watch(id);
      }
      bounded.finish();
      Result<PlanParts> plan = builder.finish();
      if (!plan) return plan;
      plan->batch = wanted.batch;
      plan->inputs = wanted.inputs;
      plan->outputs = wanted.outputs;
      plan->effort = graph::effort_of(graph);
      return plan;
    };
    Ways ways;
    if (wanted.selector != nullptr && precision_ == Precision::f32) {
      Result<Ways> selected = wanted.selector->select(
          graph, threads_, [&](WeightStore& store, const Ways& tried) { return in_ways(store, tried, {}); });
      if (!selected) return std::unexpected(selected.error());
      ways = *selected;
    }
    const auto divided = [&](const std::vector<int>& parts) { return in_ways(weights, ways, parts); };
    Result<PlanParts> plan = divided({});
    if (wanted.selector != nullptr) wanted.selector->done();
    if (plan && wanted.stop_cost)
      plan = Divider(engine_, *wanted.stop_cost, wanted.least_part).divide(std::move(*plan), divided, [&] {
        return weights.bytes().data();
      });
    return plan;
  }

  // Runs `work` in such an arena, of which `helpers` threads take parts; what it gives, or what went wrong.
  template <typename Made, typename Work>
  Result<Made> in_arena(const std::string& model, int helpers, const Work& work) const {
    try {
      const FlushDenormals here;
      CpuTeam team({.threads = helpers});  // packs the weights
      Result<Made> made = fail(ErrorCode::internal, "nothing was made");
      std::exception_ptr thrown;
      team.run(team.arena(threads_), [&] {
        try {
          made = work();
        } catch (...) {
          thrown = std::current_exception();
        }
      });
      if (thrown) std::rethrow_exception(thrown);
      return made;
    } catch (const std::system_error& e) {
      return fail(ErrorCode::resource_exhausted,
                  "model \"" + model + "\": the system gives no thread: " + e.what());
    } catch (const dnnl::error& e) {
      return fail(ErrorCode::internal, "model \"" + model + "\": oneDNN: " + e.what());
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::resource_exhausted, "model \"" + model + "\": out of memory");
    }
  }

  const dnnl::engine& engine() const { return engine_; }
  int threads() const { return threads_; }

 private:
  // What clients are told of the tensors, and what their memory is sized by, is what the graph computes: a
  // model may change its shapes with the batch or the length otherwise than the sizes that were tried at
  // import show.
  static Result<> check_shapes(const graph::Graph& graph, std::span<const graph::ValueId> values,
                               std::span<const graph::TensorSpec> specs, const char* what) {
    const std::vector<graph::Shape> shapes = graph::marked_shapes(graph);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const graph::TensorType& type = graph.value(values[i]).type;
      const graph::Shape& shape = shapes[values[i].index()];
      if (type.type == specs[i].type && shape == specs[i].shape) continue;
      return fail(ErrorCode::unsupported, std::string(what) + " '" + specs[i].name + "' is " +
                                              graph::to_text(graph::bounds_of(shape)) +
                                              " here, and by the model's other sizes " + "it should be " +
                                              graph::to_text(graph::bounds_of(specs[i].shape)));
    }
    return {};
  }

  dnnl::engine engine_;
  int threads_;
  Precision precision_;
  std::shared_ptr<KernelChoices> choices_;
};

// The outputs of an open model at certain extents, as `graph` has them. What is told of them holds of their
// types, and where there is a batch of their first dimension; how long the others are, and how many there
// are, is for each size to say.
Result<std::vector<graph::TensorSpec>> computed_outputs(const graph::Graph& graph,
                                                        std::span<const graph::TensorSpec> told, int batch) {
  std::vector<graph::TensorSpec> out;
  const std::vector<graph::Shape> shapes = graph::marked_shapes(graph);
  for (std::size_t i = 0; i < told.size(); ++i) {
    const graph::ValueId id = graph.outputs[i];
    const graph::TensorType& type = graph.value(id).type;
    const graph::Shape& shape = shapes[id.index()];
    const bool batched = !told[i].shape.empty() && told[i].shape.front() == graph::batch_dimension;
    if (type.type != told[i].type || (batched && (shape.empty() || shape.front() != batch)))
      return fail(ErrorCode::unsupported,
                  "output '" + told[i].name + "' is " + std::string(graph::onnx_name(type.type)) +
                      graph::to_text(graph::bounds_of(shape)) +
                      " here, and by the model's other sizes it should be " +
                      std::string(graph::onnx_name(told[i].type)) + graph::to_text(told[i].open_shape()));
    out.push_back({.name = told[i].name, .type = told[i].type, .shape = shape});
  }
  return out;
}

// What LOAD copies: in a file, where the store takes it, else in memory.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(HostBlock block, WeightFiles* files) : size_{block.bytes().size()} {
    if (files != nullptr) file_ = files->try_keep(block.bytes());
    if (file_ == nullptr) block_ = std::move(block);
  }
  Bytes size() const { return size_; }
  Bytes in_memory() const { return file_ == nullptr ? size_ : Bytes{}; }
  Result<> whole() const { return file_ == nullptr ? Result<>() : file_->whole(); }
  // Whether they are these.
  Result<bool> are(std::span<const std::byte> bytes) const {
    if (bytes.size() != size_.count) return false;
    std::vector<std::byte> part(std::min<std::size_t>(bytes.size(), mib(1).count));
    for (; !bytes.empty(); bytes = bytes.subspan(part.size())) {
      part.resize(std::min(part.size(), bytes.size()));
      if (auto read = write(size_.count - bytes.size(), part); !read) return std::unexpected(read.error());
      if (!std::ranges::equal(part, bytes.first(part.size()))) return false;
    }
    return true;
  }
  Result<> write(std::uint64_t offset, std::span<std::byte> to) const {
    CARILLON_ASSERT(offset <= size_.count && to.size() <= size_.count - offset);
    if (file_ != nullptr) return file_->read(offset, to);
    if (!to.empty()) std::memcpy(to.data(), block_.bytes().data() + offset, to.size());
    return {};
  }

 private:
  Bytes size_;
  HostBlock block_;
  std::shared_ptr<const WeightFile> file_;
};

class CpuModel final : public CompiledModel {
 public:
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return weights_.size(); }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    return weights_.write(offset, to);
  }
  Result<> usable() const override { return weights_.whole(); }
  ModelMemory memory() const override {
    ModelMemory out = CompiledModel::memory();
    out.weights = weights_.in_memory();
    out.plans = out.plans + constants_;
    return out;
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  bool makes_later() const override { return reread_ != nullptr; }
  bool has_one_plan() const override { return one_plan_; }
  const Plan* spare() const override { return spare_.get(); }
  void let_go_spare() const override { spare_.reset(); }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  bool pads() const override { return pads_; }
  bool time_varies() const override { return time_varies_; }
  std::vector<std::string> notes() const override { return notes_; }
  std::span<const std::int64_t> reference() const override { return reference_; }
  using Plans = std::vector<std::unique_ptr<const Plan>>;
  Result<Plans> make_plans(std::span<const std::int64_t> extents, std::span<const int> batches,
                           const std::atomic<bool>* ended) const override {
    if (reread_) return make_later(batches, ended);
    if (source_ == nullptr) return CompiledModel::make_plans(extents, batches, ended);
    const PlanMaker& maker = *maker_;
    // Constants that were read for it are not needed until the next one.
    struct LetGo {
      const MovedTensors* moved;
      ~LetGo() {
        if (moved != nullptr) moved->let_go();
      }
    } const then{moved_.get()};
    // One thread: it is to be in nobody's way.
    return maker.in_arena<Plans>(source_->name(), 1, [&]() -> Result<Plans> {
      Plans made;
      Arenas arenas;
      // Beside serving nothing is measured.
      const std::unique_ptr<WaySelector> selector = maker.selector(Duration{0});
      if (selector != nullptr) selector->follow(way_);
      for (const int batch : batches) {
        auto graph = source_->specialize_at(batch, extents);
        if (!graph) return std::unexpected(graph.error());
        auto outputs = computed_outputs(*graph, outputs_, batch);
        if (!outputs) return std::unexpected(outputs.error());
        WeightStore weights(maker.engine(), store_.get());
        auto parts = maker.make(*graph,
                                {.batch = batch,
                                 .inputs = graph::specs_at(inputs_, batch, extents),
                                 .outputs = std::move(*outputs),
                                 .ended = ended,
                                 .selector = selector.get()},
                                weights, arenas);
        if (!parts) return std::unexpected(parts.error());
        parts->own = weights.take();
        made.push_back(std::make_unique<CpuPlan>(std::move(*parts), maker.engine()));
      }
      return made;
    });
  }
  const Plan* plan(int batch, std::int64_t length) const override {
    const auto b = std::ranges::lower_bound(batch_sizes_, batch) - batch_sizes_.begin();
    const auto l = std::ranges::lower_bound(lengths_, length) - lengths_.begin();
    const auto i = static_cast<std::size_t>(b), j = static_cast<std::size_t>(l);
    if (i == batch_sizes_.size() || batch_sizes_[i] != batch) return nullptr;
    if (has_one_plan()) return i == 0 && length == 0 ? plans_.front().get() : nullptr;
    if (lengths_.empty()) return length == 0 ? plans_[i].get() : nullptr;
    return j < lengths_.size() && lengths_[j] == length ? plans_[i * lengths_.size() + j].get() : nullptr;
  }

 private:
  friend class CpuEngine;

  // The model is read again. The largest and the smallest batch pack its weights as they did at first; what
  // the others want beside these is their own.
  Result<Plans> make_later(std::span<const int> batches, const std::atomic<bool>* ended) const {
    const Result<std::shared_ptr<const graph::Model>> model = reread_();
    if (!model) return in_context("to make more plans of it", model.error());
    const PlanMaker& maker = *maker_;
    return maker.in_arena<Plans>((*model)->name(), 1, [&]() -> Result<Plans> {
      Arenas arenas;
      const auto make = [&](int batch, WeightStore& weights) -> Result<PlanParts> {
        const auto graph = (*model)->specialize(batch, 0);
        if (!graph) return std::unexpected(graph.error());
        return maker.make(*graph,
                          {.batch = batch,
                           .inputs = graph::specs_at(inputs_, batch, std::int64_t{0}),
                           .outputs = graph::specs_at(outputs_, batch, std::int64_t{0}),
                           .stop_cost = std::nullopt,
                           .ended = ended},
                          weights, arenas);
      };
      WeightStore below(maker.engine());
      Result<PlanParts> largest = make(batch_sizes_.back(), below);
      if (!largest) return std::unexpected(largest.error());
      if (const auto smallest = make(batch_sizes_.front(), below); !smallest)
        return std::unexpected(smallest.error());
      const auto same = weights_.are(below.bytes());
      if (!same) return std::unexpected(same.error());
      if (!*same)
        return fail(
            ErrorCode::unavailable,
            "its weights are packed otherwise than when it was loaded; load it again to get plans for "
            "larger batches");
      const HostBlock packed = below.seal();
      Plans made;
      for (const int batch : batches) {
        WeightStore own(maker.engine(), &below);
        Result<PlanParts> parts = batch == batch_sizes_.back() ? std::move(largest) : make(batch, own);
        if (!parts) return std::unexpected(parts.error());
        parts->own = own.take();
        made.push_back(std::make_unique<CpuPlan>(std::move(*parts), maker.engine()));
      }
      return made;
    });
  }

  std::vector<graph::TensorSpec> inputs_, outputs_;
  std::vector<int> batch_sizes_;
  std::vector<std::int64_t> lengths_;
  bool pads_ = false;
  bool time_varies_ = false;
  std::vector<std::string> notes_;
  graph::Extents reference_;
  bool one_plan_ = false;  // `plans_` has that of batch size 1 alone
  mutable std::unique_ptr<const CpuPlan> spare_;
  // Of one that makes plans later: reads it.
  std::function<Result<std::shared_ptr<const graph::Model>>()> reread_;
  // Of an open model: what more plans are made of.
  std::shared_ptr<const graph::Model> source_;
  std::optional<PlanMaker> maker_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<const MovedTensors> moved_;    // what these two read
  Bytes constants_;                              // that they keep in memory
  std::string way_;                              // see WaySelector
  std::vector<std::unique_ptr<CpuPlan>> plans_;  // by batch size, then length
  PackedWeights weights_;
};

// Products that run on plain code because no fast kernel takes them, such as those of double: what an
// operator should know who wonders about a model's speed. Nothing where all of them are short.
std::vector<std::string> slow_products(const graph::Graph& graph, const PlanParts& plan) {
  constexpr std::uint64_t short_enough = 1'000'000;  // operations: about a millisecond of plain code
  std::size_t slow = 0;
  std::string first;
  for (const graph::Node& node : graph.nodes) {
    if (graph::operations_of(graph, node) < short_enough ||
        std::ranges::find(plan.names, node.name + " plain:" + node.op) == plan.names.end())
      continue;
    if (slow++ > 0) continue;
    std::string types;
    for (const graph::ValueId id : node.inputs)
      if (id != graph::no_value) {
        const graph::TensorType& type = graph.value(id).type;
        types += (types.empty() ? "" : ", ") + std::string(graph::onnx_name(type.type)) +
                 graph::to_text(type.shape);
      }
    first = node.op + " \"" + node.name + "\" (" + types + ")";
  }
  if (slow == 0) return {};
  return {std::to_string(slow) + (slow == 1 ? " product is" : " products are") +
          " slow, as no fast kernel takes the operands: the first is " + first};
}

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const CpuOptions& options)
      : threads_(options.threads > 0 ? options.threads : usable_processors()),
        engine_(dnnl::engine::kind::cpu, 0),
        processors_(options.processors),
        choose_for_(options.choose_for),
        files_(options.weights),
        choices_(options.choose_for <= Duration{0} ? nullptr
                 : options.choices != nullptr      ? options.choices
                                                   : std::make_shared<KernelChoices>()) {}

  std::string_view name() const override { return "cpu"; }
  bool compiles_in_parallel() const override { return choices_ == nullptr; }

  Result<std::unique_ptr<Team>> make_team(const TeamOptions& options) override {
    if (options.threads < 1)
      return invalid("a team of " + std::to_string(options.threads) + " threads: it must be at least 1");
    try {
      return std::make_unique<CpuTeam>(options, processors_);
    } catch (const std::system_error& e) {
      return fail(ErrorCode::resource_exhausted, std::string("the system gives no thread: ") + e.what());
    }
  }

  Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                       const CompileOptions& options) override {
    if (auto checked = check(model, options); !checked) return std::unexpected(checked.error());
    const PlanMaker maker(engine_, threads_, options.precision, choices_);
    auto made = maker.in_arena<std::shared_ptr<const CompiledModel>>(
        model.name(), threads_, [&] { return build(model, options, maker); });
    // That the file cannot be written is no fault of the model: who names one is told when it is opened.
    if (choices_ != nullptr) (void)choices_->save();
    return made;
  }

 private:
  static Result<> check(const graph::Model& model, const CompileOptions& options) {
    if (auto has = has_precision(options.precision, "the CPU's engine"); !has)
      return in_context("model \"" + model.name() + "\"", has.error());
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

  Result<std::shared_ptr<const CompiledModel>> build(const graph::Model& model, const CompileOptions& options,
                                                     const PlanMaker& maker) const {
    auto compiled = std::make_shared<CpuModel>();
    compiled->inputs_ = model.inputs();
    compiled->outputs_ = model.outputs();
    compiled->batch_sizes_ = options.batch_sizes;
    compiled->lengths_.assign(model.lengths().begin(), model.lengths().end());
    compiled->reference_.assign(model.reference().begin(), model.reference().end());
    const bool open = !compiled->reference_.empty();
    compiled->pads_ = options.pads;
    compiled->time_varies_ = open;
    const std::size_t lengths = std::max<std::size_t>(1, compiled->lengths_.size());
    compiled->plans_.resize(options.batch_sizes.size() * lengths);
    auto weights = std::make_unique<WeightStore>(maker.engine());
    Arenas arenas;
    const std::unique_ptr<WaySelector> selector = maker.selector(choose_for_);
    // The largest first: what it packs, the others take over.
    const bool few = options.reread && compiled->lengths_.empty() && options.batch_sizes.size() > 1 &&
                     options.batch_sizes.front() == 1 && !options.stop_cost && choices_ == nullptr;
    for (std::size_t i = compiled->plans_.size(); i-- > 0;) {
      if (few && i > 0 && i + 1 < compiled->plans_.size()) continue;
      const int batch = options.batch_sizes[i / lengths];
      const std::int64_t length = compiled->lengths_.empty() ? 0 : compiled->lengths_[i % lengths];
      const std::string where = "model \"" + model.name() + "\" at batch " + std::to_string(batch) +
                                (length > 0 ? " and length " + std::to_string(length) : "");
      const Result<graph::Graph> graph = model.specialize(batch, length);
      if (!graph) return in_context(where, graph.error());
      PlanMaker::Wanted wanted{.batch = batch,
                               .inputs = {},
                               .outputs = {},
                               .stop_cost = options.stop_cost,
                               .least_part = options.least_part,
                               .selector = selector.get()};
      if (open) {
        wanted.inputs = graph::specs_at(model.inputs(), batch, compiled->reference_);
        auto outputs = computed_outputs(*graph, model.outputs(), batch);
        if (!outputs) return in_context(where, outputs.error());
        wanted.outputs = std::move(*outputs);
      } else {
        wanted.inputs = graph::specs_at(model.inputs(), batch, length);
        wanted.outputs = graph::specs_at(model.outputs(), batch, length);
      }
      Result<PlanParts> parts = maker.make(*graph, wanted, *weights, arenas);
      if (!parts) return in_context(where, parts.error());
      // What is found decides how much follows.
      const bool bounded = std::ranges::any_of(
          graph->nodes, [](const graph::Node& node) { return node.op == graph::bounded_node; });
      compiled->time_varies_ = compiled->time_varies_ || length > 0 || parts->branches || bounded;
      if (i + 1 == compiled->plans_.size()) compiled->notes_ = slow_products(*graph, *parts);
      if (!few || i == 0)
        compiled->plans_[i] = std::make_unique<CpuPlan>(std::move(*parts), maker.engine());
      else if (open)
        compiled->spare_ = std::make_unique<CpuPlan>(std::move(*parts), maker.engine());
    }
    if (few) {
      compiled->plans_.resize(1);
      compiled->one_plan_ = true;
    }
    if (few && !open) {
      compiled->reread_ = options.reread;
      compiled->maker_ = maker;
    }
    if (open) {
      compiled->weights_ = PackedWeights(weights->seal(), files_.get());
      compiled->source_ = model.weak_from_this().lock();
      compiled->maker_ = maker;
      compiled->store_ = std::move(weights);
      const std::vector<graph::SharedTensor> constants = constants_of(*compiled);
      if (files_ != nullptr) compiled->moved_ = files_->move(constants);
      for (const graph::SharedTensor& tensor : constants)
        if (compiled->moved_ == nullptr || tensor->pages() < WeightFiles::smallest_moved.count)
          compiled->constants_.count += tensor->pages();
      if (selector != nullptr) compiled->way_ = selector->way();
    } else {
      compiled->weights_ = PackedWeights(weights->take(), files_.get());
    }
    return compiled;
  }

  // What more plans of an open model are made of, each once.
  static std::vector<graph::SharedTensor> constants_of(const CpuModel& model) {
    std::vector<graph::SharedTensor> constants;
    const auto add = [&](const graph::SharedTensor& tensor) {
      if (tensor != nullptr) constants.push_back(tensor);  // an operator may leave out an operand
    };
    if (model.source_ != nullptr) model.source_->visit_constants(add);
    model.store_->visit(add);
    std::ranges::sort(constants);
    const auto same = std::ranges::unique(constants);
    constants.erase(same.begin(), same.end());
    return constants;
  }

  int threads_;
  dnnl::engine engine_;
  std::shared_ptr<const UsableProcessors> processors_;
  Duration choose_for_;
  std::shared_ptr<WeightFiles> files_;
  std::shared_ptr<KernelChoices> choices_;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(const CpuOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace carillon::engine
