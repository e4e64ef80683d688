#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>

#include "carillon/base/clock.h"
#include "carillon/device/class_streams.h"
#include "carillon/device/core.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/processor_wait.h"
#include "carillon/engine/stream.h"
#include "carillon/engine/turn_thread.h"
#include "carillon/worker/host_io.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/measuring.h"
#include "carillon/worker/placement.h"
#include "carillon/worker/slots.h"
#include "carillon/worker/worker.h"

namespace carillon::worker {

// The live shell of device::Core: one lock around the core, and a thread for each of its executors, which
// takes the executor's turns and does what the core tells it. Whoever finishes something drives the core
// himself, and wakes those that have something new to do.
class LiveWorker final : public Worker, private Measuring::Subject {
 public:
  LiveWorker(const Options& options, const Clock& clock, ResultSink& sink,
             std::unique_ptr<engine::DeviceMemory> memory, HostIo io, std::vector<std::string> notes);
  ~LiveWorker() override;

  Result<> start(const Options& options);
  static Bytes workspace_of(const Options& options);

  Result<> add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) override;
  Result<> expect(ModelId id, Class cls) override;
  void take_back(ModelId id) override;
  Result<AddedSize> add_size(ModelId id, std::int64_t size, std::span<const std::int64_t> extents,
                             std::span<const int> batches) override;
  void end_sizes() override { sizes_ended_ = true; }
  void remove_size(ModelId id, std::int64_t size) override { remove_later(id, size); }
  Result<std::size_t> add_batches(ModelId id,
                                  std::vector<std::unique_ptr<const engine::Plan>> plans) override;
  void remove_batches(ModelId id) override { remove_later(id, 0); }
  bool sweep(ModelId id) override { return find(id)->sweep(); }
  void remove_model(ModelId id) override;
  Result<> has_room(const engine::CompiledModel& model) const override {
    if (auto enough = enough_pages(model); !enough) return enough;
    const auto layouts = lay_out(model, workspace_, memory_->io_size());
    return layouts ? Result<>{} : std::unexpected(layouts.error());
  }
  bool submit(const LoadCommand& command) override;
  bool submit(const UnloadCommand& command) override;
  bool submit(const InferCommand& command) override;
  wire::Credit credit() const override { return credit_; }
  void stop(ActionId id) override { evict(id, device::After::drop, {}); }
  void preempt(ActionId id, TimePoint order) override { evict(id, device::After::resume, order); }
  bool cancel(ActionId id) override;
  std::uint32_t retire() override;
  void probe() override {
    first().post([this, life = life_.load()] { probe_device(life); });
  }
  schedule::Excuse slowness(schedule::Lane lane) override;
  bool busy() const override {
    return probing_.load() || load_busy_.load() || copies_.load() > 0 ||
           std::ranges::any_of(execs_, [](const auto& exec) { return exec->stream->busy(); });
  }
  int best_effort() const override { return classes_.count() == 1 ? 1 : classes_.best_effort; }
  std::uint64_t total_pages() const override { return memory_->pages(); }
  Bytes page() const override { return memory_->page(); }
  std::uint64_t free_pages() const override {
    const std::lock_guard lock(mutex_);
    return core_.free_pages();
  }
  Result<std::vector<Duration>> measure_exec(ModelId id, int batch, int repeats, std::int64_t length,
                                             std::string* refused) override {
    return measuring_.exec(id, batch, repeats, length, refused);
  }
  Result<std::vector<Duration>> measure_load(ModelId id, int repeats) override {
    return measuring_.load(id, repeats);
  }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  using Command = device::Command;
  using Executor = device::Executor;
  using Slot = device::Slot;

  static constexpr int nobody = -1;  // who drives the core: none of its executors

  // One stream of EXEC.
  struct Exec final : engine::Stream::Client {
    Exec(LiveWorker& of, std::uint8_t number)
        : worker(of), index(number), executor(static_cast<Executor>(device::first_stream + number)) {}
    TimePoint idle() override { return worker.idle(*this); }
    TimePoint committed(std::uint64_t /*run*/, TimePoint end) override {
      return worker.committed(*this, end);
    }
    void completed(const engine::Completion& completion) override { worker.completed(*this, completion); }

