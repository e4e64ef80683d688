#include "carillon/engine/cuda/plan/cuda_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/memory/scratch.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/engine/pacer.h"
#include "carillon/graph/effort.h"

namespace carillon::engine::cuda {

namespace {

// The device as plans and states of runs see it; lives as long as any of them.
class Device {
 public:
  Device(std::shared_ptr<const Driver> owned, DeviceNumber number)
      : driver(*owned), owned_(std::move(owned)), number_(number) {}
  ~Device() {
    if (context_ == nullptr) return;
    if (module_ != nullptr) {
      const Current current(*this);
      (void)driver.module_unload(module_);
    }
    (void)driver.context_release(number_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Result<> prepare(const void* image) {
    if (auto kept = check(driver.context_retain(&context_, number_), "its context"); !kept) return kept;
    const Current current(*this);
    if (auto loaded = check(driver.module_load(&module_, image), "loading our kernels"); !loaded)
      return loaded;
    for (const kernels::Kernel& each : kernels::all()) {
      Function function = nullptr;
      const std::string symbol(each.symbol);
      if (auto found = check(driver.module_function(&function, module_, symbol.c_str()), "kernel " + symbol);
          !found)
        return found;
      functions_.emplace(&each, function);
    }
    int processors = 0;
    if (auto asked =
            check(driver.device_attribute(&processors, attribute_processors, number_), "its attributes");
        !asked)
      return asked;
    processors_ = static_cast<unsigned>(std::max(1, processors));
    return {};
  }

  // This device's context, current on this thread.
  class Current : public InContext {
   public:
    explicit Current(const Device& device) : InContext(device.driver, device.context_) {}
  };

  Result<> check(Status status, const std::string& what) const {
    if (status == done) return {};
    const bool lost = is_lost(status);
    return fail(lost ? ErrorCode::unavailable : ErrorCode::internal,
                "cuda:" + std::to_string(number_) + (lost ? ": the device is lost: " : ": ") + what + ": " +
                    cuda::name_of(driver, status));
  }

  Function function(const kernels::Kernel* kernel) const { return functions_.at(kernel); }
  unsigned processors() const { return processors_; }
  DeviceNumber number() const { return number_; }

  const Driver& driver;

 private:
  std::shared_ptr<const Driver> owned_;
  DeviceNumber number_;
  Context context_ = nullptr;
  Module module_ = nullptr;
  std::map<const kernels::Kernel*, Function> functions_;
  unsigned processors_ = 1;
};

struct PlanParts {
  int batch = 1;
  std::vector<graph::TensorSpec> inputs, outputs;
  Effort effort;
  Recipe recipe;
  // By segment of the recipe.
  std::vector<KernelRange> segments;
  std::vector<std::string> names;
};

Address address(const void* at) {
  return reinterpret_cast<Address>(at);
}

class CudaPlan;

// A stream, and the plan's segments as graphs for the memory that the last run had.
class CudaState final : public RunState {
 public:
  CudaState(std::shared_ptr<const Device> device, const CudaPlan& plan)
      : device_(std::move(device)), plan_(plan) {}
  ~CudaState() override {
    const Device::Current current(*device_);
    drop_graphs();
    for (const Event event : events_) (void)device_->driver.event_destroy(event);
    if (stream_ != nullptr) (void)device_->driver.stream_destroy(stream_);
  }

  Result<> prepare(Address workspace, Address weights);
  Stream stream() const { return stream_; }
  GraphExec graph(int segment) const { return graphs_[static_cast<std::size_t>(segment)]; }
  // Of a segment's begin (0) and end (1).
  Event event(int which) const { return events_[static_cast<std::size_t>(which)]; }

 private:
  void drop_graphs() {
    for (const GraphExec each : graphs_)
      if (each != nullptr) (void)device_->driver.graph_exec_destroy(each);
    graphs_.clear();
  }
  Result<> capture(KernelRange steps, GraphExec& into);

  std::shared_ptr<const Device> device_;
  const CudaPlan& plan_;
  Stream stream_ = nullptr;
  std::array<Event, 2> events_{};
  std::vector<GraphExec> graphs_;  // by segment; empty for one without steps
  Address workspace_ = 0, weights_ = 0;
};

class CudaPlan final : public Plan {
 public:
  CudaPlan(std::shared_ptr<const Device> device, PlanParts parts)
      : device_(std::move(device)), parts_(std::move(parts)) {}
  int batch() const override { return parts_.batch; }
  std::span<const graph::TensorSpec> inputs() const override { return parts_.inputs; }
  std::span<const graph::TensorSpec> outputs() const override { return parts_.outputs; }
  Bytes workspace() const override { return {parts_.recipe.workspace}; }
  Effort effort() const override { return parts_.effort; }
  int kernels() const override { return static_cast<int>(parts_.segments.size()); }
  std::string_view kernel_name(int index) const override {
    return parts_.names[static_cast<std::size_t>(index)];
  }
  std::unique_ptr<RunState> make_state(Team*) const override {
    return std::make_unique<CudaState>(device_, *this);
  }
  Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations, StopSignal* stop,
               Pacer* pacer) const override;

  const PlanParts& parts() const { return parts_; }

 private:
  Result<> edges(const std::vector<Recipe::Edge>& edges, const Binding& binding, bool in,
                 Stream stream) const;

  std::shared_ptr<const Device> device_;
  PlanParts parts_;
};

// The steps after those of each segment, where each takes no longer than `bound`, or is one step.
std::vector<int> by_time(std::span<const Duration> steps, Duration bound) {
  std::vector<int> ends;
  Duration sum{0};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i > 0 && sum + steps[i] > bound) {
      ends.push_back(static_cast<int>(i));
      sum = Duration{0};
    }
    sum += steps[i];
  }
  ends.push_back(static_cast<int>(steps.size()));
  return ends;
}

Result<> CudaState::prepare(Address workspace, Address weights) {
  const Driver& driver = device_->driver;
  if (stream_ == nullptr) {
    if (auto made = device_->check(driver.stream_create(&stream_, stream_beside_the_default, 0), "a stream");
        !made)
      return made;
    for (Event& event : events_)
      if (auto made = device_->check(driver.event_create(&event, 0), "an event"); !made) return made;
  }
  if (!graphs_.empty() && workspace_ == workspace && weights_ == weights) return {};
  drop_graphs();
  workspace_ = workspace;
  weights_ = weights;
  graphs_.resize(plan_.parts().segments.size());
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    const KernelRange steps = plan_.parts().segments[i];
    if (steps.first == steps.last) continue;
    if (auto captured = capture(steps, graphs_[i]); !captured) {
      drop_graphs();
      return captured;
    }
  }
  return {};
}

