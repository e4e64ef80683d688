#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/mix.h"
#include "carillon/engine/engine.h"
#include "carillon/worker/worker.h"

// For the worker's tests: an engine that adds numbers, and somebody to wait for results.
namespace carillon::worker::testing {

// What `model` keeps in the 8 bytes of its weights at `offset`, a multiple of 64. Never zero, and no two
// models or places alike, as `mix` is a bijection.
inline std::uint64_t weight_word(std::uint64_t model, std::uint64_t offset) {
  return mix((model << 40) + offset + 1);
}

// y[b, width] = x[b, width] + s[b, 1] + constant, and t[b, 1] = s. Its kernel looks at every 64th byte of the
// weights first and fails where they are not this model's own.
class FakeModel final : public engine::CompiledModel {
 public:
  struct Config {
    std::uint64_t seed = 0;
    std::uint64_t weights = 100;
    std::int64_t width = 3;
    float constant = 1;
    std::vector<int> batches{1, 2, 4};
    Bytes workspace = kib(4);
    graph::DataType type = graph::DataType::f32;
    // With any, `width` varies, and x and y are [b, 2, width]: what is padded lies in two pieces.
    std::vector<std::int64_t> lengths{};
    bool pads = false;
    // A row whose s is this has bad data; the engine tells which row it is, or only that there is one.
    std::optional<float> bad = std::nullopt;
    bool tells_rows = true;
    bool refuses_bad = false;  // such a run fails, whoever wants its results
    // Above 0: the model is open, x and y are [b, 2, any], and this is the reference.
    std::int64_t reference = 0;
    bool later = false;  // it has the smallest batch's plan alone at first
  };

  explicit FakeModel(Config config) : config_(std::move(config)) {
    inputs_ = {{"x", config_.type, {-1, config_.width}}, {"s", graph::DataType::f32, {-1, 1}}};
    outputs_ = {{"y", graph::DataType::f32, {-1, config_.width}}, {"t", graph::DataType::f32, {-1, 1}}};
    if (!config_.lengths.empty()) inputs_[0].shape = outputs_[0].shape = {-1, 2, graph::length_dimension};
    if (config_.reference > 0) {
      inputs_[0].shape = outputs_[0].shape = {-1, 2, graph::free_dimension(0)};
      reference_ = {config_.reference};
    }
    for (const int batch : config_.batches) {
      if (config_.later && batch != config_.batches.front()) continue;
      if (config_.reference > 0) {
        plans_.push_back(std::make_unique<FakePlan>(*this, batch, config_.reference));
        continue;
      }
      if (config_.lengths.empty()) plans_.push_back(std::make_unique<FakePlan>(*this, batch, 0));
      for (const std::int64_t length : config_.lengths)
        plans_.push_back(std::make_unique<FakePlan>(*this, batch, length));
    }
  }

  // What has run, in order: batch size and length. For the EXEC thread, or when it is at rest.
  mutable std::vector<std::pair<int, std::int64_t>> runs;

  // Called by the kernel before anything else, on the EXEC thread; set before use. An error fails the run.
  std::function<Result<>()> before_run;
  // What plans that are made later have of it; empty: as the config says.
  std::function<Bytes(int batch)> workspace_of;
  // Called where a run is given up, from any thread; set before use.
  std::function<void()> given_up;

