#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "carillon/schedule/carillon/batches.h"
#include "carillon/schedule/carillon/deferral.h"
#include "carillon/schedule/carillon/lines.h"
#include "carillon/schedule/carillon/matching.h"
#include "carillon/schedule/carillon/options.h"
#include "carillon/schedule/carillon/settings.h"
#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/policy.h"

namespace carillon::schedule {

// One policy out of what the others do best, as a list of parts. docs/policy.md tells how it decides.
//
// Some parts know:
// - What waits, and until when (Life); what is loaded where (Placing).
// - What models ask for, how large their batches should be, and how short devices are (Plan, Shortage).
// - Which applications take alike times: each kind of them is planned as a model of its own (Kinds).
// - Which devices are there, and free (Free); when a run counts as in time (InTime).
// - Which tenants ask for little while others ask for too much (Fair).
//
// Others decide. They ask those (View), and each other only downwards:
// - Matching: which line goes to which device. Long runs keep off where quick ones need it (KeepOff).
// - Lines: which lines are looked at, and what follows for them; Turn: which of them goes first.
// - Deferral: when a line may start its batch.
// - Batches: what that batch is.
// - Settings: which settings are tried while requests are lost.
//
// An event looks at a bounded number of lines and devices, by what changed: the line to which a request came,
// and the device whose run ended. Each costs O(log lines + devices / 4096), but for what Placing costs.
// Planning, four times a second, is spread over events.
class Carillon final : public Policy {
 public:
  explicit Carillon(const Environment& environment, const CarillonOptions& options = {});
  std::string_view name() const override { return "carillon"; }
  Terms terms(ModelId model, Class cls, TimePoint now) const override;
  bool favours(const Request& request, TimePoint now) const override {
    return fair_.on() && fair_.favours(request, plan_.work(kinds_.of(request)), now);
  }
  void turned_away(const Request& request, TimePoint now) override {
    if (fair_.on()) fair_.turned_away(request, plan_.work(kinds_.of(request)), now);
    if (request.cls != Class::best_effort) settings_.lost(1);
  }
  bool tells_tenants() const override { return options_.tenants > 0; }
  bool by_chance() const override { return options_.chance > 0; }
  // Lines, devices, copies and models that were looked at so far, in whatever order: what bounds the work of
  // an event. Without those that make a plan.
  std::uint64_t looked_at() const {
    return lines_.looked_at() + matching_.looked_at() + placing_.looked_at();
  }

 protected:
  TimePoint act(const Event& event, Orders& out) override;
  bool bring(const LoadAhead& wanted, Orders& out) override {
    placing_.load_ahead(wanted, life_.waiting(), out);
    return true;
  }

 private:
  static constexpr std::size_t lines_told = 8;  // of those that go before another

  void follow_kinds(Orders& out);
  void hear(const Event& event, Orders& out);
  std::optional<RequestId> hear(const RequestArrived& arrival, const Event& event, Orders& out);
  void follow(const Event& event, Orders& out);
  void go_on(Orders& out);
  bool admit(const Request& request, Orders& out);
  void count_lost(std::optional<RequestId> but, const Orders& out);

  const CarillonOptions options_;
  parts::Kinds kinds_;
  parts::Life life_;
  parts::Placing placing_;
  parts::Plan plan_;
  parts::KeepOff keep_off_;
  parts::Shortage shortage_;
  parts::InTime in_time_;
  parts::Fair fair_;
  parts::Free free_;
  symphony::DeviceWaits waits_;
  const View view_;
  Batches batches_;
  Deferral deferral_;
  Lines lines_;
  Matching matching_;
  Settings settings_;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
