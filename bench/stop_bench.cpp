// How soon does a run end once that is asked for, and what does it cost to be able to?
//
//   carillon_stop_bench --models DIR [--only NAME]... [--batch N] [--threads T] [--stops N] [--cost C]
//                       [--least-part-us US] [--longer US] [--json]
//
// For each model of a repository: the time from the request for a stop, at a random place of the run, to the
// end of the run, with kernels divided into parts and with stops between kernels only; and how long a run
// takes with parts and without, in turns, and how long its parts are. With --longer also the kernels whose
// parts take longer than that, on average.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <thread>

#include "model_runner.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/base/statistics.h"

namespace carillon::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string models;
  std::vector<std::string> only;
  int batch = 1, threads = 1, stops = 1000, rounds = 15;
  double cost = 0.02, least_part_us = 18, seconds = 20, longer = 0;
  bool json = false;
};

// Asks for stops from a thread of its own, as late as it is told.
class Asker {
 public:
  explicit Asker(engine::StopSignal& stop) : stop_(stop), thread_([this] { loop(); }) {}
  ~Asker() {
    ending_ = true;
    begin(~std::uint64_t{0}, Duration{0});
    thread_.join();
  }
  // Run `run` begins now; a stop is asked for after `wait`.
  void begin(std::uint64_t run, Duration wait) {
    at_ = (clock_.now() + wait).time_since_epoch().count();
    asked_at_ = 0;
    run_.store(run);
    run_.notify_one();
  }
  // When it was asked for; waits for that.
  TimePoint asked() const {
    while (asked_at_.load() == 0) std::this_thread::yield();
    return TimePoint{Duration{asked_at_.load()}};
  }

 private:
  // It sleeps until it asks, as it may have to share a core with the run.
  void loop() {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    for (std::uint64_t seen = 0; !ending_;) {
      run_.wait(seen);
      seen = run_.load();
      const std::int64_t at = at_.load();
      const timespec until{at / 1'000'000'000, at % 1'000'000'000};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
      }
      const TimePoint now = clock_.now();
      stop_.request(seen);
      asked_at_.store(now.time_since_epoch().count());
    }
  }

  const SteadyClock clock_;
  engine::StopSignal& stop_;
  std::atomic<bool> ending_{false};
  std::atomic<std::uint64_t> run_{0};
  std::atomic<std::int64_t> at_{0}, asked_at_{0};
  std::thread thread_;
};

// Of a run that could be stopped, and is not.
Result<Duration> time_of(Runner& runner) {
  const SteadyClock clock;
  engine::StopSignal stop;
  stop.run = 1;
  const TimePoint start = clock.now();
  if (auto done = runner.run({}, &stop); !done) return std::unexpected(done.error());
  return clock.now() - start;
}

// From the request to the end, of runs that were stopped before theirs.
Result<std::vector<Duration>> latencies(Runner& runner, Duration whole, const Options& options) {
  const SteadyClock clock;
  engine::StopSignal stop;
  Asker asker(stop);
  Random random(7);
  std::vector<Duration> took;
  const TimePoint end = clock.now() + from_seconds(options.seconds);
  std::uint64_t run = 0;
  for (int tries = 0; tries < 4 * options.stops && static_cast<int>(took.size()) < options.stops; ++tries) {
    if (clock.now() > end && took.size() >= 50) break;
    stop.run = ++run;
    asker.begin(run,
                Duration{static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(whole.count())))});
    if (auto done = runner.run({}, &stop); !done) return std::unexpected(done.error());
    const TimePoint ended = clock.now();
    const TimePoint asked = asker.asked();
    if (stop.next < runner.plan().kernels()) took.push_back(ended - asked);
  }
  return took;
}

Json figures(std::vector<Duration>& took) {
  if (took.empty()) return Json{{"stops", 0}};
  return Json{{"stops", took.size()},
              {"p50_us", to_us(percentile(took, 0.5))},
              {"p90_us", to_us(percentile(took, 0.9))},
              {"p99_us", to_us(percentile(took, 0.99))}};
}

