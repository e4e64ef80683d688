#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/device/class_streams.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/stream.h"
#include "carillon/schedule/action.h"
#include "carillon/wire/report.h"
#include "carillon/worker/row_buffers.h"

namespace carillon::worker {

struct LoadCommand {
  ActionId id;
  ModelId model;
  Window window;
};
struct UnloadCommand {
  ActionId id;
  ModelId model;
  bool discard = false;  // runs of the model that have begun are answered `stopped`; else it waits for them
};
struct InferCommand {
  ActionId id;
  ModelId model;
  Window window;
  int batch = 0;  // rows[0, batch); the model has a plan for it
  Class cls = Class::normal;
  std::array<RowBuffers, max_batch> rows;
};

using wire::ActionTimes;
using wire::BadRow;
using ActionResult = wire::Report;
using ProbeResult = wire::ProbeReport;

// Takes results. Called from the worker's threads, one call an action, never with a lock held that submit(),
// stop() or probe() take; must be quick and must not block.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  virtual void on_result(const ActionResult& result) = 0;
  virtual void on_probe(const ProbeResult&) {}
};

inline constexpr int most_best_effort = 32;  // streams
// That a server may come to know: each version by itself, and each time that it is loaded anew.
inline constexpr std::size_t most_models = 8192;

struct Options {
  Bytes page_cache = gib(2);
  Bytes page = page_size;  // of it: see engine::HostMemory; not where there is make_memory
  Bytes io_cache = mib(512);
  Bytes workspace = mib(512);
  int exec_threads = 0;  // of the EXEC executor's kernels; 0: all cores
  double share = 1;  // of the time of these threads' cores that plans may use, in (0, 1]: see engine::Pacer
  bool real_time = false;  // ask for real-time priority and pinning; refusal is told in Worker::notes()
  std::size_t queue =
      1024;  // actions an executor can hold: LOADs and UNLOADs, and INFERs over all their steps
  std::size_t max_models = most_models;  // over its whole life
  // False: for a device whose plans touch none of its memory, of which then only the addresses are taken.
  bool populate = true;
  Duration spin = 50us;  // before EXEC and LOAD may start: see TurnThread; 0 where cores are for others
  // EXEC's streams: one for all requests, or those of the classes, and who makes way for whom. Units are the
  // cores of EXEC's threads. Each stream has a workspace of `workspace`; that of a best-effort one takes
  // memory as far as it is used. Best-effort runs use one thread each, pinned to its core.
  std::optional<device::ClassStreams> classes;
  // At the lowest priority there is (SCHED_IDLE): whoever else wakes up has the core within microseconds,
  // and not after what is left of a time slice.
  bool best_effort_idle = true;
  // Makes the threads that run a stream's kernels beside the stream's own. Called on the stream's thread, so
  // that they have its priority and cores. Empty: the stream's runs them alone.
  std::function<Result<std::unique_ptr<engine::Team>>(const engine::TeamOptions&)> make_team;
  // Makes a stream that is the device's own; nullptr, or empty: one whose thread runs the plans.
  std::function<std::unique_ptr<engine::Stream>(const engine::StreamOptions&)> make_stream;
  // Makes the device's memory, of so many pages and such blocks. Empty: the host's own.
  std::function<Result<std::unique_ptr<engine::DeviceMemory>>(std::uint64_t pages, Bytes io, Bytes workspace)>
      make_memory;
  // Asks the device whether it answers: called on the EXEC thread; it may fail, throw or hang. Empty: it
  // does.
  std::function<Result<>()> probe;
};

