// How soon does a real-time request run where best-effort requests have every core?
//
//   carillon_preempt_bench --models DIR [--victim NAME]... [--real-time NAME] [--mode MODE]...
//                          [--preemptions N] [--rounds N] [--threads N] [--out FILE] [--json]
//
// Best-effort clients in closed loops run one model on every core. A real-time request comes again and again,
// at a place of the victim's run that is uniform: the gaps between requests are random, and what a victim has
// done in between adds up to any place. From its submission (ActionTimes::received, stamped by the thread
// that submits it) to the start of its first kernel (exec_start):
//
//   inside      best-effort runs end inside their kernels, and go on later
//   boundaries  they end between two kernels
//   priorities  nothing ends: best-effort threads have the lowest priority that there is (SCHED_IDLE)
//   equal       nothing ends, and their priority is that of the real-time request's
//   turns       nothing ends: the real-time request waits for the run under way
//   idle        there are no best-effort requests: what all this takes anyway
//
// And to the end of its last (exec_end), as best-effort threads that linger slow it.
//
// The real-time model should have a small input, as its copying is in the time but no part of preemption.
// Beside each round another thread wakes one that waits, pinned to a core, now and then, and it is told how
// long that takes: no scheduler can better that. A round in which its p99 is under 20 us counts as quiet; in
// others the machine itself stalled, or was somebody else's. The same on the idle machine, before the round,
// shows what it takes to wake a core that has nothing to do.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/base/statistics.h"
#include "carillon/cli/disb/local_worker.h"
#include "carillon/engine/cpu/cpu_engine.h"

namespace carillon::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Mode {
  std::string_view name;
  device::Yielding yielding;
  bool lowest = true;  // best-effort threads' priority
  bool victims = true;
};
constexpr Mode modes[] = {
    {"inside", device::Yielding::inside},   {"boundaries", device::Yielding::boundaries},
    {"priorities", device::Yielding::none}, {"equal", device::Yielding::none, false},
    {"turns", device::Yielding::turns},     {"idle", device::Yielding::inside, true, false}};

struct Options {
  std::string models;
  std::vector<std::string> victims{"resnet50", "densenet121", "vgg16", "mobilenetv2", "distilbert"};
  std::string real_time = "tiny_cnn";
  std::vector<std::string> wanted;  // modes; empty: all
  int preemptions = 10'000, rounds = 10, threads = 0;
  double gap_ms = 10, stop_cost = 0.02, seconds = 60;
  std::string out;
  bool json = false;
};

void sleep_until(TimePoint at) {
  const std::int64_t ns = at.time_since_epoch().count();
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

// How long it takes to wake a thread that waits, one pinned to each core that the program may use, while this
// lives: from the call that wakes it to its first instruction.
class WakeUps {
 public:
  // One wake-up after a random time of the upper half of `pause`, on each core in turn.
  explicit WakeUps(Duration pause) {
    cpu_set_t usable;
    CPU_ZERO(&usable);
    sched_getaffinity(0, sizeof usable, &usable);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &usable)) sleepers_.emplace_back(core);
    for (Sleeper& sleeper : sleepers_) sleeper.thread = std::thread([this, &sleeper] { wait(sleeper); });
    waker_ = std::thread([this, pause] { wake(pause); });
  }
  std::vector<Duration> stop() {
    ending_ = true;
    waker_.join();
    std::vector<Duration> all;
    for (Sleeper& sleeper : sleepers_) {
      sleeper.thread.join();
      all.insert(all.end(), sleeper.took.begin(), sleeper.took.end());
    }
    return all;
  }

 private:
  struct Sleeper {
    explicit Sleeper(int where) : core(where) {}
    const int core;
    std::atomic<std::int64_t> woken{0};  // when; negative: it ends
    std::vector<Duration> took;
    std::thread thread;
  };

  static void wait(Sleeper& sleeper, const Clock& clock) {
    for (std::int64_t last = 0;;) {
      sleeper.woken.wait(last);
      const TimePoint now = clock.now();
      last = sleeper.woken;
      if (last < 0) return;
      sleeper.took.push_back(now - TimePoint{Duration{last}});
    }
  }
  void wait(Sleeper& sleeper) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sleeper.core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    wait(sleeper, clock_);
  }
  void wake(Duration pause) {
    Random random(1);
    const auto half = static_cast<std::uint64_t>(pause.count() / 2);
    for (std::size_t next = 0; !ending_; next = (next + 1) % sleepers_.size()) {
      sleep_until(clock_.now() + Duration{static_cast<std::int64_t>(half + random.below(half))});
      sleepers_[next].woken = clock_.now().time_since_epoch().count();
      sleepers_[next].woken.notify_one();
    }
    for (Sleeper& sleeper : sleepers_) {
      sleeper.woken = -1;
      sleeper.woken.notify_one();
    }
  }

  const SteadyClock clock_;
  std::deque<Sleeper> sleepers_;
  std::atomic<bool> ending_{false};
  std::thread waker_;
};