Result<> CudaState::capture(KernelRange steps, GraphExec& into) {
  const Driver& driver = device_->driver;
  if (auto begun = device_->check(driver.capture_begin(stream_, capture_of_this_thread), "a capture"); !begun)
    return begun;
  Result<> put;
  std::vector<std::byte> params;
  for (int i = steps.first; put && i < steps.last; ++i) {
    const Step& step = plan_.parts().recipe.steps[static_cast<std::size_t>(i)];
    const auto at = [&](const Place& place) { return place.at(workspace_, weights_); };
    if (step.call != nullptr) {
      put = step.call->enqueue(stream_, {.a = at(step.a),
                                         .b = at(step.b),
                                         .out = at(step.out),
                                         .bias = at(step.bias),
                                         .residual = at(step.residual),
                                         .workspace = at(step.scratch)});
      continue;
    }
    params = step.params;
    for (const auto& [where, place] : step.pointers) {
      const Address value = at(place);
      std::memcpy(params.data() + where, &value, sizeof value);
    }
    void* parameters[] = {params.data()};
    put = device_->check(
        driver.launch(step.chain ? step.chain->function : device_->function(step.launch.kernel),
                      step.launch.grid, 1, 1, step.launch.block, 1, 1, 0, stream_,
                      static_cast<void**>(parameters), nullptr),
        step.name);
  }
  Graph graph = nullptr;
  auto ended = device_->check(driver.capture_end(stream_, &graph), "the end of a capture");
  if (put && ended) put = device_->check(driver.graph_instantiate(&into, graph, 0), "a graph");
  if (graph != nullptr) (void)driver.graph_destroy(graph);
  return put ? ended : put;
}

