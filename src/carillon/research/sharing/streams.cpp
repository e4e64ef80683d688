#include "carillon/research/sharing/policies.h"

namespace carillon::research {
namespace {

// Each queue has a stream, and gets all its kernels there as soon as they may be; the device's own dispatcher
// shares the units out, and knows no classes (REEF's GPUStreams, section 7.1).
class Streams final : public Sharing {
 public:
  using Sharing::Sharing;

 private:
  TimePoint submitted(Queue queue, TimePoint now, ShareCommands& out) override {
    feed(queue, now, out);
    return TimePoint::max();
  }
  TimePoint advanced(Queue queue, const Flight&, TimePoint now, ShareCommands& out) override {
    feed(queue, now, out);
    return TimePoint::max();
  }
  TimePoint emptied(Queue, TimePoint, ShareCommands&) override { return TimePoint::max(); }

  void feed(Queue queue, TimePoint now, ShareCommands& out) {
    Stream& of = stream(queue);
    if (!begin(of)) return;
    while (!all_launched(of) && !of.flight.full()) launch_whole(queue, false, now, out);
  }
};

}  // namespace

std::unique_ptr<Sharing> make_streams(const SharingOptions& options) {
  return std::make_unique<Streams>(options);
}

}  // namespace carillon::research
