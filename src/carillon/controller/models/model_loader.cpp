#include "carillon/controller/models/model_loader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/file_digest.h"
#include "carillon/base/heap.h"
#include "carillon/base/processors.h"
#include "carillon/base/statistics.h"
#include "carillon/controller/gates/low_priority.h"
#include "carillon/controller/models/kept_times.h"
#include "carillon/controller/models/measure_aside.h"
#include "carillon/controller/models/rows_agree.h"
#include "carillon/controller/models/warm_up.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/onnx_sizes.h"
#include "carillon/graph/text.h"
#include "carillon/repository/sequence_batching.h"

namespace carillon::controller {
namespace {

// A compiled model of which only some batch sizes are used.
class FewerBatches final : public engine::CompiledModel {
 public:
  FewerBatches(std::shared_ptr<const engine::CompiledModel> whole, std::vector<int> sizes)
      : whole_(std::move(whole)), sizes_(std::move(sizes)) {}
  const std::vector<graph::TensorSpec>& inputs() const override { return whole_->inputs(); }
  const std::vector<graph::TensorSpec>& outputs() const override { return whole_->outputs(); }
  Bytes weights() const override { return whole_->weights(); }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    return whole_->write_weights(offset, to);
  }
  std::span<const std::byte> packed() const override { return whole_->packed(); }
  ModelMemory memory() const override { return whole_->memory(); }
  std::span<const int> batch_sizes() const override { return sizes_; }
  std::span<const std::int64_t> lengths() const override { return whole_->lengths(); }
  bool makes_later() const override { return whole_->makes_later(); }
  bool has_one_plan() const override { return whole_->has_one_plan(); }
  const engine::Plan* spare() const override { return whole_->spare(); }
  void let_go_spare() const override { whole_->let_go_spare(); }
  bool pads() const override { return whole_->pads(); }
  std::span<const std::int64_t> reference() const override { return whole_->reference(); }
  Result<std::vector<std::unique_ptr<const engine::Plan>>> make_plans(
      std::span<const std::int64_t> extents, std::span<const int> batches,
      const std::atomic<bool>* ended) const override {
    return whole_->make_plans(extents, batches, ended);
  }
  bool time_varies() const override { return whole_->time_varies(); }
  std::vector<std::string> notes() const override { return whole_->notes(); }
  Result<> usable() const override { return whole_->usable(); }
  const engine::Plan* plan(int batch, std::int64_t length) const override {
    return std::ranges::binary_search(sizes_, batch) ? whole_->plan(batch, length) : nullptr;
  }