// Carries out actions exactly as told, and chooses nothing (Clockwork, sections 4.4 and 5.2): device::Core on
// threads, a stream and memory. What it says of order, windows, UNLOADs and runs that are ended early holds.
//
// One thread a kind of work: LOAD, INPUT, EXEC (the stream's), OUTPUT. LOAD maps free pages to the
// model's contiguous address range and copies the weights there; it fails with no_memory where pages lack.
// INFER runs INPUT on receipt (I/O cache, gather of the rows), EXEC in its window, OUTPUT at once after it;
// of a model without weights at any time, LOAD or not. Serving an action allocates nothing, but for the first
// run of a plan for a class that expect() did not name. No lock is held while kernels or copies run.
//
// An action that makes no sense (unknown model, LOAD of a loaded one, a batch without a plan, rows that do
// not match the model) is answered `failed` and says why.
//
// Rows of different lengths run as one batch at the least length of the model that holds the longest, filled
// up with zeros, where the model pads. Where it does not, each length is a batch of its own, one after the
// other, in as few as there are plans for. So do batches of a model that makes_later(), until add_batches().
//
// Bad data (an index out of range) costs nobody but the row that has them. Where the engine tells the row,
// the others have their results from the same run. Where it cannot, each row of the batch runs by itself,
// once, by the smallest plan there is, in EXEC, as long as its deadline has not passed.
//
// A worker lives as long as its device does well. Where that fails or hangs, retire() ends the worker's life,
// and probe() begins the next once the device answers again: with the same models, and empty memory.
class Worker {
 public:
  // Plans that were made for a size.
  struct AddedSize {
    std::vector<graph::Shape> outputs;  // at the first of the batches
    Effort effort;                      // of that batch
    Bytes memory;                       // that all of them take of the host's, about
  };

  virtual ~Worker() = default;  // finishes what runs, answers all else with `failed`, joins its threads

