#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/holder.h"
#include "carillon/controller/calls/row_lookup.h"
#include "carillon/dispatch/decider.h"
#include "carillon/dispatch/notes.h"
#include "carillon/explain/row_spans.h"
#include "carillon/ledger/busy_share.h"
#include "carillon/transport/messages.h"

namespace carillon::roles {

// A row's tensors while a worker has the row. Its buffers are taken once the row's length is known.
class PulledRow {
 public:
  struct Shape {
    std::vector<controller::RowSize> inputs, outputs;
    std::vector<std::int64_t> lengths;  // ascending; empty where nothing varies
  };
  explicit PulledRow(std::shared_ptr<const Shape> shape) : shape_(std::move(shape)) {}
  PulledRow(const PulledRow&) = delete;
  PulledRow& operator=(const PulledRow&) = delete;

  // Takes memory. Returns where the inputs are to be written. Errors: the model has no such length, or its
  // inputs are of other sizes; the text says which.
  Result<std::vector<std::span<std::byte>>> make(std::int64_t length, std::span<const std::uint64_t> bytes);
  // Zeros, of the least length: for a row that nobody wants any more, whose batch runs.
  void make_zeros();
  worker::RowBuffers buffers(TimePoint deadline) const { return {inputs_, outputs_, length_, deadline}; }
  std::vector<std::span<const std::byte>> outputs() const;

 private:
  void take(std::int64_t length);
  const std::shared_ptr<const Shape> shape_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::int64_t length_ = 0;
};

// What a worker's agent asks of its process. None may call back.
class AgentOut {
 public:
  virtual ~AgentOut() = default;
  // To the leader that was last told by leads().
  virtual void send(transport::Message message) = 0;
  // Brings the row's inputs; Agent::pulled() follows, with this ticket.
  virtual std::uint64_t pull(const std::string& address, std::uint64_t key, TimePoint urgency,
                             std::shared_ptr<PulledRow> row) = 0;
  // Rows will be pulled from there.
  virtual void connect(const std::string&, const cluster::Protocols&) {}
  // Gives its outputs back with the action's report; Agent::pushed() follows.
  virtual std::uint64_t push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                             const wire::Report& report) = 0;
  virtual void cancel(std::uint64_t ticket) = 0;
  // A model is to be loaded or unloaded; ModelOrdered answers.
  virtual void order_model(const transport::ModelOrder&) {}
  // The spans of a row of a sampled request, once this worker is done with the row.
  virtual void traced(std::shared_ptr<const explain::RowSpans>) {}
  // Nothing more follows at once: all of it can go.
  virtual void flush() {}
  virtual void warn(const std::string& text) = 0;
};

// Does on a worker's devices what the leader of its cluster orders: pulls the rows of a batch from their
// frontends, has the device run it, reports to the leader, gives back the outputs, and tells the leader that
// they are delivered.
//
// A new leader finds the devices as they are, and hears which weights are there and what runs took. Of what
// an earlier one ordered, nothing begins any more. What runs goes on to its end, and may give a frontend its
// answer; nobody hears its report.
//
// An agent that drains tells leaders of no model and no device, so that nothing new is ordered. It ends what
// it has, and reports it.
//
// Not thread-safe; `now` never goes back. What peers say is not trusted: whatever does not fit is counted as
// a stray, or answered by a report `failed`.
class Agent final : public dispatch::Decider, public controller::RowLookup {
 public:
  struct Counters {
    std::uint64_t strays = 0;     // messages that did not fit
    std::uint64_t stale = 0;      // orders of an earlier leader, or of a life that the leader ended
    std::uint64_t rows_gone = 0;  // rows that nobody wanted any more when they were to be pulled
    std::uint64_t unwanted = 0;   // rows whose outputs nobody wanted any more
    std::uint64_t unreached = 0;  // rows and outputs whose frontend could not be reached
  };
  // Both outlive this. `notes` hears of what the devices do, whoever ordered it. `order`: the worker's place
  // among workers with as many devices each (worker_order()).
  Agent(AgentOut& out, dispatch::Notes& notes, std::optional<std::uint32_t> order = std::nullopt)
      : out_(out), notes_(notes), order_(order) {}

