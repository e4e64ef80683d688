#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <queue>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/random.h"
#include "carillon/base/statistics.h"
#include "carillon/cli/bench_waiting.h"
#include "carillon/cli/commands.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/orloj/dynamic_hull.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/symphony/threads/symphony_threads.h"

namespace carillon::cli {
namespace {

struct Arguments {
  std::vector<std::string> schedulers = {"symphony"};
  int models = 64;
  int devices = 64;
  std::int64_t requests = 2'000'000;
  double load = 0.85;
  double fit = 0;
  bool each = false;
  int threads = 1;
  double round_us = 1000;
  bool rounds = false;
  bool sweep = false;
  bool json = false;
  int waiting = 0;
  int apps = 1;
};

struct Measured {
  int models = 0, devices = 0;
  std::uint64_t requests = 0, on_time = 0, dropped = 0, decisions = 0, batches = 0;
  double seconds = 0;      // on the wall
  double cpu_seconds = 0;  // of all threads, waiting for each other included
  LatencyHistogram each;   // of thread time, where each decision was measured
};

double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Duration thread_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds{t.tv_sec} + Duration{t.tv_nsec};
}

// What reading it takes: the least of many, as it is taken off each measurement.
Duration reading_takes() {
  Duration least = 1s;
  for (int i = 0; i < 1000; ++i) {
    const Duration from = thread_time();
    least = std::min(least, thread_time() - from);
  }
  return least;
}

// What all measurements share: models and requests.
struct Workload {
  std::vector<schedule::ModelInfo> models;
  std::vector<Request> requests;  // by arrival
};
Duration exec_time(int batch) {
  return from_ms(1.053 * batch + 5.072);
}
// How long LOAD takes, where memory is limited.
constexpr Duration load_time = 8ms;
Workload prepare(const Arguments& arguments, int models, int devices);

// What one device does in this benchmark: nothing but pass time.
struct End {
  TimePoint at;
  schedule::ActionDone done;
  std::size_t requests = 0;
  friend bool operator>(const End& a, const End& b) {
    return a.at != b.at ? a.at > b.at : a.done.id.value > b.done.id.value;
  }
};

// Drives a scheduler in virtual time: Poisson arrivals at `load` of what the devices could serve in batches
// of 16 (l(b) = 1.053 b + 5.072 ms, SLO 25 ms: Symphony's ResNet50), everything prepared before the clock
// starts but the events that follow from the decisions. Devices cost no time of their own. The first tenth is
// not measured.
Result<Measured> measure(const Arguments& arguments, const std::string& name, int models, int devices) {
  const schedule::Environment ideal{.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0};
  auto made = schedule::make_scheduler(name, ideal);
  if (!made) return std::unexpected(std::move(made.error()));
  schedule::Scheduler& scheduler = **made;
  const Workload workload = prepare(arguments, models, devices);
  const std::vector<Request>& requests = workload.requests;
  const std::size_t count = requests.size();
  schedule::Actions actions;
  TimePoint wake = TimePoint::max();
  for (const schedule::ModelInfo& info : workload.models)
    wake = scheduler.decide(schedule::model_comes(info), TimePoint{}, actions);
  const auto pages = static_cast<std::uint64_t>(std::max(1.0, arguments.fit * models));
  for (int d = 0; d < devices; ++d)
    wake = scheduler.decide(schedule::DeviceChanged{DeviceId{static_cast<std::uint32_t>(d)}, true, pages},
                            TimePoint{}, actions);
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  std::set<ActionId> stopped;  // that have not ended yet
  std::vector<TimePoint> free(static_cast<std::size_t>(devices));
  Measured m{.models = models, .devices = devices};
  const std::size_t first = count / 10;
  using Clock = std::chrono::steady_clock;
  // Reading the clock around each call may cost as much as the call: unless each is asked for, the whole loop
  // is measured.
  const Duration reading = arguments.each ? reading_takes() : Duration{0};
  const auto decide = [&](const schedule::Event& event, TimePoint now, bool counted) {
    if (!arguments.each) {
      wake = scheduler.decide(event, now, actions);
      return;
    }
    const Duration from = thread_time();
    wake = scheduler.decide(event, now, actions);
    if (counted) m.each.add(thread_time() - from - reading);
  };
  const auto take = [&](TimePoint now, bool counted) {
    for (schedule::Action& action : actions) {
      if (auto* infer = std::get_if<schedule::Infer>(&action)) {
        TimePoint& device = free[infer->device.index()];
        const TimePoint start = std::max({device, now, infer->window.earliest});
        const Duration time = exec_time(static_cast<int>(infer->requests.size()));
        device = start + time;
        ends.push({device,
                   {.id = infer->id,
                    .status = schedule::ActionStatus::success,
                    .start = start,
                    .end = device,
                    .duration = time},
                   infer->requests.size()});
        if (counted) {
          ++m.batches;
          m.on_time += infer->requests.size();
        }
      } else if (std::get_if<schedule::Refuse>(&action) != nullptr) {
        if (counted) ++m.dropped;
      } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
        const Duration time = arguments.fit > 0 ? load_time : Duration{0};
        ends.push({now + time, {.id = load->id, .start = now, .end = now + time, .duration = time}, 0});
      } else if (const auto* stop = std::get_if<schedule::Stop>(&action)) {
        if (!stopped.insert(stop->id).second) continue;
        free[stop->device.index()] = now;
        ends.push(
            {now, {.id = stop->id, .status = schedule::ActionStatus::stopped, .start = now, .end = now}, 0});
      } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
        ends.push({now, {.id = unload->id, .start = now, .end = now, .duration = {}}, 0});
      }
    }
    actions.clear();
  };
  take(TimePoint{}, false);
  Clock::time_point measured_from = Clock::now();
  double cpu_from = cpu_now();
  for (std::size_t i = 0; i < count;) {
    const bool counted = i >= first;
    if (i == first) {
      measured_from = Clock::now();
      cpu_from = cpu_now();
    }
    const TimePoint arrival = requests[i].arrival;
    const TimePoint end = ends.empty() ? TimePoint::max() : ends.top().at;
    if (end <= arrival && end <= wake) {
      const schedule::ActionDone done = ends.top().done;
      ends.pop();
      if (done.status == schedule::ActionStatus::success && stopped.erase(done.id) > 0) continue;
      decide(done, end, counted);
      take(end, counted);
    } else if (wake < arrival) {
      const TimePoint now = wake;
      decide(schedule::Wake{}, now, counted);
      take(now, counted);
    } else {
      decide(schedule::RequestArrived{requests[i]}, arrival, counted);
      ++i;
      take(arrival, counted);
      if (counted) ++m.requests;
    }
    if (counted) ++m.decisions;
  }
  m.seconds = std::chrono::duration<double>(Clock::now() - measured_from).count();
  m.cpu_seconds = cpu_now() - cpu_from;
  return m;
}

