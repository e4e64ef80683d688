// How jobs share a device under the broker: hand-overs between processes, shares and throughput under fair, freezing.
//
// Jobs are processes of one thread that compute iterations of some milliseconds and speak the protocol of
// share/protocol.h; the broker runs in a process of its own. Times of one run say little on a machine that does other
// things too; the figures that count are ratios of the same run: of a job's time alone before and after.
//
//   carillon_share_bench [--jobs 3] [--seconds 12] [--iteration-ms 20] [--quantum-ms 50] [--json]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/base/statistics.h"
#include "carillon/share/broker.h"
#include "carillon/share/process.h"
#include "carillon/share/testing/child.h"
#include "carillon/share/testing/fake_job.h"

namespace {

using namespace carillon;
using namespace carillon::share;
using carillon::share::testing::Child;
using carillon::share::testing::FakeJob;

constexpr int most_jobs = 16;
constexpr int most_marks = 1 << 20;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// What all processes see.
struct Board {
  std::atomic<bool> go = false, end = false;
  std::atomic<std::uint64_t> work[most_jobs]{};  // rounds of computing
  std::atomic<std::int64_t> left{0};             // when the last job came out of the lane
  std::atomic<std::uint32_t> marks{0};
  std::atomic<std::int64_t> mark[most_marks]{};  // hand-overs, in ns
};

// One round of some microseconds, as a counter of what the processor gave.
double compute_round(double seed) {
  for (int i = 0; i < 4000; ++i) seed = seed * 1.0000001 + 1e-9;
  return seed;
}

struct Settings {
  int jobs = 3;
  double seconds = 12;
  double iteration_ms = 20;
  double quantum_ms = 50;
  double poll_us = to_us(BrokerOptions{}.polls);
  bool json = false;
};

// Iterations until the board says so. `me` counts the rounds.
int job_process(const std::string& socket, Board& board, int me, std::uint64_t rounds) {
  FakeJob job;
  while (!job.connect(socket)) usleep(1000);
  job.ephemeral = 512 << 20;  // more than half: one lane
  if (job.greet("job" + std::to_string(me)).kind() != Kind::welcome) return 1;
  while (!board.go) usleep(1000);
  job.ready();
  volatile double sink = 1;
  std::int64_t waited = now_ns();
  for (;;) {
    if (!job.enter()) return 2;
    const std::int64_t in = now_ns();
    const std::int64_t left = board.left.exchange(0);
    if (left > 0 && left >= waited) {
      const auto at = board.marks.fetch_add(1);
      if (at < most_marks) board.mark[at] = in - left;
    }
    do {
      const std::int64_t from = now_ns();
      for (std::uint64_t i = 0; i < rounds; ++i) sink = compute_round(sink);
      board.work[me] += rounds;
      job.count(static_cast<std::uint64_t>(now_ns() - from));
      if (board.end) return 0;
    } while (job.lease() == Lease::run);
    if (job.lease() == Lease::look) return 3;
    waited = now_ns();
    board.left = waited;
    job.stop();
  }
}

std::uint64_t rounds_of(double iteration_ms) {
  volatile double sink = 1;
  const std::int64_t from = now_ns();
  std::uint64_t rounds = 0;
  for (; now_ns() - from < 200'000'000; ++rounds) sink = compute_round(sink);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(rounds) * iteration_ms / 200));
}

Child broker_process(const std::string& socket, const Settings& settings) {
  return Child([&] {
    const SteadyClock clock;
    BrokerOptions options;
    options.socket = socket;
    options.jobs.capacity = gib(1);
    options.jobs.quantum = from_ms(settings.quantum_ms);
    options.polls = from_ms(settings.poll_us / 1000);
    auto broker = Broker::start(options, clock);
    if (!broker) {
      std::fprintf(stderr, "%s\n", broker.error().message.c_str());
      return 1;
    }
    (*broker)->run();
    return 0;
  });
}

struct Shares {
  double per_second = 0;           // rounds of all jobs
  std::vector<double> windows;     // of each 2 s window: the largest distance from an equal share, in shares
  std::vector<double> share;       // of each job, of all
};

