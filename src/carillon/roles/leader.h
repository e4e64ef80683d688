#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/result.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/dispatch/dispatch.h"
#include "carillon/dispatch/notes.h"
#include "carillon/explain/row_spans.h"
#include "carillon/provision/counted_demand.h"
#include "carillon/roles/model_orders.h"
#include "carillon/schedule/asked_ahead.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/subclusters.h"
#include "carillon/transport/messages.h"
#include "carillon/wire/ends.h"

namespace carillon::roles {

// Where a leader's messages go. Must not call back.
class Out {
 public:
  virtual ~Out() = default;
  virtual void send(PeerId to, transport::Message message) = 0;
  // The peer is not heard any more. Its stream is to end.
  virtual void end(PeerId peer, std::string why) = 0;
  virtual void warn(std::string text) = 0;
  // The spans of a row of a sampled request, once the row is over.
  virtual void traced(std::shared_ptr<const explain::RowSpans>) {}
};

struct LeaderOptions {
  dispatch::Options dispatch{};
  std::size_t max_open = 65'536;          // rows of all frontends; those beyond it are refused
  std::size_t max_devices = 4096;         // that ever came; others are passed over
  std::uint32_t max_order = 1024;         // of a device; one that tells more is numbered as it comes
  std::size_t max_models = 65'536;        // likewise
  std::size_t max_applications = 16'384;  // likewise; rows of others count as of none
  std::size_t max_frontend_apps = 4096;   // numbers of applications of a frontend; rows of others are refused
  // Rows that frontends may have offered to it and that wait for it, all together, as far as each may have
  // `least_offers`. They bound how long its word of anything else is waited for: 10 ms, at 5 us a row.
  std::size_t offers_under_way = 2048;
  std::size_t least_offers = 32;
  Duration model_grace = std::chrono::seconds{10};  // a model stays so long once its last worker left
  // A worker whose stream broke is waited for so long before rows are refused for want of its devices: a row
  // so long in all, however often workers come and go. Such a worker dials again after 200 ms at the latest.
  Duration worker_return = std::chrono::milliseconds{500};
  // Outputs of a run that is reported are waited for until so long after the row's deadline, or after the
  // report if that came later. Before the deadline large outputs on a slow link need their time, and whoever
  // pushes them finds a broken connection by itself. After it nobody is served by them.
  Duration delivery_grace = std::chrono::seconds{1};
  // Before a worker drains, models that it alone has are loaded elsewhere. So long it works on meanwhile.
  Duration load_elsewhere_within = std::chrono::seconds{10};
  // What an earlier leader wanted of devices, as far as it told.
  std::vector<provision::WantedFigures> wanted_before{};
  provision::DemandOptions demand{};
  // If groups of devices divide the models, the scheduler that the leader is given. Null: there are no
  // groups.
  schedule::Subclusters* subclusters = nullptr;
};

// Decides, in one epoch, for the rows of frontends and the devices of workers on other hosts. Keeps each
// peer's numbers of rows, models and devices apart from its own. Pure: messages and times go in, messages
// come out. What a peer says may be wrong, doubled or late: that is refused or counted.
//
// Not thread-safe; `now` never goes back.
class Leader final : private wire::Calls, private dispatch::Notes {
 public:
  Leader(std::unique_ptr<schedule::Scheduler> scheduler, LeaderOptions options, Out& out);
  ~Leader() override;
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // Before all else.
  void start(TimePoint now);
  // After start(): frontends hear of no model, and so offer nothing, before each of these workers has a
  // device that is alive, at `until` at the latest. Else a new leader would refuse rows for want of devices
  // that are about to come.
  void await_workers(std::set<std::string> ids, TimePoint until);
  // A frontend or a worker has a stream. An earlier stream of the same id ends. So does the stream of a
  // worker and of a frontend that share no protocol: see cluster/protocols.h.
  void joined(PeerId peer, const transport::Hello& hello, TimePoint now);
  void left(PeerId peer, std::string_view why, TimePoint now);
  // A frame's messages, with times on our clock. Its Offers that say `more` are decided on together.
  void heard(PeerId peer, std::vector<transport::Message> messages, TimePoint now);
  void heard(PeerId peer, transport::Message message, TimePoint now);
  // A worker works on until the models that it alone holds are loaded on other devices (load_elsewhere()).
  // Then it gets nothing new to do, and its models and devices are gone for the scheduler. What it has runs
  // to its end: rows of it may run elsewhere, too, and are not refused before. A frontend is not to be ready.
  // Errors: no such member is there (not_found), or no other worker that does not drain has a device or one
  // of its models (unavailable). `undo`: all is as before; also by itself once the process is another.
  Result<> drain(const std::string& id, bool undo, TimePoint now);
  // By id, of those that drain: what they have yet to end.
  // A worker whose models are loaded elsewhere first has something to end.
  std::map<std::string, std::uint32_t> drains() const;
  std::uint64_t drains_version() const { return drains_version_; }  // goes up when they change
  // Divides the models over the groups of devices from now on: Subclusters::change(). Requires
  // LeaderOptions::subclusters.
  void divide(const schedule::GroupsOfModels& division, TimePoint now);
  // Nothing is heard of these workers, whose streams stand. Replaces what was said before.
  void unheard(std::set<std::string> workers) { unheard_ = std::move(workers); }
  // When wake() wants to be called; max() for never.
  TimePoint wake_at() const;
  void wake(TimePoint now);

