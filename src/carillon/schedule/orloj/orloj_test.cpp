#include "carillon/schedule/orloj/orloj.h"

#include <cmath>
#include <variant>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/testing/audit.h"

namespace carillon::schedule {
namespace {

using orloj::CostStep;
using orloj::score_of;
using Bin = profile::Distribution::Bin;

constexpr Environment ideal{.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0};

// Equation 4.1 by summing over the batch's time and the delay in small steps.
double by_integration(const std::vector<Bin>& bins, double mean, const std::vector<CostStep>& costs, double b,
                      double now) {
  const auto cost_at = [&](double end) {
    double sum = 0;
    for (const CostStep& step : costs) sum += end > step.deadline ? step.cost : 0;
    return sum;
  };
  double sum = 0;
  for (const Bin& bin : bins) {
    constexpr int pieces = 400;
    for (int i = 0; i < pieces; ++i) {
      const double time = bin.low + (bin.high - bin.low) * (i + 0.5) / pieces;
      // Of the delay: the cost jumps where now + delay + time passes a deadline, so each piece is exact.
      double delayed = cost_at(now + time);
      for (const CostStep& step : costs)
        if (now + time <= step.deadline) delayed += step.cost * std::exp(-b * (step.deadline - now - time));
      sum += bin.probability / pieces * (delayed - cost_at(now + time));
    }
  }
  return sum / mean;
}

TEST(OrlojScore, IsEquation41) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Bin> bins;
    double at = 50 * random.uniform(), mean = 0;
    const int count = 1 + static_cast<int>(random.below(6));
    for (int i = 0; i < count; ++i) {
      const double width = 0.1 + 20 * random.uniform();
      bins.push_back({at, at + width, 1.0 / count});
      mean += (at + width / 2) / count;
      at += width + 10 * random.uniform();
    }
    std::vector<CostStep> costs;
    for (std::uint64_t i = 0; i <= random.below(3); ++i)
      costs.push_back({200 * random.uniform(), random.uniform()});
    const double b = std::pow(10, -6 + 5 * random.uniform());
    const double now = 150 * random.uniform();
    const auto score = score_of(bins, mean, costs, b, now);
    const double want = by_integration(bins, mean, costs, b, now);
    EXPECT_NEAR(score.at(std::exp(b * now)), want, 2e-3 * std::abs(want) + 3e-4) << round;
    // The same two numbers hold until the milestone.
    const double later = std::isfinite(score.until) ? now + 0.999 * (score.until - now) : now + 5;
    EXPECT_NEAR(score.at(std::exp(b * later)), score_of(bins, mean, costs, b, later).at(std::exp(b * later)),
                1e-6);
    EXPECT_GT(score.until, now);
  }
}

TEST(OrlojScore, FallsToNothingWhenItIsTooLate) {
  const std::vector<Bin> bins{{10, 20, 1}};
  const CostStep step{30, 1};
  EXPECT_EQ(score_of(bins, 15, {&step, 1}, 1e-4, 20).at(std::exp(1e-4 * 20)), 0);
  EXPECT_GT(score_of(bins, 15, {&step, 1}, 1e-4, 15).at(std::exp(1e-4 * 15)), 0);
  EXPECT_EQ(score_of(bins, 15, {}, 1e-4, 0).point.alpha, 0);
}

ModelInfo dynamic_model() {
  ModelInfo info{.id = ModelId{0}, .name = "m", .batches = {}};
  for (const int k : {1, 2, 4, 8}) info.batches.push_back({k, from_ms(2 + 10.0 * k)});
  return info;
}

