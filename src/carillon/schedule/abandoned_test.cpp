#include "carillon/schedule/abandoned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/schedule/ledgered.h"

namespace carillon::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sends what it is told to with the next event, and books it itself as a schedule::Policy does.
class Sends final : public Scheduler {
 public:
  std::string_view name() const override { return "sends"; }
  void reads(ledger::Ledger& read) override { ledger = &read; }
  TimePoint decide(const Event&, TimePoint now, Actions& out) override {
    for (const Action& order : next) ledger->book(order, now);
    out.insert(out.end(), next.begin(), next.end());
    next.clear();
    return TimePoint::max();
  }
  Actions next;
  ledger::Ledger* ledger = nullptr;
};

// Requests 1 to 4 have arrived.
struct AbandonedTest : ::testing::Test {
  AbandonedTest() {
    stopped(DeviceChanged{.device = {1}});
    for (std::uint64_t id = 1; id <= 4; ++id) stopped(RequestArrived{{.id = {id}, .model = {0}}});
  }
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
  static Infer infer(std::uint64_t id, std::vector<RequestId> requests) {
    return {{id}, {1}, {0}, std::move(requests), {TimePoint{}, TimePoint::max()}, 1ms};
  }
  static RequestCancelled leaves(std::uint64_t request) { return {{request}, {0}}; }
  Sends* policy = new Sends;
  Ledgered ends{std::make_unique<EndsAbandoned>(std::unique_ptr<Scheduler>(policy))};
};

TEST_F(AbandonedTest, AlsoWhereThePolicyOrdersSomethingElseThen) {
  EXPECT_THAT(stopped(Wake{}, {infer(7, {{1}})}), IsEmpty());
  EXPECT_THAT(stopped(leaves(1), {infer(8, {{2}})}), ElementsAre(7));
}

TEST_F(AbandonedTest, OnceTheLastClientHasGoneAndOnlyOnce) {
  EXPECT_THAT(stopped(Wake{}, {infer(7, {{1}, {2}}), infer(8, {{3}})}), IsEmpty());
  EXPECT_THAT(stopped(leaves(1)), IsEmpty()) << "another wants it";
  EXPECT_THAT(stopped(leaves(2)), ElementsAre(7));
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
  EXPECT_THAT(stopped(leaves(3)), ElementsAre(8));
}

TEST_F(AbandonedTest, NotWhatHasEnded) {
  stopped(Wake{}, {infer(7, {{1}})});
  stopped(ActionDone{.id = {7}, .start = {}, .end = {}, .duration = 1ms});
  EXPECT_THAT(stopped(leaves(1)), IsEmpty());
}

TEST_F(AbandonedTest, OneThatIsTriedAgainIsAnother) {
  stopped(Wake{}, {infer(7, {{1}, {2}})});
  stopped(ActionDone{.id = {7}, .status = ActionStatus::failed, .start = {}, .end = {}, .duration = 1ms},
          {infer(8, {{1}})});
  EXPECT_THAT(stopped(leaves(1)), ElementsAre(8));
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
}

TEST_F(AbandonedTest, NotWhatADeviceHadThatWentOrWasGivenUp) {
  stopped(Wake{}, {infer(7, {{1}}), infer(8, {{2}})});
  stopped(DeviceChanged{{1}, false, 0});
  EXPECT_THAT(stopped(leaves(1)), IsEmpty());
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
  stopped(DeviceChanged{.device = {1}});
  stopped(Wake{}, {infer(9, {{4}})});
  stopped(Wake{}, {GiveUp{{1}}});
  EXPECT_THAT(stopped(leaves(4)), IsEmpty());
}

TEST_F(AbandonedTest, NotForARequestThatWaitsOrThatNobodyMade) {
  stopped(Wake{}, {infer(7, {{1}})});
  EXPECT_THAT(stopped(leaves(2)), IsEmpty());
  EXPECT_THAT(stopped(leaves(99)), IsEmpty());
}

}  // namespace
}  // namespace carillon::schedule
