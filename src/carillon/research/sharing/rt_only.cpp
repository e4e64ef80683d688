#include "carillon/research/sharing/policies.h"

namespace carillon::research {
namespace {

// The device is the real-time runs', one after the other, the most urgent first; best-effort runs wait for
// ever (REEF's RT-Only, section 7.1: they have devices of their own).
class RealTimeOnly final : public Sharing {
 public:
  using Sharing::Sharing;

 private:
  TimePoint submitted(Queue queue, TimePoint now, ShareCommands& out) override {
    if (stream(queue).cls == Class::real_time && !running_) next(now, out);
    return TimePoint::max();
  }
  TimePoint advanced(Queue queue, const Flight&, TimePoint now, ShareCommands& out) override {
    if (stream(queue).active) {
      feed(queue, now, out);
    } else {
      next(now, out);
    }
    return TimePoint::max();
  }
  TimePoint emptied(Queue, TimePoint, ShareCommands&) override { return TimePoint::max(); }

  void next(TimePoint now, ShareCommands& out) {
    running_ = most_urgent();
    if (!running_) return;
    begin(stream(*running_));
    feed(*running_, now, out);
  }
  void feed(Queue queue, TimePoint now, ShareCommands& out) {
    const Stream& of = stream(queue);
    while (!all_launched(of) && of.flight.size() < real_time_in_flight()) launch_whole(queue, true, now, out);
  }

  std::optional<Queue> running_;
};

}  // namespace

std::unique_ptr<Sharing> make_rt_only(const SharingOptions& options) {
  return std::make_unique<RealTimeOnly>(options);
}

}  // namespace carillon::research