// How long each kernel of a run takes at least.
Result<std::vector<Duration>> kernel_times(Runner& runner) {
  const auto kernels = static_cast<std::size_t>(runner.plan().kernels());
  std::vector<Duration> least(kernels, Duration::max()), took(kernels);
  for (int i = 0; i < 10; ++i) {
    if (auto done = runner.run(took); !done) return std::unexpected(done.error());
    for (std::size_t k = 0; k < kernels; ++k) least[k] = std::min(least[k], took[k]);
  }
  return least;
}

// The part that a run is in at a random moment, where the parts of a kernel are of one length: how long it is
// on average, and how likely it is no longer than 50 us.
Json part_lengths(Runner& runner, const std::vector<Duration>& times) {
  double run = 0, weighted = 0, brief = 0;
  for (std::size_t k = 0; k < times.size(); ++k) {
    const double time = to_us(times[k]), part = time / runner.plan().kernel_parts(static_cast<int>(k));
    run += time;
    weighted += time * part;
    if (part <= 50) brief += time;
  }
  return Json{{"mean_us", weighted / run}, {"at_most_50_us", brief / run}};
}

// The kernels whose parts take longer than `bound` on average, in the order of the plan.
Json long_parts(Runner& runner, const std::vector<Duration>& times, Duration bound) {
  Json found = Json::array();
  for (std::size_t k = 0; k < times.size(); ++k) {
    const int number = static_cast<int>(k), parts = runner.plan().kernel_parts(number);
    if (times[k] <= bound * parts) continue;
    found.push_back(Json{{"kernel", runner.plan().kernel_name(number)},
                         {"us", to_us(times[k])},
                         {"parts", parts},
                         {"us_a_part", to_us(times[k]) / parts}});
  }
  return found;
}

Result<Json> measure(const std::filesystem::path& file, const Options& options) {
  const SteadyClock clock;
  const engine::CpuOptions cpu{.threads = options.threads};
  TimePoint before = clock.now();
  auto whole = Runner::load(file, cpu, {.batch_sizes = {options.batch}});
  if (!whole) return std::unexpected(whole.error());
  const Duration load_whole = clock.now() - before;
  before = clock.now();
  auto parts = Runner::load(file, cpu,
                            {.batch_sizes = {options.batch},
                             .stop_cost = options.cost,
                             .least_part = from_ns(1000 * options.least_part_us)});
  if (!parts) return std::unexpected(parts.error());
  const Duration load_parts = clock.now() - before;
  for (Runner* runner : {&*whole, &*parts}) {
    if (!runner->select(options.batch)) return invalid(file.string() + " has no batch dimension");
    runner->fill_inputs(1);
    for (int i = 0; i < 3; ++i)
      if (auto done = runner->run(); !done) return std::unexpected(done.error());
  }
  std::vector<Duration> with, without;
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<Duration> a, b;
    for (const TimePoint until = clock.now() + std::chrono::milliseconds{200};
         clock.now() < until || a.size() < 3;) {
      for (auto [runner, times] : {std::pair{&*whole, &a}, std::pair{&*parts, &b}}) {
        auto took = time_of(*runner);
        if (!took) return std::unexpected(took.error());
        times->push_back(*took);
      }
    }
    without.push_back(percentile(a, 0.5));
    with.push_back(percentile(b, 0.5));
    ratios.push_back(static_cast<double>(without.back().count()) / static_cast<double>(with.back().count()));
  }
  std::ranges::sort(ratios);
  const Duration alone = percentile(without, 0.5);
  auto between = latencies(*whole, alone, options);
  if (!between) return std::unexpected(between.error());
  auto inside = latencies(*parts, alone, options);
  if (!inside) return std::unexpected(inside.error());
  int most = 1;
  for (int k = 0; k < parts->plan().kernels(); ++k) most = std::max(most, parts->plan().kernel_parts(k));
  const auto times = kernel_times(*parts);
  if (!times) return std::unexpected(times.error());
  Json long_ones;
  if (options.longer > 0) long_ones = long_parts(*parts, *times, from_seconds(options.longer * 1e-6));
  return Json{{"batch", options.batch},
              {"threads", options.threads},
              {"kernels", parts->plan().kernels()},
              {"most_parts", most},
              {"part", part_lengths(*parts, *times)},
              {"without_ms", to_ms(alone)},
              {"with_ms", to_ms(percentile(with, 0.5))},
              {"throughput", ratios[ratios.size() / 2]},
              {"throughput_least", ratios.front()},
              {"throughput_most", ratios.back()},
              {"load_without_s", to_seconds(load_whole)},
              {"load_with_s", to_seconds(load_parts)},
              {"parts", figures(*inside)},
              {"kernels_only", figures(*between)},
              {"long_parts", std::move(long_ones)}};
}

