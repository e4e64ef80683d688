#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "carillon/base/bytes.h"
#include "carillon/base/effort.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/pacer.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/model.h"
#include "carillon/workload/request.h"

namespace carillon::engine {

enum class Precision : std::uint8_t {
  f32,
  bf16,
  f16  // of devices that have it: GPUs
};     // of the heavy kernels; inputs and outputs keep the model's types
// Of a config's parameter: f32, bf16 or f16.
constexpr Precision precision_of(std::string_view name) {
  return name == "bf16" ? Precision::bf16 : name == "f16" ? Precision::f16 : Precision::f32;
}
// Of an engine without f16, by its name.
inline Result<> has_precision(Precision precision, std::string_view engine) {
  if (precision != Precision::f16) return {};
  return fail(ErrorCode::unsupported,
              "precision f16 is to be had on GPUs alone (--device cuda), not of " + std::string(engine));
}

struct CompileOptions {
  std::vector<int> batch_sizes{1, 2, 4, 8,
                               16};  // ascending, distinct, each >= 1; {1} for a model without a batch
  Precision precision = Precision::f32;
  bool pads = false;  // see CompiledModel::pads()
  // What the model is called where it is served, in error texts and by profiles; empty: what its file says.
  std::string name;
  // Runs use the calling thread alone. For engines whose threads are their own: those of others come with a
  // run's Team.
  bool one_thread = false;
  // For runs that are to be stopped inside kernels soon: kernels are divided into parts that cost a run at
  // most this share of its time, in [0, 1], by what is measured: where five divisions in turn, each into
  // fewer parts, seem to cost more, a last one is taken unmeasured. That takes some seconds for each plan, on
  // one thread: up to some hundred runs, at least a dozen. Nothing: into as many parts as there are threads,
  // which takes no time to find out.
  std::optional<double> stop_cost;
  // Where `stop_cost` is given: no part is made shorter than this, at least 1 us. To stop yet sooner costs
  // more than it is worth: with parts of 12 us runs took 2 to 7% longer than with 24.
  Duration least_part = std::chrono::microseconds{18};
  // For real-time runs on devices that can be divided: each plan uses the least part of the device that costs
  // it at most this share of its time, in [0, 1], by what is measured, so that others run beside it. Nothing:
  // all of the device.
  std::optional<double> room_cost{};
  // Reads the model once more, as it is given to compile(), or says why that cannot be done (unavailable: it
  // is another one now). With it an engine may keep the plan of batch size 1 alone, where that is among the
  // sizes, and make the others when they are asked for (CompiledModel::make_plans()).
  std::function<Result<std::shared_ptr<const graph::Model>>()> reread{};
};

// Of stop_cost and room_cost, where nobody says otherwise. REEF's padding costs real-time runs 1% on average
// (section 7.4).
inline constexpr double usual_stop_cost = 0.02, usual_room_cost = 0.02;

// Kernels [first, last) of a plan.
struct KernelRange {
  int first = 0;
  int last = 0;
};

// What can be told to make haste to a place where it may end.
class Interruptible {
 public:
  virtual ~Interruptible() = default;
  // From any thread, any number of times, without blocking.
  virtual void interrupt() = 0;
  // Likewise: what runs hangs, and nobody waits for it any more. Ends it, whatever that costs, where that can
  // be done.
  virtual void give_up() {}
};

// Lets another thread end a run between two kernels, or inside one where the plan can do that. The runner
// sets `run` to a number of this run's own before it starts, not 0; whoever wants it ended calls request()
// with that number, at any time, as late as it likes: a later run has another number.
struct StopSignal {
  std::atomic<std::uint64_t> wanted{0};  // 0: nobody's
  std::uint64_t run = 0;                 // the runner's alone
  // Set by the run: the first kernel that did not run to its end, with which to go on; last where all did. A
  // kernel that was stopped in its middle starts again.
  int next = 0;
  // Likewise: how long it had run, where that is so.
  Duration lost{0};
  // Likewise: goes up with each kernel that is begun, over all runs. Whoever sees it grow knows that the run
  // does not hang.
  std::atomic<std::uint64_t> steps{0};