  // What was heard and changed nothing, by kind.
  struct Strays {
    std::uint64_t peers = 0;    // messages of a peer that is not there, or whose role does not say them
    std::uint64_t rows = 0;     // Offers that are refused unheard, or of a row that is open
    std::uint64_t models = 0;   // of models, and of applications
    std::uint64_t devices = 0;  // of devices
    std::uint64_t reports = 0;  // reports of actions that the device does not have
    std::uint64_t beyond = 0;   // beyond the options' bounds
  };
  // How many devices the load needs, by group. To be called about each provision::CountedDemand::looks_every,
  // from the start on. Rows count one by one; those that frontends turn away before they are offered do not.
  std::vector<provision::WantedFigures> look_at_demand(TimePoint now);

  const Strays& strays() const { return strays_; }
  // Rows that the scheduler was given once more, as their worker went or their outputs did not come.
  std::uint64_t reoffered() const { return reoffered_; }
  std::size_t rows_open() const { return rows_.used(); }
  std::size_t frontends() const { return count(transport::Role::frontend); }
  std::size_t workers() const { return count(transport::Role::worker); }
  std::size_t models() const { return served_.size(); }  // that are served
  // Models that move between groups of devices.
  std::size_t moving() const { return options_.subclusters != nullptr ? options_.subclusters->moving() : 0; }
  struct DeviceView {
    DeviceId id;
    std::string worker;
    DeviceId number;  // the worker's own
    bool alive = false;
  };
  std::vector<DeviceView> devices() const;
  const dispatch::Dispatch& dispatch() const { return dispatch_; }

 private:
  using ModelKey = std::pair<std::string, std::int64_t>;  // name and version
  struct Row {
    Request request;  // with our numbers
    RequestId first;  // the number it was first offered with; it keeps this one
    PeerId frontend = 0;
    std::uint32_t number = 0;  // of the frontend
    RequestId theirs;
    std::uint64_t key = 0;
    bool used = false;
    bool open = false;                       // the frontend is told of it
    bool kept = false;                       // see ledger::Keep
    bool delivers = false;                   // over for the scheduler; its outputs are on their way
    std::uint32_t landing = 0;               // runs of workers that drain have it
    std::uint32_t losses = 0;                // of its runs, with their devices
    std::optional<bool> worker_went{};       // with its last loss; none: no loss since it was sent
    std::optional<wire::Verdict> verdict{};  // meanwhile, or until a worker is back, the scheduler refused it
    // For such a worker, once it was first refused for want of a device. Does not change after that.
    std::optional<TimePoint> waits_until{};
    std::shared_ptr<explain::RowSpans> spans{};  // of a sampled request; else null
  };
  // Of a row, whatever its number is by now.
  struct Place {
    std::uint32_t place = 0;  // in rows_
    RequestId first;          // Row::first; if the place has another, the row is gone
  };
  // An action that is reported, and whose outputs are on their way to these rows.
  struct Delivery {
    wire::Report report;
    Class cls{};
    TimePoint at;  // of the report
    std::vector<RequestId> rows;
  };
  struct WorkerModel {
    wire::Model told;             // its batches: as the worker told them last
    std::optional<ModelId> ours;  // none: it differs from the model that is served
    bool goes = false;            // the worker serves it no more; it may still be unloaded
  };
  struct Peer {
    transport::Hello hello;
    std::optional<std::size_t> last;  // of the messages to it in outbox_
    // A frontend's.
    std::uint32_t number = 0;
    std::string address;
    std::uint32_t taken = 0;  // of its rows, since it was told
    IndexTable rows;          // by its own numbers: those that are open
    std::map<std::uint32_t, AppId> apps;
    // A worker's.
    std::map<std::uint32_t, WorkerModel> models;  // by its own numbers
    std::map<ModelId, std::uint32_t> numbers;     // from ours
    std::map<std::uint32_t, DeviceId> devices;    // that it told of since it joined
    std::map<ActionId, Delivery> deliveries;
    // While it drains: how many actions it has, and, of those that this leader ordered, the device and the
    // rows.
    std::optional<std::uint32_t> drains;
    std::map<ActionId, std::pair<DeviceId, std::vector<Place>>> landing;
    // It is to drain by then: models that it alone has are loaded elsewhere.
    std::optional<TimePoint> drains_by;
  };
  // A worker whose stream broke.
  struct Gone {
    TimePoint at;
    TimePoint until;              // rows may begin to wait for it
    std::vector<ModelId> models;  // that it served
  };
  struct Model {
    wire::Model told;
    bool served = false;
    bool everywhere = true;                // without weights: all workers have it
    std::uint32_t holders = 0;             // workers that serve it
    TimePoint ends = TimePoint::max();     // without a holder
    TimePoint away_at = TimePoint::max();  // without a holder: frontends are told, unless one is back by then
    bool away = false;                     // they were
  };
  class Link;

