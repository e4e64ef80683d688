#pragma once

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/file_digest.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/controller.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/reading_engine.h"
#include "carillon/profile/profile.h"
#include "carillon/repository/repository.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// "resnet50 version 1", for people.
std::string label_of(const std::string& name, std::int64_t version);

// A device that models are brought to.
struct LoadTarget {
  engine::Engine* engine = nullptr;
  worker::Worker* worker = nullptr;
  // For models that `engine` cannot run, the one that is asked first in front; there may be none. All
  // targets have the same.
  std::vector<engine::ReadingEngine*> others{};
  int threads = 0;                    // that a run has; 0: as many as there are cores
  bool like_the_last = false;         // the target before it: what is measured there is true here
  std::optional<double> stop_cost{};  // see engine::CompileOptions
  // Models may come with the plan of batch size 1 alone, where BatchPlans makes the others. Heeded of a
  // target that is the only one.
  bool later_plans = false;
  // What models may take of this host's memory; null: nobody counts. All targets have the same.
  std::shared_ptr<MemoryAccount> memory{};
};

// One version of a model, imported, compiled and known to the workers.
struct PreparedModel {
  ModelId id;
  repository::ModelConfig config;  // complete; batch_sizes are those that fit all workers
  std::vector<std::shared_ptr<const engine::CompiledModel>> compiled;  // for each of the targets
  Bytes page = page_size;                                              // the workers' pages
  std::optional<std::size_t> other;  // which of the targets' others runs it; nothing: their first
  // Why another runs it: "openvino 2026.4.1 runs it: <what the first could not>"; empty where the first does.
  std::string other_engine;
  std::vector<std::string> notes;  // what could not be had, and what was done instead
  // What its file held when it was read; nothing where nobody looked.
  std::optional<FileDigest> file;
};

// Called as the work goes on, for people: "compiling", "measuring batch 4", "ready", "not ready: ...".
struct LoadProgress {
  std::size_t done = 0;  // models that are through
  std::size_t total = 0;
  std::string model;  // "resnet50 version 1"
  std::string doing;
};
using LoadObserver = std::function<void(const LoadProgress&)>;
using Doing = std::function<void(std::string)>;

// What `body` gives, or, as an error, what it throws. Most likely memory lacks: a model may ask for more than
// there is, and must not end the server.
template <typename Body>
auto guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(ErrorCode::resource_exhausted, std::string("while loading it: ") + error.what());
  }
}

// Whether it wants to be made alone: kernels are measured meanwhile, or the engine compiles one at a time.
bool is_made_alone(const repository::ModelConfig& config, std::span<const LoadTarget> targets);
// Imports `version` of `entry` (whose config is no error), completes its config and compiles it for all
// targets, by their other engines where the first cannot or the config says so. The ONNX weights are let go
// before this returns. `id` is not set. Where memory is counted, what does not fit is refused before it is
// read, and what turns out to take more than there is, afterwards; what it takes is given back with the
// compiled model. From any thread, several at a time.
Result<PreparedModel> make_model(const repository::RepositoryEntry& entry,
                                 const repository::ModelVersion& version, std::span<const LoadTarget> targets,
                                 const Doing& doing);
// Registers it with each target's worker (of one, at least) as `id`, the next that they expect. A batch size
// that does not fit a worker's workspace or I/O cache is left out, with a note. From the thread that adds
// models. After an error `id` is still free.
Result<> register_model(PreparedModel& model, std::span<const LoadTarget> targets, ModelId id);
// Both.
Result<PreparedModel> prepare_model(const repository::RepositoryEntry& entry,
                                    const repository::ModelVersion& version,
                                    std::span<const LoadTarget> targets, ModelId id, const Doing& doing);
inline Result<PreparedModel> prepare_model(const repository::RepositoryEntry& entry,
                                           const repository::ModelVersion& version, engine::Engine& engine,
                                           worker::Worker& worker, ModelId id, const Doing& doing) {
  const LoadTarget target{.engine = &engine, .worker = &worker};
  return prepare_model(entry, version, {&target, 1}, id, doing);
}

// ModelView::usable of a model that is in these forms. It keeps none of them.
std::function<Result<>()> usable_of(std::span<const std::shared_ptr<const engine::CompiledModel>> compiled);

class KeptTimes;

// How long runs and loads of a model take.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // As worker::Worker::measure_exec() and measure_load().
  virtual Result<std::vector<Duration>> exec(int batch, int repeats, std::int64_t length,
                                             std::string* refused) = 0;
  virtual Result<std::vector<Duration>> load(int repeats) = 0;
};

struct SeedOptions {
  const profile::DeviceProfile* profile =
      nullptr;      // where it knows the model in this precision, nothing is measured
  int repeats = 5;  // of each measurement, after one to warm up; >= 1
  Duration at_most = std::chrono::milliseconds{600};  // a batch size that takes longer is repeated less
  // The workers serve: models are measured beside them, on threads and memory of their own (measure_aside.h),
  // and the least of the times counts, as whatever else runs makes them longer.
  bool aside = false;
  // Only the smallest and the largest batch are measured: those between take what a line through both says.
  // Runs show what they take.
  bool ends_only = false;
  // Of models that are measured `aside`: what was measured before, and where to keep what is. May be null.
  std::shared_ptr<const KeptTimes> kept{};
};

// What the scheduler is told of a model at first: from the profile, or measured on `worker`, which must not
// be serving. Seeds are medians: the scheduler learns the rest, but it never runs, and so never learns of, a
// model whose seed is above its deadlines. Of a model that refuses all data that are made up the seed is the
// time of the shortest run that was refused, for each row: `notes` say that it was never measured.
Result<schedule::ModelInfo> seed_profile(const PreparedModel& model, std::int64_t version, Stopwatch& watch,
                                         const SeedOptions& options, const Doing& doing,
                                         std::vector<std::string>& notes);
Result<schedule::ModelInfo> seed_profile(const PreparedModel& model, std::int64_t version,
                                         worker::Worker& worker, const SeedOptions& options,
                                         const Doing& doing, std::vector<std::string>& notes);

// What becomes of one version: `controller` knows it, or an error says why not. `view` says how it is to be
// called; `notes` gets what LoadReport::notes would, without the model's name. With SeedOptions::aside also
// while the controller runs.
Result<> load_version(const repository::RepositoryEntry& entry, const repository::ModelVersion& version,
                      std::span<const LoadTarget> targets, Controller& controller, const SeedOptions& options,
                      const Doing& doing, std::vector<std::string>& notes);
// The same of a version that make_model() has made, beginning at `began`.
Result<> add_version(const repository::RepositoryEntry& entry, const repository::ModelVersion& version,
                     Result<PreparedModel> made, TimePoint began, std::span<const LoadTarget> targets,
                     Controller& controller, const SeedOptions& options, const Doing& doing,
                     std::vector<std::string>& notes);

}  // namespace carillon::controller