std::vector<Duration> idle_wake_ups() {
  WakeUps probe(2ms);
  std::this_thread::sleep_for(500ms);
  return probe.stop();
}

Json percentiles(std::vector<Duration> values) {
  if (values.empty()) return Json{{"count", 0}};
  return Json{{"count", values.size()},
              {"p50_us", to_us(percentile(values, 0.5))},
              {"p90_us", to_us(percentile(values, 0.9))},
              {"p99_us", to_us(percentile(values, 0.99))},
              {"max_us", to_us(percentile(values, 1))}};
}

// Victims in closed loops, and real-time requests one at a time.
class Round {
 public:
  // Models 0 and 1 of `local`: the victim's and the real-time one's.
  Round(cli::LocalWorker& local, int victims, std::uint64_t seed)
      : local_(local), random_(seed), urgent_(local.models()[1], 1) {
    for (int i = 0; i < victims; ++i)
      victims_.emplace_back(local.models()[0], static_cast<std::uint64_t>(i) + 2);
  }

  // What became of `count` requests, or of as many as there is time for, less those that found no victim's
  // run under way.
  Result<std::vector<worker::ActionTimes>> run(int count, Duration gap, Duration at_most) {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    local_.listen([this](const worker::ActionResult& result) { told(result); });
    for (std::size_t i = 0; i < victims_.size(); ++i) send_victim(i);
    // Until all run.
    sleep_until(clock_.now() + std::max<Duration>(20ms, gap));
    const TimePoint limit = clock_.now() + at_most;
    std::vector<worker::ActionTimes> seen;
    for (int i = 0; i < count && clock_.now() < limit && !failed_; ++i) {
      sleep_until(
          clock_.now() + 200us +
          Duration{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(gap.count())))});
      command_.id = ActionId{++sent_ * ids};
      command_.model = ModelId{1};
      command_.batch = 1;
      command_.cls = Class::real_time;
      // Before all others, wherever it meets them in one stream.
      command_.window = {clock_.now() - 24h, TimePoint::max()};
      command_.rows[0] = urgent_.buffers();
      answered_ = false;
      if (!local_.worker().submit(command_)) return fail(ErrorCode::internal, "the worker's queue is full");
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return answered_ || failed_; });
      if (!failed_) seen.push_back(times_);
    }
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.wait(lock, [this] { return under_way_ == 0; });
    lock.unlock();
    local_.listen({});
    if (failed_) return fail(ErrorCode::internal, error_);
    if (!victims_.empty())
      std::erase_if(seen, [&](const worker::ActionTimes& times) {
        return std::ranges::none_of(victims_, [&](const Victim& v) { return v.ran_at(times.received); });
      });
    return seen;
  }

 private:
  static constexpr std::uint64_t ids = 1024;  // id % ids: 0 is the real-time request, else a victim's number

  struct Victim {
    Victim(const cli::LocalModel& model, std::uint64_t seed) : row(model, seed) {}
    cli::LocalRow row;
    worker::InferCommand command;
    std::vector<std::pair<TimePoint, TimePoint>> runs;  // from the first kernel's start to the last one's end

    bool ran_at(TimePoint at) const {
      const auto after = std::ranges::upper_bound(runs, at, {}, &std::pair<TimePoint, TimePoint>::first);
      return after != runs.begin() && std::prev(after)->second > at;
    }
  };

  void send_victim(std::size_t index) {
    Victim& victim = victims_[index];
    victim.command.id = ActionId{++sent_ * ids + index + 1};
    victim.command.model = ModelId{0};
    victim.command.batch = 1;
    victim.command.cls = Class::best_effort;
    victim.command.window = {clock_.now(), TimePoint::max()};
    victim.command.rows[0] = victim.row.buffers();
    {
      const std::lock_guard lock(mutex_);
      ++under_way_;
    }
    if (!local_.worker().submit(victim.command)) failed_ = true;
  }

  void told(const worker::ActionResult& result) {
    const std::uint64_t whose = result.id.value % ids;
    bool again = false;
    {
      const std::lock_guard lock(mutex_);
      if (result.status != device::ActionStatus::success) {
        failed_ = true;
        error_ = std::string(device::name_of(result.status)) + ": " + result.error;
      }
      if (whose == 0) {
        times_ = result.times;
        answered_ = true;
      } else {
        --under_way_;
        again = !ending_ && !failed_;
        victims_[static_cast<std::size_t>(whose - 1)].runs.emplace_back(result.times.exec_start,
                                                                        result.times.exec_end);
      }
      changed_.notify_all();
    }
    if (again) send_victim(static_cast<std::size_t>(whose - 1));
  }

  const SteadyClock clock_;
  cli::LocalWorker& local_;
  Random random_;
  cli::LocalRow urgent_;
  worker::InferCommand command_;
  std::deque<Victim> victims_;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<bool> failed_{false};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool answered_ = false, ending_ = false;
  int under_way_ = 0;
  worker::ActionTimes times_;
  std::string error_;
};

