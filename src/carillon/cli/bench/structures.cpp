#include "carillon/cli/bench/structures.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/cli/commands.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/orloj/dynamic_hull.h"

namespace carillon::cli {
namespace {

using BenchClock = std::chrono::steady_clock;

double ns_since(BenchClock::time_point from) {
  return std::chrono::duration<double, std::nano>(BenchClock::now() - from).count();
}

}  // namespace

int bench_queue(bool as_json, std::uint64_t seed) {
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
    auto from = BenchClock::now();
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
      from = BenchClock::now();
      for (std::uint32_t i = 0; i < round && done + static_cast<int>(i) < turns; ++i) {
        const std::uint32_t key = keys[static_cast<std::size_t>(done) + i];
        if (hull.erase(key)) gone.push_back(key);
      }
      erase += ns_since(from);
      from = BenchClock::now();
      for (std::size_t i = 0; i < gone.size(); ++i) {
        points[gone[i]] = fresh[static_cast<std::size_t>(done) + i];
        hull.insert(gone[i], points[gone[i]]);
      }
      insert += ns_since(from);
      done += static_cast<int>(gone.size());
    }
    from = BenchClock::now();
    std::uint64_t sum = 0;
    for (int i = 0; i < turns; ++i) sum += *hull.top(0.01 * i);
    const double best = ns_since(from) / turns + (sum == 1 ? 1e-9 : 0);
    std::vector<std::pair<double, std::uint32_t>> order(n);
    const int sorts = std::max(1, static_cast<int>(2'000'000 / n / 4));
    from = BenchClock::now();
    for (int s = 0; s < sorts; ++s) {
      for (std::uint32_t i = 0; i < n; ++i) order[i] = {points[i].alpha * (1 + s) + points[i].beta, i};
      std::sort(order.begin(), order.end());
    }
    const double sort = ns_since(from) / sorts;
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

int bench_door(bool as_json) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!as_json) fmt::print("{:>9}{:>14}{:>18}\n", "models", "through ns", "turned away ns");
  for (const std::uint32_t models : {1U, 100U, 10'000U}) {
    constexpr std::uint64_t turns = 1'000'000;
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
    auto from = BenchClock::now();
    for (std::uint64_t i = 0; i < turns; ++i) {
      now += 2us;
      arrive(i);
      taken.clear();
      const std::lock_guard lock(mutex);
      door.take(1, now, taken);
    }
    const double through = ns_since(from) / turns;
    // Twice as many as are taken, until what waits has stood for too long; then nothing is taken any more.
    for (std::uint64_t i = 0; i < 200'000; ++i) {
      now += 1us;
      arrive(turns + i);
      if (i % 2 == 0) continue;
      taken.clear();
      door.take(1, now, taken);
    }
    std::uint64_t in = 0;
    from = BenchClock::now();
    for (std::uint64_t i = 0; i < turns; ++i) in += arrive(2 * turns + i) ? 1 : 0;
    const double away = ns_since(from) / turns;
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

}  // namespace carillon::cli
