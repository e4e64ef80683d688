#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"
#include "carillon/device/page_ledger.h"
#include "carillon/device/range_ledger.h"
#include "carillon/device/window_queue.h"

namespace carillon::device {

// Where an action lies while the core has it. Whoever drives the core may keep what else belongs to it in a
// table of his own, by slot; a slot is used anew once its action was reported. Even ones are INFERs', odd
// ones LOADs' and UNLOADs', each below twice the number of LOADs and UNLOADs that may be open.
using Slot = std::uint32_t;
inline constexpr Slot no_slot = 0xffffffffU;

// Who does what: each takes turns (Core::turn), and does one thing at a time, but where Limits says
// otherwise.
using Executor = std::uint8_t;
inline constexpr Executor load_executor = 0;    // LOAD: maps pages and copies weights
inline constexpr Executor input_executor = 1;   // INPUT: gathers rows; gives pages back
inline constexpr Executor output_executor = 2;  // OUTPUT: scatters rows
inline constexpr Executor first_stream = 3;     // EXEC: a stream each, from here on

// Where a stream stands. It is in the way of those that use compute units of its own: where it has a run, or
// one that may start, streams of a higher rank begin nothing on these units, and what they run there is ended
// before its next kernel, to resume first when the way is free. Equal ranks run beside each other.
struct StreamPlace {
  std::uint8_t rank = 0;    // lower goes first: real-time, normal, best-effort
  std::uint64_t units = 0;  // a bit each; 0: in nobody's way
  // It does INPUT for its own runs as they begin, and what is in their way is ended as they are submitted.
  bool gathers = false;
  // The device takes a second run while the first runs, and begins it as that ends: see Core::committed().
  bool ahead = false;
};

struct Limits {
  std::uint64_t pages = 0;            // of the page cache
  std::uint32_t page_group = 1;       // of neighbours that had better be one model's: see PageLedger
  Bytes io;                           // I/O cache
  Bytes workspace;                    // of each stream: for its run, and for those that wait to resume
  std::size_t queue = 1024;           // LOADs and UNLOADs that may be open, and as many INFERs
  std::size_t loads_beside = 0;       // LOADs and UNLOADs beyond these
  std::size_t reserved = 1024;        // of these, so many need no allocation
  std::uint8_t streams = 1;           // 1 to 64
  std::vector<StreamPlace> places{};  // of the streams; of those without, the default
  std::size_t gathers = 1;            // that INPUT does at a time; 0: any number, each on receipt
  std::size_t scatters = 1;           // that OUTPUT does at a time; 0: there is nothing to do in OUTPUT
};

// Why an action failed, where it is not the executor that says so.
enum class Failure : std::uint8_t { none, unknown_model, loaded_already, executor, abandoned };

// What whoever drives the core is to do; in this order.
struct Command {
  enum class Kind : std::uint8_t {
    wake,     // `executor` has something new to look at: give it a turn
    copy,     // LOAD: map the model's pages() and copy the weights; then copied()
    unmap,    // take the model's pages() away; then unmapped()
    gather,   // INPUT, or a stream for itself: take_io(), copy the rows in; then gathered()
    launch,   // EXEC: run from kernel `kernel` on, on stream `executor`; then ended()
    evict,    // end the run on stream `executor` before its next kernel; ended() tells where
    scatter,  // OUTPUT: copy the rows out; then scattered()
    report    // the action has ended with `status`; the slot is free
  };
  Kind kind{};
  Executor executor = 0;
  ActionStatus status{};
  Failure failure{};
  Slot slot = no_slot;
  int kernel = 0;
};
using Commands = std::vector<Command>;

// What decides on a device, with no clock, no thread and no memory of the device's own: actions, completions
// and turns go in, with the time; commands come out. A live worker drives it by threads, the simulator in
// virtual time. It chooses nothing: actions are carried out exactly as told (Clockwork, sections 4.4, 5.2).
//
// LOAD, INPUT, OUTPUT and each stream take their actions in order of (window.earliest, id), strictly: one
// that may start already waits behind one that may not. LOAD and EXEC start within the window or are refused;
// INPUT starts on receipt, and refuses what cannot be in time any more; OUTPUT starts as EXEC ends. INFER
// reserves its piece of the I/O cache in INPUT and gives it back at its end. A run has its own workspace from
// its first kernel to its last, of its stream's; streams do not wait for each other's.
//
// An INFER whose turn comes before its model is loaded waits for LOADs of the model that were submitted
// before the INFER. It waits until its window closes, and keeps its piece of the I/O cache. INFERs behind it
// go on. When such a LOAD ends, the INFER is back in its stream's order. A LOAD that was submitted later may
// be of another version: the INFER does not wait for that.
//
// UNLOAD is effective at once: what starts later finds the model not loaded. Its pages come back when no run
// of the model is under way (those that wait to resume included; UnloadAction::discard ends them), and a
// copy that is has ended; till then it is parked, and every LOAD of the
// model that follows behind it. A model of no pages is always there.
//
// A stream that is in another's way (StreamPlace) goes first: the other's run is evicted as the first
// launches, in the same call, and needs no one to tell it to resume. A run may use fewer units than its
// stream has (InferAction::units).
//
// A run may be ended early (evict()), after any kernel. One that resumes has its place in its stream's order
// by the time given, keeps workspace, I/O and its model's pages until then, and is reported once. Where two
// runs have no room beside each other, one that waits to resume goes first.
//
// Not thread-safe; `now` never goes back. Appends to `out`. No call allocates, but add_model() and where
// Limits::reserved is exceeded; each costs O(log queue), save evict() and cancel() of what waits and
// the end of a wait for a LOAD, each O(queue).
class Core {
 public:
  explicit Core(const Limits& limits);