// Of requests: to their first kernel, and to the end of their last.
struct Times {
  std::vector<Duration> start, end;
  void add(const std::vector<worker::ActionTimes>& all) {
    for (const worker::ActionTimes& times : all) {
      start.push_back(times.exec_start - times.received);
      end.push_back(times.exec_end - times.received);
    }
  }
  Json told() const {
    Json json = percentiles(start);
    json["to_end"] = percentiles(end);
    return json;
  }
};

struct Series {
  Times all, quiet;
  int rounds = 0, quiet_rounds = 0;
  Json told = Json::array();
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    cpu_.threads = options.threads > 0 ? options.threads
                                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (const Mode& mode : modes)
      if (options.wanted.empty() || std::ranges::find(options.wanted, mode.name) != options.wanted.end())
        wanted_.push_back(mode);
  }

  Result<Json> run() {
    engine_ = engine::make_cpu_engine(cpu_);
    Json victims = Json::array();
    for (const std::string& victim : options_.victims) {
      auto one = of_victim(victim);
      if (!one) return in_context(victim, one.error());
      victims.push_back(std::move(*one));
    }
    return Json{{"threads", cpu_.threads},
                {"real_time", options_.real_time},
                {"stop_cost", options_.stop_cost},
                {"gap_ms", options_.gap_ms},
                {"quiet_is", "p99 of wake-ups beside them under 20 us"},
                {"victims", std::move(victims)}};
  }

 private:
  Result<Json> of_victim(const std::string& victim) {
    const std::vector<std::string> names{victim, options_.real_time};
    const std::vector<std::optional<double>> stop_costs(names.size(), options_.stop_cost);
    auto models =
        cli::compile_local_models(options_.models, names, *engine_, stop_costs, [](const std::string& name) {
          std::fprintf(stderr, "compiling %s\n", name.c_str());
          return true;
        });
    if (!models) return std::unexpected(models.error());
    std::vector<Series> series(wanted_.size());
    Duration alone{0};
    for (int round = 0; round < options_.rounds; ++round)
      for (std::size_t m = 0; m < wanted_.size(); ++m)
        if (auto done = one_round(*models, wanted_[m], round, series[m], alone); !done)
          return in_context(wanted_[m].name, done.error());
    Json by_mode = Json::object();
    for (std::size_t m = 0; m < wanted_.size(); ++m) {
      Series& of = series[m];
      Json told = of.all.told();
      told["rounds"] = of.rounds;
      told["quiet"] = of.quiet.told();
      told["quiet"]["rounds"] = of.quiet_rounds;
      told["each"] = std::move(of.told);
      by_mode[std::string(wanted_[m].name)] = std::move(told);
    }
    return Json{{"victim", victim}, {"alone_ms", to_ms(alone)}, {"modes", std::move(by_mode)}};
  }

  Result<> one_round(std::span<const cli::LocalModel> models, const Mode& mode, int round, Series& series,
                     Duration& alone) {
    worker::Options options;
    options.exec_threads = cpu_.threads;
    options.make_team = [engine = engine_.get()](const engine::TeamOptions& wanted) {
      return engine->make_team(wanted);
    };
    cli::size_memory(options, models, static_cast<std::size_t>(cpu_.threads) + 1);
    options.queue = 256;
    options.max_models = 2;
    options.classes =
        device::ClassStreams{.yielding = mode.yielding, .units = cpu_.threads, .best_effort = cpu_.threads};
    options.best_effort_idle = mode.lowest;
    auto local = cli::LocalWorker::make(options, models, clock_);
    if (!local) return std::unexpected(local.error());
    if (alone == Duration{0}) {
      auto takes = (*local)->alone(0, std::chrono::seconds{1});
      if (!takes) return std::unexpected(takes.error());
      alone = *takes;
    }
    if (auto loaded = (*local)->load(); !loaded) return std::unexpected(loaded.error());
    Round one(**local, mode.victims ? cpu_.threads : 0, static_cast<std::uint64_t>(round) + 1);
    const Json idle = percentiles(idle_wake_ups());
    // In turns a gap is one victim's run or so, as requests wait for its end; else any place comes up soon.
    const Duration gap = mode.yielding == device::Yielding::turns ? std::max(alone, from_ms(options_.gap_ms))
                                                                  : from_ms(options_.gap_ms);
    const int count = (options_.preemptions + options_.rounds - 1) / options_.rounds;
    WakeUps beside(8ms);
    auto took = one.run(count, gap, from_seconds(options_.seconds));
    const Json woken = percentiles(beside.stop());
    if (!took) return std::unexpected(took.error());
    const bool quiet = woken["p99_us"].get<double>() < 20;
    series.all.add(*took);
    ++series.rounds;
    if (quiet) {
      series.quiet.add(*took);
      ++series.quiet_rounds;
    }
    Times of_round;
    of_round.add(*took);
    Json told = of_round.told();
    told["wake_beside"] = woken;
    told["wake_idle"] = idle;
    std::fprintf(
        stderr,
        "%s, %.*s, round %d: p50 %.1f, p99 %.1f us of %d; wake-up beside it p50 %.1f, p99 %.1f us, idle "
        "p50 %.1f, p99 %.1f us\n",
        models[0].name.c_str(), static_cast<int>(mode.name.size()), mode.name.data(), round + 1,
        told.value("p50_us", 0.0), told.value("p99_us", 0.0), told["count"].get<int>(),
        woken["p50_us"].get<double>(), woken["p99_us"].get<double>(), idle["p50_us"].get<double>(),
        idle["p99_us"].get<double>());
    series.told.push_back(std::move(told));
    return {};
  }

  const Options& options_;
  const SteadyClock clock_;
  engine::CpuOptions cpu_;
  std::vector<Mode> wanted_;
  std::unique_ptr<engine::Engine> engine_;
};

