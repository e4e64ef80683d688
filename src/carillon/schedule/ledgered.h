#pragma once

#include <cstddef>
#include <memory>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/around.h"

namespace carillon::schedule {

// A scheduler with the ledger that its parts read, for drivers that keep none: every event and every action
// is written there. A driver that keeps one says so by reads(), before the first event, and writes it
// itself.
class Ledgered final : public Around {
 public:
  explicit Ledgered(std::unique_ptr<Scheduler> policy) : Around(std::move(policy)) { policy_->reads(own_); }

  void reads(ledger::Ledger& ledger) override {
    writes_ = false;
    Around::reads(ledger);
  }
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override {
    const auto seen = static_cast<std::ptrdiff_t>(out.size());
    const bool does = Around::load_ahead(wanted, now, out);
    for (auto order = out.cbegin() + seen; writes_ && order != out.cend(); ++order) own_.book(*order, now);
    return does;
  }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    if (!writes_) return policy_->decide(event, now, out);
    own_.apply(event, now);
    const auto seen = static_cast<std::ptrdiff_t>(out.size());
    const TimePoint wake = policy_->decide(event, now, out);
    for (auto order = out.cbegin() + seen; order != out.cend(); ++order) own_.book(*order, now);
    return wake;
  }

 private:
  ledger::Ledger own_;
  bool writes_ = true;
};

}  // namespace carillon::schedule