    LiveWorker& worker;
    const std::uint8_t index;
    const Executor executor;
    std::string name;
    int threads = 1;
    pthread_t runner{};      // best effort: the thread that runs it
    bool on_device = false;  // the stream is the device's own
    bool raises = false;     // best effort: the thread that runs it may have normal priority for a while
    std::unique_ptr<engine::Team> team;  // helps the stream's thread; nullptr: nobody does
    std::unique_ptr<engine::Stream> stream;
    Class cls = Class::normal;       // whose runs it is for
    Slot running = device::no_slot;  // the stream's thread's
    Slot ahead = device::no_slot;    // likewise: it is with the device, behind that
  };

  // How long real-time runs took so far. Written by their stream's thread; whoever asks just as one ends may
  // hear too little.
  class RealTime {
   public:
    void began(TimePoint now) { since_.store(now.time_since_epoch().count()); }
    void ended(TimePoint now) {
      const Duration::rep since = since_.exchange(0);
      if (since != 0) sum_.store(sum_.load() + now.time_since_epoch().count() - since);
    }
    Duration so_far(TimePoint now) const {
      const Duration::rep since = since_.load();
      return Duration{sum_.load() +
                      (since == 0 ? 0 : std::max<Duration::rep>(0, now.time_since_epoch().count() - since))};
    }

   private:
    std::atomic<Duration::rep> sum_{0}, since_{0};
  };

  // What the core has for the executor that drives it.
  struct Turn {
    TimePoint next = TimePoint::max();
    std::optional<Command> work;
    std::span<const std::uint32_t> pages;  // of a copy or unmap
  };

  // Calls act(now) under the lock, and sees to all that the core then says.
  static constexpr std::uint64_t bit(Executor executor) { return std::uint64_t{1} << executor; }
  template <typename Act>
  Turn drive(int self, Act&& act);
  void handle(const Command& command, int self, Turn& turn, std::uint64_t& wakes);
  void note_result(const Command& command);
  void wake(std::uint64_t executors, int self);
  void tell_results();

  InferSlot& infer(Slot slot) { return infers_[slot / 2]; }
  LoadSlot& load(Slot slot) { return loads_[slot / 2]; }
  HostModel* find(ModelId id) override {
    if (id.index() >= model_count_.load(std::memory_order_acquire)) return nullptr;
    HostModel& host = models_[id.index()];
    return host.gone.load(std::memory_order_acquire) ? nullptr : &host;
  }
  static std::string unknown(ModelId id) {
    return "model " + std::to_string(id.value) + " is not registered";
  }
  Result<> enough_pages(const engine::CompiledModel& model) const;
  std::vector<RunPlace> run_places() const;
  StreamSet streams_of(Class cls) const;
  Result<> prepare_workspace(std::span<const PlanLayout> layouts);
  void remove_later(ModelId id, std::int64_t size);
  Result<> take_over(HostModel& host, std::int64_t size,
                     std::vector<std::unique_ptr<const engine::Plan>> plans);
  template <typename Action>
  bool submit_load(const Action& action);
  void evict(ActionId id, device::After after, TimePoint order);
  bool over(std::uint32_t life) const { return life != life_.load(); }

  TimePoint load_turn();
  TimePoint input_turn();
  TimePoint output_turn();
  void copy_weights(const Turn& turn);
  Turn take_rows(Slot slot, Executor self);

  // Of a stream.
  static std::vector<device::StreamPlace> places_of(const device::ClassStreams& classes, bool on_device,
                                                    bool by_class);
  engine::Stream& first() { return *execs_.front()->stream; }
  Exec& exec(Executor executor) { return *execs_[static_cast<std::size_t>(executor - device::first_stream)]; }
  std::uint8_t stream_of(Class cls);
  void name_threads();
  static schedule::Lane lane_of(Class cls) {
    return cls == Class::real_time     ? schedule::Lane::real_time
           : cls == Class::best_effort ? schedule::Lane::best_effort
                                       : schedule::Lane::exec;
  }
  // Real-time runs may leave room, where what makes way does so inside its kernels.
  bool parts() const { return classes_.yielding == device::Yielding::inside; }
  std::uint64_t units_of(const InferCommand& command, std::uint8_t stream);
  bool others_run() const;
  void make_streams(const Options& options);
  Result<> start_stream(Exec& exec, const Options& options);
  TimePoint idle(Exec& exec);
  TimePoint committed(Exec& exec, TimePoint end);
  void begins(Exec& exec);
  void completed(Exec& exec, const engine::Completion& completion);
  engine::Binding bind(const Exec& exec, const HostModel& host, PlanLayout& layout, std::uint64_t io,
                       std::uint64_t workspace, graph::Faults& faults) const;
  void launch(Exec& exec, InferSlot& action, PlanLayout& layout, std::uint64_t io, int first);
  void launch_part(Exec& exec, InferSlot& action, int first);
  void part_completed(Exec& exec, InferSlot& action, const engine::Completion& completion);
  void next_part(Exec& exec, InferSlot& action);
  void run_alone(Exec& exec, InferSlot& action);
  void launch_alone(Exec& exec, InferSlot& action);
  void alone_completed(Exec& exec, InferSlot& action, const engine::Completion& completion);
  void leave_alone(InferSlot& action);
  void end_run(Exec& exec, InferSlot& action, int next, const Error* error);

