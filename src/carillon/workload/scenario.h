#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/workload/arrivals.h"
#include "carillon/workload/latency_model.h"
#include "carillon/workload/request.h"

namespace carillon::workload {

// One request that is planned by itself.
struct PlannedRequest {
  TimePoint at;
  Duration slo;  // max(): no deadline
  Class cls = Class::normal;
  std::uint32_t priority = 0;
  AppId app;
  bool more = false;  // it comes together with others of that time
};

// A rate that changes: from `at` on (from the start of the run), `requests_per_s`; 0 is a pause.
struct RateStep {
  Duration at;
  double requests_per_s = 0;
};

// What a policy plans with besides execution times, as schedule::Environment has it.
struct Allowance {
  Duration dispatch{0}, answer{0};
  double overrun = 0;
};

// A device that dies, hangs or is slow from a time on. One that died comes back empty.
struct DeviceFault {
  enum class Kind : std::uint8_t { dies, hangs, slow };
  Kind kind{};
  int device = 0;
  Duration at{0}, length{0};  // max(): for ever
  double factor = 1;          // slow: what begins meanwhile takes so many times as long
  friend bool operator==(const DeviceFault&, const DeviceFault&) = default;
};

// A share of a model's batches takes `factor` times as long.
struct Outliers {
  double share = 0, factor = 1;
  friend bool operator==(const Outliers&, const Outliers&) = default;
};

struct ScenarioModel {
  std::string name;  // unique: copies are named name-0, name-1, ...
  Duration slo;      // max(): its requests have no deadline
  // Where there are several, each request has one of these, drawn evenly, and `slo` is the shortest.
  std::vector<Duration> slos;
  double miss_rate = 0;  // the share of its answers that may be late, in (0, 0.5]; 0: as the scenario says
  Class cls = Class::normal;
  int max_batch = 64;
  std::vector<int> batch_sizes;  // those that can run, ascending; empty: all up to max_batch
  Bytes weights{};               // 0: takes no memory
  std::optional<Duration> load;  // else weights / pcie
  LatencyModel latency;
  Outliers outliers;
  std::optional<ArrivalSpec> process;    // else the scenario's
  std::vector<RateStep> rate;            // its own, ascending by `at`; empty: its part of the load's rate
  std::vector<PlannedRequest> arrivals;  // planned one by one, ascending; where given there is no process
  // Of a trace: requests in each minute, uniform at random within it; where given there is no process.
  std::vector<std::uint32_t> per_minute;
};

enum class Popularity : std::uint8_t { equal, zipf };

// A workload and a cluster, as a file describes them. See docs/scenarios.md for the format.
struct Scenario {
  std::string name;
  std::uint64_t seed = 1;
  Duration duration = std::chrono::seconds{60};
  Duration warmup{0};  // requests that arrive before it are left out of the figures
  std::string scheduler = "symphony";
  std::optional<double> miss_rate;  // of models that do not say, in (0, 0.5]; none: the schedulers' own

  int devices = 1;
  std::optional<Bytes> memory;  // of each device; none: no limit, and every model is loaded
  double pcie_bytes_per_s = 12.5e9;
  std::vector<double> speeds;       // by device: runs take 1/speed of what models say; empty: all 1
  std::vector<DeviceFault> faults;  // ascending by `at`
  Duration network_delay{0};        // one way, control and data
  // From an order's coming to the device until its inputs are there; none: network_delay.
  std::optional<Duration> fetch;
  Duration fetch_time() const { return fetch.value_or(network_delay); }
  std::optional<Allowance> allowance;  // none: network_delay and fetch_time(), network_delay, and 0

  // Requests a second over all models without a rate of their own; of a trace: its mean, 0 as it is.
  double rate = 0;
  ArrivalSpec process;
  Popularity popularity = Popularity::equal;
  double zipf = 0.9;
  bool popular_last = false;    // by zipf the last model is the most popular, not the first
  std::filesystem::path trace;  // of process = "trace:FILE"

  std::vector<ScenarioModel> models;  // copies written out
};

// Reads a scenario. Paths inside are relative to the file. Errors name file, line, key, what was found and
// what would be right. Sizes and counts are bounded (at most 100,000 models, 100,000 devices).
// What is said elsewhere (on the command line) instead of in the file: known before a trace is dealt.
struct Overrides {
  std::optional<Duration> duration;
  std::optional<std::uint64_t> seed;
  // Instead of slo_p99; at least one model must have that key. Above 0, at most 1e6.
  std::optional<double> slo_p99;
};
Result<Scenario> read_scenario(const std::filesystem::path& file, const Overrides& overrides = {});
Result<Scenario> parse_scenario(std::string_view toml, const std::filesystem::path& where,
                                const Overrides& overrides = {});

// The rate of each model in requests a second, in their order: `rate` shared by popularity among those
// without a rate of their own (for them: the mean of their steps over the duration).
std::vector<double> model_rates(const Scenario& scenario);

// How many models' rates follow the load's rate: not those with one of their own, nor closed loops.
std::size_t scaling_models(const Scenario& scenario);

// Sets the load's rate; a trace keeps its shape. Models with a rate of their own, and closed loops, stay as
// they are.
void set_rate(Scenario& scenario, double requests_per_s);

}  // namespace carillon::workload