struct Hand {
  explicit Hand(const OrlojOptions& options = {}, TimePoint start = {}) : orloj(ideal, options), now(start) {
    driven.decide(model_comes(dynamic_model()), now, out);
    driven.decide(DeviceChanged{DeviceId{0}, true, 10}, now, out);
  }
  RequestId arrive(int app, Duration slo) {
    const RequestId id{next++};
    driven.decide(RequestArrived{{.id = id,
                                  .model = ModelId{0},
                                  .app = AppId{static_cast<std::uint32_t>(app)},
                                  .arrival = now,
                                  .deadline = now + slo}},
                  now, out);
    return id;
  }
  void learn(int app, double mean_ms, double deviation_ms) {
    for (int i = 0; i < 200; ++i)
      driven.decide(RequestProfiled{ModelId{0}, AppId{static_cast<std::uint32_t>(app)},
                                    from_ms(std::max(0.1, mean_ms + deviation_ms * random.normal()))},
                    now, out);
    now += 1s;  // distributions are made anew
    driven.decide(RequestProfiled{ModelId{0}, AppId{static_cast<std::uint32_t>(app)}, from_ms(mean_ms)}, now,
                  out);
  }
  std::vector<Infer> infers() {
    std::vector<Infer> sent;
    for (const Action& action : out)
      if (const auto* infer = std::get_if<Infer>(&action)) sent.push_back(*infer);
    out.clear();
    return sent;
  }
  void done(const Infer& infer, Duration took, int threads = 0) {
    const TimePoint start = now;
    now += took;
    driven.decide(ActionDone{.id = infer.id,
                             .status = ActionStatus::success,
                             .start = start,
                             .end = now,
                             .duration = took,
                             .threads = threads},
                  now, out);
  }
  // One request of `app` by itself, which takes so long.
  void run(int app, Duration took, int threads) {
    arrive(app, 10s);
    const auto sent = infers();
    ASSERT_EQ(sent.size(), 1U);
    done(sent[0], took, threads);
  }
  double expected_ms(int app) {
    return to_ms(orloj.expected_batch(ModelId{0}, AppId{static_cast<std::uint32_t>(app)}, 1));
  }
  Orloj orloj;
  testing::Shadowed driven{orloj, 0};  // with a ledger
  TimePoint now;
  Actions out;
  Random random{3};
  std::uint64_t next = 0;
};

TEST(Orloj, LearnsHowLongApplicationsTake) {
  Hand hand;
  hand.learn(0, 5, 0.5);
  hand.learn(1, 40, 3);
  hand.arrive(0, 10s);
  hand.arrive(1, 10s);
  hand.now += 1s;
  hand.learn(0, 5, 0.5);
  hand.arrive(0, 10s);
  const double quick = to_ms(hand.orloj.expected_batch(ModelId{0}, AppId{0}, 1));
  const double slow = to_ms(hand.orloj.expected_batch(ModelId{0}, AppId{1}, 1));
  EXPECT_NEAR(quick, 5, 1);
  EXPECT_NEAR(slow, 40, 4);
  EXPECT_GT(to_ms(hand.orloj.expected_batch(ModelId{0}, AppId{0}, 8)), 4 * quick) << "others come along";
}

TimesChanged times_of(std::initializer_list<double> ms) {
  TimesChanged change{ModelId{0}, dynamic_model().batches};
  auto next = change.batches.begin();
  for (const double each : ms) (next++)->exec = from_ms(each);
  return change;
}

// What company costs is that of the new plans, and a batch that was sent before teaches nothing of them.
TEST(Orloj, LargerBatchesTakeWhatTheirNewPlansTake) {
  Hand hand;
  const auto of_eight = [&] { return to_ms(hand.orloj.expected_batch(ModelId{0}, AppId{0}, 8)); };
  const auto send_eight = [&] {
    hand.arrive(0, 10s);  // the device is busy
    const auto first = hand.infers().at(0);
    for (int i = 0; i < 8; ++i) hand.arrive(0, 10s);
    hand.done(first, 12ms);
    return hand.infers().at(0);
  };
  for (int i = 0; i < 20; ++i) hand.done(send_eight(), 82ms);
  EXPECT_NEAR(of_eight(), 82, 3);
  const Infer before = send_eight();
  ASSERT_EQ(before.requests.size(), 8U);
  hand.driven.decide(times_of({12, 14, 16, 20}), hand.now, hand.out);
  const double told = of_eight();
  EXPECT_NEAR(told, 20, 3);
  hand.done(before, 82ms);
  hand.now += 1s;
  hand.driven.decide(Wake{}, hand.now, hand.out);
  EXPECT_NEAR(of_eight(), told, 0.1);
  hand.done(send_eight(), 20ms);
  EXPECT_NEAR(of_eight(), 20, 3);
  hand.driven.decide(times_of({12, 24, 48, 96}), hand.now, hand.out);
  EXPECT_NEAR(of_eight(), 96, 5);
}