 private:
  std::shared_ptr<const engine::CompiledModel> whole_;
  std::vector<int> sizes_;
};

using Imported = Result<std::shared_ptr<const graph::Model>>;

// The batches of several rows that may run: at these it must be proven that rows do not see each other. Two
// and three are small and unlike, and tell what most files do of their batch size.
std::vector<int> proven_sizes(const repository::ModelConfig& config) {
  const int most = config.batch_from_file ? repository::derived_max_batch : config.max_batch_size;
  std::set<int> sizes{2, 3};
  const bool preferred = config.batch_sizes.size() > 1;
  const auto planned =
      config.batch_from_file && !preferred ? repository::default_batch_sizes(most) : config.batch_sizes;
  sizes.insert(planned.begin(), planned.end());
  std::erase_if(sizes, [&](int size) { return size < 2 || size > most; });
  return {sizes.begin(), sizes.end()};
}

graph::ImportOptions import_options(const repository::ModelConfig& config) {
  graph::ImportOptions options{.input_shapes = {},
                               .lengths = config.lengths,
                               .open = config.lengths.empty(),
                               .batched = config.max_batch_size > 0,
                               .batch_from_file = config.batch_from_file,
                               .proven_at = proven_sizes(config),
                               .whole = !config.dynamic_batching && config.sequence == nullptr};
  for (const graph::TensorSpec& input : config.inputs)
    options.input_shapes.emplace_back(input.name, input.shape);
  if (config.sequence != nullptr)
    for (const repository::SequenceBatching::State& state : config.sequence->states) {
      graph::Shape shape = state.dims;
      if (options.batched) shape.insert(shape.begin(), graph::batch_dimension);
      options.input_shapes.emplace_back(state.input, std::move(shape));
    }
  return options;
}

// `sound`: whether the file is what ONNX's format asks for, as far as our reader has seen. `config` loses the
// inputs that the file's initializers set.
Imported import(repository::ModelConfig& config, const std::filesystem::path& file, bool& sound) {
  auto source = graph::read_onnx(file);
  sound = source || source.error().code != ErrorCode::invalid_argument;
  if (!source) return std::unexpected(source.error());
  auto rest = repository::without_fixed_inputs(std::move(config), source->fixed);
  if (!rest) return in_context("model file '" + file.string() + "'", rest.error());
  config = std::move(*rest);
  if (auto ok = graph::reshape_edges(*source, config.reshapes, config.max_batch_size > 0); !ok)
    return in_context("model file '" + file.string() + "'", ok.error());
  auto model = graph::make_model(*std::move(source), import_options(config));
  if (!model) return in_context("model file '" + file.string() + "'", model.error());
  return model;
}

// The model that was imported before, where its file is still the same.
Imported import_again(repository::ModelConfig config, const std::filesystem::path& file,
                      const FileDigest& digest) {
  bool sound = true;
  auto model = import(config, file, sound);
  if (model && digest_of(file) != digest)
    return fail(ErrorCode::unavailable,
                "file '" + file.string() +
                    "' is not what it was when the model was loaded; load it again to "
                    "get plans for larger batches");
  return model;
}

using Compiled = std::shared_ptr<const engine::CompiledModel>;
// See engine::CompileOptions::reread.
using Reread = std::function<Imported()>;

// Its beginning and its end, where the remedy stands.
std::string shortened(const std::string& text) {
  constexpr std::size_t longest = 400;
  return graph::printable(text, longest);
}

std::string engine_text(engine::ReadingEngine& engine, const std::string& reason) {
  return std::string(engine.name()) + " " + engine.version() + " runs it: " + reason;
}

engine::Engine& engine_of(const LoadTarget& target, std::optional<std::size_t> other) {
  return other ? *target.others[*other] : *target.engine;
}

struct Made {
  repository::ModelConfig config;  // complete
  std::vector<Compiled> compiled;  // a target each
  std::vector<std::string> notes;  // why rows are not batched
  std::string unproven;            // why they should not be, although they are
  std::optional<FileDigest> file;  // see PreparedModel::file
};

// What becomes of a model whose rows are not proven not to see each other (graph/rows.h), but for what
// complete_config() made of it.
void keep_rows_apart(const graph::Model& model, Made& made) {
  const std::string why = "its rows are not proven to be apart: " + std::string(model.unproven());
  if (model.unproven().empty() || made.config.max_batch_size == 1) return;
  if (model.whole()) {
    made.notes.push_back(why + "; so each request runs by itself, whole");
  } else if (!model.batched()) {
    made.notes.push_back(why + "; so requests are not batched, and dimension 0 is one as any other");
  } else if (made.config.sequence != nullptr) {
    // Of a sequence a request is one row.
    made.config.batch_sizes = {1};
    made.notes.push_back(why + "; so requests of sequences run by themselves");
  } else {
    made.unproven = model.unproven();
  }
}

// Of a model that batches nevertheless, since its config has dynamic_batching.
Result<> try_rows(std::span<const LoadTarget> targets, std::optional<std::size_t> other, Made& made) {
  if (made.unproven.empty()) return {};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].like_the_last && i > 0) continue;
    if (auto same =
            rows_agree(made.config, engine_of(targets[i], other), *made.compiled[i], targets[i].threads);
        !same)
      return fail(same.error().code,
                  "dynamic_batching: it is not proven that rows do not see each other: " + made.unproven +
                      "; " + same.error().message +
                      "; remove dynamic_batching from the config, and each request runs by itself");
  }
  made.notes.push_back(
      "its rows are not proven to be apart: " + made.unproven +
      "; they agree alone and together on random data, so they are batched, as dynamic_batching says");
  return {};
}

Result<Made> complete_and_compile(repository::ModelConfig config, const graph::Model& model,
                                  std::span<const LoadTarget> targets, std::optional<std::size_t> other,
                                  Reread reread = {}) {
  auto completed = repository::complete_config(std::move(config), model);
  if (!completed) return std::unexpected(completed.error());
  Made out{.config = std::move(*completed), .compiled = {}, .notes = {}, .unproven = {}, .file = {}};
  keep_rows_apart(model, out);
  const bool best_effort = out.config.model_class == "best_effort";
  const bool later = targets.size() == 1 && targets.front().later_plans && out.unproven.empty() &&
                     !repository::wants_all_plans(out.config);
  for (const LoadTarget& target : targets) {
    const engine::CompileOptions options{.batch_sizes = out.config.batch_sizes,
                                         .precision = engine::precision_of(out.config.precision),
                                         .pads = out.config.padding,
                                         .name = out.config.name,
                                         .one_thread = best_effort,
                                         .stop_cost = target.stop_cost ? target.stop_cost
                                                      : best_effort ? std::optional(engine::usual_stop_cost)
                                                                    : std::nullopt,
                                         .room_cost = out.config.model_class == "real_time"
                                                          ? std::optional(engine::usual_room_cost)
                                                          : std::nullopt,
                                         .reread = later ? reread : Reread()};
    auto compiled = engine_of(target, other).compile(model, options);
    if (!compiled) return std::unexpected(compiled.error());
    out.compiled.push_back(std::move(*compiled));
  }
  return out;
}

