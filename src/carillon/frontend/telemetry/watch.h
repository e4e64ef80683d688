#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/memory/memory_figures.h"
#include "carillon/frontend/telemetry/recent.h"
#include "carillon/frontend/telemetry/trend.h"

namespace carillon::frontend {

// What only whoever started the server knows, for people who look at it.
struct ServerFacts {
  std::string policy;
  std::string model_control;                                 // none, poll, explicit
  std::vector<std::pair<std::string, std::string>> options;  // that matter, as the command line has them
};

// The server as it was at one moment.
struct Picture {
  struct Model {
    std::string name;
    std::int64_t version = 1;
    bool ready = false;
    bool left_out = false;
    bool coming = false;    // not ready yet, but it may be soon
    bool ensemble = false;  // its steps' models count its requests as well
    std::string reason;
    std::string engine;  // empty: it is not known
    std::string cls;
    std::optional<Duration> slo;
    std::vector<DeviceId> held_by;
    RecentModel total, minute;
    std::optional<double> rate;  // requests a second
  };
  struct Device {
    controller::DeviceStatistics counts;
    std::optional<double> busy;
  };
  TimePoint at;
  bool ready = false;
  bool loading = false;
  std::uint64_t open_requests = 0;
  Duration minute{0};         // what of the last minute is known
  std::vector<Model> models;  // of the repository, in name order
  std::vector<Device> devices;
  std::optional<Recent::DeviceTime> device_time;  // of the last minute
  std::optional<controller::ServerStatistics::Margin> margin;
  std::optional<MemoryFigures> memory;
  std::vector<std::pair<std::string, std::int64_t>> places;  // name and version, as statistics number models
};

// Looks at a service once a second, on a thread of its own, so that whoever asks has an answer at once and
// many who ask cost no more than one. With so many models that a look takes long it looks less often: it
// takes a hundredth of a core at most.
class Watch {
 public:
  // `service` outlives it. `memory` is asked at each look; empty: nobody knows.
  explicit Watch(const controller::Service& service, LookAtMemory memory = {})
      : service_(service), memory_(std::move(memory)), started_(service.now()) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void start();
  void stop();
  // The last one; made now where there is none, and where the server became ready or stopped being so since.
  // Any thread.
  std::shared_ptr<const Picture> picture();
  // Looks now, for picture() and trend(): for tests, and for who does not start() it.
  void look_now();
  // The samples of the last hour with this number or a later one, and the number of the next. Any thread.
  std::pair<std::vector<Trend::Sample>, std::uint64_t> trend(std::uint64_t since);
  const controller::Service& service() const { return service_; }
  TimePoint started() const { return started_; }

 private:
  std::shared_ptr<const Picture> look();
  void run();

  const controller::Service& service_;
  const LookAtMemory memory_;
  const TimePoint started_;
  std::mutex looking_;  // of recent_ and trend_
  Recent recent_;
  Trend trend_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::shared_ptr<const Picture> last_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace carillon::frontend
