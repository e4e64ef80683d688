#include "carillon/engine/cuda/plan/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/memory/copy_way.h"
#include "carillon/engine/cuda/memory/loaded_plan.h"
#include "carillon/engine/cuda/memory/scratch.h"
#include "carillon/engine/cuda/plan/attention.h"
#include "carillon/engine/cuda/plan/cuda_plan.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/engine/cuda/stream/cuda_stream.h"
#include "carillon/graph/effort.h"

namespace carillon::engine::cuda {

namespace {

struct Segments {
  std::vector<int> ends;        // the step after each segment's last
  std::vector<Duration> takes;  // by segment
};

// Segments that take no longer than `bound`, or are one step.
Segments by_time(std::span<const Duration> steps, Duration bound) {
  Segments out;
  Duration sum{0};
  const auto end = [&](std::size_t at) {
    out.ends.push_back(static_cast<int>(at));
    out.takes.push_back(std::exchange(sum, Duration{0}));
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i > 0 && sum + steps[i] > bound) end(i);
    sum += steps[i];
  }
  end(steps.size());
  return out;
}

// Memory for runs of plans of one recipe's sizes that are measured: it has the weights, and inputs of random
// numbers.
class Bench {
 public:
  static Result<std::optional<Bench>> make(const std::shared_ptr<const Device>& device, const Recipe& recipe,
                                           std::span<const std::byte> weights, Duration longest_wait);

  // How long whole runs take, one after the other, as the host sees them.
  Result<std::vector<Duration>> times(const CudaPlan& plan, int repeats) const {
    const auto state = plan.make_state(nullptr);
    std::vector<Duration> out;
    for (int i = 0; i < repeats; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (auto ran = plan.run({0, plan.kernels()}, binding(state.get()), {}, nullptr, nullptr); !ran)
        return std::unexpected(ran.error());
      out.push_back(std::max<Duration>(Duration{1}, std::chrono::steady_clock::now() - begin));
    }
    return out;
  }

  // The least of five times of each segment, in runs of all of them; a run that has not ended after
  // `longest_wait` has this memory for good.
  Result<std::vector<Duration>> least(const CudaPlan& plan) {
    std::vector<int> all(static_cast<std::size_t>(plan.kernels()));
    std::iota(all.begin(), all.end(), 0);
    return least(plan, all);
  }
  // Likewise of each of these. What two events and a graph's launch add to a kernel's time (2.4 us on an
  // H100) does not count.
  Result<std::vector<Duration>> least(const CudaPlan& plan, const std::vector<int>& of) {
    constexpr int rounds = 5;
    std::vector<Duration> least(of.size(), Duration::max()), now(static_cast<std::size_t>(plan.kernels()));
    auto state = plan.make_state(nullptr);
    auto& mine = static_cast<CudaState&>(*state);
    mine.longest = longest_wait_;
    const auto given_up = [&](const Error& why) {
      if (mine.spins()) keep(std::move(state));
      return std::unexpected(why);
    };
    if (auto launched = plan.launch_each(binding(state.get()), mine); !launched)
      return given_up(launched.error());
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < of.size(); ++i) {
        if (auto ran = plan.run({of[i], of[i] + 1}, binding(state.get()), now, nullptr, nullptr); !ran)
          return given_up(ran.error());
        least[i] = std::min(least[i], now[static_cast<std::size_t>(of[i])]);
      }
    const auto launch = plan.device().launch_time();
    if (!launch && launch.error().code == ErrorCode::unavailable) return std::unexpected(launch.error());
    const Duration added = launch ? *launch : Duration{0};  // there may be no memory to measure it in
    for (Duration& each : least) each = Device::without_launch(each, added);
    return least;
  }

 private:
  Binding binding(RunState* state) const {
    return {.inputs = from_,
            .outputs = to_,
            .workspace = at(workspace_),
            .weights = at(weights_),
            .state = state};
  }
  std::byte* at(std::uint64_t offset) const { return reinterpret_cast<std::byte*>(scratch_->at() + offset); }
  // What a run that does not end may use: to take it away would wait for the run, or fault beneath it.
  void keep(std::unique_ptr<RunState> state) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::unique_ptr<RunState>>;
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(state));
    scratch_->leave();
  }

  Duration longest_wait_{0};
  std::unique_ptr<Scratch> scratch_;
  std::uint64_t weights_ = 0, workspace_ = 0;
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
};