Result<Made> make_by_own(repository::ModelConfig config, const std::filesystem::path& file,
                         std::span<const LoadTarget> targets, const Doing& doing, bool& sound) {
  doing("reading " + file.string());
  const repository::ModelConfig given = config;
  const auto digest = targets.front().later_plans ? digest_of(file) : std::nullopt;
  const auto model = import(config, file, sound);
  // Where the file is replaced in between, the digest is another than the model's, and so it gets no plans.
  Reread reread;
  if (digest) reread = [given, file, digest = *digest] { return import_again(given, file, digest); };
  // Else what the file was parsed into stays with the allocator while plans are made. Of a small one that is
  // less than the time it takes.
  constexpr std::uintmax_t large = mib(8).count;
  std::error_code unknown;
  if (targets.front().memory != nullptr && std::filesystem::file_size(file, unknown) > large) trim_heap();
  if (!model) return std::unexpected(model.error());
  doing(config.model_class == "best_effort"
            ? "compiling, and dividing its kernels so that they can be stopped (class best_effort): that is "
              "measured, and may take a minute"
            : "compiling");
  auto made = complete_and_compile(std::move(config), **model, targets, std::nullopt, std::move(reread));
  if (made) made->file = digest;
  return made;
}

// What `taken` says of the memory that it has beside the caches.
std::string memory_text(Bytes taken) {
  return taken.count == 0 ? "" : ", in about " + to_text(taken) + " of memory beside the caches";
}

// What making it takes by an engine that reads the file itself.
ModelNeed need_elsewhere(const std::filesystem::path& file) {
  // Its libraries, and what they set up: OpenVINO has 43 MiB with a tiny model.
  constexpr Bytes libraries = mib(44);
  std::error_code failure, none;
  std::uint64_t size = std::filesystem::file_size(file, failure);
  if (failure) return {.memory = {}};  // who reads it says so
  if (const auto weights =
          std::filesystem::file_size(std::filesystem::path(file).replace_extension(".bin"), none);
      !none)
    size += weights;
  // It is read, and then brought into the layouts that kernels want.
  return {.memory = libraries + Bytes{2 * size}};
}

Result<Made> make_by_other(repository::ModelConfig config, const std::filesystem::path& file,
                           std::span<const LoadTarget> targets, std::size_t other, const Doing& doing,
                           std::vector<std::string>& notes, MemoryAccount::Charge* charge) {
  if (charge != nullptr)
    if (auto fits = charge->expect(need_elsewhere(file)); !fits) return std::unexpected(fits.error());
  engine::ReadingEngine& engine = *targets.front().others[other];
  static std::mutex one_at_a_time;  // models are made by several threads, and these engines take one
  const std::lock_guard lock(one_at_a_time);
  const std::string name(engine.name());
  config.engine = name;  // what clients are told of it
  if (!config.reshapes.empty())
    return fail(ErrorCode::unsupported, (config.reshapes.front().is_input ? "input '" : "output '") +
                                            config.reshapes.front().name + "': reshape is not supported by " +
                                            name + "; give the file's own shape in dims");
  // Its own formats have none.
  if (!config.inputs.empty() && !engine.reads_alone(file)) {
    const auto outline = graph::outline_onnx(file);
    if (!outline) return std::unexpected(outline.error());
    auto rest = repository::without_fixed_inputs(std::move(config), outline->fixed);
    if (!rest) return std::unexpected(rest.error());
    config = std::move(*rest);
  }
  doing("reading " + file.string() + " by " + name);
  const auto model = engine.read(file, import_options(config));
  if (!model) return std::unexpected(model.error());
  doing("compiling by " + name);
  auto made = complete_and_compile(std::move(config), **model, targets, other);
  if (made)
    notes.push_back("it runs on " + name + " " + engine.version() +
                    memory_text(engine.taken(*made->compiled.front())) +
                    "; a run there is not stopped before its end");
  return made;
}

// The other engines that all targets have.
std::span<engine::ReadingEngine* const> others_of(std::span<const LoadTarget> targets) {
  const auto& others = targets.front().others;
  const bool all = std::ranges::all_of(
      targets, [&](const LoadTarget& target) { return target.others.size() == others.size(); });
  return all ? std::span<engine::ReadingEngine* const>(others) : std::span<engine::ReadingEngine* const>();
}

// Made by that of the other engines, for this reason.
void note_other(engine::ReadingEngine& engine, std::size_t other, const std::string& reason,
                PreparedModel& prepared) {
  prepared.other = other;
  prepared.other_engine = engine_text(engine, reason);
}

// By the one that the config or the file's format asks for, where one does.
std::optional<Result<Made>> make_by_wanted(const repository::ModelConfig& config,
                                           const std::filesystem::path& file,
                                           std::span<const LoadTarget> targets, const Doing& doing,
                                           PreparedModel& prepared, MemoryAccount::Charge* charge) {
  const std::string& asked = config.engine;
  const auto others = others_of(targets);
  const auto alone =
      std::ranges::find_if(others, [&](engine::ReadingEngine* each) { return each->reads_alone(file); });
  const bool format = alone != others.end();
  if (!format && (asked.empty() || asked == "carillon")) return std::nullopt;
  if (format && !asked.empty() && asked != (*alone)->name())
    return fail(ErrorCode::unsupported, "parameter engine is '" + asked + "', which reads ONNX files; '" +
                                            file.filename().string() + "' is for " +
                                            std::string((*alone)->name()) + " alone");
  const auto wanted = format ? alone : std::ranges::find(others, asked, &engine::ReadingEngine::name);
  if (wanted == others.end())
    return fail(ErrorCode::unsupported,
                "parameter engine is '" + asked + "', which this device does not have");
  const auto other = static_cast<std::size_t>(wanted - others.begin());
  auto made = make_by_other(config, file, targets, other, doing, prepared.notes, charge);
  if (made)
    note_other(**wanted, other, format ? "its file is for that alone" : "its config says so", prepared);
  return made;
}

