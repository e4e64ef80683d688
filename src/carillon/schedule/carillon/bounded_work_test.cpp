#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/carillon/carillon.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

// Devices that do what they are told in the time that they should take, and requests that come at random.
// Counts what each event looks at, and what becomes of each request.
class BoundedWork : public ::testing::Test {
 protected:
  struct World {
    std::uint32_t models = 1, devices = 1;
    std::uint64_t pages = 0;  // of a device; a model takes one where this is not 0
    double rate = 1;          // requests a second
    std::uint32_t asked = 0;  // models that requests ask for; 0: all
    std::size_t requests = 1;
    bool own_application = false;  // each request's
    bool classes = false;          // devices have streams for each
  };
  struct Figures {
    std::uint64_t most = 0;  // looked at in an event, once all devices are there and requests have come
    double mean = 0;
    std::size_t answered = 0, refused = 0;
  };

  static Figures run(const World& world) {
    auto policy = std::make_unique<Carillon>(
        Environment{.dispatch = {}, .answer = {}, .overrun = 0, .classes = world.classes});
    const Carillon& counts = *policy;
    Ledgered scheduler(std::move(policy));
    struct End {
      TimePoint at, start;
      ActionId id;
      std::size_t requests = 0;
      bool operator>(const End& other) const { return std::pair(at, id) > std::pair(other.at, other.id); }
    };
    std::priority_queue<End, std::vector<End>, std::greater<>> ends;
    std::vector<int> outcomes(world.requests);
    Figures figures;
    TimePoint wake = TimePoint::max();
    std::size_t events = 0;
    std::uint64_t looked_at = 0;
    const auto tell = [&](const Event& event, TimePoint now, bool counted) {
      Actions out;
      const std::uint64_t before = counts.looked_at();
      wake = scheduler.decide(event, now, out);
      const std::uint64_t looks = counts.looked_at() - before;
      if (counted) {
        figures.most = std::max(figures.most, looks);
        looked_at += looks;
        ++events;
      }
      for (const Action& action : out) {
        if (const auto* infer = std::get_if<Infer>(&action)) {
          const TimePoint start = std::max(now, infer->window.earliest);
          ends.push({start + infer->expected, start, infer->id, infer->requests.size()});
          for (const RequestId id : infer->requests) ++outcomes[static_cast<std::size_t>(id.value)];
          figures.answered += infer->requests.size();
        } else if (const auto* refuse = std::get_if<Refuse>(&action)) {
          ++outcomes[static_cast<std::size_t>(refuse->request.value)];
          ++figures.refused;
        } else if (const auto* load = std::get_if<Load>(&action)) {
          ends.push({now + load->expected, now, load->id});
        } else if (const auto* unload = std::get_if<Unload>(&action)) {
          ends.push({now, now, unload->id});
        }
      }
    };
    for (std::uint32_t m = 0; m < world.models; ++m)
      tell(model_comes(testing::linear_model(m, 1ms, 5ms, world.pages > 0 ? 1 : 0, 8ms)), {}, false);
    for (std::uint32_t d = 0; d < world.devices; ++d)
      tell(DeviceChanged{DeviceId{d}, true, std::max<std::uint64_t>(1, world.pages)}, {}, false);
    Random random(1);
    TimePoint arrival{};
    for (std::size_t i = 0; i < world.requests || !ends.empty();) {
      const bool counted = i > world.requests / 4;
      const TimePoint next = i < world.requests ? arrival : TimePoint::max();
      const TimePoint end = ends.empty() ? TimePoint::max() : ends.top().at;
      if (end <= next && end <= wake) {
        const End e = ends.top();
        ends.pop();
        tell(ActionDone{.id = e.id, .start = e.start, .end = e.at, .duration = e.at - e.start}, e.at,
             counted);
      } else if (wake < next) {
        tell(Wake{}, wake, counted);
      } else {
        const std::uint64_t models = world.asked > 0 ? world.asked : world.models;
        tell(RequestArrived{{.id = RequestId{i},
                             .model = ModelId{static_cast<std::uint32_t>(random.below(models))},
                             .app = AppId{world.own_application ? static_cast<std::uint32_t>(i) : 0},
                             .arrival = arrival,
                             .deadline = arrival + 100ms}},
             arrival, counted);
        ++i;
        arrival += from_seconds(random.exponential(1 / world.rate));
      }
    }
    for (TimePoint now = wake;
         wake != TimePoint::max() && figures.answered + figures.refused < world.requests; now = wake)
      tell(Wake{}, now, false);
    EXPECT_EQ(std::ranges::count(outcomes, 1), static_cast<std::ptrdiff_t>(world.requests))
        << "each request has one outcome";
    figures.mean = static_cast<double>(looked_at) / static_cast<double>(events);
    return figures;
  }
};

