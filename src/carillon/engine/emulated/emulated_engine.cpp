#include "carillon/engine/emulated/emulated_engine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/graph/bounded.h"
#include "carillon/profile/batch_line.h"

namespace carillon::engine {

namespace {

// Timers are late by about the same time again and again: this thread's is learnt, and slept less.
void sleep(const Clock& clock, TimePoint until) {
  constexpr Duration latest = 200us;  // beyond it, it was not the timer
  thread_local Duration usual{0};
  const Duration time = until - clock.now() - usual;
  if (time <= Duration{0}) return;
  std::this_thread::sleep_for(time);
  usual += (std::clamp(clock.now() - (until - usual), Duration{0}, latest) - usual) / 16;
}

void wait(const EmulatedOptions& options, const Clock& clock, TimePoint until) {
  if (options.wait)
    options.wait(clock, until);
  else
    sleep(clock, until);
}

// The time of `batch` by a table; see EmulatedModel::execution.
Duration at_batch(const std::map<int, Duration>& table, int batch) {
  CARILLON_ASSERT(!table.empty());
  using Entry = std::map<int, Duration>::value_type;
  return profile::on_batch_line(table, std::max(batch, table.begin()->first), &Entry::first, &Entry::second);
}

class EmulatedPlan final : public Plan {
 public:
  struct Tensors {
    std::vector<graph::TensorSpec> inputs, outputs;
  };
  EmulatedPlan(const std::string& model, int batch, std::int64_t length, Tensors tensors, Duration mean,
               std::shared_ptr<const EmulatedOptions> options, std::uint64_t seed, const Clock& clock)
      : batch_(batch),
        length_(length),
        inputs_(std::move(tensors.inputs)),
        outputs_(std::move(tensors.outputs)),
        mean_(mean),
        options_(std::move(options)),
        random_(seed),
        clock_(clock) {
    for (const auto& spec : outputs_) output_bytes_.push_back(graph::memory_of(spec.type, spec.shape).count);
    for (int k = 0; k < options_->kernels; ++k)
      names_.push_back(model + "/" + std::to_string(k) + " emulated");
  }

  int batch() const override { return batch_; }
  std::int64_t length() const { return length_; }
  Duration mean() const { return mean_; }
  std::span<const graph::TensorSpec> inputs() const override { return inputs_; }
  std::span<const graph::TensorSpec> outputs() const override { return outputs_; }
  Bytes workspace() const override { return {}; }
  int kernels() const override { return options_->kernels; }
  std::string_view kernel_name(int index) const override { return names_[static_cast<std::size_t>(index)]; }

  Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations,
               StopSignal* stop = nullptr, Pacer* pacer = nullptr) const override {
    CARILLON_ASSERT(0 <= range.first && range.first <= range.last && range.last <= kernels());
    CARILLON_ASSERT(binding.outputs.size() == outputs_.size());
    CARILLON_ASSERT(durations.empty() || durations.size() == static_cast<std::size_t>(kernels()));
    const TimePoint begin = clock_.now();
    const auto pass = [&] { return options_->breaker ? options_->breaker->pass(begin) : Result<>{}; };
    if (auto passed = pass(); !passed) return passed;
    TimePoint now = begin;
    TimePoint end = now;
    // A share of the device makes all kernels longer alike; nothing is computed that could rest.
    const double share = pacer == nullptr ? 1 : pacer->share();
    const Duration one = from_ns(static_cast<double>(with_noise(mean_).count()) / share) / kernels();
    for (int k = range.first; k < range.last; ++k) {
      if (stop != nullptr && stop->requested()) {
        stop->next = k;
        return {};
      }
      if (stop != nullptr) stop->step();
      end += one;
      if (k + 1 == kernels())
        for (std::size_t i = 0; i < outputs_.size(); ++i)
          if (output_bytes_[i] > 0) std::memset(binding.outputs[i], 0, output_bytes_[i]);
      wait(*options_, clock_, end);
      if (auto passed = pass(); !passed) return passed;
      const TimePoint after = clock_.now();
      if (!durations.empty()) durations[static_cast<std::size_t>(k)] = after - now;
      now = after;
    }
    if (stop != nullptr) stop->next = range.last;
    return {};
  }