  const Config& config() const { return config_; }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return {config_.weights}; }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    for (std::uint64_t at = 0; at + 8 <= to.size(); at += 64) {
      const std::uint64_t word = weight_word(config_.seed, offset + at);
      std::memcpy(to.data() + at, &word, 8);
    }
    return {};
  }
  std::span<const int> batch_sizes() const override { return config_.batches; }
  bool makes_later() const override { return config_.later && config_.reference == 0; }
  bool has_one_plan() const override { return config_.later; }
  std::span<const std::int64_t> lengths() const override { return config_.lengths; }
  bool pads() const override { return config_.pads; }
  std::span<const std::int64_t> reference() const override { return reference_; }
  Result<std::vector<std::unique_ptr<const engine::Plan>>> make_plans(
      std::span<const std::int64_t> extents, std::span<const int> batches,
      const std::atomic<bool>*) const override {
    if (!extents.empty() && extents[0] == 13) return invalid("nothing fits together at 13");
    std::vector<std::unique_ptr<const engine::Plan>> made;
    for (const int batch : batches)
      made.push_back(std::make_unique<FakePlan>(*this, batch, extents.empty() ? 0 : extents[0]));
    return made;
  }
  const engine::Plan* plan(int batch, std::int64_t length) const override {
    if (config_.reference > 0 && length == 0) length = config_.reference;
    for (const auto& candidate : plans_)
      if (candidate->batch() == batch && candidate->length() == length) return candidate.get();
    return nullptr;
  }
  // Plans there are, those of the reference included.
  mutable std::atomic<int> plans{0};

 private:
  class FakePlan final : public engine::Plan {
   public:
    FakePlan(const FakeModel& model, int batch, std::int64_t length)
        : model_(model), batch_(batch), length_(length) {
      for (const auto& [specs, at_batch] :
           {std::pair{&model.inputs_, &inputs_}, std::pair{&model.outputs_, &outputs_}})
        for (graph::TensorSpec spec : *specs) {
          std::ranges::replace(spec.shape, graph::batch_dimension, std::int64_t{batch});
          std::ranges::replace(spec.shape, graph::length_dimension, length);
          std::ranges::replace(spec.shape, graph::free_dimension(0), length);
          at_batch->push_back(std::move(spec));
        }
      ++model_.plans;
    }
    ~FakePlan() override { --model_.plans; }
    int batch() const override { return batch_; }
    std::int64_t length() const { return length_; }
    std::span<const graph::TensorSpec> inputs() const override { return inputs_; }
    std::span<const graph::TensorSpec> outputs() const override { return outputs_; }
    Bytes workspace() const override {
      return model_.workspace_of ? model_.workspace_of(batch_) : model_.config_.workspace;
    }
    int kernels() const override { return 2; }  // the first adds, the second does nothing
    std::string_view kernel_name(int) const override { return "add fake"; }
    Result<> run(engine::KernelRange range, const engine::Binding& to, std::span<Duration>,
                 engine::StopSignal* stop = nullptr, engine::Pacer* = nullptr) const override {
      if (range.first < 0 || range.first > 1 || range.last != 2)
        return fail(ErrorCode::internal, "wrong range of kernels");
      if (range.first == 1) {  // it resumes where there is nothing left to do
        if (stop != nullptr) stop->next = 2;
        return {};
      }
      const Inside inside(model_, stop);
      if (model_.before_run)
        if (auto done = model_.before_run(); !done) return done;
      for (std::uint64_t at = 0; at + 8 <= model_.config_.weights; at += 64) {
        std::uint64_t word = 0;
        std::memcpy(&word, to.weights + at, 8);
        if (word != weight_word(model_.config_.seed, at))
          return fail(ErrorCode::internal, "these are not my weights, at " + std::to_string(at));
      }
      std::memset(to.workspace, 0xa5, model_.config_.workspace.count);
      const auto* x = reinterpret_cast<const float*>(to.inputs[0]);
      const auto* s = reinterpret_cast<const float*>(to.inputs[1]);
      auto* y = reinterpret_cast<float*>(to.outputs[0]);
      auto* t = reinterpret_cast<float*>(to.outputs[1]);
      for (int row = 0; row < batch_; ++row) {
        if (s[row] != model_.config_.bad) continue;
        const Error error{ErrorCode::invalid_argument, "bad at batch " + std::to_string(batch_)};
        const bool told = model_.config_.tells_rows || batch_ == 1;
        if (model_.config_.refuses_bad || (!told && !to.faults->results_unwanted))
          return std::unexpected(error);
        to.faults->add(told ? row : graph::Faults::unknown, error);
        if (!told) break;
      }
      // Else serving allocates nothing.
      if (length_ > 0 || model_.config_.later) model_.runs.emplace_back(batch_, length_);
      const std::int64_t width = length_ == 0 ? model_.config_.width : 2 * length_;
      for (int row = 0; row < batch_; ++row) {
        for (std::int64_t i = 0; i < width; ++i) *y++ = *x++ + s[row] + model_.config_.constant;
        t[row] = s[row];
      }
      if (stop != nullptr) stop->next = stop->requested() ? 1 : 2;
      return {};
    }

   private:
    // A run that can be given up.
    class Inside final : public engine::Interruptible {
     public:
      Inside(const FakeModel& model, engine::StopSignal* stop) : model_(model), stop_(stop) {
        if (stop_ != nullptr) stop_->set_inside(this);
      }
      ~Inside() override {
        if (stop_ != nullptr) stop_->set_inside(nullptr);
      }
      Inside(const Inside&) = delete;
      Inside& operator=(const Inside&) = delete;
      void interrupt() override {}
      void give_up() override {
        if (model_.given_up) model_.given_up();
      }

     private:
      const FakeModel& model_;
      engine::StopSignal* stop_;
    };

    const FakeModel& model_;
    int batch_;
    std::int64_t length_;
    std::vector<graph::TensorSpec> inputs_, outputs_;
  };

  Config config_;
  std::vector<graph::TensorSpec> inputs_, outputs_;
  graph::Extents reference_;
  std::vector<std::unique_ptr<FakePlan>> plans_;
};

