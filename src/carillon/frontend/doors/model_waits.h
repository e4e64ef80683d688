#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/doors/work_pool.h"

namespace carillon::frontend {

// Requests that came while the server still loads their models. Each waits here until its model is ready,
// cannot be loaded, or would be too late for the request. At most `most` wait. Any thread.
class ModelWaits {
 public:
  static constexpr std::size_t most = 1024;

  struct Request {
    std::string model, version;
    TimePoint until;                                // the longest that it may wait
    std::shared_ptr<const std::atomic<bool>> gone;  // set once nobody wants its answer
    // Called exactly once, from another thread: the model is ready, or the wait is over for another reason.
    std::move_only_function<void()> go_on;
  };

  // Requests go on on `heavy`, or where that has too much to do, on a thread of this object. Once `draining`
  // is set nobody waits. Both outlive it.
  ModelWaits(WorkPool& heavy, const std::atomic<bool>& draining) : heavy_(heavy), draining_(draining) {}
  // Requires that nobody waits.
  ~ModelWaits();
  ModelWaits(const ModelWaits&) = delete;
  ModelWaits& operator=(const ModelWaits&) = delete;

  // How long a request that came at `arrival`, and names no deadline itself, may wait for a model that was
  // not ready: by the model's SLO, or TimePoint::max(). Nothing: it cannot wait, as its model is none that
  // the server still loads, or there is no room.
  std::optional<TimePoint> would(const controller::Service& service, std::string_view model,
                                 std::string_view version, TimePoint arrival) const;
  // One too many goes on at once. `service` outlives the wait.
  void wait(const controller::Service& service, Request request);
  // Until nobody waits any more, and all have gone on as far as they could. Requires that `draining` is set.
  void settle();

 private:
  struct Waiting {
    const controller::Service* service = nullptr;
    Request request;
  };
  void run();
  void go_on(Request request);
  // By service, model and version: whether it is still to be loaded, looked up once for all that wait for it.
  using Looked = std::map<std::tuple<const controller::Service*, std::string_view, std::string_view>, bool>;
  bool waits_on(const Waiting& waiting, Looked& looked) const;

  WorkPool& heavy_;
  const std::atomic<bool>& draining_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiting> waiting_;
  std::size_t going_on_ = 0;
  std::condition_variable settled_;
  bool ending_ = false;
  std::thread thread_;  // since the first wait
};

}  // namespace carillon::frontend
