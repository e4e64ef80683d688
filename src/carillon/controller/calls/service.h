#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/statistics.h"
#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"
#include "carillon/controller/calls/device_timeline.h"
#include "carillon/explain/terms.h"
#include "carillon/provision/autoscale.h"
#include "carillon/provision/wanted.h"
#include "carillon/repository/repository.h"
#include "carillon/schedule/action.h"
#include "carillon/workload/request.h"

namespace carillon::controller {

class Journal;

struct Ensemble;  // ensemble.h

// One model as clients see it.
struct ModelView {
  std::string name;
  std::int64_t version = 1;
  bool ready = false;
  std::string reason;  // why it is not ready; where it is, what is to be known: that another engine runs it
  bool left_out = false;  // not ready because it is not wanted (here): nothing is wrong with it
  bool coming = false;    // not ready yet: while Service::loading() it may be soon
  bool returns = false;   // where it is not ready it may be again by itself: clients may ask once more
  ModelId id;             // meaningful where ready
  Duration load_time{0};  // that it took to read, compile and measure it, the last time
  repository::ModelConfig config;
  std::shared_ptr<const Ensemble> ensemble;  // of an ensemble that is ready; else null
  // Asked whenever a view that is ready is given out: its error is why it is not ready for now, or any more.
  // Quick; from any thread. Empty: it is ready.
  std::function<Result<>()> usable;
  std::uint64_t hash = 0;  // of its file and config: equal on hosts that serve the same
};

// How many models (versions each by itself) can be served, and how many were wanted and cannot.
struct ModelCounts {
  std::size_t ready = 0;
  std::size_t broken = 0;
  std::string a_broken_one;  // the name of one of them
};

// Extents of an open model for which there are plans.
struct Size {
  std::int64_t number = 0;            // as workers know it; 0: the model's reference
  std::vector<graph::Shape> outputs;  // of one row
  Effort effort;                      // likewise
};

// Of which sequence a request is, and where in it.
struct SequenceMark {
  std::uint64_t number = 0;  // the sequence's id, where it is a number
  std::string text;          // where it is text; with neither there is no id
  bool start = false;
  bool end = false;
};

// Requests of one sequence that may wait for those before them. Frontends let in no more at a time of what
// comes in order (a stream, a connection): a request that is refused in the middle is missing to those
// behind.
inline constexpr std::size_t sequence_waiting_most = 128;

class QueuePlace;

// A client's request, whole. The frontend owns the tensors inside it (aligned buffers, row-major, all rows of
// an input contiguous) and gets it back with the answer.
struct InferCall {
  ModelId model;
  int rows = 1;                                // 1..max_batch_size; 1 where the model does not batch
  std::int64_t length = 0;                     // of what varies, where the model has lengths; of all rows
  graph::Extents extents;                      // of an open model's free dimensions, by number; of all rows
  std::shared_ptr<const Size> size;            // set by submit(), for these; `length` is its number then
  std::vector<std::vector<std::byte>> inputs;  // in the model's order
  // Texts of the request's own: elements of BYTES, which handles name by their place here
  // (graph/known_texts.h).
  std::vector<std::byte> texts;
  std::vector<std::vector<std::byte>>
      outputs;  // sized by submit() behind the door; filled when the answer is a success
  // By output, whether the client wants it; empty: all. The buffer of one that nobody wants stays empty.
  std::vector<bool> outputs_wanted;
  TimePoint arrival;
  TimePoint deadline;  // TimePoint::max(): none given; then the model's SLO or the default
  // Set by submit() for a queue policy that delays: the scheduler aims at this time first. A call that cannot
  // meet it is not refused: it waits on with its own `deadline` alone, behind what has a nearer one. Where
  // this is set neither the SLO nor the default holds.
  TimePoint due = TimePoint::max();
  Class cls = Class::normal;
  bool class_given = false;  // false: the model's own class
  std::uint32_t priority = 0;
  std::string application;
  // For the journal.
  std::string id;                                                     // the client's own name of it
  std::string key;                                                    // the name of the key that it came with
  explain::DeadlineFrom deadline_from = explain::DeadlineFrom::none;  // of `deadline`, where there is one
  TimePoint handed = TimePoint::min();                                // set by submit(): when it was called
  TimePoint at_door = TimePoint::min();  // likewise: when it came to the door, its size known
  std::optional<SequenceMark> sequence;  // where the request says something about one
  std::shared_ptr<QueuePlace> place;  // set by submit(), where the model's config bounds its queue; else null
  TraceContext trace;
  // Asked by submit(), from any thread, before `outputs` take memory: whether there is room for so many
  // bytes. Once; of an ensemble each time that its steps need more at once than before, one thread at a time,
  // with what all of them need, and not after the answer. An error is the call's answer. Null: there is room.
  // Must be quick and not call the service.
  std::function<Result<>(std::size_t bytes)> room_for_outputs;

