#include "carillon/provision/queueing.h"

#include <cmath>
#include <deque>
#include <limits>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::provision {
namespace {

Arrivals arrivals_of(const char* text) {
  return *read_arrivals(text);
}

QueueLoad whole(double rate_rps, double slo_ms) {
  return {.rate_rps = rate_rps, .workload_rps = rate_rps, .slo_ms = slo_ms};
}

// The share of requests that wait at most `t` services in M/D/1 (Erlang 1909), t < 5 or so: its terms have
// both signs.
double md1_waits_at_most(double load, double t) {
  double sum = 0;
  for (int k = 0; k <= std::floor(t); ++k) {
    const double x = load * (k - t);
    sum += std::pow(x, k) / std::tgamma(k + 1) * std::exp(-x);
  }
  return (1 - load) * sum;
}

TEST(Queueing, BatchesOfOneAreTheQueueMD1) {
  const Arrivals poisson = arrivals_of("poisson");
  for (const double load : {0.3, 0.5, 0.7})
    for (const double waits : {0.0, 0.5, 1.0, 2.0, 3.5}) {
      // A service of 2 ms, and so many of them to wait for.
      const Replayed seen =
          replay(poisson, 500 * load, {.busy_ms = {2}}, 2 * (1 + waits) + 1e-6, {.noise = 0});
      EXPECT_EQ(seen.requests, poisson.times.size());
      EXPECT_NEAR(seen.on_time(), md1_waits_at_most(load, waits), 0.008) << load << " " << waits;
    }
}

TEST(Queueing, EvenGapsNeverWaitBelowFullLoad) {
  const Arrivals constant = arrivals_of("constant");
  EXPECT_EQ(replay(constant, 499, {.busy_ms = {2}}, 2.001, {.noise = 0}).late, 0u);
  EXPECT_EQ(replay(constant, 499, {.busy_ms = {2}}, 1.999, {.noise = 0}).on_time(), 0);
  EXPECT_LT(replay(constant, 510, {.busy_ms = {2}}, 20, {.noise = 0}).on_time(), 0.01) << "overload";
  // Loading comes before: it lengthens a latency, but not what the device is taken for.
  EXPECT_EQ(replay(constant, 499, {.load_ms = 0.5, .busy_ms = {2}}, 2.501, {.noise = 0}).late, 0u);
  EXPECT_EQ(replay(constant, 499, {.load_ms = 0.5, .busy_ms = {2}}, 2.499, {.noise = 0}).on_time(), 0);
}

// A second model of the queue, to compare replay() with: a simulation event by event, with its own arrivals.
// Returns the share of requests that end in time.
double on_time_by_events(const char* process, double rate_rps, const BatchTimes& times, double slo_ms,
                         std::uint64_t seed) {
  Random random(seed);
  const double shape = process == std::string("gamma:0.5") ? 0.5 : 1;
  std::deque<double> waiting;
  double arrives = 0, free = -1e9;
  std::uint64_t late = 0;
  constexpr int all = 400'000;
  for (int served = 0; served < all;) {
    // The device may form a batch once the one before has so little left that loading hides.
    const double can_form = free - times.load_ms;
    if (waiting.empty() || arrives <= can_form) {
      waiting.push_back(arrives);
      arrives += random.gamma(shape, 1000 / rate_rps / shape);
      continue;
    }
    const double formed = std::max(can_form, waiting.front());
    if (arrives <= formed) {
      waiting.push_back(arrives);
      arrives += random.gamma(shape, 1000 / rate_rps / shape);
      continue;
    }
    const std::size_t size = std::min(waiting.size(), times.busy_ms.size());
    free = formed + times.load_ms + times.busy_ms[size - 1];
    for (std::size_t i = 0; i < size; ++i) {
      if (free - waiting.front() > slo_ms) ++late;
      waiting.pop_front();
      ++served;
    }
  }
  return 1 - static_cast<double>(late) / all;
}

TEST(Queueing, BatchesAgreeWithASimulation) {
  BatchTimes times{.load_ms = 0.4, .busy_ms = {}};
  for (int n = 1; n <= 8; ++n) times.busy_ms.push_back(3 + 1.5 * n);
  for (const char* process : {"poisson", "gamma:0.5"})
    for (const double rate : {150.0, 300.0, 400.0})
      for (const double slo : {15.0, 25.0, 40.0}) {
        const double expected = on_time_by_events(process, rate, times, slo, 11);
        const double seen = replay(arrivals_of(process), rate, times, slo, {.noise = 0}).on_time();
        EXPECT_NEAR(seen, expected, 0.02 * std::sqrt(1 - expected) + 0.002)
            << process << " " << rate << " " << slo;
      }
}

TEST(Queueing, MoreOfEverythingIsLater) {
  BatchTimes times{.load_ms = 0.1, .busy_ms = {4, 6, 8, 10}};
  const Arrivals poisson = arrivals_of("poisson"), bursts = arrivals_of("gamma:0.5");
  const double plain = replay(poisson, 250, times, 20).on_time();
  EXPECT_GT(plain, 0.9);
  EXPECT_LT(plain, 1);
  EXPECT_GT(replay(poisson, 200, times, 20).on_time(), plain);
  EXPECT_GT(replay(poisson, 250, times, 22).on_time(), plain);
  EXPECT_LT(replay(poisson, 250, times, 20, {.factor = 1.1}).on_time(), plain);
  EXPECT_LT(replay(bursts, 250, times, 20).on_time(), plain);
  EXPECT_GT(replay(arrivals_of("constant"), 250, times, 20).on_time(), plain);
  EXPECT_GT(replay(poisson, 250, times, 20).clustering, 1.5) << "late requests come together";
  // What ends early tells no more than that.
  const Replayed ended = replay(poisson, 250, times, 20, {.most_late = 10});
  EXPECT_GT(ended.late, 10u);
  EXPECT_LT(ended.requests, poisson.times.size());
}

// The probability from the distributions' textbook forms.
TEST(Queueing, ChancesOfCountsInClusters) {
  EXPECT_NEAR(chance_of_more(2, 1, 0), 1 - std::exp(-2), 1e-12);
  EXPECT_NEAR(chance_of_more(2, 1, 3), 0.1428765, 1e-6);
  EXPECT_EQ(chance_of_more(0, 5, 0), 0);
  // With a clustering of 1 + mean the negative binomial is geometric: (mean / (1 + mean)) ^ (most + 1).
  EXPECT_NEAR(chance_of_more(4, 5, 9), std::pow(0.8, 10), 1e-9);
  EXPECT_NEAR(chance_of_more(1000, 4, 1000 + 2 * std::sqrt(4000.0) - 0.5), 0.02275, 1e-5);
  EXPECT_GT(chance_of_more(5, 3, 10), chance_of_more(5, 2, 10));
  EXPECT_NEAR(normal_exceeded(0.5), 0, 1e-9);
  EXPECT_NEAR(normal_exceeded(0.025), 1.959964, 1e-6);
  EXPECT_NEAR(normal_exceeded(0.0025), 2.807034, 1e-6);
}

// Spans of 30 s one by one: the promise is broken in about as many as it allows.
TEST(Queueing, ThePromiseHoldsInSpans) {
  BatchTimes times{.load_ms = 0.1, .busy_ms = {}};
  for (int n = 1; n <= 8; ++n) times.busy_ms.push_back(3 + 1.5 * n);
  for (const char* process : {"poisson", "gamma:0.5"}) {
    const QueueRule rule{.arrivals = arrivals_of(process)};
    for (const double slo : {16.0, 30.0}) {
      double low = 1, high = 600;  // the largest rate at which it is kept
      for (int i = 0; i < 30; ++i) {
        const double middle = (low + high) / 2;
        (keeps_promise(rule, whole(middle, slo), times) ? low : high) = middle;
      }
      ASSERT_GT(low, 20) << process;
      int broken = 0;
      constexpr int spans = 1000;
      const double shape = process == std::string("gamma:0.5") ? 0.5 : 1;
      Random random(29);
      for (int span = 0; span < spans; ++span) {
        Arrivals own{.text = process, .times = {}};
        for (double at = 0; at < promise_span_s * low; at += random.gamma(shape, 1 / shape))
          own.times.push_back(at);
        const Replayed seen = replay(own, low, times, slo);
        broken += seen.on_time() < 0.99 ? 1 : 0;
      }
      EXPECT_LE(broken, spans * 0.02) << process << " " << slo << " at " << low << " a second";
    }
  }
}

TEST(Queueing, ThePromiseHasMarginsForErrors) {
  const BatchTimes times{.load_ms = 0.1, .busy_ms = {4, 6, 8, 10}};
  const auto largest = [&](double error, double percentile) {
    const QueueRule rule{.arrivals = arrivals_of("poisson"), .percentile = percentile, .model_error = error};
    double low = 0.1, high = 1000;
    for (int i = 0; i < 30; ++i) {
      const double middle = (low + high) / 2;
      (keeps_promise(rule, whole(middle, 20), times) ? low : high) = middle;
    }
    return low;
  };
  EXPECT_GT(largest(0, 0.9), largest(0, 0.99));
  EXPECT_GT(largest(0, 0.99), largest(0.05, 0.99));
  EXPECT_GT(largest(0.05, 0.99), largest(0.1, 0.99));
  EXPECT_GT(largest(0.1, 0.99), 50);
  // Times without end, or none at all, keep nothing.
  const QueueRule rule{.arrivals = arrivals_of("poisson")};
  EXPECT_FALSE(keeps_promise(rule, whole(1, 20), {.busy_ms = {std::numeric_limits<double>::infinity()}}));
  EXPECT_FALSE(keeps_promise(rule, whole(1, 20), {.busy_ms = {1, NAN}}));
  EXPECT_FALSE(keeps_promise(rule, whole(1, 20), {.busy_ms = {0}}));
}

TEST(Queueing, PartsOfAWorkloadShareItsPercentile) {
  const BatchTimes times{.load_ms = 0.1, .busy_ms = {4, 6, 8, 10}};
  const QueueRule rule{.arrivals = arrivals_of("poisson")};
  double low = 1, high = 400;  // the largest rate of which half a workload of its own keeps the promise
  for (int i = 0; i < 30; ++i) {
    const double middle = (low + high) / 2;
    (keeps_promise(rule, whole(middle, 20), times) ? low : high) = middle;
  }
  EXPECT_FALSE(keeps_promise(rule, whole(1.01 * low, 20), times));
  EXPECT_TRUE(keeps_promise(rule, {.rate_rps = 1.01 * low, .workload_rps = 8 * low, .slo_ms = 20}, times));
}

TEST(Queueing, RecordedArrivalsAreHeldToThePercentileOverAll) {
  // Nine of ten come at even gaps, and then a burst of ten at once, which takes 10 ms.
  std::string text;
  for (int i = 0; i < 90; ++i) text += std::to_string(i) + "\n";
  for (int i = 0; i < 10; ++i) text += "90\n";
  const QueueRule rule{.arrivals = *parse_arrival_times(text, "f")};
  const double rate = 10;
  EXPECT_TRUE(keeps_promise(rule, whole(rate, 11), {.busy_ms = {1}}));
  EXPECT_FALSE(keeps_promise(rule, whole(rate, 5), {.busy_ms = {1}}));
  QueueRule lax = rule;
  lax.percentile = 0.9;
  EXPECT_TRUE(keeps_promise(lax, whole(rate, 5), {.busy_ms = {1}}));
}

}  // namespace
}  // namespace carillon::provision