  using dispatch::Notes::ended, dispatch::Notes::lost;
  // wire::Calls, for rows of all frontends.
  std::uint64_t sent(RequestId row, ModelId model, std::uint64_t entry) override;
  void came_back(RequestId row) override;
  void ended(RequestId row, const wire::Report& report, TimePoint now) override;
  void turned_down(RequestId row, const Error& error) override;
  void lost(RequestId row, std::string_view why) override;
  void refused(const wire::Verdict& verdict, TimePoint now) override;
  void keep(RequestId row) override;
  void forget(RequestId row) override;
  // dispatch::Notes.
  std::uint64_t begun(std::uint32_t place, const Action& action) override;
  void device_lost(DeviceId device) override;
  void odd_report(DeviceId) override { ++strays_.reports; }

  void on(PeerId from, Peer& peer, transport::Application& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::Offer& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::Withdraw& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::RowsAt& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::ModelOrder& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::ModelOrdered& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::ModelComes& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::ModelGoes& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::ModelTimes& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::DeviceState& what, TimePoint now);
  void on(PeerId from, Peer& peer, wire::Report& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::Delivered& what, TimePoint now);
  void on(PeerId from, Peer& peer, wire::ProbeReport& what, TimePoint now);
  void on(PeerId from, Peer& peer, ledger::Excuse& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::Drains& what, TimePoint now);
  void on(PeerId from, Peer& peer, transport::Drain& what, TimePoint now);

