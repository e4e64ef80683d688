#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/dispatch/decider.h"
#include "carillon/dispatch/notes.h"
#include "carillon/dispatch/revivals.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/wire/ends.h"

namespace carillon::dispatch {

struct Options {
  std::size_t max_applications = 1024;  // names (and lengths) told apart; further names count as none
  // A device has its threads looked at as often as this while it has had something to do for as long.
  Duration slow_after = std::chrono::milliseconds{50};
  // Before the scheduler hears that a device had no credit for an action.
  Duration full_queue_pause = std::chrono::microseconds{100};
  RevivalOptions revivals;
  // Hears whenever a device begins or ceases to be free. A time: the scheduler cannot want the device before
  // then, unless it hears of something first. None: the scheduler wants it, and its order is sent after this.
  // May be empty. Must not block.
  std::function<void(DeviceId, std::optional<TimePoint> free_until)> on_leisure;
  std::function<void()> on_decided;  // for tests: all that was heard of is decided; may be empty
};

// Keeps the ledger, gives the scheduler what happens, with the time at which it happens, and sends its orders
// and outcomes. Deterministic, and without a clock.
//
// A device is taken out when it reports that it is broken, or when the scheduler gives it up. Its life ends.
// The scheduler tries the requests that the device had elsewhere, or refuses them. Reports of a life that has
// ended are dropped. When a probe finds the device well, it is back, as a new one (DeviceChanged).
//
// Not thread-safe; `now` never goes back. Devices and notes must not call back, and calls only as
// wire::Dispatcher says.
class Dispatch final : public Decider {
 public:
  // All must outlive this; the scheduler has seen nothing yet.
  Dispatch(schedule::Scheduler& scheduler, Options options, wire::Calls& calls, Notes& notes);

  // Decider, which says what these are. A device that is not `there` joins when its first ProbeReport finds
  // it well, and may be added after start().
  void add_device(wire::DeviceLink& link) override { add_device(link, true); }
  void add_device(wire::DeviceLink& link, bool there);
  void add_model(wire::Model model) override { add_model(std::move(model.info)); }
  void add_model(schedule::ModelInfo info);
  void start(TimePoint now) override;
  void come(wire::Model model, TimePoint now) override { come(std::move(model.info), now); }
  void come(schedule::ModelInfo info, TimePoint now);
  // The model is to be known anew so, as a new version of the same batch sizes.
  void renew(schedule::ModelInfo info, TimePoint now);
  void go(ModelId id, TimePoint now) override;
  void change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now) override;

  // wire::Dispatcher.
  AppId application(std::string_view name, const std::optional<Alike>& alike, TimePoint now) override;
  void offer(const Request& row, bool more, TimePoint now) override;
  void all_arrived(TimePoint now) override;
  void withdraw(RequestId row, ModelId model) override;
  void hear(TimePoint now) override { drain(nullptr, now); }

  // Decider.
  void on_report(const wire::Report& report, TimePoint now) override;
  void on_probe(const wire::ProbeReport& report, TimePoint now) override;
  TimePoint wake_at() const override;
  // Gives the scheduler its Wake, and what was not taken, and asks devices that went whether they are well
  // again, where that is due.
  void wake(TimePoint now) override;
  // Gives the scheduler a Wake, whether or not it asked for one: a caller has just told it something
  // (Subclusters::change).
  void nudge(TimePoint now);
  // The scheduler hears nothing any more.
  void stop() override;
  bool stopped() const override { return stopped_; }

  // See ledger::Ledger; Scheduler::own_ledger() hears of them, too.
  void recall(DeviceId device, const ledger::Ledger::Earlier& run) {
    tell_ledgers(device, [&](ledger::Ledger& ledger) { ledger.recall(device, run); });
  }
  void arrived(DeviceId device, Class cls, Duration after_order, TimePoint now) {
    tell_ledgers(device, [&](ledger::Ledger& ledger) { ledger.arrived(device, cls, after_order, now); });
  }
  void delivered(DeviceId device, Class cls, Duration after_end, TimePoint now) {
    tell_ledgers(device, [&](ledger::Ledger& ledger) { ledger.delivered(device, cls, after_end, now); });
  }
  const ledger::Ledger& ledger() const { return ledger_; }
  const schedule::ModelInfo& model(ModelId id) const override { return models_[id.index()].info; }
  std::size_t devices() const override { return devices_.size(); }
  std::size_t devices_alive() const override {
    return started_ ? ledger_.alive()
                    : static_cast<std::size_t>(std::ranges::count(devices_, true, &Device::there));
  }
  bool device_alive(DeviceId id) const override {
    if (!started_) return devices_[id.index()].there;
    return id.index() < ledger_.devices() && ledger_.device(id).alive;
  }
  // The number of the device's life, as its link last heard in retire(); the first is 0.
  std::uint32_t life(DeviceId id) const { return devices_[id.index()].life; }
  bool on_devices(ModelId id) const override;
  std::size_t actions_in_flight() const override;
  // What was not sent for want of credit, and the scheduler has yet to hear of.
  const std::vector<schedule::ActionDone>& not_taken() const { return deferred_; }