  // Within controller::Controller::react(). Times of messages are on our clock.
  void leads(TimePoint now);
  void leader_left(TimePoint now);
  void heard(transport::Message message, TimePoint now);
  void pulled(std::uint64_t ticket, const Result<>& result, TimePoint now);
  // `taken`: the outputs are the row's; false: nobody wanted them.
  void pushed(std::uint64_t ticket, const Result<bool>& taken, TimePoint now);
  const Counters& counters() const { return counters_; }

  // controller::RowLookup, for the order that is just given to a device.
  worker::RowBuffers buffers(RequestId row) const override;
  bool run_again(const ledger::Profile&, worker::InferCommand&) override { return false; }

  // dispatch::Decider. A worker takes no calls: what is offered is refused.
  void add_device(wire::DeviceLink& link) override;
  void add_model(wire::Model model) override;
  void start(TimePoint now) override;
  void come(wire::Model model, TimePoint now) override;
  void go(ModelId id, TimePoint now) override;
  void change_times(ModelId id, std::vector<ledger::BatchProfile> batches, TimePoint now) override;
  const ledger::ModelInfo& model(ModelId id) const override { return models_[id.index()].model.info; }
  void on_report(const wire::Report& report, TimePoint now) override;
  void on_probe(const wire::ProbeReport& report, TimePoint now) override;
  TimePoint wake_at() const override;
  void wake(TimePoint now) override;
  void stop() override;
  void flush() override { out_.flush(); }
  bool stopped() const override { return stopped_; }
  std::size_t devices() const override { return devices_.size(); }
  std::size_t devices_alive() const override;
  bool device_alive(DeviceId id) const override { return devices_[id.index()].alive; }
  bool on_devices(ModelId id) const override;
  std::size_t actions_in_flight() const override { return actions_.size(); }
  AppId application(std::string_view, const std::optional<Alike>&, TimePoint) override { return AppId{0}; }
  void offer(const Request& row, bool more, TimePoint now) override;
  void all_arrived(TimePoint) override {}
  void withdraw(RequestId, ModelId) override {}
  void hear(TimePoint) override {}

 private:
  using Kind = std::tuple<ModelId, Class, std::uint32_t>;  // and how many rows
  struct Run {
    Duration took{0}, expected{0};
    TimePoint end;
  };
  struct Device {
    wire::DeviceLink* link = nullptr;
    bool alive = false;
    bool retired = false;  // and not probed since
    bool probing = false;
    bool probe_wanted = false;  // once the probe of an earlier life has been answered
    std::uint32_t life = 0;     // as the device counts
    // As the leader does. None: it has not said yet, and hears nothing of the device until then.
    std::optional<std::uint32_t> leaders;
    wire::Credit has{.infers = 0, .loads = 0};
    std::size_t delivers = 0;  // actions that do
    std::set<ModelId> held;
    std::map<Kind, std::deque<Run>> runs;  // that succeeded, the latest of each kind
    int threads = 0;                       // that the last of them had
    ledger::BusyShare urgent;              // of real-time runs, as a leader's ledger has it
    TimePoint busy_since = TimePoint::max();
  };
  struct Model {
    wire::Model model;
    std::shared_ptr<const PulledRow::Shape> shape;
    bool gone = false;
    std::uint32_t changes = 0;  // of its times
  };
  struct Row {
    std::string address;  // of its frontend
    std::uint64_t key = 0;
    std::shared_ptr<PulledRow> pulled;
    std::uint64_t ticket = 0;  // of what is under way; 0: nothing is
    bool wanted = true;
    std::shared_ptr<explain::RowSpans> spans = {};  // of a sampled request; else null
  };
  struct Action {
    DeviceId device;
    ModelId model;
    schedule::ActionKind kind{};
    bool sent = false;          // to the device
    bool own = false;           // not the leader's: an UNLOAD of a model that goes, or of an earlier leader's
    bool stops = false;         // it has not begun, and will not
    bool delivers = false;      // it is reported, and its outputs are on their way
    std::uint32_t changes = 0;  // of its model's times, before it
    ActionId theirs;            // as the leader numbers it
    std::size_t waits = 0;      // for so many rows
    ledger::Infer order;
    std::vector<Row> rows;  // of order.requests, which are their places
    std::optional<wire::Report> report;
    bool unreached = false;              // a frontend of it was not, and was not the last time either
    TimePoint taken = TimePoint::min();  // when its last outputs were; min(): none were
    std::optional<std::uint32_t> noted;  // in noted_, while the device has it
  };