  // Registers `model` in the host store; not yet in the page cache. Ids are dense and ascending. Also while
  // it serves others. Errors: more pages than the cache has, more workspace or I/O than there is: says how
  // much is needed and there.
  virtual Result<> add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) = 0;
  // Requests of this class are to be expected for a model that was just added: its first run in their stream
  // needs no memory, nor longer than others. What normal ones need is there. Errors as add_model().
  virtual Result<> expect(ModelId /*id*/, Class /*cls*/) { return {}; }
  // Forgets the model that was added last, of which no action was ever submitted: its id is free again. From
  // the thread that adds models.
  virtual void take_back(ModelId /*id*/) {}
  // Makes plans of an open model at `extents`, for these of its batch sizes: rows that give `size` (>= 1) as
  // their length run by them. More batches may be added to a size. On the calling thread, beside serving; one
  // thread at a time. Errors: extents at which the model's operators do not fit together, and as add_model(),
  // for these plans; `cancelled` after end_sizes().
  virtual Result<AddedSize> add_size(ModelId /*id*/, std::int64_t /*size*/,
                                     std::span<const std::int64_t> /*extents*/,
                                     std::span<const int> /*batches*/) {
    return fail(ErrorCode::unsupported, "this worker takes no further sizes");
  }
  // What is being added, or comes to be, is not wanted any more. From any thread.
  virtual void end_sizes() {}
  // No row of that size comes any more; those that are here run. From the thread that adds sizes.
  virtual void remove_size(ModelId /*id*/, std::int64_t /*size*/) {}
  // Takes over plans of larger batches, ascending, of a model that makes_later(): from now on batches run by
  // them, and those of other sizes by the largest that there are, one after the other. The largest are left
  // out where they do not fit; how many it took. Not after remove_model(); beside serving, from any thread,
  // one at a time for a model. Errors: as add_model(), for the smallest of these plans; `unsupported` where
  // not even that fits.
  virtual Result<std::size_t> add_batches(ModelId /*id*/,
                                          std::vector<std::unique_ptr<const engine::Plan>> /*plans*/) {
    return fail(ErrorCode::unsupported, "this worker takes no further plans");
  }
  // No batch that comes from now on runs by those plans. Likewise.
  virtual void remove_batches(ModelId /*id*/) {}
  // Whether no batch holds plans of the model that were removed: then they have gone. Likewise.
  virtual bool sweep(ModelId /*id*/) { return true; }
  // Forgets a model that is loaded nowhere, and of which no action is under way or will come: its id is used
  // up, its memory given back. From the thread that adds models.
  virtual void remove_model(ModelId /*id*/) {}
  // Whether it would fit: what add_model() says of the room that it needs.
  virtual Result<> has_room(const engine::CompiledModel& model) const = 0;

  // Hands over an action. Never blocks; false where the executor's queue is full (then there is no result).
  // It has room for what credit() says.
  virtual bool submit(const LoadCommand& command) = 0;
  virtual bool submit(const UnloadCommand& command) = 0;
  virtual bool submit(const InferCommand& command) = 0;
  virtual wire::Credit credit() const { return {}; }

  // Ends an INFER early: one that runs before its next kernel (where its last has begun, its own result
  // comes), one that waits at once; it is answered `stopped`. Takes a lock for a few instructions. From any
  // thread; an id that is not known has no effect.
  virtual void stop(ActionId id) = 0;
  // Ends one that runs before its next kernel, from where it goes on later, in the order of an action whose
  // window opens at `order`. One result comes. Else as stop(); no effect on what does not run.
  virtual void preempt(ActionId id, TimePoint order) = 0;
  // An INFER or LOAD that has not begun will not: it is answered `stopped`. False: it has begun, and goes on,
  // or is not known. Else as stop().
  virtual bool cancel(ActionId id) = 0;

  // Ends this life: what was submitted in it is forgotten, without a result. Never waits for the device, but
  // for copies of rows that the host does: once it returns no row is read or written any more, and the sink
  // hears nothing more of this life. Returns the number of the next (the first was 0). From one thread at a
  // time, and not while the sink is called from it. Until a probe finds the device well nothing may be
  // submitted.
  virtual std::uint32_t retire() = 0;
  // Asks Options::probe on the EXEC thread, which a run that hangs must have left first; where all is well
  // and all other threads have come to rest, too, the weights' memory is empty. Then ResultSink::on_probe
  // says what was found. Never blocks. After retire(), and not while another probe is under way.
  virtual void probe() = 0;
  // For a watchdog that hears nothing of what was submitted: for how long, since the last call for this lane,
  // a thread that the lane's work needs had no processor, and whether the work got on. Nothing at the first
  // call. Takes some 10 us a thread, and no lock. From one thread at a time. The device is left to the
  // caller.
  virtual schedule::Excuse slowness(schedule::Lane lane) { return {.device = {}, .lane = lane}; }
  // Whether a thread is inside the engine, or the device copies rows: the destructor would wait for it.
  virtual bool busy() const = 0;

  virtual std::uint64_t total_pages() const = 0;
  virtual Bytes page() const { return page_size; }  // how large they are
  // Runs of that class that it does at a time.
  virtual int best_effort() const { return 1; }
  virtual std::uint64_t free_pages() const = 0;

  // Runs `model` at `batch` (and `length`, where it has lengths) `repeats` times on the EXEC thread, on
  // zeros or, where it refuses these, on other data that are made up, and returns each duration, the first
  // with cold caches; for profiles. Where it refuses all, `refused` counts as engine::measure_on_made_up()
  // has it. Loads the model where it is not loaded, and then unloads it. Blocks; not while serving, and not
  // from a ResultSink. measure_load: map and copy on the LOAD thread; the model must not be loaded.
  virtual Result<std::vector<Duration>> measure_exec(ModelId model, int batch, int repeats,
                                                     std::int64_t length = 0,
                                                     std::string* refused = nullptr) = 0;
  virtual Result<std::vector<Duration>> measure_load(ModelId model, int repeats) = 0;

  // What could not be had (real-time priority, huge pages) and what was done instead, in words.
  virtual const std::vector<std::string>& notes() const = 0;
};

// Takes the addresses of its memory and starts its threads. Errors: more memory than is available, absurd
// options.
Result<std::unique_ptr<Worker>> make_worker(const Options& options, const Clock& clock, ResultSink& results);

}  // namespace carillon::worker