Workload prepare(const Arguments& arguments, int models, int devices) {
  Workload workload;
  const double capacity = devices * 16.0 / to_seconds(exec_time(16));
  const double rate = arguments.load * capacity;
  // A model gathers a batch within its SLO only where it has the requests: SLOs grow with the models a
  // device.
  const Duration slo = std::max<Duration>(25ms, exec_time(16) + from_seconds(16 * models / rate));
  for (int m = 0; m < models; ++m) {
    schedule::ModelInfo info{
        .id = ModelId{static_cast<std::uint32_t>(m)}, .name = "m" + std::to_string(m), .batches = {}};
    if (arguments.fit > 0) {
      info.pages = 1;
      info.load = load_time;
    }
    for (int b = 1; b <= 64; ++b) info.batches.push_back({b, exec_time(b)});
    workload.models.push_back(std::move(info));
  }
  Random random(1);
  const auto count = static_cast<std::size_t>(arguments.requests);
  std::vector<Request>& requests = workload.requests;
  requests.resize(count);
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    at += random.exponential(1e9 / rate);
    requests[i].id = RequestId{i};
    requests[i].model = ModelId{static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(models)))};
    requests[i].arrival = TimePoint{from_ns(at)};
    requests[i].deadline = requests[i].arrival + slo;
  }
  return workload;
}