TEST(Orloj, SoloTimesAreForgottenWhereOneAloneTakesAnotherTime) {
  Hand hand;
  hand.learn(0, 5, 0.5);
  ASSERT_NEAR(hand.expected_ms(0), 5, 1.5);
  hand.driven.decide(times_of({12, 14, 16, 20}), hand.now, hand.out);
  EXPECT_NEAR(hand.expected_ms(0), 5, 1.5) << "one alone takes what it took";
  hand.driven.decide(times_of({24, 28, 32, 40}), hand.now, hand.out);
  EXPECT_NEAR(hand.expected_ms(0), 24, 4);
}

// One run tells, also of applications that did not run, and nothing that was learned is lost.
TEST(Orloj, AnotherNumberOfThreadsIsAnotherPace) {
  Hand hand;
  hand.learn(0, 5, 0.2);
  hand.learn(1, 40, 1);
  for (int i = 0; i < 20; ++i) hand.run(0, 5ms, 4);
  const double quick = hand.expected_ms(0), slow = hand.expected_ms(1);
  EXPECT_NEAR(quick, 5, 1);
  EXPECT_NEAR(slow, 40, 3);
  hand.run(0, 10ms, 2);
  EXPECT_NEAR(hand.expected_ms(0), 2 * quick, 0.4 * quick);
  EXPECT_NEAR(hand.expected_ms(1), 2 * slow, 0.4 * slow);
  // What would be late now is refused at once.
  hand.arrive(1, 60ms);
  ASSERT_EQ(hand.out.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Refuse>(hand.out[0]));
  hand.out.clear();
  for (int i = 0; i < 400; ++i) hand.run(0, 10ms, 2);
  hand.now += 1s;  // distributions are made anew, of what was learned meanwhile
  hand.run(0, 10ms, 2);
  EXPECT_NEAR(hand.expected_ms(0), 2 * quick, 0.4 * quick);
  EXPECT_NEAR(hand.expected_ms(1), 2 * slow, 0.4 * slow);
  hand.run(0, 5ms, 4);
  EXPECT_NEAR(hand.expected_ms(0), quick, 0.2 * quick);
  EXPECT_NEAR(hand.expected_ms(1), slow, 0.2 * slow);
  // An odd run is not believed: four times is the most that half the threads may cost.
  hand.run(0, 500ms, 2);
  EXPECT_LE(hand.expected_ms(1), 4.01 * slow);
}

// A run of requests of which nothing is known may be long for any reason: the next that tells is believed.
TEST(Orloj, AnUnknownRequestTellsNoOtherPace) {
  Hand hand;
  hand.learn(0, 5, 0.2);
  hand.learn(1, 40, 1);
  for (int i = 0; i < 20; ++i) hand.run(0, 5ms, 4);
  const double slow = hand.expected_ms(1);
  hand.run(7, 500ms, 2);
  EXPECT_NEAR(hand.expected_ms(1), slow, 0.3 * slow);
  hand.run(0, 10ms, 2);
  EXPECT_NEAR(hand.expected_ms(1), 2 * slow, 0.4 * slow);
}

TEST(Orloj, AnotherNumberOfThreadsIsAnotherPaceOfAllModels) {
  Hand hand;
  ModelInfo other = dynamic_model();
  other.id = ModelId{1};
  other.name = "other";
  hand.driven.decide(model_comes(other), hand.now, hand.out);
  for (int i = 0; i < 200; ++i)
    hand.driven.decide(RequestProfiled{ModelId{1}, AppId{0}, from_ms(40 + hand.random.normal())}, hand.now,
                       hand.out);
  hand.learn(0, 5, 0.2);
  hand.driven.decide(RequestProfiled{ModelId{1}, AppId{0}, 40ms}, hand.now, hand.out);
  for (int i = 0; i < 20; ++i) hand.run(0, 5ms, 4);
  const auto expected = [&] { return to_ms(hand.orloj.expected_batch(ModelId{1}, AppId{0}, 1)); };
  const double before = expected();
  EXPECT_NEAR(before, 40, 3);
  hand.run(0, 10ms, 2);
  EXPECT_NEAR(expected(), 2 * before, 0.4 * before);
}