  // Ids ascend by one from zero. A model may have more pages than there are: its LOADs end with no_memory.
  void add_model(ModelId id, std::uint64_t pages);
  // The model that was added last, and never loaded or run, was none.
  void take_back(ModelId id);
  // The model comes again in another version: of so many pages once it is next loaded. Where it is there, it
  // has its old ones until it is unloaded. Allocates.
  void set_pages(ModelId model, std::uint64_t pages);

  // Hands over an action; no_slot where as many as may be are open.
  Slot submit(const LoadAction& action, TimePoint now, Commands& out);
  Slot submit(const UnloadAction& action, TimePoint now, Commands& out);
  Slot submit(const InferAction& action, TimePoint now, Commands& out);

  // Ends an INFER early. One that has not run: `drop` reports it as stopped; `resume` holds once it runs. One
  // that runs ends before its next kernel: where it is to resume, once something has come before it in its
  // stream's order and has room for its workspace, and not before. Where its last kernel had begun, it ends
  // as any. `drop` overrules `resume`. `order` is the place of one that resumes from then on: that of an
  // action whose window opens then (it may start at any time). No effect on an id that is not open.
  void evict(ActionId id, After after, TimePoint order, TimePoint now, Commands& out);
  // An INFER or LOAD that has not begun will not: it is reported as stopped. False: it has begun, or is not
  // open, or is an UNLOAD, and nothing changes.
  bool cancel(ActionId id, TimePoint now, Commands& out);

  // The turn of an executor: begins what may begin, refuses what is hopeless. Returns when it wants its next
  // turn, unless a wake comes before; max() for never.
  TimePoint turn(Executor executor, TimePoint now, Commands& out);

  // LOAD: the weights are there, or it failed (and its pages are mapped no more).
  void copied(Slot slot, bool done, TimePoint now, Commands& out);
  void unmapped(Slot slot, TimePoint now, Commands& out);
  // INPUT: reserves I/O cache; false where there is no room. Once for each gather.
  bool take_io(Slot slot, std::uint64_t bytes);
  // INPUT: the rows are there (success), or it failed (failed, no_memory). The run has `kernels` (>= 1) and
  // needs a workspace of so many bytes.
  struct Gathered {
    ActionStatus status = ActionStatus::success;
    int kernels = 1;
    std::uint64_t workspace = 0;
  };
  void gathered(Slot slot, const Gathered& result, TimePoint now, Commands& out);
  // EXEC, nothing but of streams with StreamPlace::ahead: all of what the stream runs is with the device,
  // which will have ended it by about `end`. What is next in the stream is launched behind it, where its
  // window is open now and still will be at `end`, nothing is in its way, both are runs of one kernel, which
  // cannot end early, and the second has room in the first one's workspace, which it then has. No stream that
  // goes first was used for a second: what it gets would have to wait for both. Returns as turn(): when to
  // call it again. A run that begins so begins as late as `end` was wrong.
  TimePoint committed(Slot slot, TimePoint end, TimePoint now, Commands& out);
  // EXEC: the run ended before kernel `next` (as many as it has: all ran), or it failed.
  void ended(Slot slot, int next, bool failed, TimePoint now, Commands& out);
  void scattered(Slot slot, TimePoint now, Commands& out);