  bool wants(std::size_t output) const { return outputs_wanted.empty() || outputs_wanted[output]; }
};

// The one answer. For refusals `error` says why, and when it would have finished.
struct InferAnswer {
  Result<> status;
  // Null where `status` is an error and a worker still writes into the buffers: they live on without the
  // frontend.
  std::unique_ptr<InferCall> call;
  TimePoint finished;                  // when the answer was made
  std::optional<Duration> would_take;  // for refusals: from arrival to the predicted end
  // For refusals that waiting helps: after how long the same call would fit its deadline, as things stand, or
  // there may be room for it.
  std::optional<Duration> retry_after = std::nullopt;
  std::uint64_t number = 0;  // of the call in the journal; 0: there is none
  // Of an ensemble, where the call is sampled: the numbers of its steps that were answered.
  std::vector<std::uint64_t> steps = {};
};

// After how long who was turned away for want of room may come again, where nobody knows better how long that
// lasts.
inline constexpr Duration retry_when_full = std::chrono::seconds{1};

// Takes the answer; called exactly once, from the controller's thread or (an overloaded or stopping server)
// inside submit(); must be quick and must not call back into the service.
using AnswerHandler = std::move_only_function<void(InferAnswer)>;

// Counts and durations of one model, as KServe's statistics report them (Triton's statistics extension).
struct StepStatistics {
  std::uint64_t count = 0;
  Duration total{0};
};
struct ModelStatistics {
  std::string name;
  std::int64_t version = 1;
  std::uint64_t last_inference_ms = 0;  // Unix time
  std::uint64_t inference_count = 0;    // rows
  std::uint64_t execution_count = 0;    // batches
  StepStatistics success, fail, queue, compute_input, compute_infer, compute_output;
  // Of Carillon: outcomes by name, so that they can be metrics.
  std::uint64_t on_time = 0, late = 0, refused = 0, cancelled = 0, failed = 0;
  std::uint64_t shed = 0;  // of the refused: turned away before the scheduler heard of them
  // What the scheduler gave as its reason, by schedule::Reason: of the refused, and of some of the failed.
  std::array<std::uint64_t, static_cast<std::size_t>(schedule::last_reason) + 1> reasons{};
  // Of answers by INFERs, one for each row: how many; how many of them were expected to be late when their
  // INFER was sent; were late; and were late although the chance of that was above what is promised.
  std::uint64_t promised = 0, promised_late = 0, avoidable_late = 0;
  double expected_late = 0;
  std::uint64_t invalid = 0;  // of the failed: their own data were to blame
  std::uint64_t waiting = 0;  // requests that are open, and of which nothing runs
  std::uint64_t loads = 0, unloads = 0;
  std::uint64_t rows = 0;             // of all requests, whatever their outcome
  std::uint64_t profiled = 0;         // finished requests that were run again alone
  bool loaded = false;                // somewhere
  std::uint64_t devices = 0;          // that hold its weights
  Duration load_time{0};              // ModelView's; 0: it was never loaded
  std::vector<DeviceId> held_by;      // these, in order
  std::optional<Duration> slo;        // of requests that name no deadline
  double share_pct = 0;               // of the device's compute units, by a plan; 0: there is no plan
  bool on_standby = false;            // its standby serves it
  bool ensemble = false;              // no device runs it, but its steps' models
  LatencyHistogram latency;           // arrival to answer, of successes
  LatencyHistogram exec;              // EXEC of one batch, as measured by the worker
  LatencyHistogram prediction_error;  // |predicted - measured| EXEC
  // Of runs that made way for others and went on later, and that ran beside real-time ones.
  std::uint64_t preemptions = 0;
  Duration preemption_lost{0};          // run again, as kernels were stopped inside
  Duration padded{0};                   // beside real-time runs
  LatencyHistogram preemption_latency;  // of real-time runs: until they begin, where others had to make way
  // Of executions, by how many rows they had. Their counts add up to execution_count. Rows whose call came to
  // nothing ran as well, so that the rows add up to inference_count or more.
  struct Batch {
    int size = 0;
    StepStatistics input, infer, output;
  };
  std::vector<Batch> batches;  // ascending by size
};
struct DeviceStatistics {
  std::string name;  // as whoever started the server calls it
  bool alive = true;
  std::uint64_t lost = 0;         // times that it was taken out, as it failed or hung
  std::uint64_t odd_reports = 0;  // of actions that it does not have, or had reported before
  std::uint64_t executions = 0;   // batches
  std::uint64_t models = 0;       // whose weights it holds
  std::uint64_t pages_total = 0, pages_free = 0;
  Bytes page;  // how large these are
  Duration exec_busy{0};
  Duration load_busy{0};
};
struct ServerStatistics {
  std::vector<ModelStatistics> models;
  std::vector<DeviceStatistics> devices;  // by device id
  std::uint64_t open_requests = 0;
  // Of open models: sizes that there are plans for beside references, requests that wait for theirs, sizes
  // that were made so far, and the memory that plans for sizes take.
  std::uint64_t sizes = 0, waiting_for_size = 0, sizes_made = 0, sizes_bytes = 0;
  // BatchPlans::Counts.
  std::uint64_t later_models = 0, later_complete = 0, later_made = 0, later_dropped = 0, later_bytes = 0;
  std::uint64_t pages_total = 0, pages_free = 0;  // of all devices
  Duration exec_busy{0};                          // total time in EXEC
  Duration load_busy{0};
  // Over about the last minute, or since the last look; and how many devices are wanted, by group. None where
  // others see the requests, or what devices do.
  std::optional<provision::AutoscaleAdvice> advice;
  std::vector<provision::WantedFigures> wanted;
  // Models that have yet to come to another group of devices; none: there is one group.
  std::optional<std::size_t> moving;
  // What the policy allows for beside execution times, at about the look before; none: nobody looked before,
  // or it allows for nothing.
  struct Margin {
    Duration dispatch{0}, answer{0};
    double overrun = 0;    // share of EXEC
    Duration shortest{0};  // EXEC that takes less may outlast it as if it took so long
    // Of a run that takes so long.
    Duration of(Duration exec) const {
      return dispatch + answer + from_ns(static_cast<double>(std::max(exec, shortest).count()) * overrun);
    }
  };
  std::optional<Margin> margin;
};

// Brings models into service, and out of it, while the server runs (Triton's model repository extension).
// Safe from any thread; never blocks.
class ModelControl {
 public:
  // What an order to load brings with it.
  struct Brought {
    // Text of an inference.ModelConfig in JSON to be taken for the model's config.pbtxt; none: the file.
    std::optional<std::string> config;
    // Files that the model's folder is to have, in place of the repository's, by their paths in it, such as
    // "1/model.onnx". They need a config.
    std::map<std::string, std::string> files;
  };
  // Called once, from a thread of the control, when it is done or failed; must be quick and not call back.
  // `full`: the order was not taken, as too many wait; it may be given again.
  using Done = std::move_only_function<void(Result<>, bool full)>;
  virtual ~ModelControl() = default;
  // Loads what the repository, or the order, has of a model now, in place of what is served of it: no request
  // is lost, and what is served stays where the new cannot be. Errors: there is no such model, it cannot be
  // loaded, a file's path leads out of the model's folder, the server does not take such orders.
  virtual void load(std::string model, Brought brought, Done done) = 0;
  // Requests that are under way are answered; it is done when new ones are refused. `dependents`: with an
  // ensemble those of its steps' models go that no other ensemble has and that were loaded for it alone, not
  // by an order of their own. Errors: there is no such model.
  virtual void unload(std::string model, bool dependents, Done done) = 0;
};

// What becomes of requests until Service::loading() has ended.
inline Error still_loading(const std::string& why = {}) {
  return {ErrorCode::unavailable, why.empty() ? "the server is still loading its models" : why};
}

// What the frontends ask of the rest. Every method is safe from any thread.
class Service {
 public:
  virtual ~Service() = default;