// By our own engine; by another where the config or the file's format asks for it, or ours cannot.
Result<Made> import_and_compile(const repository::ModelConfig& config, const std::filesystem::path& file,
                                std::span<const LoadTarget> targets, const Doing& doing,
                                PreparedModel& prepared, MemoryAccount::Charge* charge) {
  if (auto wanted = make_by_wanted(config, file, targets, doing, prepared, charge)) return *std::move(wanted);
  bool sound = true;
  auto made = make_by_own(config, file, targets, doing, sound);
  const auto others = others_of(targets);
  // A file that is broken is kept from the other engines: some break them, or hang there.
  if (made || !sound || others.empty() || config.engine == "carillon") return made;
  const Error own = made.error();
  if (own.code != ErrorCode::unsupported && own.code != ErrorCode::invalid_argument) return made;
  std::string neither;
  for (std::size_t i = 0; i < others.size(); ++i) {
    // One that is not there is only worth a word where there is none at all.
    if (i > 0 && !others[i]->available()) continue;
    auto other = make_by_other(config, file, targets, i, doing, prepared.notes, charge);
    if (other) {
      note_other(*others[i], i, own.message, prepared);
      prepared.notes.push_back("the reason: " + own.message);
      return other;
    }
    neither += "; and " + std::string(others[i]->name()) +
               " does not run it either: " + shortened(other.error().message);
  }
  // Where the file or the config is wrong ours says it best, and who wrote them is to hear it.
  if (own.code == ErrorCode::invalid_argument) return std::unexpected(own);
  return fail(own.code, own.message + neither);
}

// The batch sizes that all of them have.
std::vector<int> common_sizes(std::span<const Compiled> all) {
  std::vector<int> sizes(all.front()->batch_sizes().begin(), all.front()->batch_sizes().end());
  for (const Compiled& each : all.subspan(1))
    std::erase_if(sizes, [&](int size) { return !std::ranges::binary_search(each->batch_sizes(), size); });
  return sizes;
}

// What making it is expected to take, by its file.
ModelNeed need_of(const repository::ModelConfig& config, const std::filesystem::path& file,
                  std::span<const LoadTarget> targets) {
  const auto others = others_of(targets);
  const bool elsewhere =
      (!config.engine.empty() && config.engine != "carillon") ||
      std::ranges::any_of(others, [&](engine::ReadingEngine* each) { return each->reads_alone(file); });
  if (elsewhere) return need_elsewhere(file);
  if (const auto sizes = graph::constant_sizes(file))
    return {.memory = sizes->to_make(), .weights = sizes->packed};
  return {.memory = {}};  // who reads it says what is wrong with it
}

// What it needs of the caches, for its smallest batch.
ModelNeed least_of(const engine::CompiledModel& compiled) {
  ModelNeed out{.memory = {}, .weights = compiled.weights()};
  const std::int64_t length = compiled.lengths().empty() ? 0 : compiled.lengths().front();
  const engine::Plan* const plan = compiled.plan(compiled.batch_sizes().front(), length);
  if (plan == nullptr) return out;
  out.workspace = plan->workspace();
  for (const auto tensors : {plan->inputs(), plan->outputs()})
    for (const graph::TensorSpec& each : tensors)
      out.tensors = out.tensors + graph::memory_of(each.type, each.shape);
  return out;
}

ModelMemory memory_of(std::span<const Compiled> compiled) {
  ModelMemory sum;
  for (const Compiled& each : compiled) {
    const ModelMemory has = each->memory();
    sum.plans = sum.plans + has.plans;
    sum.weights = sum.weights + has.weights;
    sum.processes = sum.processes + has.processes;
  }
  return sum;
}

// The same model, whose memory is given back when it ends.
Compiled charged(Compiled compiled, MemoryAccount::Charge charge) {
  struct Held {
    Held(Compiled model, MemoryAccount::Charge taken)
        : charge(std::move(taken)), compiled(std::move(model)) {}
    ~Held() {
      compiled.reset();
      // Else the allocator keeps what the plans had.
      trim_heap();
    }
    MemoryAccount::Charge charge;  // ends after the model
    Compiled compiled;
  };
  auto held = std::make_shared<Held>(std::move(compiled), std::move(charge));
  const engine::CompiledModel* const model = held->compiled.get();
  return Compiled(std::move(held), model);
}

Compiled with_sizes(const Compiled& whole, std::span<const int> sizes) {
  if (std::ranges::equal(whole->batch_sizes(), sizes)) return whole;
  return std::make_shared<FewerBatches>(whole, std::vector(sizes.begin(), sizes.end()));
}

