#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// A scheduler around another. What it does not say itself, the one within says.
class Around : public Scheduler, public LoadsAhead {
 public:
  std::string_view name() const override { return policy_->name(); }
  std::optional<Environment> environment() const override { return policy_->environment(); }
  const Scheduler* within() const override { return policy_; }
  Terms terms(ModelId model, Class cls, TimePoint now) const override {
    return policy_->terms(model, cls, now);
  }
  bool favours(const Request& request, TimePoint now) const override {
    return policy_->favours(request, now);
  }
  void turned_away(const Request& request, TimePoint now) override { policy_->turned_away(request, now); }
  bool tells_tenants() const override { return policy_->tells_tenants(); }
  bool by_chance() const override { return policy_->by_chance(); }
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override {
    auto* const loads = dynamic_cast<LoadsAhead*>(policy_);
    return loads != nullptr && loads->load_ahead(wanted, now, out);
  }
  ledger::Ledger* own_ledger(DeviceId device) override { return policy_->own_ledger(device); }
  void reads(ledger::Ledger& ledger) override {
    ledger_ = &ledger;
    policy_->reads(ledger);
  }

 protected:
  explicit Around(std::unique_ptr<Scheduler> policy) : owned_(std::move(policy)), policy_(owned_.get()) {}
  // One that is another's, and outlives this.
  explicit Around(Scheduler& policy) : policy_(&policy) {}

  ledger::Ledger* ledger_ = nullptr;  // as it was told to reads()
  std::unique_ptr<Scheduler> owned_;  // null where it is another's
  Scheduler* policy_;
};

}  // namespace carillon::schedule
