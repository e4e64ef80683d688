#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::testing {

// What was found, the first of each kind.
class Findings {
 public:
  // The event that is looked at.
  void at(std::string where) { where_ = std::move(where); }
  // One fact; `kind` names it. `detail` is called where it does not hold.
  template <typename Detail>
  void expect(bool holds, const char* kind, Detail&& detail) {
    ++checks_;
    if (holds) return;
    ++failures_;
    if (!all_.contains(kind)) all_.emplace(kind, detail() + ", " + where_);
  }
  const std::map<std::string, std::string>& all() const { return all_; }
  std::uint64_t checks() const { return checks_; }
  std::string text() const;

 private:
  std::string where_;
  std::map<std::string, std::string> all_;
  std::uint64_t checks_ = 0, failures_ = 0;
};

// Holds what each part of a scheduler knows of requests, orders, devices and residence against a ledger. The
// parts are found by Scheduler::within(), from the outside in.
struct Audit {
  // `held`: all actions that were held back at some time, by Classed. Adds those that are.
  static void check(const ledger::Ledger& ledger, const Scheduler& scheduler, std::set<ActionId>& held,
                    Findings& findings);
};

// A scheduler with the ledger that it follows. After each event all that the scheduler's parts keep
// themselves is held against the ledger. It must be the outside of the scheduler: what the driver talks to.
class Shadowed final : public Scheduler {
 public:
  // `every`: how many events lie between two looks, and one more; 0: it never looks.
  explicit Shadowed(Scheduler& shadowed, std::uint64_t every = 1) : shadowed_(shadowed), every_(every) {
    shadowed_.reads(ledger_);
  }
  explicit Shadowed(std::unique_ptr<Scheduler> shadowed, std::uint64_t every = 1)
      : Shadowed(*shadowed, every) {
    owned_ = std::move(shadowed);
  }

  std::string_view name() const override { return shadowed_.name(); }
  std::optional<Environment> environment() const override { return shadowed_.environment(); }
  const Scheduler* within() const override { return &shadowed_; }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

  const ledger::Ledger& ledger() const { return ledger_; }
  const Findings& findings() const { return findings_; }

 private:
  std::unique_ptr<Scheduler> owned_;
  Scheduler& shadowed_;
  std::uint64_t every_;
  std::uint64_t events_ = 0;
  ledger::Ledger ledger_;
  std::set<ActionId> held_;
  Findings findings_;
};

}  // namespace carillon::schedule::testing