// Symphony on many threads, in virtual time: a round is `--round-us` of it, and follows the last as soon as
// all threads are done.
Measured measure_threads(const Arguments& arguments, int models, int devices) {
  const Workload workload = prepare(arguments, models, devices);
  struct alignas(64) Own {
    std::vector<Request> requests;  // of this thread's models
    std::size_t next = 0;
    std::uint64_t on_time = 0, dropped = 0, batches = 0;
  };
  std::vector<Own> own(static_cast<std::size_t>(arguments.threads));
  const auto of = [&own](int thread) -> Own& { return own[static_cast<std::size_t>(thread)]; };
  const std::size_t first = workload.requests.size() / 10;
  const TimePoint counted_from = workload.requests[first].arrival;
  const TimePoint end = workload.requests.back().arrival;
  const Duration step = from_ns(arguments.round_us * 1e3);
  using Clock = std::chrono::steady_clock;
  Clock::time_point measured_from, measured_to;
  double cpu_from = 0, cpu_to = 0;
  TimePoint now{};
  bool counting = false;
  const schedule::SymphonyWorld world{
      .next_round = [&]() -> std::optional<TimePoint> {
        if (!counting && now >= counted_from) {
          counting = true;
          measured_from = Clock::now();
          cpu_from = cpu_now();
        }
        if (now >= end) {
          measured_to = Clock::now();
          cpu_to = cpu_now();
          return std::nullopt;
        }
        return now += step;
      },
      .arrivals =
          [&](int thread, ModelId low, ModelId high, TimePoint at, std::vector<Request>& out) {
            Own& o = of(thread);
            if (o.requests.empty())
              for (const Request& r : workload.requests)
                if (low <= r.model && r.model < high) o.requests.push_back(r);
            for (; o.next < o.requests.size() && o.requests[o.next].arrival <= at; ++o.next)
              out.push_back(o.requests[o.next]);
          },
      .sent =
          [&](int thread, schedule::SentBatch&& batch) {
            if (batch.start < counted_from) return;
            Own& o = of(thread);
            ++o.batches;
            o.on_time += batch.requests.size();
          },
      // What waits at the end was not dropped for want of time.
      .dropped =
          [&](int thread, const Request& request, TimePoint at) {
            if (at >= counted_from && (at < end || request.deadline <= at)) ++of(thread).dropped;
          }};
  schedule::SymphonyThreadsOptions options{
      .environment = {.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0},
      .symphony = {},
      .threads = arguments.threads,
      .ahead = 2 * step};
  const auto figures = schedule::run_symphony_threads(options, workload.models, devices, world);
  Measured m{.models = models, .devices = devices};
  m.requests = workload.requests.size() - first;
  m.decisions = figures.messages;
  for (const Own& o : own) {
    m.on_time += o.on_time;
    m.dropped += o.dropped;
    m.batches += o.batches;
  }
  m.seconds = std::chrono::duration<double>(measured_to - measured_from).count();
  m.cpu_seconds = cpu_to - cpu_from;
  return m;
}

nlohmann::ordered_json to_json(const Arguments& arguments, const std::string& scheduler, const Measured& m) {
  nlohmann::ordered_json json;
  json["scheduler"] = scheduler;
  json["models"] = m.models;
  json["devices"] = m.devices;
  json["threads"] = arguments.threads;
  json["requests"] = m.requests;
  json["requests_per_s"] = static_cast<double>(m.requests) / m.seconds;
  json["ns_per_request"] = m.seconds * 1e9 / static_cast<double>(std::max<std::uint64_t>(1, m.requests));
  json["cpu_seconds"] = m.cpu_seconds;
  json["dropped_fraction"] =
      static_cast<double>(m.dropped) / static_cast<double>(std::max<std::uint64_t>(1, m.dropped + m.on_time));
  json["mean_batch"] =
      static_cast<double>(m.on_time) / static_cast<double>(std::max<std::uint64_t>(1, m.batches));
  json["decisions"] = m.decisions;
  if (m.each.count() > 0)
    json["decision_us"] = {{"mean", to_us(m.each.mean())},
                           {"p50", to_us(m.each.percentile(0.5))},
                           {"p99", to_us(m.each.percentile(0.99))},
                           {"max", to_us(m.each.max())}};
  return json;
}

