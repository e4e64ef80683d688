#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/schedule/action.h"

namespace carillon::schedule::orloj {

// Which requests are run again alone, and when: what they take then is what Orloj learns from (section 4.3.2:
// profiling off the critical path).
//
// A sample of those that are sent is kept (Keep), bounded. Once one is answered it waits for a time when
// nothing else is to be done; one runs at a time, and is stopped when a request comes. They run in the order
// in which they were answered, and one that is cut short runs again next: if it made way for shorter ones,
// these would be seen more often than they are. Not thread-safe.
class Profiler {
 public:
  struct Sample {
    RequestId request;
    ModelId model;
    AppId app;
  };

  // `share` of the requests, in [0, 1]; `backlog` of them at most are kept; `attempts` that other work cut
  // short, before one is given up.
  explicit Profiler(double share, std::size_t backlog = 32, int attempts = 1000)
      : share_(share), backlog_(backlog), attempts_(attempts) {}

  // A request is sent: says so where it is to be kept.
  void sent(const Request& request, Actions& out);
  void answered(RequestId request);
  // Some are kept that were not answered yet.
  bool keeps() const { return !open_.empty(); }
  // It will not be answered, and so not be kept.
  void gone(RequestId request);
  // The model is another from now on, or none: nothing of it is to run, and what runs of it tells nothing.
  void changed(ModelId model);
  // Says what need not be kept any longer.
  void tidy(Actions& out);

  // Some were kept, and answered.
  bool waits() const { return !waiting_.empty(); }
  const Sample& next() const { return waiting_.front(); }  // requires waits()
  // The next will not run.
  void drop();

  // The next begins as `id` on `device`. Requires one that waits, and none that runs.
  void begin(ActionId id, DeviceId device);
  bool running() const { return running_.has_value(); }
  bool runs(ActionId id) const { return running_ && running_->id == id; }
  // Where one runs: it is to make way.
  void stop(Actions& out);
  // The device has nothing under way any more.
  void restarted(DeviceId device);
  // The one that runs was reported. Returned where it ran to its end: what it took is a sample. Else it waits
  // again, or is given up.
  std::optional<Sample> ended(ActionStatus status);

 private:
  struct Running {
    ActionId id;
    DeviceId device;
    bool stopped = false;
    bool outdated = false;  // its model is another since
  };

  double share_;
  std::size_t backlog_;
  int attempts_;
  std::vector<Sample> open_;    // kept, and not answered
  std::deque<Sample> waiting_;  // the first is the one that runs
  std::vector<RequestId> dropped_;
  int tried_ = 0;  // of the first, in vain
  std::optional<Running> running_;
};

}  // namespace carillon::schedule::orloj