TEST_F(BoundedWork, GrowsNotWithModelsAndDevices) {
  // Each device is asked for as much.
  const Figures few = run({.models = 64, .devices = 64, .rate = 64 * 400, .requests = 20000});
  const Figures many = run({.models = 2000, .devices = 1000, .rate = 1000 * 400, .requests = 100000});
  EXPECT_LE(few.refused, 200U) << "before rates are known";
  EXPECT_LE(few.mean, 4);
  EXPECT_LE(many.mean, 4);
  EXPECT_LE(few.most, 500U);  // of what a new plan may change
  EXPECT_LE(many.most, 500U);
}

TEST_F(BoundedWork, GrowsNotWithModelsAndDevicesWhereMemoryIsShort) {
  const Figures few = run({.models = 200, .devices = 20, .pages = 50, .rate = 20 * 400, .requests = 20000});
  const Figures many =
      run({.models = 2000, .devices = 200, .pages = 500, .rate = 200 * 400, .requests = 30000});
  EXPECT_LE(few.mean, 200);
  EXPECT_LE(many.mean, 200);
  EXPECT_LE(few.most, 2000U);
  EXPECT_LE(many.most, 2000U);
}

TEST_F(BoundedWork, UnderOverload) {
  const Figures figures = run({.models = 1000, .devices = 100, .rate = 400'000, .requests = 100'000});
  EXPECT_GT(figures.refused, 0U);
  EXPECT_LE(figures.mean, 10);
  EXPECT_LE(figures.most, 400U);
}

// Streams of the other classes have nothing to do, and lines whose requests were all refused nothing to
// start.
TEST_F(BoundedWork, UnderOverloadOfOneDeviceWithShortMemoryAndClasses) {
  const World world{.models = 500, .devices = 1, .pages = 200, .rate = 300, .requests = 20'000};
  World with_classes = world;
  with_classes.classes = true;
  const Figures without = run(world), with = run(with_classes);
  EXPECT_GT(with.refused, 4000U);
  EXPECT_LE(without.mean, 30);
  EXPECT_LE(with.mean, 1.2 * without.mean);
  EXPECT_LE(with.most, 400U);
}

TEST_F(BoundedWork, OfManyModelsThatAreSeldomAskedFor) {
  const Figures figures =
      run({.models = 10'000, .devices = 20, .pages = 100, .rate = 10'000 / 60.0, .requests = 2000});
  EXPECT_LE(figures.most, 2000U);
}

TEST_F(BoundedWork, OfOneModelThatAllAskFor) {
  const Figures figures =
      run({.models = 1000, .devices = 10, .rate = 200'000, .asked = 1, .requests = 100'000});
  EXPECT_GT(figures.refused, 0U);
  EXPECT_LE(figures.most, 200U);
}

TEST_F(BoundedWork, OfAsManyApplicationsAsRequests) {
  const Figures figures =
      run({.models = 10, .devices = 10, .rate = 4000, .requests = 100'000, .own_application = true});
  EXPECT_LE(figures.refused, 100U) << "before rates are known";
  EXPECT_LE(figures.most, 200U);
}

TEST_F(BoundedWork, OfAsManyApplicationsAsRequestsUnderOverload) {
  const Figures figures =
      run({.models = 10, .devices = 10, .rate = 40'000, .requests = 100'000, .own_application = true});
  EXPECT_GT(figures.refused, 0U);
  EXPECT_LE(figures.most, 400U);
}

}  // namespace
}  // namespace carillon::schedule