  void on(ledger::Load& order, TimePoint now);
  void on(ledger::Unload& order, TimePoint now);
  void on(transport::Infer& order, TimePoint now);
  void on(transport::Profile& order, TimePoint now);
  void on(ledger::Stop& order, TimePoint now);
  void on(ledger::Preempt& order, TimePoint now);
  void on(transport::Retire& order, TimePoint now);
  void on(transport::Probe& order, TimePoint now);
  void on(transport::Adopt& order, TimePoint now);
  void on(transport::FrontendAt& message, TimePoint now);
  void on(transport::Leads&, TimePoint) {}
  void on(transport::Drain& order, TimePoint now);
  void on(transport::ModelOrder& order, TimePoint) { out_.order_model(order); }
  template <typename Other>
  void on(Other&, TimePoint) {  // not for a worker
    ++counters_.strays;
  }
  Device* find(DeviceId id);
  Device* taken(DeviceId id);
  void announce_all(TimePoint now);
  void announce(const Model& model);
  void announce(DeviceId id, TimePoint now);
  // Whether a leader hears of models and devices.
  bool tells() const { return led_ && !draining_; }
  void tell_drain();
  void disown(TimePoint now);
  transport::DeviceState::Left left(const Device& device, DeviceId id, TimePoint now) const;
  void learn(Device& device, const Action& action, const wire::Report& report, TimePoint now);
  void forget_runs(ModelId model);
  void retire(DeviceId id, std::string_view why, TimePoint now);
  void probe(DeviceId id);
  // Whether the order can be done: else it is answered.
  std::optional<ActionId> take(ActionId theirs, DeviceId device, ModelId model, schedule::ActionKind kind,
                               TimePoint now);
  void fail_order(ActionId id, DeviceId device, ledger::ActionStatus status, std::string why, TimePoint now);
  void tell_held_back(TimePoint now);
  TimePoint slow_at() const;
  void warn_of_pull(const std::string& why, TimePoint now);
  void ready(ActionId id, Action& action, TimePoint now);
  // To its device.
  template <typename Order>
  void hand_over(Action& action, const Order& order, TimePoint now);
  template <typename Order>
  void pass(Order& order, schedule::ActionKind kind, TimePoint now);
  std::optional<std::pair<ActionId, wire::DeviceLink*>> running(ActionId theirs, TimePoint now);
  void drop_rows(Action& action);
  static void trace_run(const Action& action, const wire::Report& report, TimePoint now);
  void tell_traced(const Action& action, TimePoint now);
  void tell(const Action& action);
  static void give_back(Device& device, schedule::ActionKind kind);
  void end(ActionId id, TimePoint now);
  void delivered(const Action& action);
  void unload_gone(TimePoint now);
  static std::size_t& count(wire::Credit& credit, schedule::ActionKind kind) {
    return kind == schedule::ActionKind::infer ? credit.infers : credit.loads;
  }

  AgentOut& out_;
  dispatch::Notes& notes_;
  const std::optional<std::uint32_t> order_;
  Slab<dispatch::Notes::Action> noted_;
  std::vector<Device> devices_;
  std::vector<Model> models_;
  std::map<std::uint32_t, std::string> frontends_;  // addresses, by number
  std::map<ActionId, Action> actions_;              // by our own numbers, which the devices have
  std::map<ActionId, ActionId> ordered_;            // to these, from the leader's
  std::map<std::uint64_t, std::pair<ActionId, std::size_t>> tickets_;  // to the action, and the row's place
  const Action* sending_ = nullptr;
  std::uint64_t numbered_ = 0;  // actions
  bool led_ = false;
  bool draining_ = false;
  bool started_ = false;
  bool stopped_ = false;
  TimePoint looked_ = TimePoint::min();
  static constexpr Duration warn_every = std::chrono::seconds{1};
  // A frontend that cannot be reached fails pulls at once, and its leader may order the rows again at once.
  // So from the second time on the leader hears so much later that nothing ran. Meanwhile this device looks
  // busy, and others free. Far less than what makes a device hang.
  static constexpr Duration unreached_pause = std::chrono::milliseconds{20};
  std::set<std::string> unreached_;                     // frontends, by address: the last pull failed
  std::set<std::pair<TimePoint, ActionId>> held_back_;  // by when it is told that they did not run
  TimePoint pull_warned_ = TimePoint::min();
  std::uint64_t pulls_unsaid_ = 0;  // that failed since
  Counters counters_;
};

}  // namespace carillon::roles