  bool goes_with_others(PeerId id, const transport::Hello& hello, TimePoint now);
  std::uint32_t group(DeviceId device) const;
  std::uint32_t group(ModelId model) const;
  Result<> can_drain(const Peer& peer) const;
  void begin_drain(PeerId id, Peer& peer, TimePoint now);
  void load_elsewhere(TimePoint now);
  std::string names_of(const std::vector<ModelId>& models) const;
  void lose_devices(Peer& peer, const std::string& why, TimePoint now);
  void land(const std::vector<Place>& rows);
  void land_all(Peer& peer, std::optional<DeviceId> device = std::nullopt);
  void leave(PeerId peer, std::string_view why, TimePoint now);
  void leave_frontend(PeerId id, TimePoint now);
  void leave_worker(Peer& peer, std::string_view why, TimePoint now);
  std::size_t count(transport::Role role) const;
  void settle(TimePoint now);
  void tell_frontends(const transport::Message& message);
  void give_credit(PeerId id, Peer& peer);
  void end_waiting(TimePoint now);
  void refuse(PeerId to, RequestId row, ledger::Reason reason);
  bool can_run(ModelId model);
  TimePoint return_until(ModelId model) const;
  void await_all(TimePoint now);
  void forget_returned();
  void forget_gone(TimePoint now);
  void offer_held(TimePoint now);
  Row* row(RequestId id);
  void end(Row* ended, const wire::Report& report, TimePoint at);
  void count(const Row& row, bool bad);
  void offer_again(Row& row, bool more, TimePoint now);
  void end_hung(TimePoint now);
  void offer_anew(const std::vector<RequestId>& rows, std::string_view why, TimePoint now);
  void close(Row& row);
  void queue_anew(Row* row, std::string_view why);
  void free(Row& row);
  void withdraw(Row& row);
  void take_up(Peer& peer, std::uint32_t number, TimePoint now);
  void let_go(WorkerModel& model, bool at_once, TimePoint now);
  void tell_of_models(const auto& say);
  static ledger::ModelInfo counted(const Model& model);
  void place_weightless(TimePoint now);
  void end_model(ModelId id, TimePoint now);
  void change_times(ModelId id, TimePoint now);
  void answer(DeviceId device, ActionId action, std::string why,
              ledger::ActionStatus status = ledger::ActionStatus::failed);
  std::optional<DeviceId> device_of(const Peer& peer, DeviceId theirs);
  DeviceId number_for(std::optional<std::uint32_t> order);
  std::optional<std::vector<ModelId>> held(const Peer& peer, const transport::DeviceState& what) const;
  void recall(const Peer& peer, DeviceId device, const transport::DeviceState::Left& left, TimePoint now);
  WorkerModel* serving(Peer& peer, ModelId ours);
  void post(PeerId to, transport::Message message);
  void post(ModelOrders::Outbox messages);
  void post_all(transport::Role role, const transport::Message& message);
  template <typename Rows, typename Same>
  void post_row(const Row* row, Rows message, Same same);

  const LeaderOptions options_;
  Out& out_;
  std::unique_ptr<schedule::AskedAhead> scheduler_;
  dispatch::Dispatch dispatch_;
  bool started_ = false;

  std::map<PeerId, Peer> peers_;
  std::map<std::pair<transport::Role, std::string>, PeerId> present_;  // by role and id
  std::uint32_t numbered_ = 0;                                         // frontends

  std::uint64_t offered_ = 0;    // rows
  std::uint64_t reoffered_ = 0;  // of them
  Slab<Row> rows_;
  IndexTable by_id_;                  // from our numbers to places in rows_
  std::vector<RequestId> withdrawn_;  // the scheduler has yet to hear of it
  DeviceId sending_{};                // what the order that is being sent is for
  bool all_owed_ = false;             // rows that say `more` wait for all_arrived()
  std::uint32_t apps_ = 0;            // the highest AppId

  std::vector<Model> models_;                                        // by ModelId
  std::map<ModelKey, ModelId> served_;                               // also without a holder, for a while
  std::set<ModelId> weightless_;                                     // of these, those without weights
  std::vector<std::unique_ptr<Link>> links_;                         // by DeviceId
  std::map<std::pair<std::string, std::uint32_t>, DeviceId> known_;  // by worker and its number
  std::set<std::pair<TimePoint, ModelId>> graces_;                   // of models without a holder
  std::set<std::pair<TimePoint, ModelId>> going_away_;               // likewise, by Model::away_at
  TimePoint hung_at_ = TimePoint::max();                             // before this no outputs are given up
  ModelOrders model_orders_;
  std::vector<std::pair<PeerId, transport::ModelOrder>>
      early_orders_;                  // until workers are not awaited any more
  std::vector<wire::Report> failed_;  // of orders that were not sent
  std::uint64_t drains_version_ = 0;
  TimePoint look_elsewhere_ = TimePoint::max();  // some worker is to drain
  provision::CountedDemand demand_;
  std::map<std::string, Gone> gone_;  // by worker: of late, and not back with a device
  // Refused for want of devices that may come back, by Row::waits_until.
  std::set<std::pair<TimePoint, RequestId>> held_;
  bool may_run_ = false;                      // in this step a device or a model may have come
  std::set<std::string> unheard_;             // workers
  std::map<std::string, std::string> apart_;  // by member: what was said of it in goes_with_others()
  bool worker_went_ = false;                  // in this step, with the device that was lost last
  transport::DeviceCount counted_{};          // as frontends were told
  std::set<std::string> awaited_;             // workers; see await_workers()
  TimePoint wait_until_ = TimePoint::min();   // min(): nobody is awaited

  std::vector<std::pair<PeerId, transport::Message>> outbox_;  // of this step
  Strays strays_;
  TimePoint now_{};
};

}  // namespace carillon::roles