// The most of these batch sizes, from the smallest on, that fit the worker; `notes` say what is left out.
Result<std::size_t> sizes_that_fit(const worker::Worker& worker, const Compiled& whole,
                                   std::span<const int> sizes, std::vector<std::string>& notes) {
  for (;; sizes = sizes.first(sizes.size() - 1)) {
    const auto room = worker.has_room(*with_sizes(whole, sizes));
    if (room) return sizes.size();
    if (room.error().code != ErrorCode::resource_exhausted || sizes.size() <= 1)
      return std::unexpected(room.error());
    notes.push_back("batches of " + std::to_string(sizes.back()) + " are left out: " + room.error().message);
  }
}

// How often to measure a batch size whose run should take about `expected`.
int repeats_for(const SeedOptions& options, Duration expected) {
  if (expected <= Duration{0}) return options.repeats;
  return static_cast<int>(std::clamp<std::int64_t>(options.at_most / expected, 1, options.repeats));
}

Duration median(std::vector<Duration> values) {
  return std::max(Duration{1}, percentile(values, 0.5));
}

Duration least(const std::vector<Duration>& values) {
  return std::max(Duration{1}, *std::ranges::min_element(values));
}

// On a worker that does not serve.
class WorkerWatch final : public Stopwatch {
 public:
  WorkerWatch(worker::Worker& worker, ModelId model) : worker_(worker), model_(model) {}
  Result<std::vector<Duration>> exec(int batch, int repeats, std::int64_t length,
                                     std::string* refused) override {
    return worker_.measure_exec(model_, batch, repeats, length, refused);
  }
  Result<std::vector<Duration>> load(int repeats) override { return worker_.measure_load(model_, repeats); }

 private:
  worker::Worker& worker_;
  ModelId model_;
};

const profile::ModelProfile* known(const SeedOptions& options, const PreparedModel& model,
                                   std::int64_t version) {
  if (options.profile == nullptr) return nullptr;
  for (const profile::ModelProfile& each : options.profile->models)
    if (each.name == model.config.name && each.version == version && each.precision == model.config.precision)
      return &each;
  return nullptr;
}

// What a batch takes, as it is measured. `expected`: what it should take, 0 where nobody knows. `refused` as
// Stopwatch has it.
Result<Duration> measure_batch(int batch, std::int64_t length, Duration expected, Stopwatch& watch,
                               const SeedOptions& options, std::string& refused) {
  // The first run warms up; of a long one that is a small part, and starting up should not take twice as
  // long. Of the first batch size it also tells how long a run is.
  if (expected <= options.at_most) {
    auto first = watch.exec(batch, 1, length, &refused);
    if (!first) return std::unexpected(first.error());
    if (!refused.empty()) return first->front();
    expected = std::max(expected, first->front());
  }
  auto times = watch.exec(batch, repeats_for(options, expected), length, &refused);
  if (!times) return std::unexpected(times.error());
  return options.aside ? least(*times) : median(*times);
}

// What batches of every size take at `length` (0: the model has none): as `known` says, else measured.
// `refused`: as measure_batch() has it, of the first size of which it is so. Those behind take as much a row.
Result<std::vector<schedule::BatchProfile>> seed_batches(const PreparedModel& model, std::int64_t length,
                                                         const std::vector<profile::BatchTimes>* known,
                                                         Stopwatch& watch, const SeedOptions& options,
                                                         const Doing& doing, std::string& refused) {
  std::vector<schedule::BatchProfile> out;
  Duration per_row{0};  // of the last batch size
  const std::span<const int> all = model.compiled.front()->batch_sizes();
  // What has no plan of its own yet runs row after row.
  const bool later = model.compiled.front()->has_one_plan();
  const bool ends = options.ends_only && known == nullptr && all.size() > 2 && !later;
  const std::array<int, 2> both{all.front(), all.back()};
  for (const int batch : ends ? std::span<const int>(both) : all) {
    Duration exec{0};
    if (known != nullptr)
      for (const profile::BatchTimes& times : *known)
        if (times.batch == batch) exec = std::max(Duration{1}, times.exec.p50);
    if (exec == Duration{0} && later && !out.empty()) exec = out.front().exec * (batch / out.front().batch);
    if (exec == Duration{0}) {
      doing("measuring batch " + std::to_string(batch) +
            (length > 0 ? " at length " + std::to_string(length) : ""));
      const Duration expected = per_row * batch;
      if (refused.empty()) {
        auto measured = measure_batch(batch, length, expected, watch, options, refused);
        if (!measured) return std::unexpected(measured.error());
        exec = *measured;
      }
      if (!refused.empty() && expected > Duration{0}) exec = expected;
    }
    per_row = exec / batch;
    out.push_back({batch, exec});
  }
  if (ends) {
    const schedule::BatchProfile least = out.front(), most = out.back();
    out.clear();
    for (const int batch : all)
      out.push_back({batch, least.exec + (most.exec - least.exec) * (batch - least.batch) /
                                             (most.batch - least.batch)});
  }
  return out;
}

