#include "carillon/research/sharing/policies.h"

namespace carillon::research {
namespace {

// One run at a time, to its end: real-time ones first, else by the order in which they were asked for (REEF's
// SEQ, section 7.1, which is Clockwork's way).
class Sequential final : public Sharing {
 public:
  using Sharing::Sharing;

 private:
  TimePoint submitted(Queue, TimePoint now, ShareCommands& out) override {
    if (!running_) next(now, out);
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
    if (!running_) {
      for (const Queue queue : of(Class::best_effort)) {
        const Stream& waits = stream(queue);
        if (waits.waiting.empty()) continue;
        if (!running_ || waits.waiting.front().order < stream(*running_).waiting.front().order)
          running_ = queue;
      }
    }
    if (!running_) return;
    begin(stream(*running_));
    feed(*running_, now, out);
  }
  void feed(Queue queue, TimePoint now, ShareCommands& out) {
    const Stream& of = stream(queue);
    while (!all_launched(of) && !of.flight.full()) launch_whole(queue, false, now, out);
  }

  std::optional<Queue> running_;
};

}  // namespace

std::unique_ptr<Sharing> make_sequential(const SharingOptions& options) {
  return std::make_unique<Sequential>(options);
}

}  // namespace carillon::research