  void probe_device(std::uint32_t life);
  void rest_then(std::size_t place, std::function<void()> act);

  // Of what measures.
  std::uint32_t life() const override { return life_.load(); }
  bool absent(ModelId id) const override {
    const std::lock_guard lock(mutex_);
    return core_.absent(id);
  }
  Result<> between_runs(ModelId id, PlanLayout& layout, graph::Faults& faults,
                        const std::function<void(const engine::Binding&, const Fill&)>& act) override;

  const device::ClassStreams classes_;
  const Bytes workspace_;  // of each stream
  const wire::Credit credit_;
  const bool populate_;
  std::mutex preparing_;        // of what follows
  std::uint64_t prepared_ = 0;  // bytes of a workspace that are there
  const Placements places_;
  const Clock& clock_;
  ResultSink& sink_;
  std::unique_ptr<engine::DeviceMemory> memory_;
  HostIo io_;
  std::vector<std::byte> page_;  // LOAD's: a page of weights on its way to memory that the host cannot reach
  std::vector<std::string> notes_;

  std::atomic<bool> sizes_ended_{false};
  std::mutex adding_;  // one add_model() at a time
  std::unique_ptr<HostModel[]> models_;
  std::size_t max_models_;
  std::atomic<std::size_t> model_count_{0};
  double share_;
  std::function<Result<>()> probe_;
  std::atomic<std::uint32_t> life_{0};
  RealTime real_time_;
  std::atomic<bool> load_busy_{false}, probing_{false}, ending_{false};
  std::atomic<int> copies_{0};  // of rows between the host and the device, that are under way

  // Shared by whoever reads or writes rows, for copies of the host alone: a device that hangs does not hold
  // it. The end of a life takes it whole. Taken before mutex_.
  std::shared_mutex rows_;

  // Of the sink, of telling_now_, and of the end of a life. Never taken under mutex_. Whoever held it calls
  // tell_results() afterwards, for results that others left meanwhile.
  std::mutex telling_;
  std::vector<ActionResult> telling_now_;

  mutable std::mutex mutex_;  // of what follows; never held while anything is copied or run
  device::Core core_;
  device::Commands out_;
  // To be told. Nothing here bounds them but submitters: while a sink is slow, actions end and new ones are
  // submitted. A submitter with at most n actions not yet reported has at most n results here.
  std::vector<ActionResult> results_;
  std::uint64_t launches_ = 0;
  std::vector<int> best_effort_open_;  // by stream of theirs

  // By slot; what is in an executor's hands is that executor's.
  std::unique_ptr<InferSlot[]> infers_;
  std::unique_ptr<LoadSlot[]> loads_;
  std::vector<std::unique_ptr<Exec>> execs_;

  Measuring measuring_;

  std::atomic<std::uint64_t> loaded_{0};  // goes up with each page of weights
  // Of slowness(): what it saw last, by schedule::Lane.
  struct Watch {
    engine::ProcessorWait wait;
    std::vector<pid_t> threads;  // that the lane's work needs; fixed once the worker has started
    std::uint64_t steps = 0;
  };
  std::array<Watch, schedule::lanes> watches_;

  engine::TurnThread load_, input_, output_;
};

template <typename Act>
LiveWorker::Turn LiveWorker::drive(int self, Act&& act) {
  Turn turn;
  std::uint64_t wakes = 0;
  bool tell = false;
  {
    // Held for a microsecond or two, and to be woken takes tens.
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (int tries = 0; !lock && tries < 400; ++tries)
      if (engine::relax(); lock.try_lock()) break;
    if (!lock) lock.lock();
    turn.next = act(clock_.now());
    for (std::size_t i = 0; i < out_.size(); ++i) handle(out_[i], self, turn, wakes);
    out_.clear();
    tell = !results_.empty();
  }
  // Results are told by the worker's own threads.
  if (tell && self == nobody) wakes |= bit(device::input_executor);
  wake(wakes, self);
  if (tell && self != nobody) tell_results();
  return turn;
}

}  // namespace carillon::worker