Result<> CudaPlan::edges(const std::vector<Recipe::Edge>& edges, const Binding& binding, bool in,
                         Stream stream) const {
  const Address workspace = address(binding.workspace), weights = address(binding.weights);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].bytes == 0) continue;
    const Address here = edges[i].at.at(workspace, weights);
    const Address there = in ? address(binding.inputs[i]) : address(binding.outputs[i]);
    if (auto copied =
            device_->check(device_->driver.copy(in ? here : there, in ? there : here, edges[i].bytes, stream),
                           in ? "an input" : "an output");
        !copied)
      return copied;
  }
  return {};
}

Result<> CudaPlan::run(KernelRange range, const Binding& binding, std::span<Duration> durations,
                       StopSignal* stop, Pacer* pacer) const {
  const Device::Current current(*device_);
  std::unique_ptr<RunState> own;
  if (binding.state == nullptr) own = make_state(nullptr);
  auto& state = *static_cast<CudaState*>(binding.state == nullptr ? own.get() : binding.state);
  const Driver& driver = device_->driver;
  if (auto prepared = state.prepare(address(binding.workspace), address(binding.weights)); !prepared)
    return prepared;
  if (stop != nullptr) stop->next = range.first;
  const bool single = !durations.empty() || stop != nullptr || pacer != nullptr;
  const auto finished = [&] { return device_->check(driver.stream_synchronize(state.stream()), "a run"); };
  if (pacer != nullptr) pacer->begin();
  for (int i = range.first; i < range.last; ++i) {
    const auto stopped = [&] { return stop != nullptr && stop->requested(); };
    if (stopped()) return finished();
    if (i == 0)
      if (auto copied = edges(parts_.recipe.inputs, binding, true, state.stream()); !copied) return copied;
    if (!durations.empty())
      if (auto marked = device_->check(driver.event_record(state.event(0), state.stream()), "an event");
          !marked)
        return marked;
    if (state.graph(i) != nullptr)
      if (auto launched = device_->check(driver.graph_launch(state.graph(i), state.stream()),
                                         parts_.names[static_cast<std::size_t>(i)]);
          !launched)
        return launched;
    if (!durations.empty())
      if (auto marked = device_->check(driver.event_record(state.event(1), state.stream()), "an event");
          !marked)
        return marked;
    if (i + 1 == kernels())
      if (auto copied = edges(parts_.recipe.outputs, binding, false, state.stream()); !copied) return copied;
    if (single)
      if (auto ran = finished(); !ran) return ran;
    if (!durations.empty()) {
      float milliseconds = 0;
      if (auto measured =
              device_->check(driver.event_elapsed(&milliseconds, state.event(0), state.event(1)), "an event");
          !measured)
        return measured;
      durations[static_cast<std::size_t>(i)] =
          std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(milliseconds));
    }
    if (stop != nullptr) stop->next = i + 1;
    if (pacer != nullptr && i + 1 < range.last) pacer->rest(stopped);
  }
  auto ran = finished();
  if (pacer != nullptr) pacer->end([] { return false; });
  return ran;
}

// A copy in pinned memory of the host, which the device copies from at the bus's rate; null where the driver
// gives none.
std::shared_ptr<const std::byte> pinned_copy(const std::shared_ptr<const Device>& device,
                                             std::span<const std::byte> of) {
  const Device::Current current(*device);
  void* pinned = nullptr;
  if (of.empty() || device->driver.host_allocate(&pinned, of.size(), host_is_mapped) != done) return nullptr;
  std::memcpy(pinned, of.data(), of.size());
  return {static_cast<const std::byte*>(pinned), [device, pinned](const std::byte*) {
            const Device::Current freeing(*device);
            (void)device->driver.host_free(pinned);
          }};
}

class CudaModel final : public CompiledModel {
 public:
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return {bytes_.size()}; }
  std::span<const std::byte> packed() const override {
    return pinned_ ? bytes_ : std::span<const std::byte>();
  }
  void write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset <= bytes_.size() && to.size() <= bytes_.size() - offset);
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  bool pads() const override { return pads_; }
  const Plan* plan(int batch, std::int64_t length) const override {
    const auto found = plans_.find({batch, length});
    return found == plans_.end() ? nullptr : found->second.get();
  }

 private:
  friend class CudaEngine;
  std::vector<graph::TensorSpec> inputs_, outputs_;
  std::vector<int> batch_sizes_;
  std::vector<std::int64_t> lengths_;
  bool pads_ = false;
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<CudaPlan>> plans_;  // by batch size and length
  // The weights: in pinned memory, else in the host's own.
  std::shared_ptr<const std::byte> pinned_;
  std::vector<std::byte> own_;
  std::span<const std::byte> bytes_;
};