// Keeps results; a second result for one action is remembered as a fault.
class Results final : public ResultSink {
 public:
  void on_result(const ActionResult& result) override {
    {
      const std::lock_guard lock(mutex_);
      if (!results_.emplace(result.id, result).second) ++doubles_;
      order_.push_back(result.id);
    }
    arrived_.notify_all();
  }
  void on_probe(const ProbeResult& result) override {
    {
      const std::lock_guard lock(mutex_);
      probes_.push_back(result);
    }
    arrived_.notify_all();
  }
  ProbeResult wait_probe(std::size_t number = 1) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return probes_.size() >= number; });
    return probes_[number - 1];
  }
  ActionResult wait(ActionId id) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return results_.contains(id); });
    return results_.at(id);
  }
  void wait_count(std::size_t count) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return results_.size() >= count; });
  }
  std::optional<ActionResult> find(ActionId id) {
    const std::lock_guard lock(mutex_);
    const auto it = results_.find(id);
    return it == results_.end() ? std::nullopt : std::optional(it->second);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return results_.size();
  }
  int doubles() {
    const std::lock_guard lock(mutex_);
    return doubles_;
  }
  std::vector<ActionId> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<ActionId, ActionResult> results_;
  std::vector<ActionId> order_;
  std::vector<ProbeResult> probes_;
  int doubles_ = 0;
};

// Holds whoever passes until it is opened, and tells that somebody has come.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++reached_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_reached(int times = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= times; });
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int reached_ = 0;
  bool open_ = false;
};

// The tensors of one batch of a FakeModel as a frontend holds them: each row apart.
struct Batch {
  Batch(std::int64_t width, int rows)
      : Batch(std::vector<std::int64_t>(static_cast<std::size_t>(rows), width), 1) {}
  // Rows of models with lengths: `pieces` pieces of that length.
  explicit Batch(const std::vector<std::int64_t>& of, std::int64_t pieces = 2)
      : Batch(of, pieces, of.size()) {
    if (pieces == 2) lengths = of;
  }

 private:
  Batch(const std::vector<std::int64_t>& widths, std::int64_t pieces, std::size_t rows)
      : x(rows), s(rows), y(rows), t(rows), in(rows), out(rows) {
    for (std::size_t row = 0; row < x.size(); ++row) {
      const std::int64_t width = pieces * widths[row];
      for (std::int64_t i = 0; i < width; ++i)
        x[row].push_back(static_cast<float>(100 * row) + static_cast<float>(i));
      s[row] = {static_cast<float>(row) * 1000};
      y[row].assign(static_cast<std::size_t>(width), -1);
      t[row] = {-1};
      in[row] = {bytes(x[row]), bytes(s[row])};
      out[row] = {bytes(y[row]), bytes(t[row])};
    }
  }

 public:
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  InferCommand command(ActionId id, ModelId model, Window window) const {
    InferCommand infer{.id = id, .model = model, .window = window, .batch = static_cast<int>(x.size())};
    for (std::size_t row = 0; row < x.size(); ++row)
      infer.rows[row] = {in[row], out[row], lengths.empty() ? 0 : lengths[row]};
    return infer;
  }
  // Rows of an open model: the numbers of their sizes.
  Batch& sized(std::vector<std::int64_t> numbers) {
    lengths = std::move(numbers);
    return *this;
  }
  bool answered(float constant) const {
    for (std::size_t row = 0; row < x.size(); ++row) {
      if (t[row] != s[row]) return false;
      for (std::size_t i = 0; i < x[row].size(); ++i)
        if (y[row][i] != x[row][i] + s[row][0] + constant) return false;
    }
    return true;
  }
  bool untouched() const {
    for (std::size_t row = 0; row < x.size(); ++row)
      for (const float value : y[row])
        if (value != -1) return false;
    return true;
  }

  std::vector<std::int64_t> lengths;  // empty: the model has none
  std::vector<std::vector<float>> x, s, y, t;
  std::vector<std::array<const std::byte*, 2>> in;
  std::vector<std::array<std::byte*, 2>> out;

 private:
  static std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }
};

}  // namespace carillon::worker::testing