  // The run's thread alone.
  void step() { steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  bool requested() const { return run != 0 && wanted.load(std::memory_order_relaxed) == run; }
  // From any thread. Never waits for the run's thread, which may be of the lowest priority: where that is
  // just in set_inside(), the run sees what is wanted before its next kernel.
  void request(std::uint64_t which) {
    wanted.store(which);
    tell_inside(which, &Interruptible::interrupt);
  }
  // Likewise, where nobody waits for that run any more.
  void give_up(std::uint64_t which) {
    wanted.store(which);
    tell_inside(which, &Interruptible::give_up);
  }
  // By the run: what to interrupt from now on; nullptr for nothing any more.
  void set_inside(Interruptible* now) {
    while (held.exchange(true)) {  // interrupt() is quick
    }
    inside = now;
    held.store(false);
  }

  void tell_inside(std::uint64_t which, void (Interruptible::*what)()) {
    if (held.exchange(true)) return;
    if (inside != nullptr && run == which) (inside->*what)();
    held.store(false);
  }

  std::atomic<bool> held{false};  // of `inside`
  Interruptible* inside = nullptr;
};

// The threads that run the kernels of one stream: the one that calls Plan::run, and those that help it.
struct TeamOptions {
  int threads = 1;  // the caller among them
  // Where the helpers run: the i-th (from 1) on cores[i % size] alone. Where the caller runs is its own
  // affair. Empty: where the thread that makes the team may run.
  std::vector<int> cores{};
  Class cls = Class::normal;  // of the runs that it is for
};
class Team {
 public:
  Team() = default;
  virtual ~Team() = default;  // not while a run uses it
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  virtual int width() const = 0;  // its threads
  // Of them, those that take part in runs now. From the stream's thread.
  virtual int active() const { return width(); }
  // The system's numbers of the helpers, appended to `out`. From any thread.
  virtual void threads(std::vector<pid_t>& /*out*/) const {}
};

// What runs of one plan keep for the next, beside their memory: which addresses their kernels' operands have.
// Whoever owns a stream makes one for each plan that it may run (Plan::make_state()), ahead of any run.
class RunState {
 public:
  RunState() = default;
  virtual ~RunState() = default;
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;
};

// Where one run finds its memory, and leaves what it found. Pointers are 64-byte aligned; nothing overlaps.
struct Binding {
  std::span<const std::byte* const> inputs;  // in the order of Plan::inputs(), each of the input's bytes
  std::span<std::byte* const> outputs;  // likewise; where extents are bounded, as graph::memory_of() says
  std::byte* workspace = nullptr;       // Plan::workspace() bytes; contents must survive between partial runs
  const std::byte* weights = nullptr;   // CompiledModel::weights() bytes, as write_weights() left them
  // Gets the rows whose data kernels cannot use, beside what is in it. nullptr: one such row fails the run.
  graph::Faults* faults = nullptr;
  RunState* state = nullptr;  // of the plan that runs; nullptr where make_state() gives none
};

// An ordered list of kernels for one model at one batch size and length, every buffer's place known in
// advance.
//
// Kernels are idempotent: a run of [0, i), then of [i, n), equals one of [0, n), and a kernel may be run
// again. A plan does not change once it is made: any number of threads may run it at once, each with a state
// and memory of its own. run() allocates nothing that grows with the tensors and takes no lock that another
// run holds.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual int batch() const = 0;
  virtual std::span<const graph::TensorSpec> inputs() const = 0;   // shapes at this batch and length
  virtual std::span<const graph::TensorSpec> outputs() const = 0;  // likewise; extents may be bounded
  virtual Bytes workspace() const = 0;
  // What a run costs, by the shapes; where an engine does not know better, what goes in and comes out (at
  // most, where the data decide how long an output is).
  virtual Effort effort() const {
    Effort out;
    for (const auto tensors : {inputs(), outputs()})
      for (const graph::TensorSpec& each : tensors)
        out.bytes += graph::memory_of(each.type, each.shape).count;
    return out;
  }
  // About what it takes of the host's memory, beside the weights that it shares with others.
  virtual Bytes memory() const { return {}; }
  // Whether a run needs all of the device; false where runs of other streams go on beside it.
  virtual bool whole_device() const { return true; }
  virtual int kernels() const = 0;
  virtual std::string_view kernel_name(int index) const = 0;  // "<node> <implementation>"
  // Into how many parts the kernel is divided, between which a run may stop; 1: it is not.
  virtual int kernel_parts(int /*index*/) const { return 1; }
  // What Binding::state of this plan's runs wants, for one run at a time; nullptr where nothing is kept. Runs
  // with it use the threads of `team`, of the plan's engine, which one run at a time may; without one they
  // use the calling thread alone. Must not outlive the plan or the team. Allocates; from any thread.
  virtual std::unique_ptr<RunState> make_state(Team* /*team*/ = nullptr) const { return nullptr; }
  // Has `state` keep what runs with this workspace and these weights want, so that the first of them takes no
  // longer than the next. Their memory need not be there yet. Allocates; no run uses the state meanwhile.
  virtual Result<> prepare(RunState& /*state*/, std::byte* /*workspace*/,
                           const std::byte* /*weights*/) const {
    return {};
  }