 private:
  struct Device {
    wire::DeviceLink* link = nullptr;
    bool there = true;  // from the start, or since it came, until it is lost
    std::uint32_t life = 0;
    wire::Credit has{.infers = 0, .loads = 0};        // actions that were sent to it and are not reported
    std::vector<schedule::Unload> unloads;            // that wait for credit, in order
    std::string why;                                  // it was last lost by its own report
    std::array<TimePoint, schedule::lanes> looked{};  // when its threads were looked at, by schedule::Lane
  };
  // Of an action that is under way, what the ledger does not know.
  struct Aside {
    ActionId action;
    bool forget = false;      // what it runs again, once it has ended
    std::uint64_t entry = 0;  // in the journal
  };
  // What is known of a model's runs, for those who are refused.
  struct Model {
    schedule::ModelInfo info;
    Duration exec;  // of the smallest batch, as the scheduler expects it; at first as it was told
  };
  template <typename Tell>
  void tell_ledgers(DeviceId device, Tell&& tell) {
    tell(ledger_);
    if (ledger::Ledger* const own = scheduler_.own_ledger(device)) tell(*own);
  }
  void know(schedule::ModelInfo info);
  void feed(const schedule::Event& event, TimePoint now);
  void drain(const schedule::Event* first, TimePoint now);
  void apply(TimePoint now);
  void tell_leisure(bool wanted_alone);
  std::vector<schedule::Excuse> excuses(TimePoint now);
  template <typename Order>
  void send(const Order& order, TimePoint now);
  void send(const schedule::Unload& order, TimePoint now);
  void send(const schedule::Stop& order, TimePoint now);
  void send(const schedule::Preempt& order, TimePoint now);
  void send(const schedule::Keep& order, TimePoint now);
  void send(const schedule::GiveUp& order, TimePoint now);
  void send(const schedule::Infer& order, TimePoint now);
  template <typename Order>
  bool pass_on(std::uint32_t place, const Order& order);
  void not_taken(std::uint32_t place, TimePoint now);
  void forget(RequestId request, std::optional<std::uint32_t> ended = {});
  // When the scheduler hears of it.
  TimePoint told_at(const schedule::ActionDone& not_taken) const {
    return saturating_add(not_taken.start, options_.full_queue_pause);
  }
  // The places of all actions that devices have, and of UNLOADs that wait for credit.
  template <typename Visit>
  void visit_taken(Visit&& visit) const {
    for (const ledger::Ledger::Device& device : ledger_.all_devices())
      for (const auto& lined : device.under_way)
        for (const std::uint32_t place : lined)
          if (ledger_.at(place).taken) visit(place);
  }
  wire::DeviceLink* link(DeviceId id);
  static std::size_t& count(wire::Credit& actions, schedule::ActionKind kind) {
    return kind == schedule::ActionKind::infer ? actions.infers : actions.loads;
  }
  void comes(DeviceId id, TimePoint now);
  void lose(DeviceId id, std::string_view why, TimePoint now);
  std::uint32_t begin(ActionId id);
  wire::Prospect prospect(ModelId id) const;

  ledger::Ledger ledger_;
  schedule::Scheduler& scheduler_;  // reads the ledger
  const Options options_;
  wire::Calls& calls_;
  Notes& notes_;
  std::vector<Device> devices_;
  std::vector<Model> models_;
  Revivals revivals_;
  std::vector<Aside> asides_;  // by place in the ledger

  using Application = std::pair<std::string, std::optional<Alike>>;
  std::map<Application, AppId> applications_;
  std::size_t named_ = 0;  // of these

  std::vector<schedule::Event> pending_;  // for the scheduler
  bool deciding_ = false;
  schedule::Actions orders_;
  std::vector<schedule::ActionDone> deferred_;  // of actions that were not sent, by time
  TimePoint scheduler_wake_ = TimePoint::max();
  TimePoint sought_slow_ = TimePoint::min();  // when devices were last looked for that are slow to report
  std::vector<std::optional<TimePoint>> told_leisure_;  // by device
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace carillon::dispatch