int run_waiting(const Arguments& arguments) {
  const auto measured = measure_waiting({.scheduler = arguments.schedulers.front(),
                                         .models = arguments.models,
                                         .apps = arguments.apps,
                                         .devices = arguments.devices,
                                         .waiting = arguments.waiting,
                                         .decisions = arguments.requests / 10});
  if (!measured) {
    fmt::print(stderr, "carillon bench scheduler: {}\n", measured.error().message);
    return exit_usage;
  }
  const LatencyHistogram& times = measured->times;
  if (!arguments.json) {
    fmt::print(
        "{}: {} decisions with {} requests waiting: p50 {:.2f} us, p99 {:.2f} us, longest {:.1f} us of "
        "thread time\n",
        arguments.schedulers.front(), times.count(), arguments.waiting, to_us(times.percentile(0.5)),
        to_us(times.percentile(0.99)), to_us(times.max()));
    return exit_success;
  }
  nlohmann::ordered_json json;
  json["scheduler"] = arguments.schedulers.front();
  json["models"] = arguments.models;
  json["applications"] = arguments.apps;
  json["devices"] = arguments.devices;
  json["waiting"] = arguments.waiting;
  json["decisions"] = times.count();
  json["mean_us"] = to_us(times.mean());
  json["p50_us"] = to_us(times.percentile(0.5));
  json["p99_us"] = to_us(times.percentile(0.99));
  json["max_us"] = to_us(times.max());
  json["batches"] = measured->batches;
  json["batched"] = measured->batched;
  json["refused"] = measured->refused;
  json["late"] = measured->late;
  fmt::print("{}\n", json.dump(2));
  return exit_success;
}

int run(const Arguments& arguments) {
  if (arguments.waiting > 0) return run_waiting(arguments);
  std::vector<std::string> schedulers = arguments.schedulers;
  if (schedulers == std::vector<std::string>{"all"}) schedulers = schedule::scheduler_names();
  const bool threads = arguments.threads > 1 || arguments.rounds;
  for (const std::string& name : schedulers)
    if (threads && (name != "symphony" || arguments.each || arguments.fit > 0)) {
      fmt::print(
          stderr,
          "carillon bench scheduler: --threads above 1 and --rounds need --scheduler symphony, without "
          "--each and --fit: other decisions are made event by event, on one thread\n");
      return exit_usage;
    }
  std::vector<std::pair<int, int>> sizes;
  if (arguments.sweep) {
    for (const int n : {1, 10, 100, 1000, 10000}) sizes.emplace_back(n, arguments.devices);
    for (const int n : {1, 10, 100, 1000, 10000}) sizes.emplace_back(arguments.models, n);
  } else {
    sizes.emplace_back(arguments.models, arguments.devices);
  }
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!arguments.json)
    fmt::print("{:<12}{:>9}{:>9}{:>14}{:>13}{:>10}{:>8}{}\n", "scheduler", "models", "devices", "requests/s",
               "ns/request", "dropped", "batch",
               arguments.each ? fmt::format("{:>12}{:>10}{:>10}", "decision us", "p50", "p99") : "");
  for (const std::string& name : schedulers)
    for (const auto& [models, devices] : sizes) {
      const Result<Measured> m =
          threads ? measure_threads(arguments, models, devices) : measure(arguments, name, models, devices);
      if (!m) {
        fmt::print(stderr, "carillon bench scheduler: {}\n", m.error().message);
        return exit_usage;
      }
      const auto json = to_json(arguments, name, *m);
      if (!arguments.json) {
        fmt::print("{:<12}{:>9}{:>9}{:>14.0f}{:>13.1f}{:>9.3f}%{:>8.1f}", name, models, devices,
                   json["requests_per_s"].get<double>(), json["ns_per_request"].get<double>(),
                   100 * json["dropped_fraction"].get<double>(), json["mean_batch"].get<double>());
        if (arguments.each)
          fmt::print("{:>12.2f}{:>10.2f}{:>10.2f}", to_us(m->each.mean()), to_us(m->each.percentile(0.5)),
                     to_us(m->each.percentile(0.99)));
        fmt::print("\n");
        std::fflush(stdout);
      }
      all.push_back(json);
    }
  if (arguments.json)
    fmt::print("{}\n", (all.size() > 1 ? nlohmann::ordered_json{{"runs", all}} : all.front()).dump(2));
  return exit_success;
}