// Without another number of threads a lone run is a hiccup.
TEST(Orloj, OneSlowRunIsNoOtherPace) {
  Hand hand;
  hand.learn(0, 5, 0.2);
  hand.learn(1, 40, 1);
  for (int i = 0; i < 20; ++i) hand.run(0, 5ms, 4);
  const double slow = hand.expected_ms(1);
  hand.run(0, 10ms, 4);
  EXPECT_NEAR(hand.expected_ms(1), slow, 0.2 * slow);
  hand.run(0, 5ms, 4);
  hand.run(0, 10ms, 0);  // which does not tell
  EXPECT_NEAR(hand.expected_ms(1), slow, 0.2 * slow);
}

TEST(Orloj, WhereNotAllCanBeOnTimeQuickRequestsGoFirstAndTogether) {
  Hand hand;
  hand.learn(0, 5, 0.5);
  hand.learn(1, 40, 3);
  hand.arrive(1, 10s);
  const auto running = hand.infers();
  ASSERT_EQ(running.size(), 1U);
  std::vector<RequestId> quick;
  for (int i = 0; i < 4; ++i) {
    hand.arrive(1, 700ms);
    quick.push_back(hand.arrive(0, 700ms));
  }
  hand.done(running[0], 500ms);
  auto next = hand.infers();
  ASSERT_EQ(next.size(), 1U);
  std::sort(next[0].requests.begin(), next[0].requests.end());
  EXPECT_EQ(next[0].requests, quick) << "slow ones would hold them up";
}

TEST(Orloj, WhereAllCanBeOnTimeTheMostUrgentGoesFirstInItsOwnCompany) {
  Hand hand;
  hand.learn(0, 5, 0.5);
  hand.learn(1, 40, 3);
  hand.arrive(1, 10s);
  const auto running = hand.infers();
  ASSERT_EQ(running.size(), 1U);
  std::vector<RequestId> slow;
  for (int i = 0; i < 4; ++i) {
    hand.arrive(0, 5s);
    slow.push_back(hand.arrive(1, 4s));
  }
  hand.done(running[0], 500ms);
  auto next = hand.infers();
  ASSERT_EQ(next.size(), 1U);
  std::sort(next[0].requests.begin(), next[0].requests.end());
  EXPECT_EQ(next[0].requests, slow) << "quick ones would be padded to eight times their time";
}

TEST(Orloj, RefusesWhatIsTooLateAndForgetsWhatIsCancelled) {
  Hand hand;
  hand.learn(0, 10, 0.5);
  hand.arrive(0, 1s);
  const auto running = hand.infers();
  ASSERT_EQ(running.size(), 1U);
  const RequestId gone = hand.arrive(0, 1s), late = hand.arrive(0, 30ms), last = hand.arrive(0, 1s);
  hand.driven.decide(RequestCancelled{gone, ModelId{0}}, hand.now, hand.out);
  hand.out.clear();
  hand.done(running[0], 100ms);
  bool refused = false;
  for (const Action& action : hand.out)
    if (const auto* refuse = std::get_if<Refuse>(&action)) refused = refused || refuse->request == late;
  EXPECT_TRUE(refused);
  const auto next = hand.infers();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].requests, std::vector<RequestId>{last});
}

// Times far from the base, and a b so large that e^(bt) would overflow within seconds.
TEST(Orloj, TimesFarFromTheBaseDoNotOverflow) {
  for (const double b : {1e-6, 1e-4, 1e-1}) {
    Hand hand({.b = b}, TimePoint{} + std::chrono::hours{24 * 365});
    hand.learn(0, 10, 1);
    Random random(5);
    int answered = 0;
    std::vector<Infer> running;
    for (int i = 0; i < 3000; ++i) {
      hand.arrive(0, from_ms(50 + 2000 * random.uniform()));
      for (const Infer& infer : hand.infers()) running.push_back(infer);
      if (!running.empty()) {
        answered += static_cast<int>(running.front().requests.size());
        const Infer first = running.front();
        running.erase(running.begin());
        hand.done(first, from_ms(2 + 10.0 * static_cast<double>(first.requests.size())));
      } else {
        hand.now += 10ms;
      }
      for (const Infer& infer : hand.infers()) running.push_back(infer);
    }
    EXPECT_GT(answered, 2500) << b;
  }
}

}  // namespace
}  // namespace carillon::schedule
