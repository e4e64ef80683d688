#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/schedule/parts/backlog.h"
#include "carillon/schedule/parts/give_way.h"
#include "carillon/schedule/parts/plan.h"
#include "carillon/schedule/parts/shares.h"

namespace carillon::schedule::parts {

// Fairness under overload, of lines of normal requests. While tenants ask for more than there is, a line goes
// first if a modest tenant asks of it, until the deadline of that tenant's last request. All other lines get
// what is left, in runs that are short enough for the first to find a device (GiveWay). Where a line has
// requests of other tenants, too, these are refused on arrival once they would make the modest ones late, or
// have their share. O(1). Not thread-safe.
class Fair {
 public:
  // See Shares.
  Fair(double models, double applications)
      : shares_(models, applications), applications_(applications > 0), on_(models > 0) {}
  // Tenants are told apart: models are, or some request has named an application.
  bool on() const { return on_; }
  bool on(const Request& request) {
    on_ = on_ || (applications_ && request.app != AppId{});
    return on_;
  }
  const Shares& shares() const { return shares_; }
  void step(std::size_t devices, TimePoint now) { shares_.step(devices, now); }

  // A request came to the line, which takes `work` seconds of a device; `load` of all devices waits
  // (Backlog::load). False: it is to be refused, for the sake of modest ones.
  bool came(const Request& request, std::uint32_t line, double work, double load, std::size_t devices,
            TimePoint now) {
    if (request.cls == Class::real_time) shares_.urgent(work, now);
    if (!counts(request)) return true;
    if (shares_.asked(request, work, now)) {
      if (line >= first_until_.size()) first_until_.resize(line + 1, TimePoint::min());
      first_until_[line] = std::max(first_until_[line], request.deadline);
      return true;
    }
    if (!first(line, now) || load <= room) return true;
    return ahead_.load(devices, now) <= room && shares_.joins(request, work, now);
  }
  // It does not come, as it was turned away: its tenant has asked all the same.
  void turned_away(const Request& request, double work, TimePoint now) {
    if (counts(request)) shares_.asked(request, work, now);
  }
  // It would go first.
  bool favours(const Request& request, double work, TimePoint now) const {
    return shares_.short_of() && counts(request) && shares_.modest(request, work, now);
  }
  // So much waits in a line: see Backlog.
  void waits(std::uint32_t line, std::size_t rows, double work, TimePoint deadline, TimePoint now) {
    if (!shares_.short_of() && ahead_.work() <= 0) return;
    ahead_.set(line, first(line, now) ? rows : 0, work, deadline, now);
  }

  // The line goes first, or after those that do. Neither while there is enough for all.
  bool first(std::uint32_t line, TimePoint now) const {
    return shares_.short_of() && line < first_until_.size() && first_until_[line] >= now;
  }
  bool rest(std::uint32_t line, TimePoint now) const { return shares_.short_of() && !first(line, now); }

  // A batch of the line was sent.
  void sent(std::uint32_t line, std::size_t rows, Duration exec, TimePoint now) {
    if (first(line, now))
      give_way_.sent(rows);
    else
      give_way_.ran(exec);
  }
  // A request of the line was refused, whose model can wait for a device for `spare`.
  void lost(std::uint32_t line, Duration spare, TimePoint now) {
    if (first(line, now)) give_way_.lost(std::max(Duration{0}, spare));  // every device is free within that
  }
  // The most requests that a batch of the line may have; 0: as many as it likes. No request is to take more
  // than twice what it takes in the largest batch. O(log batch sizes).
  std::size_t limit(std::uint32_t line, const symphony::BatchTimes& times, TimePoint now) const {
    const int largest = times.batch_count() - 1;
    const Duration most = give_way_.most();
    if (times.exec(largest) <= most || !rest(line, now)) return 0;
    int index = 0, above = largest;  // EXEC grows with the batch, and what each takes of it falls
    while (above - index > 1) {
      const int middle = (index + above) / 2;
      const bool dear = times.each(middle) > dearest * times.each(largest);
      (dear || times.exec(middle) <= most ? index : above) = middle;
    }
    const bool dear = times.each(index) > dearest * times.each(largest);
    return static_cast<std::size_t>(times.batch_size(dear ? above : index));
  }

 private:
  // Of what waits, as a share of what the devices can do in the time that it has: above, one more may be
  // late.
  static constexpr double room = 0.8;
  static constexpr double dearest = 2;
  // What has no deadline can wait, as can best effort.
  static bool counts(const Request& request) {
    return request.cls == Class::normal && request.deadline != TimePoint::max();
  }

  Shares shares_;
  bool applications_, on_;
  GiveWay give_way_;
  Backlog ahead_;                       // of lines that go first
  std::vector<TimePoint> first_until_;  // by line
};

}  // namespace carillon::schedule::parts