void print(const Json& all) {
  std::printf("From submission to the first real-time kernel, us; %s, %d threads. Quiet rounds: %s.\n\n",
              all["real_time"].get<std::string>().c_str(), all["threads"].get<int>(),
              all["quiet_is"].get<std::string>().c_str());
  std::printf(
      "| victim | mode | count | p50 | p90 | p99 | max | to its end p50 | p99 | quiet rounds | p50 | p99 "
      "|\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Json& victim : all["victims"])
    for (const auto& [mode, of] : victim["modes"].items()) {
      const Json &quiet = of["quiet"], &end = of["to_end"];
      std::printf("| %s | %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d of %d |",
                  victim["victim"].get<std::string>().c_str(), mode.c_str(), of["count"].get<int>(),
                  of.value("p50_us", 0.0), of.value("p90_us", 0.0), of.value("p99_us", 0.0),
                  of.value("max_us", 0.0), end.value("p50_us", 0.0), end.value("p99_us", 0.0),
                  quiet["rounds"].get<int>(), of["rounds"].get<int>());
      if (quiet["count"].get<int>() > 0)
        std::printf(" %.1f | %.1f |\n", quiet["p50_us"].get<double>(), quiet["p99_us"].get<double>());
      else
        std::printf(" | |\n");
    }
}

}  // namespace
}  // namespace carillon::bench

int main(int argc, char** argv) {
  carillon::bench::Options options;
  CLI::App app{"Measures how soon a real-time request runs where best-effort requests have every core."};
  app.add_option("--models", options.models, "model repository")->required()->check(CLI::ExistingDirectory);
  app.add_option("--victim", options.victims, "best-effort model; may be repeated")->capture_default_str();
  app.add_option("--real-time", options.real_time, "real-time model; one with a small input")
      ->capture_default_str();
  std::vector<std::string> names;
  for (const auto& mode : carillon::bench::modes) names.emplace_back(mode.name);
  app.add_option("--mode", options.wanted, "only this; may be repeated")->check(CLI::IsMember(names));
  app.add_option("--preemptions", options.preemptions, "of each victim in each mode")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "that they are divided into; modes take turns")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "a round takes at most")->check(CLI::Range(0.1, 36'000.0));
  app.add_option("--gap-ms", options.gap_ms, "most time between an answer and the next request")
      ->check(CLI::Range(0.1, 10'000.0))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "the device's units; 0: one a core")->check(CLI::Range(0, 64));
  app.add_option("--stop-cost", options.stop_cost, "share of a kernel's time that parts may cost")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--out", options.out, "file to write the JSON to, beside the table");
  app.add_flag("--json", options.json, "print the JSON instead of the table");
  CLI11_PARSE(app, argc, argv);
  auto all = carillon::bench::Bench(options).run();
  if (!all) {
    std::fprintf(stderr, "error: %s\n", all.error().message.c_str());
    return 1;
  }
  if (!options.out.empty() && !(std::ofstream(options.out) << all->dump(1) << "\n")) {
    std::fprintf(stderr, "error: cannot write '%s'\n", options.out.c_str());
    return 1;
  }
  if (options.json)
    std::cout << all->dump(1) << "\n";
  else
    carillon::bench::print(*all);
  return 0;
}