void print(const std::string& name, const Json& row) {
  const auto stops = [](const Json& of) {
    char text[96];
    if (!of.contains("p50_us")) return std::string("none");
    std::snprintf(text, sizeof text, "p50 %.1f, p90 %.1f, p99 %.1f us (%d)", of["p50_us"].get<double>(),
                  of["p90_us"].get<double>(), of["p99_us"].get<double>(), of["stops"].get<int>());
    return std::string(text);
  };
  std::printf(
      "%s: %.3f ms, with parts %.3f ms (throughput %.3f, %.3f to %.3f); loading %.2f s, with parts %.2f s\n"
      "  parts: %.1f us on average over the run's time, %.0f%% of which is in parts of at most 50 us\n"
      "  stops between parts:   %s\n  stops between kernels: %s\n",
      name.c_str(), row["without_ms"].get<double>(), row["with_ms"].get<double>(),
      row["throughput"].get<double>(), row["throughput_least"].get<double>(),
      row["throughput_most"].get<double>(), row["load_without_s"].get<double>(),
      row["load_with_s"].get<double>(), row["part"]["mean_us"].get<double>(),
      100 * row["part"]["at_most_50_us"].get<double>(), stops(row["parts"]).c_str(),
      stops(row["kernels_only"]).c_str());
  for (const Json& kernel : row["long_parts"])
    std::printf("  %8.1f us a part, %4d parts  %s\n", kernel["us_a_part"].get<double>(),
                kernel["parts"].get<int>(), kernel["kernel"].get<std::string>().c_str());
  std::fflush(stdout);
}

Result<> run(const Options& options) {
  std::vector<std::string> names = options.only;
  if (names.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(options.models))
      if (std::filesystem::exists(entry.path() / "1" / "model.onnx"))
        names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
  }
  Json all = Json::array();
  for (const std::string& name : names) {
    auto row = measure(std::filesystem::path(options.models) / name / "1" / "model.onnx", options);
    if (!row) return in_context(name, row.error());
    if (!options.json) print(name, *row);
    Json named{{"model", name}};
    named.update(*row);
    all.push_back(std::move(named));
  }
  if (options.json) std::cout << all.dump(1) << "\n";
  return {};
}

}  // namespace
}  // namespace carillon::bench

int main(int argc, char** argv) {
  carillon::bench::Options options;
  CLI::App app{"Measures how soon runs can be stopped, and what that costs."};
  app.add_option("--models", options.models, "model repository")->required()->check(CLI::ExistingDirectory);
  app.add_option("--only", options.only, "only this model; may be repeated");
  app.add_option("--batch", options.batch, "batch size")->check(CLI::Range(1, 4096));
  app.add_option("--threads", options.threads, "threads of a run")->check(CLI::Range(1, 1024));
  app.add_option("--stops", options.stops, "stops to measure of each kind")->check(CLI::Range(1, 10000000));
  app.add_option("--seconds", options.seconds, "at most about so long for them")
      ->check(CLI::Range(0.1, 36000.0));
  app.add_option("--rounds", options.rounds, "rounds of runs with parts and without")
      ->check(CLI::Range(1, 10000));
  app.add_option("--cost", options.cost, "share of a kernel's time that parts may cost")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--least-part-us", options.least_part_us, "no part is made shorter than so many us")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app.add_option("--longer", options.longer, "also name kernels whose parts take longer than so many us")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", options.json, "one JSON array instead of text");
  CLI11_PARSE(app, argc, argv);
  if (const auto done = carillon::bench::run(options); !done) {
    std::fprintf(stderr, "error: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}