// Weights and what the largest run works in, once more.
Bytes need_beside(const engine::CompiledModel& compiled) {
  Bytes most;
  const auto look = [&](const engine::Plan* plan) {
    if (plan == nullptr) return;
    Bytes takes = plan->workspace();
    for (const auto tensors : {plan->inputs(), plan->outputs()})
      for (const graph::TensorSpec& each : tensors) takes = takes + graph::memory_of(each.type, each.shape);
    most = std::max(most, takes);
  };
  for (const int batch : compiled.batch_sizes()) {
    for (const std::int64_t length : compiled.lengths()) look(compiled.plan(batch, length));
    if (compiled.lengths().empty()) look(compiled.plan(batch));
  }
  look(compiled.spare());
  return compiled.weights() + most;
}

}  // namespace

std::function<Result<>()> usable_of(std::span<const std::shared_ptr<const engine::CompiledModel>> compiled) {
  return [models = std::vector<std::weak_ptr<const engine::CompiledModel>>(compiled.begin(),
                                                                           compiled.end())]() -> Result<> {
    for (const auto& each : models)
      if (const auto model = each.lock(); model != nullptr)
        if (auto usable = model->usable(); !usable) return usable;
    return {};
  };
}

std::string label_of(const std::string& name, std::int64_t version) {
  return name + " version " + std::to_string(version);
}

bool is_made_alone(const repository::ModelConfig& config, std::span<const LoadTarget> targets) {
  return config.model_class == "best_effort" || std::ranges::any_of(targets, [](const LoadTarget& target) {
           return target.stop_cost.has_value() || !target.engine->compiles_in_parallel();
         });
}

Result<PreparedModel> make_model(const repository::RepositoryEntry& entry,
                                 const repository::ModelVersion& version, std::span<const LoadTarget> targets,
                                 const Doing& doing) {
  CARILLON_ASSERT(entry.config.has_value() && !targets.empty());
  PreparedModel out{.id = {},
                    .config = *entry.config,
                    .compiled = {},
                    .other = {},
                    .other_engine = "",
                    .notes = {},
                    .file = {}};
  std::optional<MemoryAccount::Charge> charge;
  try {
    if (const auto& account = targets.front().memory; account != nullptr) {
      auto taken = account->take(entry.name, need_of(*entry.config, version.file, targets));
      if (!taken) return std::unexpected(taken.error());
      charge.emplace(*std::move(taken));
    }
    auto made =
        import_and_compile(*entry.config, version.file, targets, doing, out, charge ? &*charge : nullptr);
    if (!made) return std::unexpected(made.error());
    if (auto same = try_rows(targets, out.other, *made); !same) return std::unexpected(same.error());
    out.config = std::move(made->config);
    out.compiled = std::move(made->compiled);
    out.file = made->file;
    out.notes.insert(out.notes.end(), made->notes.begin(), made->notes.end());
  } catch (const std::exception& error) {
    // Most likely memory: a file may ask for more than there is, and must not end the server.
    return fail(ErrorCode::resource_exhausted,
                std::string("while reading and compiling it: ") + error.what());
  }
  if (charge) {
    ModelNeed need = least_of(*out.compiled.front());
    need.later = need_beside(*out.compiled.front());  // add_version() asks for it
    if (auto fits = charge->settle(memory_of(out.compiled), need); !fits)
      return std::unexpected(fits.error());
    out.compiled.front() = charged(std::move(out.compiled.front()), *std::move(charge));
  }
  return out;
}

namespace {

// Beside normal requests. Other clients' keys may make any request real-time, but seldom do.
std::vector<Class> expected_of(const repository::ModelConfig& config) {
  std::vector<Class> out;
  if (config.model_class == "best_effort") out.push_back(Class::best_effort);
  if (config.model_class == "real_time" || config.real_time_requests) out.push_back(Class::real_time);
  return out;
}

}  // namespace

Result<> register_model(PreparedModel& model, std::span<const LoadTarget> targets, ModelId id) {
  CARILLON_ASSERT(std::ranges::all_of(targets, [&](const LoadTarget& each) {
    return each.worker->page() == targets.front().worker->page();
  }));
  std::vector<Compiled> compiled = model.compiled;
  std::vector<std::string> left_out;
  for (const Compiled& each : compiled)
    for (std::string& note : each->notes())
      if (std::ranges::find(left_out, note) == left_out.end()) left_out.push_back(std::move(note));
  std::vector<int> sizes = common_sizes(compiled);
  if (sizes.empty()) {
    std::string why = "no batch size runs on all devices";
    for (const std::string& note : left_out) why += "; " + note;
    return fail(ErrorCode::unsupported, why);
  }
  std::vector<std::string> do_not_fit;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    std::vector<std::string> notes;
    const auto fit = sizes_that_fit(*targets[i].worker, compiled[i], sizes, notes);
    if (!fit) return std::unexpected(fit.error());
    if (*fit >= sizes.size()) continue;
    sizes.resize(*fit);
    do_not_fit = std::move(notes);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    compiled[i] = with_sizes(compiled[i], sizes);
    Result<> added = targets[i].worker->add_model(id, compiled[i]);
    const bool taken = added.has_value();
    for (const Class cls : expected_of(model.config))
      if (added) added = targets[i].worker->expect(id, cls);
    if (!added) {
      // Those that took it give it back: `id` is to be free on all of them.
      for (std::size_t j = taken ? i + 1 : i; j-- > 0;) targets[j].worker->take_back(id);
      return std::unexpected(added.error());
    }
  }
  for (const auto* const notes : {&left_out, &do_not_fit})
    model.notes.insert(model.notes.end(), notes->begin(), notes->end());
  model.id = id;
  model.page = targets.front().worker->page();
  model.compiled = std::move(compiled);
  model.config.batch_sizes = std::move(sizes);
  return {};
}

