#include "carillon/schedule/symphony/threads/symphony_threads.h"

#include <algorithm>
#include <tuple>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

constexpr Duration tick = 250us;

std::vector<ModelInfo> resnets(int count) {
  std::vector<ModelInfo> models;
  for (int m = 0; m < count; ++m) {
    models.push_back({.id = ModelId{static_cast<std::uint32_t>(m)}, .name = {}, .load = {}, .batches = {}});
    for (int b = 1; b <= 32; ++b) models.back().batches.push_back({b, from_ms(1.053 * b + 5.072)});
  }
  return models;
}

std::vector<Request> poisson(int models, double rate, Duration slo, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<Request> requests(count);
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    at += random.exponential(1e9 / rate);
    const TimePoint arrival{from_ns(at)};
    requests[i] = {
        .id = RequestId{i},
        .model = ModelId{static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(models)))},
        .arrival = arrival,
        .deadline = arrival + slo};
  }
  return requests;
}

struct Outcomes {
  std::vector<int> of;  // outcomes by request
  std::vector<SentBatch> batches;
  std::size_t on_time = 0, late = 0, dropped = 0;
  SymphonyThreadsFigures figures;
};

Outcomes run(int threads, double hold, const std::vector<Request>& requests, int models, int devices,
             Duration go_on_for) {
  struct Own {  // what one thread may touch
    std::size_t next = 0;
    std::vector<SentBatch> batches;
    std::vector<RequestId> dropped;
  };
  std::vector<Own> own(static_cast<std::size_t>(threads));
  TimePoint now{};
  const TimePoint end = requests.back().arrival + go_on_for;
  const SymphonyWorld world{
      .next_round = [&]() -> std::optional<TimePoint> {
        if (now >= end) return std::nullopt;
        return now += tick;
      },
      .arrivals =
          [&](int thread, ModelId first, ModelId last, TimePoint at, std::vector<Request>& out) {
            std::size_t& next = own[static_cast<std::size_t>(thread)].next;
            for (; next < requests.size() && requests[next].arrival <= at; ++next)
              if (requests[next].model >= first && requests[next].model < last) out.push_back(requests[next]);
          },
      .sent = [&](int thread,
                  SentBatch&& b) { own[static_cast<std::size_t>(thread)].batches.push_back(std::move(b)); },
      .dropped = [&](int thread, const Request& request,
                     TimePoint) { own[static_cast<std::size_t>(thread)].dropped.push_back(request.id); }};
  SymphonyThreadsOptions options{
      .environment = {.dispatch = 100us, .answer = 0ns, .overrun = 0}, .threads = threads, .ahead = 2 * tick};
  options.symphony.hold = hold;
  if (hold == 0) options.symphony.exceeded = 1;  // what threads measure differs
  Outcomes all;
  all.figures = run_symphony_threads(options, resnets(models), devices, world);
  all.of.resize(requests.size());
  for (Own& o : own) {
    for (const RequestId id : o.dropped) ++all.of[id.index()];
    all.dropped += o.dropped.size();
    for (SentBatch& b : o.batches) {
      for (const Request& r : b.requests) {
        ++all.of[r.id.index()];
        ++(b.end <= r.deadline ? all.on_time : all.late);
        EXPECT_EQ(r.model, b.model);
      }
      all.batches.push_back(std::move(b));
    }
  }
  std::sort(all.batches.begin(), all.batches.end(), [](const SentBatch& a, const SentBatch& b) {
    return std::tie(a.device, a.start) < std::tie(b.device, b.start);
  });
  return all;
}

class SymphonyThreads : public ::testing::TestWithParam<int> {};

TEST_P(SymphonyThreads, EveryRequestHasOneOutcomeAndNoDeviceIsGivenTwice) {
  // Eight devices serve about 5,800 a second of these: half of that, and three times as much.
  for (const double rate : {2900.0, 17000.0})
    for (const int models : {1, 17}) {
      const auto requests = poisson(models, rate, 60ms, 4000, 7);
      for (const Duration go_on_for : {Duration{0}, Duration{200ms}}) {
        const Outcomes all = run(GetParam(), 0.87, requests, models, 8, go_on_for);
        for (std::size_t i = 0; i < requests.size(); ++i) ASSERT_EQ(all.of[i], 1) << "request " << i;
        EXPECT_EQ(all.late, 0U);
        for (std::size_t i = 1; i < all.batches.size(); ++i)
          if (all.batches[i].device == all.batches[i - 1].device) {
            ASSERT_GE(all.batches[i].start, all.batches[i - 1].end)
                << "device " << all.batches[i].device.value;
          }
        for (const SentBatch& b : all.batches) {
          ASSERT_LT(b.device.value, 8U);
          ASSERT_EQ(b.end - b.start, from_ms(1.053 * static_cast<double>(b.requests.size()) + 5.072));
        }
        // A grant may be on its way when it ends.
        const std::uint64_t arrived = all.batches.size() + all.figures.empty_grants;
        EXPECT_LE(arrived, all.figures.grants);
        EXPECT_LE(all.figures.grants, arrived + (go_on_for > Duration{0} ? 0 : 8));
        if (rate < 3000 && go_on_for > Duration{0}) {
          EXPECT_LT(all.dropped, requests.size() / 100) << models;
        }
        if (rate > 3000) {  // overloaded, the devices stay busy with good batches
          Duration busy{0};
          for (const SentBatch& b : all.batches) busy += b.end - b.start;
          EXPECT_GT(busy, (requests.back().arrival - TimePoint{}) * 8 * 7 / 10) << models;
        }
      }
    }
}

TEST_P(SymphonyThreads, DecidesAsOneThreadDoes) {
  const auto requests = poisson(17, 4500, 60ms, 4000, 3);
  const Outcomes one = run(1, 0, requests, 17, 8, 200ms);
  const Outcomes many = run(GetParam(), 0, requests, 17, 8, 200ms);
  ASSERT_EQ(one.batches.size(), many.batches.size());
  for (std::size_t i = 0; i < one.batches.size(); ++i) {
    EXPECT_EQ(one.batches[i].model, many.batches[i].model) << i;
    EXPECT_EQ(one.batches[i].start, many.batches[i].start) << i;
    EXPECT_EQ(one.batches[i].requests, many.batches[i].requests) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, SymphonyThreads, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace carillon::schedule