// Nothing where there is no memory for it.
Result<std::optional<Bench>> Bench::make(const std::shared_ptr<const Device>& device, const Recipe& recipe,
                                         std::span<const std::byte> weights, Duration longest_wait) {
  Bench out;
  out.longest_wait_ = longest_wait;
  std::uint64_t bytes = 0;
  const auto place = [&](std::uint64_t wanted) {
    return std::exchange(bytes, bytes + round_up(std::max<std::uint64_t>(wanted, 1), 256));
  };
  out.weights_ = place(weights.size());
  out.workspace_ = place(recipe.workspace);
  std::vector<std::uint64_t> inputs, outputs;
  for (const auto& edge : recipe.inputs) inputs.push_back(place(edge.bytes));
  for (const auto& edge : recipe.outputs) outputs.push_back(place(edge.bytes));
  const Driver& driver = device->driver;
  out.scratch_ = std::make_unique<Scratch>(driver, device->number());
  const Status taken = out.scratch_->take(bytes);
  if (is_lost(taken)) return std::unexpected(device->check(taken, "memory to measure in").error());
  if (taken != done) return std::nullopt;
  for (const std::uint64_t each : inputs) out.from_.push_back(out.at(each));
  for (const std::uint64_t each : outputs) out.to_.push_back(out.at(each));
  Stream stream = nullptr;
  if (auto made = device->check(driver.stream_create(&stream, stream_beside_the_default, 0), "a stream");
      !made)
    return std::unexpected(made.error());
  const auto stuck = [&] {
    out.scratch_->leave();
    return fail(ErrorCode::unavailable,
                fmt::format("cuda:{}: what the device did before has not ended within {:g} s",
                            device->number(), to_seconds(longest_wait)));
  };
  Status filled = driver.fill(out.scratch_->at(), 0, out.scratch_->bytes(), stream);
  const auto at = [&](std::uint64_t offset) { return out.scratch_->at() + offset; };
  if (filled == done) filled = wait_for(driver, stream, longest_wait);
  if (filled == not_ready) return stuck();
  if (filled == done && !weights.empty()) {
    CopyWay way(driver);
    const char* what = nullptr;
    filled = way.prepare(what);
    if (filled == done) filled = way.in(at(out.weights_), weights);
    way.give_back();
  }
  for (std::size_t i = 0; filled == done && i < inputs.size(); ++i)
    if (recipe.inputs[i].of_numbers)
      filled = fill_with_numbers(driver, at(inputs[i]), recipe.inputs[i].bytes, stream);
  (void)driver.stream_destroy(stream);
  if (filled == out_of_memory) return std::nullopt;  // of the host
  if (auto done = device->check(filled, "memory to measure in"); !done) return std::unexpected(done.error());
  return out;
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
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset <= bytes_.size() && to.size() <= bytes_.size() - offset);
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return {};
  }
  // LOADs copy from the host's, pinned or not.
  ModelMemory memory() const override {
    ModelMemory out = CompiledModel::memory();
    out.weights = weights();
    return out;
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  bool pads() const override { return pads_; }
  std::vector<std::string> notes() const override { return notes_; }
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
  std::vector<std::string> notes_;
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
        options_(options),
        streams_(device_, options.bound) {
    if (options_.choices == nullptr) options_.choices = std::make_shared<KernelChoices>();
  }

  std::string_view name() const override { return "cuda"; }
  std::unique_ptr<engine::Stream> make_stream(const StreamOptions& options) override {
    return streams_.make(options);
  }
  Result<std::unique_ptr<Team>> make_team(const TeamOptions& options) override {
    return Lane::make(device_, options.cls, options.cls == Class::best_effort && options_.flag);
  }

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
    compiled->lengths_.assign(model.lengths().begin(), model.lengths().end());
    compiled->pads_ = options.pads;
    Weights weights;
    std::vector<std::int64_t> lengths = compiled->lengths_;
    if (lengths.empty()) lengths.push_back(0);
    for (const int batch : sizes) {
      std::vector<std::unique_ptr<CudaPlan>> plans;
      for (const std::int64_t length : lengths) {
        const std::string where = named + " at batch " + std::to_string(batch) +
                                  (length > 0 ? " and length " + std::to_string(length) : "");
        auto plan = make_plan(model, batch, length, options, weights);
        if (!plan && plan.error().code == ErrorCode::resource_exhausted) {
          compiled->notes_.push_back(fmt::format("batches of {} are left out: {}{}", batch,
                                                 length > 0 ? fmt::format("at length {}, ", length) : "",
                                                 plan.error().message));
          break;
        }
        if (!plan) return in_context(where, plan.error());
        plans.push_back(std::move(*plan));
      }
      if (plans.size() < lengths.size()) continue;
      compiled->batch_sizes_.push_back(batch);
      for (std::size_t i = 0; i < lengths.size(); ++i)
        compiled->plans_.emplace(std::pair(batch, lengths[i]), std::move(plans[i]));
    }
    if (compiled->batch_sizes_.empty())
      return fail(ErrorCode::unsupported, named + ": " + compiled->notes_.front());
    library_->compiled();
    compiled->pinned_ = pinned_copy(device_, weights.bytes());
    if (compiled->pinned_ == nullptr) compiled->own_ = weights.take();
    compiled->bytes_ = compiled->pinned_ ? std::span(compiled->pinned_.get(), weights.bytes().size())
                                         : std::span<const std::byte>(compiled->own_);
    return compiled;
  }

  std::optional<Result<std::vector<Duration>>> measure(const CompiledModel& model, const Plan& plan,
                                                       int repeats) override {
    const Device::Current current(*device_);
    const auto& mine = static_cast<const CudaPlan&>(plan);
    std::vector<std::byte> written;
    const auto weights = weights_of(model, written);  // `model` may stand before one of ours
    if (!weights) return std::unexpected(weights.error());
    auto bench = Bench::make(device_, mine.parts().recipe, *weights, options_.longest_wait);
    if (!bench) return std::unexpected(bench.error());
    if (!*bench)
      return fail(ErrorCode::resource_exhausted, "the device has no memory left to measure a model in");
    return (*bench)->times(mine, repeats);
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

  Result<PlanParts> make(const graph::Graph& graph, const PlanName& plan, RecipeOptions options,
                         Weights& weights) const {
    options.processors = device_->processors();
    options.chains = chains_.get();
    auto recipe = make_recipe(graph, options, *library_, weights);
    if (!recipe) return std::unexpected(recipe.error());
    PlanParts parts{.effort = graph::effort_of(graph), .recipe = std::move(*recipe), .times = options_.times};
    if (parts.times != nullptr) {
      auto takes = parts.times->of(plan, parts.recipe.steps);
      if (!takes) return std::unexpected(takes.error());
      parts.step_takes = std::move(*takes);
    }
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

  // resource_exhausted: it has a kernel that is too long for what is to be stopped soon.
  Result<std::unique_ptr<CudaPlan>> make_plan(const graph::Model& model, int batch, std::int64_t length,
                                              const CompileOptions& options, Weights& weights) const {
    auto graph = model.specialize(batch, length);
    if (!graph) return std::unexpected(graph.error());
    const Number number = options.precision == Precision::bf16  ? Number::bf16
                          : options.precision == Precision::f16 ? Number::f16
                                                                : options_.number;
    RecipeOptions made_with{.number = number,
                            .longest_segment = options_.longest_segment,
                            .join_products = options_.join_products};
    const PlanName plan{.model = options.name.empty() ? model.name() : options.name,
                        .number = number,
                        .batch = batch,
                        .length = length};
    if (auto chosen = choose_attention(*graph, plan, made_with, weights); !chosen)
      return std::unexpected(chosen.error());
    std::vector<Duration> takes;
    if (options.stop_cost) {
      // Once with each step by itself, to measure, and once as that divides them.
      made_with.longest_segment = 1;
      auto single = make(*graph, plan, made_with, weights);
      if (!single) return std::unexpected(single.error());
      auto measured = divide(std::move(*single), weights.bytes());
      if (!measured) return std::unexpected(measured.error());
      made_with.segment_ends = std::move(measured->ends);
      takes = std::move(measured->takes);
    }
    auto parts = make(*graph, plan, made_with, weights);
    if (!parts) return std::unexpected(parts.error());
    parts->takes = std::move(takes);
    parts->cls = options.stop_cost   ? Class::best_effort
                 : options.room_cost ? Class::real_time
                                     : Class::normal;
    parts->batch = batch;
    parts->inputs = graph::specs_at(model.inputs(), batch, length);
    parts->outputs = graph::specs_at(model.outputs(), batch, length);
    if (auto same = check(*graph, graph->outputs, parts->outputs); !same)
      return std::unexpected(same.error());
    if (options.room_cost && !options.stop_cost) {
      auto pair = narrow(*parts, weights.bytes(), *options.room_cost);
      if (!pair) return std::unexpected(pair.error());
      parts->pair = *pair;
      // For best effort beside it.
      if (*pair != 0) library_->size_for(device_->processors_of({.pair = *pair, .rest = true}));
    }
    return std::make_unique<CudaPlan>(device_, std::move(*parts));
  }

  // How a plan of single steps is divided by what they take; as it is where there is no memory to measure in.
  Result<Segments> divide(PlanParts parts, std::span<const std::byte> weights) const {
    Segments singles{.ends = parts.recipe.segment_ends,
                     .takes = std::vector(parts.segments.size(), options_.bound)};
    if (parts.recipe.steps.empty()) return singles;
    auto bench = Bench::make(device_, parts.recipe, weights, options_.longest_wait);
    if (!bench) return std::unexpected(bench.error());
    if (!*bench) return singles;
    const CudaPlan plan(device_, std::move(parts));
    const auto least = (*bench)->least(plan);
    if (!least) return std::unexpected(least.error());
    const auto longest = std::ranges::max_element(*least);
    if (*longest > options_.longest_kernel)
      return fail(ErrorCode::resource_exhausted,
                  fmt::format("{} takes {:.0f} us, and what is to be stopped soon (best effort) may have no "
                              "kernel of more than {:.0f} (--cuda-longest-kernel)",
                              plan.kernel_name(static_cast<int>(longest - least->begin())), to_us(*longest),
                              to_us(options_.longest_kernel)));
    return by_time(*least, options_.bound / 2);
  }

  // The pair whose first part is the least that costs a plan at most that share of its time; 0: there is
  // none.
  Result<int> narrow(const PlanParts& parts, std::span<const std::byte> weights, double cost) const {
    const Splits* const splits = device_->splits();
    if (splits == nullptr || splits->count() == 0 || parts.recipe.steps.empty()) return 0;
    auto bench = Bench::make(device_, parts.recipe, weights, options_.longest_wait);
    if (!bench) return std::unexpected(bench.error());
    if (!*bench) return 0;
    const auto takes = [&](int pair) -> Result<Duration> {
      // What the driver does not give, or a kernel does not run in, is too narrow.
      if (pair != 0 && !device_->prepare_pair(pair)) return Duration::max();
      if (const unsigned processors = device_->processors_of({.pair = pair}); processors != 0)
        for (const Step& step : parts.recipe.steps)
          if (step.call != nullptr) step.call->size_for(processors);
      PlanParts there = parts;
      there.pair = pair;
      const CudaPlan plan(device_, std::move(there));
      const auto least = (*bench)->least(plan);
      if (!least && pair != 0 && least.error().code != ErrorCode::unavailable) return Duration::max();
      if (!least) return std::unexpected(least.error());
      return std::accumulate(least->begin(), least->end(), Duration{0});
    };
    const auto whole = takes(0);
    if (!whole) return std::unexpected(whole.error());
    const auto most = std::chrono::duration_cast<Duration>(*whole * (1 + cost));
    int low = 1, high = splits->count() + 1;  // the first that is wide enough is in [low, high]
    while (low < high) {
      const int middle = low + (high - low) / 2;
      const auto time = takes(middle);
      if (!time) return std::unexpected(time.error());
      if (*time <= most)
        high = middle;
      else
        low = middle + 1;
    }
    return low > splits->count() ? 0 : low;
  }

  // Has RecipeOptions::one_kernel say what is to be one kernel, which takes measuring where it is not known.
  // By a table of steps it is as the table has it.
  Result<> choose_attention(const graph::Graph& graph, const PlanName& plan, RecipeOptions& with,
                            Weights& weights) const {
    static constexpr std::string_view as_calls = "calls", as_kernel = "kernel";
    with.one_kernel = nullptr;
    if (options_.attention == AttentionWay::calls || find_attention(graph).empty()) return {};
    RecipeOptions ways[] = {with, with};
    ways[1].one_kernel = [](const std::string&) { return true; };
    if (options_.attention == AttentionWay::kernel ||
        (options_.times != nullptr && make(graph, plan, ways[1], weights))) {
      with.one_kernel = ways[1].one_kernel;
      return {};
    }
    if (options_.times != nullptr) return {};
    with.one_kernel = [choices = options_.choices](const std::string& key) {
      return choices->find(key) == as_kernel;
    };
    // By way and key: each attention that is not known, a segment of its own.
    std::vector<Recipe::Attention> unknown;
    std::map<std::string, Duration> took[2];
    for (const std::size_t way : {1U, 0U}) {
      ways[way].longest_segment = 0;
      auto parts = make(graph, plan, ways[way], weights);
      if (!parts) return std::unexpected(parts.error());
      unknown.clear();
      std::vector<int> ends;
      std::vector<int> measured;
      for (const Recipe::Attention& each : parts->recipe.attentions) {
        const auto kept = options_.choices->find(each.key);
        if (kept == as_calls || kept == as_kernel || each.first == each.last ||
            std::ranges::find(unknown, each.key, &Recipe::Attention::key) != unknown.end())
          continue;
        if (each.first > (ends.empty() ? 0 : ends.back())) ends.push_back(each.first);
        measured.push_back(static_cast<int>(ends.size()));
        ends.push_back(each.last);
        unknown.push_back(each);
      }
      if (unknown.empty()) return {};
      const int steps = static_cast<int>(parts->recipe.steps.size());
      if (ends.back() < steps) ends.push_back(steps);
      ways[way].segment_ends = std::move(ends);
      auto divided = make(graph, plan, ways[way], weights);
      if (!divided) return std::unexpected(divided.error());
      auto bench = Bench::make(device_, divided->recipe, weights.bytes(), options_.longest_wait);
      if (!bench) return std::unexpected(bench.error());
      if (!*bench) return {};
      auto least = (*bench)->least(CudaPlan(device_, std::move(*divided)), measured);
      if (!least) return std::unexpected(least.error());
      for (std::size_t i = 0; i < unknown.size(); ++i) took[way].emplace(unknown[i].key, (*least)[i]);
    }
    for (const Recipe::Attention& each : unknown) {
      const auto by_kernel = took[1].find(each.key);
      if (by_kernel == took[1].end()) continue;
      const AttentionTimes told{each.node, each.key, took[0].at(each.key), by_kernel->second};
      options_.choices->keep(told.key, std::string(told.kernel < told.calls ? as_kernel : as_calls));
      if (options_.told) options_.told(told);
    }
    return {};
  }

  std::shared_ptr<const Device> device_;
  std::unique_ptr<MathLibrary> library_;
  std::unique_ptr<ChainLibrary> chains_;  // may be none
  CudaOptions options_;
  Streams streams_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Driver> driver, DeviceNumber device,
                                                 const void* image, std::unique_ptr<MathLibrary> library,
                                                 const CudaOptions& options,
                                                 std::unique_ptr<ChainLibrary> chains) {
  auto made = std::make_shared<Device>(std::move(driver), device);
  if (auto prepared = made->prepare(image, options.splits, options.share); !prepared)
    return std::unexpected(prepared.error());
  if (options.notice != nullptr && !made->undivided().empty())
    *options.notice = "real-time runs have all of the device, as it is not divided: " + made->undivided();
  if (const unsigned processors = made->processors_of({}); processors != 0) {
    const Device::Current current(*made);
    library->size_for(processors);
  }
  return std::make_unique<CudaEngine>(std::move(made), std::move(library), options, std::move(chains));
}

}  // namespace carillon::engine::cuda