  // Runs `range`, but for kernels of a branch that the data does not take: these are passed over. Where
  // `durations` is not empty (then kernels() long) entry i gets kernel i's duration, 0 where it was passed
  // over. An error is bad data (`invalid_argument`: an index out of range) or a kernel's failure; the outputs
  // are then undefined. `unavailable` (or an exception) is not this run's failure but the device's: what runs
  // there next would fare no better.
  // With binding.faults, bad data of a row that is known fails that row alone: it is noted there, the run
  // goes on to its end in the time that it takes anyway, and the outputs of the other rows are right. With
  // `stop`, the run ends early, without an error, where that is requested: before its next kernel, or between
  // two parts of one. When it returns none of the plan's memory is used any more. With `pacer`, it rests
  // between kernels as that says.
  virtual Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations,
                       StopSignal* stop = nullptr, Pacer* pacer = nullptr) const = 0;
};

// A model made ready for one engine: plans for some batch sizes, each at every length of the model, that
// share one block of weights.
class CompiledModel {
 public:
  virtual ~CompiledModel() = default;
  virtual const std::vector<graph::TensorSpec>& inputs() const = 0;  // dimension 0 as in the model
  virtual const std::vector<graph::TensorSpec>& outputs() const = 0;
  virtual Bytes weights() const = 0;
  // Copies bytes [offset, offset + to.size()) of the weights, in the layout that the kernels want, to `to`.
  // What LOAD does, page by page; needs offset + to.size() <= weights(). Safe from any thread. Error
  // (unavailable): they are kept in a file that cannot be read any more; what `to` holds is undefined then.
  virtual Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const = 0;
  // The same bytes, all of them, where they lie in one piece in memory that devices copy from at the bus's
  // rate; empty where they do not. As long as this lives.
  virtual std::span<const std::byte> packed() const { return {}; }
  virtual std::span<const int> batch_sizes() const = 0;
  // Whether plan() has that of batch size 1 alone, and make_plans() makes the others, at no extents. Not of
  // an open model.
  virtual bool makes_later() const { return false; }
  // Whether plan() has that of batch size 1 alone: until others are made larger batches run row after row. An
  // open model gets others at its reference as it does at any other extents.
  virtual bool has_one_plan() const { return makes_later(); }
  // Of an open model that has_one_plan(): that of its largest batch at the reference, by which the fixed part
  // of its time can be measured, until it is let go. Both from the thread that makes the model ready.
  virtual const Plan* spare() const { return nullptr; }
  virtual void let_go_spare() const {}
  // About what it has of the host's memory, beside weights() that devices hold.
  virtual ModelMemory memory() const;
  // What length_dimension in inputs() and outputs() may be, ascending; empty where nothing varies.
  virtual std::span<const std::int64_t> lengths() const { return {}; }
  // Whether a request may run at a greater length than its own, filled up with zeros, and lose of each output
  // what lies beyond its own length. Else it runs at its own only.
  virtual bool pads() const { return false; }
  // Of an open model (see graph::Model): the extents of its free dimensions at which plan() is, by number.
  // Empty: it is not open.
  virtual std::span<const std::int64_t> reference() const { return {}; }
  bool open() const { return !reference().empty(); }
  // Whether a run's time depends on its input: the model has lengths, is open, or has control flow.
  virtual bool time_varies() const { return !lengths().empty() || open(); }
  // What it has not as CompileOptions ask for it, and why, for people: batch sizes that are left out.
  virtual std::vector<std::string> notes() const { return {}; }
  // Whether its plans can run: an error (unavailable) says why not for now, or not any more. From any thread,
  // and cheap where they can. It is no device's failure: runs fail with `internal` meanwhile.
  virtual Result<> usable() const { return {}; }
  // The plan for exactly `batch` and `length` (0 where the model has no lengths), or nullptr.
  virtual const Plan* plan(int batch, std::int64_t length = 0) const = 0;
  // Of an open model, or one that makes_later(): plans at `extents`, one for each of `batches`, which are of
  // batch_sizes(), each once (of one that makes_later() without 1). They share weights() with all others, and
  // hold what they need beside these; none may outlive the model. Takes as long as compiling does. From any
  // thread, beside runs and beside itself. Errors: extents at which the operators do not fit together
  // (invalid_argument), what compile() and CompileOptions::reread can fail with. Where `ended` is given and
  // becomes true meanwhile it may end early, with `cancelled`.
  virtual Result<std::vector<std::unique_ptr<const Plan>>> make_plans(
      std::span<const std::int64_t> /*extents*/, std::span<const int> /*batches*/,
      const std::atomic<bool>* /*ended*/) const {
    return fail(ErrorCode::unsupported, "the model has all of its plans");
  }
};