Result<PreparedModel> prepare_model(const repository::RepositoryEntry& entry,
                                    const repository::ModelVersion& version,
                                    std::span<const LoadTarget> targets, ModelId id, const Doing& doing) {
  auto made = make_model(entry, version, targets, doing);
  if (!made) return made;
  if (auto registered = register_model(*made, targets, id); !registered)
    return std::unexpected(registered.error());
  return made;
}

Result<schedule::ModelInfo> seed_profile(const PreparedModel& model, std::int64_t version,
                                         worker::Worker& worker, const SeedOptions& options,
                                         const Doing& doing, std::vector<std::string>& notes) {
  WorkerWatch watch(worker, model.id);
  return seed_profile(model, version, watch, options, doing, notes);
}

Result<schedule::ModelInfo> seed_profile(const PreparedModel& model, std::int64_t version, Stopwatch& watch,
                                         const SeedOptions& options, const Doing& doing,
                                         std::vector<std::string>& notes) {
  CARILLON_ASSERT(options.repeats >= 1);
  bool told = false;
  const auto seed = [&](std::int64_t length, const std::vector<profile::BatchTimes>* known_times) {
    std::string refused;
    auto batches = seed_batches(model, length, known_times, watch, options, doing, refused);
    if (!refused.empty() && !std::exchange(told, true))
      notes.push_back("its time was not measured, as it refuses all data that are made up for that (" +
                      refused + "); requests will show how long it takes");
    return batches;
  };
  schedule::ModelInfo info{.id = model.id,
                           .name = model.config.name,
                           .pages = pages_for(model.compiled.front()->weights(), model.page),
                           .load = Duration{0},
                           .batches = {}};
  const profile::ModelProfile* profile = known(options, model, version);
  if (profile != nullptr) {
    info.load = std::max(Duration{1}, profile->load.p50);
    for (const profile::SizeTimes& size : profile->sizes)
      for (const profile::BatchTimes& times : size.batches)
        info.sizes.push_back(
            {.row = size.row, .batch = times.batch, .exec = std::max(Duration{1}, times.exec.p50)});
  } else {
    doing("measuring LOAD");
    auto loads = watch.load(std::min(options.repeats, 3));
    if (!loads) return std::unexpected(loads.error());
    info.load = options.aside ? least(*loads) : median(*loads);
  }
  const auto lengths = model.compiled.front()->lengths();
  if (lengths.empty()) {
    auto batches = seed(0, profile == nullptr ? nullptr : &profile->batches);
    if (!batches) return std::unexpected(batches.error());
    info.batches = std::move(*batches);
    // Its batches run row after row at first. What a larger plan takes tells how much of a run is the same
    // for all sizes.
    const engine::CompiledModel& compiled = *model.compiled.front();
    const Effort row = compiled.plan(compiled.batch_sizes().front())->effort();
    if (const engine::Plan* const spare = compiled.spare(); spare != nullptr && row.known() && !told) {
      doing("measuring batch " + std::to_string(spare->batch()));
      std::string refused;
      const auto took = measure_batch(spare->batch(), 0, info.batches.front().exec * spare->batch(), watch,
                                      options, refused);
      if (!took) return std::unexpected(took.error());
      if (refused.empty()) info.sizes.push_back({.row = row, .batch = spare->batch(), .exec = *took});
    }
    return info;
  }
  std::vector<profile::MeasuredBatch> measured;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::vector<profile::BatchTimes>* known_times = nullptr;
    if (profile != nullptr)
      for (const profile::LengthTimes& at : profile->lengths)
        if (at.length == lengths[i]) known_times = &at.batches;
    auto batches = seed(lengths[i], known_times);
    if (!batches) return std::unexpected(batches.error());
    const Duration solo = batches->front().exec / batches->front().batch;
    info.solos.push_back(solo);
    for (const schedule::BatchProfile& batch : *batches) measured.push_back({batch.batch, solo, batch.exec});
    // Of the lengths, too, the median is the seed.
    if (i == lengths.size() / 2) info.batches = std::move(*batches);
  }
  info.cost = profile::fit_padded_cost(measured);
  return info;
}

