#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"

namespace carillon::frontend {

// What became of a model's requests in some span of time.
struct RecentModel {
  std::uint64_t on_time = 0, late = 0, refused = 0, shed = 0, cancelled = 0, failed = 0, invalid = 0;
  std::uint64_t promised = 0, promised_late = 0, avoidable_late = 0;  // rows: as ModelStatistics'
  double expected_late = 0;
  std::array<std::uint64_t, std::tuple_size_v<decltype(controller::ModelStatistics::reasons)>> reasons{};
  // Of successes, the sum of each: waiting until EXEC began, the steps, and arrival to answer.
  Duration waited{0}, input{0}, exec{0}, output{0}, took{0};
  Duration p50{0}, p99{0};  // arrival to answer, of successes; zero where there were none

  std::uint64_t all() const { return on_time + late + refused + cancelled + failed; }
  // Of those that had to be on time: not of what was cancelled, or had only itself to blame. None: there were
  // none.
  std::optional<double> on_time_share() const;
  // Requests that had to be on time, and were not.
  std::uint64_t bad() const { return late + refused + failed - invalid; }
  // All but p50 and p99, which stay.
  RecentModel& operator+=(const RecentModel& more);
};

// What happened lately, from looks at counters and histograms that only ever grow: whoever serves requests
// does nothing for it. Pure. A look costs O(models); up to a minute of them is kept.
class Recent {
 public:
  static constexpr Duration window = std::chrono::seconds{60};
  static constexpr Duration rate_window = std::chrono::seconds{10};

  // Looks come in order of time.
  void look(TimePoint now, const controller::ServerStatistics& statistics);

  // Of the model at this place of the statistics, since it is known; requires a look that knew it.
  const RecentModel& total(std::size_t place) const { return looks_.back().models[place].counts; }
  // Of the same, between the oldest look of the last minute and the newest;
  // none before the second look.
  std::optional<RecentModel> model(std::size_t place) const;
  // Requests a second, whatever their outcome, of about the last ten seconds.
  std::optional<double> rate(std::size_t place) const;
  // The share of the time between the last two looks in which the device ran something, at most 1: a run
  // counts when it ends.
  std::optional<double> busy(std::size_t device) const;
  // The mean over all devices of the share of the time that model() looks back in which they ran something,
  // and loaded weights.
  struct DeviceTime {
    double exec = 0, load = 0;
  };
  std::optional<DeviceTime> device_time() const;
  // How long model() looks back.
  Duration span() const;

 private:
  using Bins = std::vector<std::pair<Duration, std::uint64_t>>;  // by upper end, ascending; of all time
  struct Model {
    std::string name;
    std::int64_t version = 0;
    RecentModel counts;
    Bins latency;  // in some of the looks only
  };
  struct Look {
    TimePoint at;
    bool has_latency = false;
    std::vector<Model> models;
    std::vector<Duration> busy, loads;  // by device
  };

  // The same model in another look, where its place may be another; nothing where it was not known yet.
  static const Model& find(const Look& look, std::size_t place, const Model& model);

  std::deque<Look> looks_;  // the first and the last have latencies
};

}  // namespace carillon::frontend
