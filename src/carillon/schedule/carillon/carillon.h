#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/carillon/options.h"
#include "carillon/schedule/parts/backlog.h"
#include "carillon/schedule/parts/experiments.h"
#include "carillon/schedule/parts/fair.h"
#include "carillon/schedule/parts/free.h"
#include "carillon/schedule/parts/heads.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/parts/kinds.h"
#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/overtake.h"
#include "carillon/schedule/parts/placing.h"
#include "carillon/schedule/parts/plan.h"
#include "carillon/schedule/parts/punctual.h"
#include "carillon/schedule/parts/ready.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/symphony/device_waits.h"

namespace carillon::schedule {

// One policy out of what the others do best, as a list of parts. docs/policy.md tells how it decides.
//
// - What waits, and until when (Life); what is loaded where (Placing).
// - What models ask for, how large their batches should be, and how short devices are (Plan, Backlog).
// - Which applications take alike times: each kind of them is planned as a model of its own (Kinds).
// - When a line may start its batch. The batch waits for more requests while this saves more device time than
//   the idle device loses, and while it can expect to find a device in time (DeviceWaits, as in Symphony).
// - Which line goes first (Ready): the one that has to start first; while devices are short, those come later
//   that take more device time for an answer than others. Modest tenants come before all others (Fair).
// - Where: on the fastest free device. Long runs keep off where quick ones need it (KeepOff).
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
    return fair_.on() && fair_.favours(request, work(kinds_.of(request)), now);
  }
  void turned_away(const Request& request, TimePoint now) override {
    if (fair_.on()) fair_.turned_away(request, work(kinds_.of(request)), now);
    if (request.cls != Class::best_effort) experiments_.lost(1);
  }
  bool tells_tenants() const override { return options_.tenants > 0; }
  // Lines, devices, copies and models that were looked at so far, in whatever order: what bounds the work of
  // an event. Without those that make a plan.
  std::uint64_t looked_at() const { return looked_at_ + placing_.looked_at(); }

 protected:
  TimePoint act(const Event& event, Orders& out) override;

 private:
  static constexpr std::size_t lines_told = 8;  // of those that go before another

  void tell_kinds(const Event& event, const Orders& out);
  void follow_kinds(Orders& out);
  void renew(ModelId as);
  void hear(const Event& event, Orders& out);
  void go_on(Orders& out);
  void know(DeviceId device, const Orders& out);
  void look_at(DeviceId device, const Orders& out);
  void freshen_kept();
  void look_soon(std::uint32_t line);
  void look_at_all(ModelId model);
  void look_at_changed();
  void look(std::uint32_t line, Orders& out);
  void count(std::uint32_t line, const parts::Waiting::Head* head, std::size_t rows, Orders& out);
  void comes(std::uint32_t line, Orders& out);
  void refuse_too_late(ModelId model, Class cls, Orders& out);
  std::optional<TimePoint> too_late(const parts::Waiting::Head& head, const parts::Times& times,
                                    const Orders& out) const;
  bool starts_at_once(ModelId model, int index) const;
  int waits_with(ModelId model, int index);
  // What the batches of a line have in common, as they wait for larger ones.
  struct Asking {
    ModelId model;
    TimePoint deadline, patience;
    std::size_t small = 0;         // batches of fewer rows ask for no device before they have to start
    std::optional<Duration> lead;  // of the others; none: not asked yet
  };
  Asking asking(const parts::Waiting::Head& head, TimePoint deadline, const Orders& out) const;
  TimePoint ready_at(Asking& asking, int index, const parts::Times& times, const Orders& out);
  TimePoint key(ModelId model, const parts::Choice& choice) const;
  double work(ModelId model) const;
  bool admit(const Request& request, Orders& out);
  void count_answers(const ledger::Ledger::Action& run, TimePoint now);
  void experiment(TimePoint now);
  void set_as_tried();
  void count_lost(std::optional<RequestId> but, const Orders& out);
  std::size_t largest_batch(std::uint32_t line, TimePoint now) const;
  bool rest(std::uint32_t line, TimePoint now) const;
  void find_pressure(const Orders& out);
  std::optional<parts::Choice> choose(const parts::Waiting::Head& head, const parts::Times& times,
                                      DeviceId device, TimePoint start, Orders& out);
  std::optional<parts::Choice> first_batch(const parts::Waiting::Head& head, const parts::Times& times,
                                           DeviceId device, TimePoint start, TimePoint now) const;
  std::size_t enough(ModelId model, TimePoint now) const;
  void refuse_passed(const parts::Waiting::Head& head, const parts::Choice& choice, Orders& out);
  void match(Orders& out);
  void match_ready(Orders& out);
  parts::Times times(Class streams, const Orders& out, double late = 0) const;
  double accepted(DeviceId device, Class streams, const Orders& out) const;
  double accepted_of_idle() const;
  bool send_next(DeviceId device, Class streams, Orders& out);
  bool send_somewhere(std::uint32_t line, Orders& out);
  std::optional<parts::Choice> may_start(std::uint32_t line, DeviceId device, const parts::Times& times,
                                         TimePoint start, bool hope, Orders& out);
  void send(std::uint32_t line, DeviceId device, const parts::Choice& choice, Orders& out);
  bool keeps_off(DeviceId device, ModelId model, const Orders& out) const;
  void overtake(Orders& out);

  const CarillonOptions options_;
  parts::Kinds kinds_;
  parts::Life life_;
  const bool overtakes_;
  parts::Placing placing_;
  parts::Plan plan_;
  parts::Experiments experiments_;
  parts::KeepOff keep_off_;
  parts::Backlog backlog_;
  symphony::DeviceWaits waits_;
  parts::Punctual punctual_;
  parts::Fair fair_;
  parts::Ready ready_;
  parts::Free free_;
  std::optional<DeviceId> fastest_;  // of all that are alive
  bool alike_ = true;                // these are equally fast
  TimerHeap looks_;                  // lines by when they are to be looked at again
  // Nothing starts of a line before then, unless it has so many requests, or another first one.
  struct Deferred {
    TimePoint until = TimePoint::min();
    std::size_t rows = 0;
    RequestId head;
    bool pressed = false;  // devices were short
  };
  std::vector<Deferred> deferred_;  // by line
  // Batches from one place in a model's sizes to another, which wait for larger ones.
  struct WaitsWith {
    std::uint64_t plan = 0;
    bool pressed = false;
    bool stops = false;  // there, as the next does not
    int from = 0, last = -1;
  };
  std::vector<WaitsWith> waiting_;   // by model
  std::uint64_t plans_ = 1;          // that were made
  std::vector<std::uint32_t> come_;  // lines to which requests came
  std::vector<std::uint32_t> due_;   // lines that are to be looked at now
  std::vector<bool> due_now_;        // by line: it is in due_
  std::deque<std::uint32_t> kept_;   // lines that long runs kept off a device
  std::vector<bool> kept_now_;       // by line: it is in kept_
  std::size_t relieved_ = 0;         // of kept_, the first: they may go there now
  std::uint64_t looked_at_ = 0;
  std::vector<parts::Free::Stirred> untried_;   // devices that have more lines than were looked at
  std::size_t next_changed_ = 0, changed_ = 0;  // models that may do other things: from there on, so many
  std::vector<DeviceId> may_make_way_;          // of overtake()
  std::size_t overtaking_ = 0;                  // the last device that was looked at for that
  std::size_t models_ = 0;                      // that waits_ knows
  bool pressed_ = false;                        // devices are short
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