  // --- What is known of an open action.
  ActionId id(Slot slot) const { return actions_[slot].id; }
  ActionKind kind(Slot slot) const { return actions_[slot].kind; }
  ModelId model(Slot slot) const { return actions_[slot].model; }
  Executor executor(Slot slot) const {  // its stream
    return static_cast<Executor>(first_stream + actions_[slot].stream);
  }
  Class cls(Slot slot) const { return actions_[slot].cls; }
  float share(Slot slot) const { return actions_[slot].share; }
  std::uint64_t io_offset(Slot slot) const { return actions_[slot].io.offset(); }
  // Within all streams' workspaces, one after the other.
  std::uint64_t workspace_offset(Slot slot) const {
    const Action& action = actions_[slot];
    const Stream& stream = streams_[action.stream];
    const Slot holder = stream.ahead == slot ? stream.running : slot;
    return action.stream * limits_.workspace.count + actions_[holder].workspace.offset();
  }
  // It is to be ended early for good.
  bool dropped(Slot slot) const { return actions_[slot].wanted == After::drop; }
  // A life that is over submitted it: what is done for it is in vain.
  bool orphaned(Slot slot) const { return actions_[slot].orphaned; }
  // What the stream runs.
  std::optional<Slot> running(Executor executor) const {
    const Slot slot = streams_[executor - first_stream].running;
    return slot == no_slot ? std::nullopt : std::optional(slot);
  }
  // Of the open INFER of that id that runs, or waits to.
  std::optional<Slot> find(ActionId id) const { return infers_by_id_.find(id.value); }

  // --- Memory.
  std::uint64_t total_pages() const { return pages_.total(); }
  std::uint64_t free_pages() const { return pages_.free(); }
  std::uint64_t pages_of(ModelId model) const { return models_[model.index()].pages; }
  // Behind the model; from its copy command until unmapped().
  std::span<const std::uint32_t> pages(ModelId model) const { return models_[model.index()].held; }
  bool loaded(ModelId model) const;
  // Nothing of it is there, nor comes: not even of a model of no pages.
  bool absent(ModelId model) const { return models_[model.index()].residence == Residence::absent; }
  // Pieces that are no action's own.
  RangeLedger::Piece borrow_io(std::uint64_t bytes) { return io_.allocate(bytes); }
  void return_io(const RangeLedger::Piece& piece) { io_.release(piece); }
  RangeLedger::Piece borrow_workspace(std::uint64_t bytes) {  // the first stream's
    return streams_.front().workspace.allocate(bytes);
  }
  void return_workspace(const RangeLedger::Piece& piece) { streams_.front().workspace.release(piece); }
  Bytes free_io() const { return io_.free(); }
  Bytes free_workspace(Executor executor = first_stream) const {
    return streams_[executor - first_stream].workspace.free();
  }
  // Keeps a loaded model's pages as a run does; false where it is not loaded.
  bool hold(ModelId model);
  void let_go(ModelId model, TimePoint now, Commands& out);

  // Reports all that is open and that no executor has in hand as failed, but for what has run.
  void abandon(Commands& out);

  // --- Lives. Ends this one: what is open is forgotten, without a report. What an executor has in hand
  // stays with it, orphaned, until it is given back by the call that it always is; then nothing is reported.
  void retire();
  // No executor has anything in hand.
  bool at_rest() const { return in_hand_ == 0; }
  bool at_rest(Executor executor) const;
  // After retire(), once LOAD and the streams are at rest: whoever mapped pages calls this with what takes
  // them away, and all are free again. `unmap` is called with each model that has pages behind it.
  template <typename Unmap>
  void clear_memory(Unmap&& unmap) {
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (models_[i].residence == Residence::absent) continue;
      unmap(ModelId{static_cast<std::uint32_t>(i)});
      release_pages(models_[i]);
    }
  }

  std::size_t open() const { return loads_open_ + infers_open_; }

 private:
  enum class State : std::uint8_t {
    free,
    load_queued,
    copying,
    parked,
    unmap_queued,
    unmapping,
    input_queued,
    gathering,
    exec_queued,  // not run yet, or waiting to resume
    running,
    output_queued,
    scattering
  };
  enum class Residence : std::uint8_t {
    absent,
    copying,
    loaded,
    leaving,   // an UNLOAD was told; runs are under way
    unmapping  // another
  };
  struct Stream;
  struct Action {
    ActionId id;
    ModelId model;
    Window window;
    std::uint64_t number = 0;            // in the order of submission
    std::optional<std::uint64_t> pages;  // of a LOAD
    TimePoint resume_order;
    RangeLedger::Piece io, workspace;
    std::uint64_t workspace_bytes = 0;
    float share = 1;
    int kernels = 1;
    int next = 0;  // the first kernel that has not run
    Slot next_parked = no_slot;
    std::uint64_t units = 0;  // a bit each
    std::uint8_t stream = 0;
    Class cls{};
    ActionKind kind{};
    State state = State::free;
    bool gathered = false;  // its rows are there
    bool cold = false;      // it waits for a LOAD, in its stream's `cold`
    bool counted = false;   // a LOAD: among Model::loads
    bool begun = false;     // a kernel of it was launched
    bool orphaned = false;
    bool ending = false;  // it was told to end before its next kernel
    std::optional<After> wanted;
  };
  struct Model {
    std::uint64_t pages = 0;
    std::uint64_t next_pages = 0;     // from its next LOAD on
    std::vector<std::uint32_t> held;  // pages() of them where it is not absent
    Residence residence = Residence::absent;
    std::uint32_t uses = 0;        // runs that have begun and not ended
    std::uint32_t loads = 0;       // LOADs of it that are open,
    std::uint64_t first_load = 0;  // and the least of their numbers
    Slot first_parked = no_slot, last_parked = no_slot;
  };