Shares run_jobs(const std::string& socket, Board& board, int jobs, double seconds, std::uint64_t rounds) {
  board.go = board.end = false;
  board.left = 0;
  for (auto& work : board.work) work = 0;
  std::vector<Child> children;
  for (int i = 0; i < jobs; ++i) children.emplace_back([&, i] { return job_process(socket, board, i, rounds); });
  usleep(300'000);
  board.go = true;
  usleep(1'000'000);  // the start is not counted
  Shares out;
  std::vector<std::uint64_t> first(jobs), before(jobs), after(jobs);
  for (int i = 0; i < jobs; ++i) first[i] = before[i] = board.work[i];
  const std::int64_t from = now_ns();
  while (static_cast<double>(now_ns() - from) < seconds * 1e9) {
    usleep(2'000'000);
    std::uint64_t sum = 0;
    for (int i = 0; i < jobs; ++i) {
      after[i] = board.work[i];
      sum += after[i] - before[i];
    }
    double worst = 0;
    for (int i = 0; i < jobs; ++i)
      worst = std::max(worst, std::abs(static_cast<double>(after[i] - before[i]) / static_cast<double>(sum) - 1.0 / jobs));
    out.windows.push_back(worst);
    before = after;
  }
  const double took = static_cast<double>(now_ns() - from) * 1e-9;
  std::uint64_t sum = 0;
  for (int i = 0; i < jobs; ++i) sum += before[i] - first[i];
  for (int i = 0; i < jobs; ++i)
    out.share.push_back(static_cast<double>(before[i] - first[i]) / static_cast<double>(sum));
  out.per_second = static_cast<double>(sum) / took;
  board.end = true;
  // Who is held sees the end of the others as its turn.
  for (Child& child : children) child.wait();
  return out;
}

// How long until all processes of a job stand still, and how long until they go on.
std::vector<Duration> measure_freezes(int times, int workers) {
  std::vector<Duration> out;
  testing::Gate there;
  Child child([&] {
    for (int i = 0; i < workers; ++i)
      if (fork() == 0) {
        for (;;) pause();
      }
    there.open();
    volatile double sink = 1;
    for (;;) sink = compute_round(sink);
    return 0;
  });
  there.pass();
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const auto below = children_of(pid);
  const Descriptor process = open_process(pid);
  StoppedTree tree;
  for (int i = 0; i < times; ++i) {
    const std::int64_t from = now_ns();
    tree.stop(pid, process);
    const auto still = [](std::uint32_t each) { return process_state(each) == 'T'; };
    // Asleep in between: who is to stop may need this very processor for it.
    while (!still(pid) || !std::ranges::all_of(below, still)) usleep(10);
    out.emplace_back(now_ns() - from);
    tree.go_on();
    while (still(pid)) usleep(10);
    usleep(2000);
  }
  for (const std::uint32_t each : below) kill(static_cast<pid_t>(each), SIGKILL);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App program{"How jobs share a device under the broker"};
  program.add_option("--jobs", settings.jobs, "Beside one alone")->check(CLI::Range(2, most_jobs))->capture_default_str();
  program.add_option("--seconds", settings.seconds, "Of each part")->check(CLI::Range(2.0, 600.0))->capture_default_str();
  program.add_option("--iteration-ms", settings.iteration_ms, "Of each job")->check(CLI::Range(0.01, 1000.0))->capture_default_str();
  program.add_option("--quantum-ms", settings.quantum_ms, "Of fair")->check(CLI::Range(1.0, 1000.0))->capture_default_str();
  program.add_option("--poll-us", settings.poll_us, "Of the broker, around expected boundaries; 0: never")->check(CLI::Range(0.0, 10000.0))->capture_default_str();
  program.add_flag("--json", settings.json, "One JSON object");
  CLI11_PARSE(program, argc, argv);

  char folder[] = "/tmp/carillon-share-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string socket = std::string(folder) + "/s";
  void* const shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Board& board = *new (shared) Board;
  const std::uint64_t rounds = rounds_of(settings.iteration_ms);
  Child broker = broker_process(socket, settings);

  // One alone before and after, so that a machine that grew slower meanwhile is seen.
  const Shares alone = run_jobs(socket, board, 1, settings.seconds / 2, rounds);
  board.marks = 0;
  const Shares together = run_jobs(socket, board, settings.jobs, settings.seconds, rounds);
  const std::uint32_t marks = std::min<std::uint32_t>(board.marks, most_marks);
  const Shares again = run_jobs(socket, board, 1, settings.seconds / 2, rounds);
  std::vector<Duration> hand_overs;
  for (std::uint32_t i = 0; i < marks; ++i) hand_overs.emplace_back(board.mark[i]);
  auto freezes = measure_freezes(200, 4);
  broker.signal(SIGKILL);
  std::filesystem::remove_all(folder);

  const double one = (alone.per_second + again.per_second) / 2;
  const nlohmann::ordered_json out{
      {"jobs", settings.jobs},
      {"iteration_ms", settings.iteration_ms},
      {"quantum_ms", settings.quantum_ms},
      {"poll_us", settings.poll_us},
      {"throughput_of_one_alone", together.per_second / one},
      {"one_alone_after_to_before", again.per_second / alone.per_second},
      {"shares", together.share},
      {"worst_share_error_of_2s_windows", *std::ranges::max_element(together.windows)},
      {"median_share_error_of_2s_windows",
       [&] {
         auto sorted = together.windows;
         std::ranges::sort(sorted);
         return sorted[sorted.size() / 2];
       }()},
      {"hand_overs", marks},
      {"hand_over_us", {{"p50", to_us(percentile(hand_overs, 0.5))},
                        {"p99", to_us(percentile(hand_overs, 0.99))},
                        {"max", to_us(percentile(hand_overs, 1))}}},
      {"freeze_five_processes_us", {{"p50", to_us(percentile(freezes, 0.5))}, {"p99", to_us(percentile(freezes, 0.99))}}}};
  std::printf("%s\n", out.dump(settings.json ? -1 : 2).c_str());
  return 0;
}