namespace {

Result<schedule::ModelInfo> seed_of_slowest(const PreparedModel& model, std::int64_t version,
                                            std::span<const LoadTarget> targets, const SeedOptions& options,
                                            const Doing& doing, std::vector<std::string>& notes) {
  std::optional<schedule::ModelInfo> slowest;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const LoadTarget& target = targets[i];
    if (target.like_the_last && slowest) continue;
    auto info = [&] {
      if (!options.aside) return seed_profile(model, version, *target.worker, options, doing, notes);
      AsideWatch watch(engine_of(target, model.other), *model.compiled[i], target.threads);
      if (options.kept == nullptr) return seed_profile(model, version, watch, options, doing, notes);
      KeptWatch kept(watch, *options.kept, model, target.threads > 0 ? target.threads : usable_processors());
      auto seeds = seed_profile(model, version, kept, options, doing, notes);
      if (seeds) kept.keep();
      return seeds;
    }();
    if (!info) return info;
    if (!slowest || info->batches.back().exec > slowest->batches.back().exec) slowest = std::move(*info);
  }
  return *std::move(slowest);
}

Result<> warm_up_all(const PreparedModel& model, std::span<const LoadTarget> targets) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const LoadTarget& target = targets[i];
    if (target.like_the_last && i > 0) continue;
    if (auto warm = warm_up(model.config, engine_of(target, model.other), *model.compiled[i], target.threads);
        !warm)
      return warm;
  }
  return {};
}

}  // namespace

namespace {

Result<> has_place(const Controller& controller) {
  if (controller.next_model().index() < worker::most_models) return {};
  return fail(ErrorCode::resource_exhausted,
              "models were loaded " + std::to_string(worker::most_models) +
                  " times since the server started, as often as they can be; start it again");
}

}  // namespace

Result<> load_version(const repository::RepositoryEntry& entry, const repository::ModelVersion& version,
                      std::span<const LoadTarget> targets, Controller& controller, const SeedOptions& options,
                      const Doing& doing, std::vector<std::string>& notes) {
  if (auto place = has_place(controller); !place) return place;
  const TimePoint began = controller.now();
  const auto make = [&] { return make_model(entry, version, targets, doing); };
  return add_version(entry, version, options.aside ? of_low_priority(make) : make(), began, targets,
                     controller, options, doing, notes);
}

Result<> add_version(const repository::RepositoryEntry& entry, const repository::ModelVersion& version,
                     Result<PreparedModel> model, TimePoint began, std::span<const LoadTarget> targets,
                     Controller& controller, const SeedOptions& options, const Doing& doing,
                     std::vector<std::string>& notes) {
  // What was read and measured goes: the allocator would keep it.
  struct Trim {
    bool wanted;
    ~Trim() {
      if (wanted) trim_heap();
    }
  } const then{targets.front().memory != nullptr};
  if (!model) return std::unexpected(model.error());
  if (auto place = has_place(controller); !place) return place;
  // Beside the workers' memory a model has some of its own for as long as it is warmed up and measured. Asked
  // for before its id is used up.
  std::optional<MemoryAccount::Charge> beside;
  if (const auto& account = targets.front().memory;
      account != nullptr && (options.aside || model->config.warmup != nullptr)) {
    auto taken = account->take(entry.name, {.memory = need_beside(*model->compiled.front())});
    if (!taken) return std::unexpected(taken.error());
    beside.emplace(*std::move(taken));
  }
  if (auto registered = register_model(*model, targets, controller.next_model()); !registered)
    return registered;
  ModelView view{.name = entry.name,
                 .version = version.version,
                 .ready = false,
                 .reason = model->other_engine,
                 .left_out = false,
                 .id = {},
                 .config = model->config};
  for (const std::string& note : model->config.ignored) notes.push_back("ignored: " + note);
  notes.insert(notes.end(), model->notes.begin(), model->notes.end());
  if (model->config.model_class == "best_effort" && model->config.slo)
    notes.push_back(
        "slo_ms of a best-effort model is a deadline: a request that is not done by then is refused, "
        "however much other work was in its way, and nothing goes out of its way for it");
  if (model->config.warmup != nullptr) doing("warming up");
  const auto warmed = warm_up_all(*model, targets);
  auto info = warmed ? seed_of_slowest(*model, version.version, targets, options, doing, notes)
                     : Result<schedule::ModelInfo>(std::unexpected(warmed.error()));
  for (const Compiled& each : model->compiled) each->let_go_spare();
  if (!info) {
    // The workers know it already, so the id is used up.
    controller.add_model(view, *model->compiled.front(),
                         {.id = model->id,
                          .name = model->config.name,
                          .pages = pages_for(model->compiled.front()->weights(), model->page),
                          .load = std::chrono::seconds{1},
                          .batches = {{1, std::chrono::seconds{1}}}},
                         false);
    if (options.aside) {
      controller.remove_model(model->id, std::chrono::seconds{1}, {});
    } else {
      // Nobody has seen it, and what was measured is over.
      for (const LoadTarget& target : targets) target.worker->remove_model(model->id);
    }
    return std::unexpected(info.error());
  }
  view.load_time = controller.now() - began;
  view.usable = usable_of(model->compiled);
  view.hash = digest_of_text((model->file ? to_text(*model->file) : "") + model->config.serialized).first;
  controller.add_model(std::move(view), *model->compiled.front(), *info);
  return {};
}

}  // namespace carillon::controller