 private:
  Duration with_noise(Duration mean) const {
    if (options_->noise == 0) return mean;
    const double factor = 1 + options_->noise * std::clamp(random_.normal(), -3.0, 3.0);
    return from_ns(static_cast<double>(mean.count()) * std::max(factor, 0.0));
  }

  int batch_;
  std::int64_t length_;
  std::vector<graph::TensorSpec> inputs_, outputs_;
  std::vector<std::uint64_t> output_bytes_;
  std::vector<std::string> names_;
  Duration mean_;
  std::shared_ptr<const EmulatedOptions> options_;
  mutable Random random_;  // one run at a time
  const Clock& clock_;
};

std::uint64_t bytes_of(std::span<const graph::TensorSpec> specs) {
  std::uint64_t sum = 0;
  for (const auto& spec : specs) sum += graph::memory_of(spec.type, spec.shape).count;
  return sum;
}

// The tensors of an open model at some extents, or at its reference.
Result<EmulatedPlan::Tensors> open_tensors(const graph::Model& model, int batch,
                                           std::span<const std::int64_t> extents, bool reference) {
  const auto graph = reference ? model.specialize(batch) : model.specialize_at(batch, extents);
  if (!graph) return std::unexpected(graph.error());
  EmulatedPlan::Tensors out{.inputs = graph::specs_at(model.inputs(), batch, extents), .outputs = {}};
  const std::vector<graph::Shape> shapes = graph::marked_shapes(*graph);
  for (std::size_t i = 0; i < model.outputs().size(); ++i) {
    out.outputs.push_back({.name = model.outputs()[i].name,
                           .type = model.outputs()[i].type,
                           .shape = shapes[graph->outputs[i].index()]});
  }
  return out;
}

class EmulatedCompiled final : public CompiledModel {
 public:
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return weights_; }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset <= weights_.count && to.size() <= weights_.count - offset);
    if (options_->breaker)
      (void)options_->breaker->pass(clock_->now());  // where it fails, the next run tells
    if (to.empty()) return {};
    if (!load_) {
      std::memset(to.data(), 0, to.size());
      return {};
    }
    const double part = static_cast<double>(to.size()) / static_cast<double>(weights_.count);
    wait(*options_, *clock_, clock_->now() + from_ns(static_cast<double>(load_->count()) * part));
    return {};
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  bool pads() const override { return pads_; }
  std::span<const std::int64_t> reference() const override { return reference_; }
  // A plan takes the reference's time by the bytes of its inputs.
  Result<std::vector<std::unique_ptr<const Plan>>> make_plans(std::span<const std::int64_t> extents,
                                                              std::span<const int> batches,
                                                              const std::atomic<bool>* ended) const override {
    if (source_ == nullptr) return CompiledModel::make_plans(extents, batches, ended);
    std::vector<std::unique_ptr<const Plan>> made;
    for (const int batch : batches) {
      auto tensors = open_tensors(*source_, batch, extents, false);
      if (!tensors) return std::unexpected(tensors.error());
      const auto like = std::ranges::find(plans_, batch, [](const auto& plan) { return plan->batch(); });
      CARILLON_ASSERT(like != plans_.end());
      const double factor = static_cast<double>(bytes_of(tensors->inputs)) /
                            static_cast<double>(std::max<std::uint64_t>(1, bytes_of((*like)->inputs())));
      made.push_back(std::make_unique<EmulatedPlan>(
          source_->name(), batch, 0, std::move(*tensors),
          from_ns(static_cast<double>((*like)->mean().count()) * factor), options_,
          options_->seed + static_cast<std::uint64_t>(batch), *clock_));
    }
    return made;
  }
  const Plan* plan(int batch, std::int64_t length) const override {
    for (const auto& plan : plans_)
      if (plan->batch() == batch && plan->length() == length) return plan.get();
    return nullptr;
  }

 private:
  friend class EmulatedEngine;
  std::shared_ptr<const EmulatedOptions> options_;
  const Clock* clock_ = nullptr;
  std::vector<graph::TensorSpec> inputs_, outputs_;
  Bytes weights_;
  std::optional<Duration> load_;
  std::vector<int> batch_sizes_;
  std::vector<std::int64_t> lengths_;
  bool pads_ = false;
  graph::Extents reference_;
  std::shared_ptr<const graph::Model> source_;  // of an open model
  std::vector<std::unique_ptr<EmulatedPlan>> plans_;
};