// Orloj's priority queue alone, as its section 4.5.5 measures it: a full queue of n requests whose scores are
// such as deadlines make; nanoseconds to insert one, erase one, and ask for the best, and to sort all by
// score instead.
int run_queue(bool as_json, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double, std::nano>(Clock::now() - from).count();
  };
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!as_json)
    fmt::print("{:>9}{:>12}{:>12}{:>12}{:>14}{:>22}\n", "requests", "insert ns", "erase ns", "best ns",
               "sort all ns", "insert / log2(n)^2");
  for (const std::uint32_t n : {10U, 30U, 100U, 300U, 1000U, 3000U, 10000U, 30000U, 100000U}) {
    Random random(seed);
    const auto point = [&] {
      const double far = std::exp(-5 * random.uniform());
      return random.below(2) == 0 ? schedule::orloj::DynamicHull::Point{far, 0}
                                  : schedule::orloj::DynamicHull::Point{-far, random.uniform()};
    };
    schedule::orloj::DynamicHull hull;
    std::vector<schedule::orloj::DynamicHull::Point> points;
    for (std::uint32_t i = 0; i < n; ++i) hull.insert(i, points.emplace_back(point()));
    const int turns = 20000;
    double insert = 0, erase = 0;
    auto from = Clock::now();
    std::vector<std::uint32_t> keys;
    std::vector<schedule::orloj::DynamicHull::Point> fresh;
    for (int i = 0; i < turns; ++i) {
      keys.push_back(static_cast<std::uint32_t>(random.below(n)));
      fresh.push_back(point());
    }
    // A round each of erasing and inserting a tenth, so that the queue stays full.
    const std::uint32_t round = std::max(1U, n / 10);
    int done = 0;
    while (done < turns) {
      std::vector<std::uint32_t> gone;
      from = Clock::now();
      for (std::uint32_t i = 0; i < round && done + static_cast<int>(i) < turns; ++i) {
        const std::uint32_t key = keys[static_cast<std::size_t>(done) + i];
        if (hull.erase(key)) gone.push_back(key);
      }
      erase += since(from);
      from = Clock::now();
      for (std::size_t i = 0; i < gone.size(); ++i) {
        points[gone[i]] = fresh[static_cast<std::size_t>(done) + i];
        hull.insert(gone[i], points[gone[i]]);
      }
      insert += since(from);
      done += static_cast<int>(gone.size());
    }
    from = Clock::now();
    std::uint64_t sum = 0;
    for (int i = 0; i < turns; ++i) sum += *hull.top(0.01 * i);
    const double best = since(from) / turns + (sum == 1 ? 1e-9 : 0);
    std::vector<std::pair<double, std::uint32_t>> order(n);
    const int sorts = std::max(1, static_cast<int>(2'000'000 / n / 4));
    from = Clock::now();
    for (int s = 0; s < sorts; ++s) {
      for (std::uint32_t i = 0; i < n; ++i) order[i] = {points[i].alpha * (1 + s) + points[i].beta, i};
      std::sort(order.begin(), order.end());
    }
    const double sort = since(from) / sorts;
    const double log2 = std::log2(static_cast<double>(n));
    if (!as_json)
      fmt::print("{:>9}{:>12.0f}{:>12.0f}{:>12.0f}{:>14.0f}{:>22.1f}\n", n, insert / done, erase / done, best,
                 sort, insert / done / log2 / log2);
    all.push_back({{"requests", n},
                   {"insert_ns", insert / done},
                   {"erase_ns", erase / done},
                   {"best_ns", best},
                   {"sort_ns", sort}});
  }
  if (as_json) fmt::print("{}\n", nlohmann::ordered_json{{"runs", all}}.dump(2));
  return exit_success;
}

// The door alone: what it takes, under an uncontended lock as in the controller, to let an arrival in and
// take it out again while decisions keep up, and to turn one away while they do not, with so many models.
int run_door(bool as_json) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double, std::nano>(Clock::now() - from).count();
  };
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!as_json) fmt::print("{:>9}{:>14}{:>18}\n", "models", "through ns", "turned away ns");
  for (const std::uint32_t models : {1U, 100U, 10'000U}) {
    constexpr int turns = 1'000'000;
    std::mutex mutex;
    Random random(1);
    std::vector<ModelId> asked;
    for (int i = 0; i < 1 << 16; ++i) asked.push_back({static_cast<std::uint32_t>(random.below(models))});
    schedule::Door door;
    for (std::uint32_t m = 0; m < models; ++m) door.add_model(1ms);
    std::vector<schedule::Door::Taken> taken;
    TimePoint now{1s};
    const auto arrive = [&](std::uint64_t i) {
      const std::lock_guard lock(mutex);
      return door.arrive({.key = i, .model = asked[i % asked.size()], .deadline = now + 20ms}, now).in;
    };
    auto from = Clock::now();
    for (std::uint64_t i = 0; i < turns; ++i) {
      now += 2us;
      arrive(i);
      taken.clear();
      const std::lock_guard lock(mutex);
      door.take(1, now, taken);
    }
    const double through = since(from) / turns;
    // Twice as many as are taken, until what waits has stood for too long; then nothing is taken any more.
    for (std::uint64_t i = 0; i < 200'000; ++i) {
      now += 1us;
      arrive(turns + i);
      if (i % 2 == 0) continue;
      taken.clear();
      door.take(1, now, taken);
    }
    std::uint64_t in = 0;
    from = Clock::now();
    for (std::uint64_t i = 0; i < turns; ++i) in += arrive(2 * turns + i) ? 1 : 0;
    const double away = since(from) / turns;
    if (!door.overloaded() || in > turns / 100) {
      fmt::print(stderr, "carillon bench door: {} of {} were let in\n", in, turns);
      return exit_failure;
    }
    if (!as_json) fmt::print("{:>9}{:>14.0f}{:>18.0f}\n", models, through, away);
    all.push_back({{"models", models}, {"through_ns", through}, {"turned_away_ns", away}});
  }
  if (as_json) fmt::print("{}\n", nlohmann::ordered_json{{"runs", all}}.dump(2));
  return exit_success;
}

}  // namespace

