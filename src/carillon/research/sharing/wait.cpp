#include "carillon/research/sharing/policies.h"

namespace carillon::research {
namespace {

// Real-time runs have the device to themselves, one after the other; what runs there when one comes ends by
// itself, and what waits behind it in the device's queues is dismissed (the wait-based approach of REEF's
// section 7.3: lazy eviction, no bound on what is launched). Else as many streams as queues.
class Wait final : public Sharing {
 public:
  using Sharing::Sharing;

 private:
  TimePoint submitted(Queue queue, TimePoint now, ShareCommands& out) override {
    if (stream(queue).cls != Class::real_time) {
      if (!real_time()) feed(queue, now, out);
      return TimePoint::max();
    }
    if (running_ || leaving_ > 0) return TimePoint::max();
    for (const Queue other : of(Class::best_effort)) {
      if (stream(other).flight.empty()) continue;
      evict(other, false, now, out);
      ++leaving_;
    }
    if (leaving_ == 0) next(now, out);
    return TimePoint::max();
  }
  TimePoint advanced(Queue queue, const Flight&, TimePoint now, ShareCommands& out) override {
    const Stream& of = stream(queue);
    if (of.cls != Class::real_time) {
      if (!real_time() && !of.evicting) feed(queue, now, out);
    } else if (of.active) {
      feed_real_time(queue, now, out);
    } else {
      next(now, out);
    }
    return TimePoint::max();
  }
  TimePoint emptied(Queue, TimePoint now, ShareCommands& out) override {
    if (--leaving_ == 0) next(now, out);
    return TimePoint::max();
  }

  void next(TimePoint now, ShareCommands& out) {
    running_ = most_urgent();
    if (running_) {
      begin(stream(*running_));
      feed_real_time(*running_, now, out);
    } else {
      for (const Queue queue : of(Class::best_effort)) feed(queue, now, out);
    }
  }
  void feed_real_time(Queue queue, TimePoint now, ShareCommands& out) {
    const Stream& of = stream(queue);
    while (!all_launched(of) && !of.flight.full()) launch_whole(queue, true, now, out);
  }
  void feed(Queue queue, TimePoint now, ShareCommands& out) {
    Stream& of = stream(queue);
    if (!begin(of)) return;
    while (!all_launched(of) && !of.flight.full()) launch_whole(queue, false, now, out);
  }

  std::optional<Queue> running_;
  std::size_t leaving_ = 0;  // evictions under way
};

}  // namespace

std::unique_ptr<Sharing> make_wait(const SharingOptions& options) {
  SharingOptions known = options;
  known.knows_kernel = true;  // what ran has ended, and what was dismissed said so
  return std::make_unique<Wait>(known);
}

}  // namespace carillon::research