  virtual bool ready() const = 0;
  // Before it is ready for the first time. What find() does not know then may be there soon: `unavailable`.
  virtual bool loading() const { return false; }
  // Why it is loading() or not ready(), for people; empty: those words say all.
  virtual std::string why_not_ready() const { return {}; }
  virtual std::vector<ModelView> models()
      const = 0;  // every entry of the repository, ready or not, in name order
  virtual ModelCounts model_counts() const = 0;
  // version empty: the newest. Errors name the model or version and what there is.
  virtual Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                        std::string_view version) const = 0;
  virtual TimePoint now() const = 0;

  // Hands over a call whose tensors have the right sizes. The handler is called exactly once, also on
  // failure, and also for a full server (unavailable) or one whose decisions fall behind
  // (resource_exhausted). The ticket names it for cancel().
  virtual std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) = 0;
  // The client has gone: the handler still gets its one answer (cancelled, unless it was answered already).
  // Any ticket.
  virtual void cancel(std::uint64_t ticket) = 0;

  virtual ServerStatistics statistics() const = 0;
  // What devices did last and do now; empty where that is not kept. As long as the service.
  virtual std::vector<TimelinePart> timelines() const { return {}; }

  // What `rows` rows of a model are expected to take, by themselves; zero: nobody knows.
  virtual Duration expected(ModelId, int /*rows*/) const { return Duration{0}; }
  // What a view of an ensemble calls `id`, while anybody has that view; null: it is none.
  virtual std::shared_ptr<const Ensemble> ensemble(ModelId) const { return nullptr; }

  // Whether those who decide do what they are asked within `longest`: for watchdogs, which wait for it. Also
  // true where nobody decides yet, or any more.
  virtual bool responds(Duration) { return true; }

  // nullptr: models are what they were at the start.
  virtual ModelControl* control() const { return nullptr; }
  // What is kept of the last calls; nullptr: nothing.
  virtual const Journal* journal() const { return nullptr; }
};

}  // namespace carillon::controller