inline ModelMemory CompiledModel::memory() const {
  ModelMemory out{.plans = {}, .weights = Bytes{packed().size()}, .processes = {}};
  const auto add = [&](int batch, std::int64_t length) {
    if (const Plan* const there = plan(batch, length); there != nullptr)
      out.plans = out.plans + there->memory();
  };
  for (const int batch : batch_sizes()) {
    for (const std::int64_t length : lengths()) add(batch, length);
    if (lengths().empty()) add(batch, 0);
  }
  return out;
}

class Stream;
struct StreamOptions;

// Turns graphs into plans. Used from one thread at a time while compiling.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const = 0;
  virtual Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                               const CompileOptions& options) = 0;
  // Whether several threads may compile at a time. Not where kernels are measured meanwhile.
  virtual bool compiles_in_parallel() const { return false; }
  // A stream of the device's own, for launches of its plans with states of a team for that class; nullptr
  // where plans run on threads of the host (HostStream).
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions&);
  // Threads for one stream's kernels; nullptr where the engine has no use for them. They have the calling
  // thread's priority. Fails where the system gives no thread.
  virtual Result<std::unique_ptr<Team>> make_team(const TeamOptions&) { return nullptr; }
  // How long runs of a plan of that model take, one after the other, with the model's weights and inputs
  // of random numbers, in memory that is taken for them; nothing where plans run in the host's own memory,
  // and whoever wants to know can run them. From one thread at a time, beside runs. Errors: no memory on the
  // device, or it is lost.
  virtual std::optional<Result<std::vector<Duration>>> measure(const CompiledModel& /*model*/,
                                                               const Plan& /*plan*/, int /*repeats*/) {
    return std::nullopt;
  }
  // Whether the device answers, for one that can be lost. From the thread that runs its plans; it may take
  // for ever where the device hangs.
  virtual Result<> probe() { return {}; }
};

}  // namespace carillon::engine