void add_bench(CLI::App& program, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& bench = *program.add_subcommand("bench", "Measures parts of Carillon by themselves");
  bench.require_subcommand(1);
  CLI::App& command = *bench.add_subcommand(
      "scheduler",
      "The decision core alone, in process: requests a second, and how it grows with models and devices");
  command
      .add_option("--scheduler", arguments->schedulers,
                  "Policy; repeat for several, or 'all' of them: " + schedule::scheduler_list())
      ->capture_default_str();
  command.add_option("--models", arguments->models, "Models, all like ResNet50 (1.053 b + 5.072 ms)")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--devices", arguments->devices, "Devices, which cost no time of their own")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--requests", arguments->requests, "Requests in all; the first tenth is not measured")
      ->check(CLI::Range(1000, 100'000'000))
      ->capture_default_str();
  command.add_option("--load", arguments->load, "Share of what the devices could serve in batches of 16")
      ->check(CLI::Range(0.001, 10.0))
      ->capture_default_str();
  command
      .add_option(
          "--fit", arguments->fit,
          "The share of the models whose weights a device can hold, which then have to be loaded (8 ms "
          "each); 0: all, and nothing needs loading")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_flag(
      "--each", arguments->each,
      "Also each decision's thread time: mean, median and 99th percentile (the requests a second "
      "then include reading the clock)");
  command.add_option("--threads", arguments->threads, "Threads; more than one for symphony alone")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--round-us", arguments->round_us,
                  "With many threads: virtual time between exchanges of messages")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command.add_flag(
      "--rounds", arguments->rounds,
      "In rounds on one thread too, as many threads work: what the second thread adds by itself");
  command
      .add_option("--waiting", arguments->waiting,
                  "Instead: what single decisions cost, in thread time, while so many requests wait, always; "
                  "over a tenth of --requests decisions")
      ->check(CLI::Range(0, 1'000'000));
  command.add_option("--apps", arguments->apps, "With --waiting: applications in all")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_flag("--sweep", arguments->sweep, "1 to 10,000 models, then 1 to 10,000 devices");
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.footer(
      "Virtual time: arrivals are Poisson, devices only pass time. The time counted is that of the whole "
      "loop, the\n"
      "benchmark's own queue of ends included. Where models are many, SLOs grow so that batches can still be "
      "gathered.\n"
      "Examples:\n"
      "  carillon bench scheduler\n"
      "  carillon bench scheduler --scheduler symphony --sweep --json\n"
      "  carillon bench scheduler --scheduler all --each --models 1000 --devices 100 --requests 1000000\n"
      "  carillon bench scheduler --scheduler orloj --models 1000 --apps 4096 --waiting 10000 --json");
  command.callback([arguments, &status] { status = run(*arguments); });
  CLI::App& queue = *bench.add_subcommand(
      "queue",
      "Orloj's priority queue alone: inserting, erasing and asking, by the number of waiting requests");
  queue.add_flag("--json", arguments->json, "Print one JSON object");
  queue.callback([arguments, &status] { status = run_queue(arguments->json, 1); });
  CLI::App& door = *bench.add_subcommand(
      "door", "What it takes to let a request in, and to turn one away where decisions cannot keep up");
  door.add_flag("--json", arguments->json, "Print one JSON object");
  door.callback([arguments, &status] { status = run_door(arguments->json); });
  bench.footer(
      "Examples:\n  carillon bench scheduler --sweep\n  carillon bench queue\n  carillon bench door");
}

}  // namespace carillon::cli