class EmulatedEngine final : public Engine {
 public:
  EmulatedEngine(EmulatedOptions options, const Clock& clock)
      : options_(std::make_shared<const EmulatedOptions>(std::move(options))),
        seeds_(options_->seed),
        clock_(clock) {}

  std::string_view name() const override { return "emulated"; }
  Result<> probe() override { return options_->breaker ? options_->breaker->pass(clock_.now()) : Result<>{}; }

  Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                       const CompileOptions& options) override {
    if (options_->kernels < 1) return invalid("an emulated plan needs at least one kernel");
    if (!(options_->noise >= 0 && options_->noise < 1))
      return invalid("the noise of emulated plans must be at least 0 and below 1");
    const auto& sizes = options.batch_sizes;
    const std::string& name = options.name.empty() ? model.name() : options.name;
    if (sizes.empty() || sizes.front() < 1 ||
        std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end())
      return invalid("model \"" + name + "\": batch sizes must be ascending, distinct and at least 1");
    const auto found = options_->models.find(name);
    if (found == options_->models.end() && !options_->other_models)
      return fail(ErrorCode::not_found,
                  "no profile for model \"" + name + "\": the emulated device knows " + known_models());
    const EmulatedModel& profile = found == options_->models.end() ? *options_->other_models : found->second;
    if (profile.execution.empty() || profile.execution.begin()->first < 1)
      return invalid("the profile of model \"" + name + "\" needs a time for a batch size of 1 or more");

    auto compiled = std::make_shared<EmulatedCompiled>();
    compiled->inputs_ = model.inputs();
    compiled->outputs_ = model.outputs();
    compiled->options_ = options_;
    compiled->clock_ = &clock_;
    compiled->weights_ = profile.weights;
    compiled->load_ = profile.load;
    compiled->batch_sizes_ = sizes;
    compiled->lengths_.assign(model.lengths().begin(), model.lengths().end());
    compiled->pads_ = options.pads;
    std::vector<std::int64_t> lengths = compiled->lengths_;
    if (lengths.empty()) lengths.push_back(0);
    compiled->reference_.assign(model.reference().begin(), model.reference().end());
    if (compiled->open()) compiled->source_ = model.weak_from_this().lock();
    for (const int batch : sizes)
      for (const std::int64_t length : lengths) {
        Result<EmulatedPlan::Tensors> tensors =
            compiled->open() ? open_tensors(model, batch, compiled->reference_, true)
                             : EmulatedPlan::Tensors{graph::specs_at(model.inputs(), batch, length),
                                                     graph::specs_at(model.outputs(), batch, length)};
        if (!tensors) return std::unexpected(tensors.error());
        compiled->plans_.push_back(std::make_unique<EmulatedPlan>(
            model.name(), batch, length, std::move(*tensors),
            emulated_duration(profile, batch, length, lengths.back()), options_, seeds_.bits(), clock_));
      }
    return compiled;
  }

 private:
  std::string known_models() const {
    constexpr std::size_t most = 20;
    std::string out;
    std::size_t told = 0;
    for (const auto& [name, model] : options_->models)
      if (told++ < most) out += (out.empty() ? "\"" : ", \"") + name + "\"";
    if (told > most) out += " and " + std::to_string(told - most) + " more";
    return out.empty() ? "none" : out;
  }

  std::shared_ptr<const EmulatedOptions> options_;
  Random seeds_;
  const Clock& clock_;
};

}  // namespace

Duration emulated_duration(const EmulatedModel& model, int batch, std::int64_t length, std::int64_t longest) {
  CARILLON_ASSERT(batch >= 1 && !model.execution.empty() && length <= longest);
  if (length > 0 && model.by_length.empty())
    return from_ns(static_cast<double>(at_batch(model.execution, batch).count()) *
                   static_cast<double>(length) / static_cast<double>(longest));
  if (length == 0) return at_batch(model.execution, batch);
  const auto next = model.by_length.lower_bound(length);
  return at_batch(next == model.by_length.end() ? model.by_length.rbegin()->second : next->second, batch);
}

std::unique_ptr<Engine> make_emulated_engine(EmulatedOptions options, const Clock& clock) {
  return std::make_unique<EmulatedEngine>(std::move(options), clock);
}

}  // namespace carillon::engine
