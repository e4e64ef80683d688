#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// Where a policy's orders go. Each is written in the ledger at once, so that every part of the policy sees it
// there. See ledger/order.h for what each order means.
class Orders {
 public:
  Orders(ledger::Ledger& ledger, std::uint64_t& next_action, TimePoint now, Actions& out)
      : ledger_(ledger), next_action_(next_action), now_(now), out_(out) {}

  const ledger::Ledger& ledger() const { return ledger_; }
  TimePoint time() const { return now_; }

  void load(DeviceId device, ModelId model, Duration expected) {
    give(Load{next(), device, model, {now_, TimePoint::max()}, expected});
  }
  void unload(DeviceId device, ModelId model) { give(Unload{next(), device, model}); }
  void infer(DeviceId device, ModelId model, std::vector<RequestId> requests, Window window,
             Duration expected, Class streams, std::optional<ModelId> planned_as = std::nullopt) {
    give(Infer{next(), device, model, std::move(requests), window, expected, streams, planned_as});
  }
  void preempt(const ledger::Ledger::Action& run, TimePoint order) {
    give(Preempt{run.id, run.device, order});
  }
  void refuse(RequestId request, Reason reason, TimePoint would_finish = TimePoint::max()) {
    give(Refuse{request, reason, would_finish});
  }
  // What is planned by a name of its own comes, or comes anew.
  void plan(ModelId as, std::shared_ptr<const ModelInfo> info) {
    ledger_.plan(ModelChanged{as, std::move(info)});
  }
  // See ledger::Doubt. True where some estimate changed.
  bool doubt(ModelId model, Class streams, Duration left) {
    return ledger_.book(ledger::Doubt{.model = model, .cls = streams, .left = left}, now_).any();
  }

  // As it is. A Preempt, Stop or Keep is booked by the driver alone.
  const Action& give(Action order) {
    const bool drivers = std::holds_alternative<Preempt>(order) || std::holds_alternative<Stop>(order) ||
                         std::holds_alternative<Keep>(order);
    if (!drivers) ledger_.book(order, now_);
    return out_.emplace_back(std::move(order));
  }

 private:
  ActionId next() { return ActionId{next_action_++}; }

  ledger::Ledger& ledger_;
  std::uint64_t& next_action_;
  TimePoint now_;
  Actions& out_;
};

// A policy that stands on the ledger: it keeps queues of its own, and nothing that the ledger knows. It is
// told of requests of every class; the classes are keys by which it decides. What policies share is in
// parts/.
class Policy : public Scheduler, public LoadsAhead {
 public:
  explicit Policy(const Environment& environment) : environment_(environment) {}

  std::optional<Environment> environment() const final {
    return ledger_ == nullptr ? environment_ : ledger_->margins(Class::normal).worst();
  }
  void reads(ledger::Ledger& ledger) final {
    ledger_ = &ledger;
    ledger.planned_by(environment_, true);
    if (environment_.classes) ledger.classed_by(environment_, true);
  }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) final {
    if (const auto* change = std::get_if<ModelChanged>(&event)) ledger_->plan(*change);
    if (const auto* change = std::get_if<TimesChanged>(&event)) ledger_->plan(*change, now);
    Orders orders(*ledger_, next_action_, now, out);
    return act(event, orders);
  }

  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) final {
    Orders orders(*ledger_, next_action_, now, out);
    return bring(wanted, orders);
  }

 protected:
  // See load_ahead().
  virtual bool bring(const LoadAhead&, Orders&) { return false; }
  // Of the ledger that the driver keeps; null before reads().
  const ledger::Ledger* ledger() const { return ledger_; }
  // Gives the orders that `event` calls for. The ledger has the event already, and says what came back and
  // what ended by it (changes()). Returns when it wants a Wake: see Scheduler::decide().
  virtual TimePoint act(const Event& event, Orders& out) = 0;

  const Environment environment_;  // as it was told

 private:
  ledger::Ledger* ledger_ = nullptr;
  std::uint64_t next_action_ = 0;
};

}  // namespace carillon::schedule
