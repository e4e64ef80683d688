#include "carillon/schedule/abandoned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sends what it is told to with the next event.
class Sends final : public Scheduler {
 public:
  std::string_view name() const override { return "sends"; }
  TimePoint decide(const Event&, TimePoint, Actions& out) override {
    out.insert(out.end(), next.begin(), next.end());
    next.clear();
    return TimePoint::max();
  }
  Actions next;
};

struct AbandonedTest : ::testing::Test {
  // What is stopped as `event` happens, while the policy sends `next`.
  std::vector<std::uint64_t> stopped(const Event& event, Actions next = {}) {
    policy->next = std::move(next);
    Actions out;
    ends.decide(event, TimePoint{}, out);
    std::vector<std::uint64_t> ids;
    for (const Action& action : out)
      if (const auto* stop = std::get_if<Stop>(&action)) {
        EXPECT_EQ(stop->device, DeviceId{1});
        ids.push_back(stop->id.value);
      }
    return ids;
  }
  static Infer infer(std::uint64_t id, std::uint32_t model, std::vector<RequestId> requests) {
    return {{id}, {1}, {model}, std::move(requests), {TimePoint{}, TimePoint::max()}, 1ms};
  }
  static RequestCancelled leaves(std::uint64_t request, std::uint32_t model = 0) {
    return {{request}, {model}};
  }
  Sends* policy = new Sends;
  EndsAbandoned ends{std::unique_ptr<Scheduler>(policy)};
};

TEST_F(AbandonedTest, OnceTheLastClientHasGoneAndOnlyOnce) {
  EXPECT_THAT(stopped(Wake{}, {infer(7, 0, {{1}, {2}}), infer(8, 0, {{3}})}), IsEmpty());
  EXPECT_THAT(stopped(leaves(1)), IsEmpty()) << "another wants it";
  EXPECT_THAT(stopped(leaves(2)), ElementsAre(7));
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
  EXPECT_THAT(stopped(leaves(3)), ElementsAre(8));
}

TEST_F(AbandonedTest, NotWhatHasEnded) {
  stopped(Wake{}, {infer(7, 0, {{1}})});
  stopped(ActionDone{.id = {7}, .start = {}, .end = {}, .duration = 1ms});
  EXPECT_THAT(stopped(leaves(1)), IsEmpty());
}

TEST_F(AbandonedTest, OneThatIsTriedAgainIsAnother) {
  stopped(Wake{}, {infer(7, 0, {{1}, {2}})});
  stopped(ActionDone{.id = {7}, .status = ActionStatus::failed, .start = {}, .end = {}, .duration = 1ms},
          {infer(8, 0, {{1}})});
  EXPECT_THAT(stopped(leaves(1)), ElementsAre(8));
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
}

TEST_F(AbandonedTest, NotWhatADeviceHadThatWentOrWasGivenUp) {
  stopped(Wake{}, {infer(7, 3, {{1}}), infer(8, 0, {{2}})});
  stopped(DeviceChanged{{1}, false, 0});
  EXPECT_THAT(stopped(leaves(1, 3)), IsEmpty());
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
  stopped(Wake{}, {infer(9, 0, {{4}})});
  EXPECT_THAT(stopped(leaves(4), {GiveUp{{1}}}), IsEmpty()) << "given up just then";
}

// By its model alone: ids of requests are one sequence.
TEST_F(AbandonedTest, OfAModelThatNothingWasSentOf) {
  EXPECT_THAT(stopped(leaves(1, 40)), IsEmpty());
}

}  // namespace
}  // namespace carillon::schedule
