#pragma once

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

  void reads(const ledger::Ledger& ledger) override {
    writes_ = false;
    Around::reads(ledger);
  }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    if (!writes_) return policy_->decide(event, now, out);
    const std::size_t seen = out.size();
    own_.apply(event, now);
    const TimePoint wake = policy_->decide(event, now, out);
    for (std::size_t i = seen; i < out.size(); ++i) own_.book(out[i], now);
    return wake;
  }

 private:
  ledger::Ledger own_;
  bool writes_ = true;
};

}  // namespace carillon::schedule