  struct Stream {
    WindowQueue queue;
    WindowQueue cold;  // what waits for a LOAD, by the end of its window
    RangeLedger workspace;
    Slot running = no_slot;  // or has its rows gathered for it
    Slot ahead = no_slot;    // is launched behind that
    bool starved = false;    // what is first has no room for its workspace
    bool held = false;       // what is first finds another stream in its way
    StreamPlace place;
    TimePoint used = TimePoint::min();  // when an INFER was last submitted
    std::uint64_t largest = 0;          // workspace that a run of it needed
  };

  std::vector<Slot>& free_of(ActionKind kind) { return free_[kind == ActionKind::infer ? 0 : 1]; }
  Slot take_slot(ActionKind kind, ActionId id, ModelId model);
  void free_slot(Slot slot);
  void forget(Slot slot);
  void report(Slot slot, ActionStatus status, Commands& out, Failure failure = Failure::none);
  Entry entry(Slot slot) const;
  bool known(ModelId model) const { return model.index() < models_.size(); }
  void wake(Executor executor, Commands& out);
  void release_pages(Model& model);
  void drop_memory(Action& action);
  void park(Slot slot);
  void unpark(Slot slot);
  void count_out(Action& load);
  bool load_comes(const Action& infer) const;
  bool wait_for_load(Stream& stream, Slot slot);
  void end_wait(ModelId model, Commands& out);
  void settle(Model& model, Commands& out);
  void begin_unmap(Slot slot, Commands& out);
  void end_use(Action& action, Commands& out);
  void empty_queues();
  bool give_back_orphan(Slot slot);
  TimePoint turn_load(TimePoint now, Commands& out);
  TimePoint turn_input(TimePoint now, Commands& out);
  TimePoint turn_output(TimePoint now, Commands& out);
  TimePoint turn_stream(Executor executor, TimePoint now, Commands& out);
  void begin_gather(Slot slot, Commands& out);
  bool take_workspace(Action& action);
  bool take_result(Slot slot, const Gathered& result, Commands& out);
  void own_gathered(Slot slot, const Gathered& result, TimePoint now, Commands& out);
  void look_again(const Stream& stream, Executor executor, Commands& out);
  void launch(Executor executor, Slot slot, Commands& out);
  bool fits_behind(const Action& next, const Action& run) const;
  void launch_ahead(Stream& stream, Slot slot, Commands& out);
  void put_on_device(const Stream& stream, Slot slot, Commands& out);
  void ahead_gathered(Slot slot, const Gathered& result, Commands& out);
  void end_early(Slot slot, Commands& out);
  void yield_to_first(Stream& stream, Commands& out);
  TimePoint begin_next(Executor executor, TimePoint now, Commands& out);
  bool in_the_way(const Stream& stream, std::uint64_t units, TimePoint now) const;
  void make_way(const Stream& stream, std::uint64_t units, Commands& out);
  void release_held(const Stream& stream, Commands& out);

  Limits limits_;
  PageLedger pages_;
  RangeLedger io_;
  std::uint32_t patient_io_ = 0;  // best-effort actions that hold a piece of it
  std::vector<Model> models_;
  std::vector<Action> actions_;
  std::array<std::vector<Slot>, 2> free_;  // of INFERs; of LOADs and UNLOADs
  std::size_t loads_open_ = 0, infers_open_ = 0;
  std::size_t in_hand_ = 0;    // of executors
  std::uint64_t numbers_ = 0;  // of actions that were submitted
  IndexTable infers_by_id_;

  WindowQueue load_, input_, output_;
  Slot copying_ = no_slot;
  std::size_t gathering_ = 0, scattering_ = 0;
  bool unmapping_ = false;
  std::vector<Slot> unmaps_;  // that wait for INPUT, in order
  std::vector<Stream> streams_;
};

}  // namespace carillon::device