class CudaEngine final : public Engine {
 public:
  CudaEngine(std::shared_ptr<const Device> device, std::unique_ptr<MathLibrary> library,
             const CudaOptions& options, std::unique_ptr<ChainLibrary> chains)
      : device_(std::move(device)),
        library_(std::move(library)),
        chains_(std::move(chains)),
        options_(options) {}

  std::string_view name() const override { return "cuda"; }

  Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                       const CompileOptions& options) override {
    const auto& sizes = options.batch_sizes;
    const std::string named = "model \"" + model.name() + "\"";
    if (sizes.empty() || sizes.front() < 1 ||
        std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end())
      return invalid(named + ": batch sizes must be ascending, distinct and at least 1");
    if (!model.batched() && sizes != std::vector{1})
      return invalid(named + " does not batch: its only batch size is 1");
    if (!model.reference().empty())
      return fail(ErrorCode::unsupported,
                  named + ": inputs of any size: CUDA plans are of sizes that are known");
    const Device::Current current(*device_);
    auto compiled = std::make_shared<CudaModel>();
    compiled->inputs_ = model.inputs();
    compiled->outputs_ = model.outputs();
    compiled->batch_sizes_ = sizes;
    compiled->lengths_.assign(model.lengths().begin(), model.lengths().end());
    compiled->pads_ = options.pads;
    Weights weights;
    std::vector<std::int64_t> lengths = compiled->lengths_;
    if (lengths.empty()) lengths.push_back(0);
    for (const int batch : sizes)
      for (const std::int64_t length : lengths) {
        const std::string where = named + " at batch " + std::to_string(batch) +
                                  (length > 0 ? " and length " + std::to_string(length) : "");
        auto graph = model.specialize(batch, length);
        if (!graph) return in_context(where, graph.error());
        const Number number = options.precision == Precision::bf16  ? Number::bf16
                              : options.precision == Precision::f16 ? Number::f16
                                                                    : options_.number;
        RecipeOptions made_with{.number = number, .longest_segment = options_.longest_segment};
        if (options.stop_cost) {
          // Once with each step by itself, to measure, and once as that divides them.
          made_with.longest_segment = 1;
          auto single = make(*graph, made_with, weights);
          if (!single) return in_context(where, single.error());
          auto measured = measure(std::move(*single), weights.bytes().size());
          if (!measured) return in_context(where, measured.error());
          made_with.segment_ends = std::move(*measured);
        }
        auto parts = make(*graph, made_with, weights);
        if (!parts) return in_context(where, parts.error());
        parts->batch = batch;
        parts->inputs = graph::specs_at(model.inputs(), batch, length);
        parts->outputs = graph::specs_at(model.outputs(), batch, length);
        if (auto same = check(*graph, graph->outputs, parts->outputs); !same)
          return in_context(where, same.error());
        compiled->plans_.emplace(std::pair(batch, length),
                                 std::make_unique<CudaPlan>(device_, std::move(*parts)));
      }
    library_->compiled();
    compiled->pinned_ = pinned_copy(device_, weights.bytes());
    if (compiled->pinned_ == nullptr) compiled->own_ = weights.take();
    compiled->bytes_ = compiled->pinned_ ? std::span(compiled->pinned_.get(), weights.bytes().size())
                                         : std::span<const std::byte>(compiled->own_);
    return compiled;
  }

  Result<> probe() override {
    const Device::Current current(*device_);
    return device_->check(device_->driver.context_synchronize(), "a probe");
  }

 private:
  // Sizes of memory are by what clients are told: the graph has to agree.
  static Result<> check(const graph::Graph& graph, std::span<const graph::ValueId> values,
                        std::span<const graph::TensorSpec> specs) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const graph::TensorType& type = graph.value(values[i]).type;
      if (type.type == specs[i].type && type.shape == specs[i].shape) continue;
      return fail(ErrorCode::unsupported, "output '" + specs[i].name + "' is " + graph::to_text(type.shape) +
                                              " here, and by the model's other sizes it should be " +
                                              graph::to_text(specs[i].shape));
    }
    return {};
  }

  Result<PlanParts> make(const graph::Graph& graph, RecipeOptions options, Weights& weights) const {
    options.processors = device_->processors();
    options.chains = chains_.get();
    auto recipe = make_recipe(graph, options, *library_, weights);
    if (!recipe) return std::unexpected(recipe.error());
    PlanParts parts{.effort = graph::effort_of(graph), .recipe = std::move(*recipe)};
    const std::vector<Step>& steps = parts.recipe.steps;
    for (int first = 0; const int end : parts.recipe.segment_ends) {
      std::string name = "copies only";
      if (end > first) name = steps[static_cast<std::size_t>(first)].name;
      if (end > first + 1) name += " to " + steps[static_cast<std::size_t>(end) - 1].name;
      parts.segments.push_back({first, end});
      parts.names.push_back(std::move(name));
      first = end;
    }
    return parts;
  }

  // Runs a plan of single steps in memory that holds zeros; gives the ends of the segments that they fall
  // into by `bound`, or those that they have where there is no memory.
  Result<std::vector<int>> measure(PlanParts parts, std::uint64_t weights) const {
    std::vector<int> singles = parts.recipe.segment_ends;
    if (parts.recipe.steps.empty()) return singles;
    const CudaPlan plan(device_, std::move(parts));
    constexpr int rounds = 5;
    const auto steps = static_cast<std::size_t>(plan.kernels());
    std::uint64_t bytes = 0;
    const auto place = [&](std::uint64_t wanted) {
      const std::uint64_t at = bytes;
      bytes += round_up(std::max<std::uint64_t>(wanted, 1), 256);
      return at;
    };
    const std::uint64_t weights_at = place(weights), workspace_at = place(plan.workspace().count);
    std::vector<std::uint64_t> inputs, outputs;
    for (const auto& edge : plan.parts().recipe.inputs) inputs.push_back(place(edge.bytes));
    for (const auto& edge : plan.parts().recipe.outputs) outputs.push_back(place(edge.bytes));
    Scratch scratch(device_->driver, device_->number());
    const Status taken = scratch.take(bytes);
    if (is_lost(taken)) return std::unexpected(device_->check(taken, "memory to measure in").error());
    if (taken != done) return singles;
    const auto at = [&](std::uint64_t offset) { return reinterpret_cast<std::byte*>(scratch.at() + offset); };
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (const std::uint64_t each : inputs) from.push_back(at(each));
    for (const std::uint64_t each : outputs) to.push_back(at(each));
    const auto state = plan.make_state(nullptr);
    Stream stream = nullptr;
    if (auto made =
            device_->check(device_->driver.stream_create(&stream, stream_beside_the_default, 0), "a stream");
        !made)
      return std::unexpected(made.error());
    Status cleared = device_->driver.fill(scratch.at(), 0, scratch.bytes(), stream);
    if (cleared == done) cleared = device_->driver.stream_synchronize(stream);
    (void)device_->driver.stream_destroy(stream);
    if (auto filled = device_->check(cleared, "clearing memory"); !filled)
      return std::unexpected(filled.error());
    std::vector<Duration> least(steps, Duration::max()), now(steps);
    for (int round = 0; round < rounds; ++round) {
      const Binding binding{.inputs = from,
                            .outputs = to,
                            .workspace = at(workspace_at),
                            .weights = at(weights_at),
                            .state = state.get()};
      if (auto ran = plan.run({0, plan.kernels()}, binding, now, nullptr, nullptr); !ran)
        return std::unexpected(ran.error());
      for (std::size_t i = 0; i < steps; ++i) least[i] = std::min(least[i], now[i]);
    }
    return by_time(least, options_.bound);
  }

  std::shared_ptr<const Device> device_;
  std::unique_ptr<MathLibrary> library_;
  std::unique_ptr<ChainLibrary> chains_;  // may be none
  CudaOptions options_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Driver> driver, DeviceNumber device,
                                                 const void* image, std::unique_ptr<MathLibrary> library,
                                                 const CudaOptions& options,
                                                 std::unique_ptr<ChainLibrary> chains) {
  auto made = std::make_shared<Device>(std::move(driver), device);
  if (auto prepared = made->prepare(image); !prepared) return std::unexpected(prepared.error());
  return std::make_unique<CudaEngine>(std::move(made), std::move(library), options, std::move(chains));
}

}  // namespace carillon::engine::cuda
