#include "carillon/transport/times.h"

#include <optional>
#include <variant>

namespace carillon::transport {
namespace {

class Converter {
 public:
  Converter(const cluster::PeerClock& clock, const cluster::PeerClock::Difference& difference)
      : clock_(clock), offset_(difference.offset), bound_(difference.bound) {}

  template <typename Untimed>
  void operator()(Untimed&) const {}
  void operator()(Offer& m) const {
    m.row.arrival = about(m.row.arrival);
    m.row.deadline = inside({TimePoint::min(), m.row.deadline}).latest;
    trace(m.trace);
  }
  void operator()(Ended& m) const { (*this)(m.report); }
  void operator()(wire::Verdict& m) const { m.refusal.would_finish = about(m.refusal.would_finish); }
  void operator()(ledger::Load& m) const { m.window = inside(m.window); }
  void operator()(Infer& m) const {
    m.order.window = inside(m.order.window);
    for (RowReference& row : m.rows) trace(row.trace);
  }
  void operator()(Profile& m) const {
    m.order.window = inside(m.order.window);
    trace(m.row.trace);
  }
  void operator()(ledger::Preempt& m) const { m.order = about(m.order); }
  void operator()(wire::Report& m) const {
    wire::ActionTimes& t = m.times;
    for (TimePoint* at : {&t.received, &t.input_start, &t.input_end, &t.exec_start, &t.exec_end,
                          &t.output_start, &t.output_end})
      *at = about(*at);
  }

 private:
  TimePoint about(TimePoint peers) const {
    return peers == TimePoint::max() ? peers : saturating_add(peers, -offset_);
  }
  void trace(std::optional<wire::RowTrace>& of) const {
    if (!of) return;
    of->unix_zero = about(of->unix_zero);
    of->clock_bound = saturating_add(TimePoint{of->clock_bound}, bound_).time_since_epoch();
  }
  Window inside(const Window& peers) const {
    return clock_.inside(peers).value_or(Window{TimePoint::min(), TimePoint::min()});
  }

  const cluster::PeerClock& clock_;
  const Duration offset_, bound_;
};

}  // namespace

bool to_our_time(Message& message, const cluster::PeerClock& clock, TimePoint now) {
  const auto difference = clock.at(now);
  if (!difference || !clock.settled()) return false;
  std::visit(Converter(clock, *difference), message);
  return true;
}

}  // namespace carillon::transport
