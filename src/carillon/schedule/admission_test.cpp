#include "carillon/schedule/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::SimWorld;

constexpr TimePoint zero{};
constexpr double without_bound = std::numeric_limits<double>::infinity();

TEST(DueWork, RoomIsTheTimeUntilADeadlineOverTheWorkThatIsDueByThen) {
  DueWork work;
  EXPECT_EQ(work.room(zero + 10ms, 4ms, zero, 1, zero), without_bound);
  work.add(zero + 5ms, 2ms, zero);
  EXPECT_DOUBLE_EQ(work.room(zero + 10ms, 4ms, zero, 1, zero), 3);          // (10 - 4) / 2
  EXPECT_DOUBLE_EQ(work.room(zero + 10ms, 4ms, zero + 1ms, 1, zero), 2.5);  // work begins later
  EXPECT_DOUBLE_EQ(work.room(zero + 10ms, 4ms, zero, 2, zero), 6);          // two do it
  work.remove(zero + 5ms, 2ms, zero);
  EXPECT_EQ(work.room(zero + 10ms, 4ms, zero, 1, zero), without_bound);
}

TEST(DueWork, RoomIsThatOfTheNarrowestDeadlineBehind) {
  DueWork work;
  work.add(zero + 20ms, 12ms, zero);
  // Behind it 8 of 20 ms are left, as work counts as due at the end of its millisecond: of 21.
  EXPECT_DOUBLE_EQ(work.room(zero + 10ms, 4ms, zero, 1, zero), (21.0 - 4) / 12);
  EXPECT_LT(work.room(zero + 10ms, 10ms, zero, 1, zero), 1);
  EXPECT_DOUBLE_EQ(work.room(zero + 30ms, 4ms, zero, 1, zero), 26.0 / 12);
}

TEST(DueWork, WhatWasDueIsForgotten) {
  DueWork work;
  work.add(zero + 5ms, 2ms, zero);
  EXPECT_EQ(work.room(zero + 20ms, 1ms, zero + 7ms, 1, zero + 7ms), without_bound);
  work.remove(zero + 5ms, 2ms, zero + 7ms);  // does no harm
  // Its place in the ring has another time now, over and over: of each there is one work alone.
  TimePoint now = zero + 7ms;
  for (int i = 0; i < 9000; ++i) {
    now += 1ms;
    work.add(now + 2s, 1ms, now);
    ASSERT_NEAR(work.room(now + 2s + 10ms, 0ms, now, 1, now), 2010.0 / std::min(i + 1, 2001), 1e-9) << i;
  }
  EXPECT_FALSE(DueWork::reaches(now + 3s, now));
  EXPECT_FALSE(DueWork::reaches(now, now));
}

TEST(Allowance, RisesAsFarAsWouldHaveHelpedAndIsForgotten) {
  Allowance allowance;
  EXPECT_DOUBLE_EQ(allowance.at(zero), 1);
  for (int i = 0; i < 100; ++i) allowance.came_late(1.5, zero);
  EXPECT_NEAR(allowance.at(zero), 1.5, 1e-9);
  allowance.came_late(1.2, zero);  // it would be kept out today
  EXPECT_NEAR(allowance.at(zero), 1.5, 1e-9);
  allowance.came_late(50, zero);  // nobody's work was in its way
  EXPECT_NEAR(allowance.at(zero), 1.5, 1e-9);
  EXPECT_NEAR(allowance.at(zero + forgotten_after), std::pow(1.5, 0.125), 1e-3);
  EXPECT_NEAR(allowance.at(zero + 3600s), 1, 1e-9);
}

TEST(Allowance, RestsWhereTheShareThatComesLateIsWhatIsPromised) {
  Allowance allowance;
  const int refusals = static_cast<int>(1 / Allowance::promised);
  for (int round = 0; round < 20; ++round) {
    for (int i = 1; i < refusals; ++i) allowance.turned_away(zero);
    allowance.came_late(3, zero);
  }
  EXPECT_NEAR(allowance.at(zero), 1, 0.05);
  for (int i = 0; i < 100'000; ++i) allowance.turned_away(zero);
  EXPECT_NEAR(allowance.at(zero), 0.5, 1e-9);
}

TEST(Allowance, FallsAsLongAsThoseRunThatHadHardlyRoom) {
  Allowance allowance(0.1);
  allowance.ran(2, zero);
  allowance.ran(without_bound, zero);
  EXPECT_DOUBLE_EQ(allowance.at(zero), 1) << "they had more room than tells anything";
  for (int i = 0; i < 10; ++i) {
    allowance.came_late(1.2, zero);
    for (int k = 0; k < 9; ++k) allowance.ran(1.2, zero);
  }
  EXPECT_NEAR(allowance.at(zero), 1, 0.02) << "it rests where a tenth is refused later";
  for (int i = 0; i < 1000; ++i) allowance.ran(0.7, zero);
  EXPECT_NEAR(allowance.at(zero), 0.5, 1e-9);
}

// Records the events that it hears, refuses nothing, and answers a Wake with the actions in `says`.
class Hears final : public Scheduler {
 public:
  std::string_view name() const override { return "hears"; }
  TimePoint decide(const Event& event, TimePoint, Actions& out) override {
    if (const auto* arrival = std::get_if<RequestArrived>(&event))
      heard += arrival->more ? "more " : "came ";
    else if (std::holds_alternative<AllArrived>(event))
      heard += "all ";
    else if (std::holds_alternative<Wake>(event))
      out.insert(out.end(), says.begin(), says.end());
    return TimePoint::max();
  }
  bool favours(const Request& request, TimePoint) const override { return request.app == favoured; }
  void turned_away(const Request&, TimePoint) override { ++away; }
  bool by_chance() const override { return chances; }

  std::string heard;
  Actions says;  // at a Wake
  std::optional<AppId> favoured;
  bool chances = false;
  int away = 0;
};

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() {
    auto hears = std::make_unique<Hears>();
    policy = hears.get();
    admission = std::make_unique<Admission>(std::move(hears));
    for (std::uint32_t m = 0; m < 2; ++m) tell(model_comes(linear_model(m, 10ms, 0ms, m == 0 ? 0 : 4, 30ms)));
    tell(model_comes(linear_model(2, 1ms, 0ms, 0)));
    tell(model_comes(linear_model(3, 40ms, 0ms, 0)));
    tell(DeviceChanged{{0}, true, 100});
  }
  void tell(const Event& event) { admission->decide(event, now, out); }
  // Whether it was refused on its arrival.
  bool refused(Duration deadline, std::uint32_t model = 0, bool more = false) {
    out.clear();
    const Request request{
        .id = {next++}, .model = {model}, .app = {}, .arrival = now, .deadline = now + deadline};
    tell(RequestArrived{request, more});
    const auto refusals = testing::of_kind<Refuse>(out);
    for (const Refuse& refusal : refusals) {
      EXPECT_EQ(refusal.request, request.id);
      EXPECT_EQ(refusal.reason, Reason::cannot_finish);
      EXPECT_GT(refusal.would_finish, request.deadline);
      EXPECT_LT(refusal.would_finish, request.deadline + 3s);
    }
    return !refusals.empty();
  }
  void says(Action action) {
    policy->says.assign(1, std::move(action));
    tell(Wake{});
  }
  void ends(std::uint64_t action, Duration took, ActionStatus status = ActionStatus::success) {
    tell(ActionDone{{action}, status, now - took, now, took});
  }
  // How many of those come in that are due then.
  int room_for(Duration deadline, std::uint32_t model = 0) {
    int count = 0;
    while (!refused(deadline, model)) ++count;
    return count;
  }

  Hears* policy = nullptr;
  std::unique_ptr<Admission> admission;
  Actions out;
  TimePoint now = zero + 1s;
  std::uint64_t next = 0;
};

TEST_F(AdmissionTest, RefusesWhatFindsNoRoomBesideThoseThatWait) {
  EXPECT_EQ(room_for(100ms), 10);
  EXPECT_TRUE(refused(50ms));  // it would make others late
  EXPECT_FALSE(refused(200ms));
}

TEST_F(AdmissionTest, ThePolicyHearsOfThoseThatAreAdmitted) {
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(refused(100ms));
  policy->heard.clear();
  EXPECT_FALSE(refused(100ms, 0, true));
  EXPECT_TRUE(refused(100ms, 0, true));
  tell(AllArrived{});
  EXPECT_EQ(policy->heard, "more all ");
  EXPECT_TRUE(refused(100ms, 0, true));
  tell(AllArrived{});
  EXPECT_EQ(policy->heard, "more all ");
}

TEST_F(AdmissionTest, WhatWaitsIsNotInTheWayOfWhatThePolicyFavours) {
  EXPECT_EQ(room_for(100ms), 10);
  EXPECT_EQ(policy->away, 1) << "the policy hears of what is turned away";
  EXPECT_TRUE(refused(50ms));
  policy->favoured = AppId{};
  EXPECT_FALSE(refused(50ms));
  policy->favoured.reset();
  EXPECT_TRUE(refused(60ms)) << "it takes room itself";
}

TEST_F(AdmissionTest, LeavesTheRestToThePolicy) {
  EXPECT_EQ(room_for(100ms), 10);
  EXPECT_FALSE(refused(5ms));       // it could not be on time on an idle device
  EXPECT_FALSE(refused(5s));        // far away
  EXPECT_FALSE(refused(100ms, 1));  // it waits for a LOAD
  for (const TimePoint deadline : {TimePoint::max(), TimePoint::min(), now, now + 1ns}) {
    out.clear();
    tell(RequestArrived{{.id = {next++}, .model = {0}, .app = {}, .arrival = now, .deadline = deadline}});
    EXPECT_TRUE(out.empty());
  }
}

TEST_F(AdmissionTest, WhoWaitsNoMoreTakesNoRoom) {
  EXPECT_EQ(room_for(100ms), 10);
  tell(RequestCancelled{{3}, {0}});
  EXPECT_EQ(room_for(100ms), 1);
  now += 200ms;
  EXPECT_EQ(room_for(100ms), 10);
}

TEST_F(AdmissionTest, WhatIsCheapNeedsLessRoomAndWhatIsDearNoMore) {
  EXPECT_EQ(room_for(100ms), 10);
  EXPECT_FALSE(refused(100ms, 2));
  for (int i = 0; i < 2000; ++i) refused(100ms, 2);  // the average falls
  now += 200ms;
  EXPECT_EQ(room_for(100ms, 3), 2);
}

TEST_F(AdmissionTest, WhatDevicesWereSentTakesTheTimeThatIsLeftOfIt) {
  says(Infer{.id = {7}, .device = {0}, .model = {0}, .requests = {{90}}, .window = {}, .expected = 50ms});
  EXPECT_EQ(room_for(100ms), 5);
  now += 200ms;
  says(Infer{.id = {8}, .device = {0}, .model = {0}, .requests = {{91}}, .window = {}, .expected = 50ms});
  EXPECT_EQ(room_for(100ms), 5);  // the first is overdue
  ends(7, 10ms);
  now += 200ms;
  EXPECT_EQ(room_for(100ms), 10);
  tell(DeviceChanged{{0}, false});
  EXPECT_FALSE(refused(100ms));
  now += 200ms;
  tell(DeviceChanged{{0}, true, 100});
  EXPECT_EQ(room_for(100ms), 10);
  ends(8, 10ms);  // of the life before
}

TEST_F(AdmissionTest, ModelsCountWhileTheyAreLoaded) {
  says(Load{.id = {1}, .device = {0}, .model = {1}, .window = {}, .expected = 30ms});
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(refused(100ms, 1));
  ends(1, 30ms);
  EXPECT_EQ(room_for(100ms, 1), 10);
  says(Unload{.id = {2}, .device = {0}, .model = {1}});
  EXPECT_FALSE(refused(100ms, 1));
  says(Load{.id = {3}, .device = {0}, .model = {1}, .window = {}, .expected = 30ms});
  ends(3, 0ms, ActionStatus::failed);
  EXPECT_FALSE(refused(100ms, 1));
  says(Load{.id = {4}, .device = {0}, .model = {1}, .window = {}, .expected = 30ms});
  tell(model_comes(linear_model(1, 10ms, 0ms, 4, 30ms)));
  ends(4, 30ms);  // of the version before
  EXPECT_FALSE(refused(100ms, 1));
}

TEST_F(AdmissionTest, TimesAreThoseThatRunsTook) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    says(Infer{.id = {100 + i},
               .device = {0},
               .model = {0},
               .requests = {{500 + i}},
               .window = {},
               .expected = 10ms});
    now += 20ms;
    ends(100 + i, 20ms);
  }
  now += 200ms;
  EXPECT_EQ(room_for(100ms), 11);  // a batch of 8 adds (80 - 20) / 7 ms a request
}

TEST_F(AdmissionTest, RunsTakeWhatTheyUsuallyDoToAPolicyThatGoesByChances) {
  const auto room = [&](bool chances) {
    policy->chances = chances;
    const std::uint32_t model = chances ? 5 : 4;
    tell(model_comes(linear_model(model, 40ms, 0ms, 0, 30ms, {1})));
    for (std::uint64_t i = 0; i < 20; ++i) {
      says(Infer{.id = {100 + i},
                 .device = {0},
                 .model = {model},
                 .requests = {{500 + i}},
                 .window = {},
                 .expected = 40ms});
      const Duration took = i % 5 == 0 ? 70ms : 40ms;
      now += took;
      ends(100 + i, took);
    }
    now += 200ms;
    return room_for(155ms, model);
  };
  EXPECT_EQ(room(true), 3);
  EXPECT_EQ(room(false), 2) << "one in five takes 70 ms";
}

TEST_F(AdmissionTest, ARefusalThatComesLateMakesRoomDearer) {
  EXPECT_EQ(room_for(1s), 100);
  for (std::uint64_t i = 40; i < 100; ++i) says(Refuse{{i}, Reason::deadline_passed, TimePoint::max()});
  now += 1s;
  EXPECT_LT(room_for(1s), 80);
}

struct AdmissionTold {
  std::string text() const {
    return "on time " + std::to_string(on_time) + ", late " + std::to_string(late) + ", refused " +
           std::to_string(refused) + ", later " + std::to_string(refused_later);
  }

  double on_time = 0, late = 0;
  std::size_t refused = 0, refused_later = 0;
};

struct Offered {
  double rate = 0;  // requests a second, of all models together by Zipf's law
  std::uint32_t models = 100;
  std::vector<std::uint64_t> pages{1000};
  Duration load = 2ms;
  double alpha_ms = 2, beta_ms = 1;
  double shortest_ms = 50, longest_ms = 100;
  double hiccups = 0;
  double noise = 0.1;
  std::uint64_t seed = 1;
};

AdmissionTold offered(const std::string& policy, bool admission, const Offered& offer) {
  Environment environment = live_environment();
  environment.admission = admission;
  environment.profile_share = 0;
  auto scheduler = make_scheduler(policy, environment);
  std::vector<ModelInfo> models;
  Random random(offer.seed);
  for (std::uint32_t m = 0; m < offer.models; ++m)
    models.push_back(linear_model(m, from_ms(offer.alpha_ms * (0.5 + random.uniform())),
                                  from_ms(offer.beta_ms), 4, offer.load, {1, 2, 4, 8, 16}));
  SimWorld world(**scheduler,
                 {.seed = offer.seed,
                  .pages = offer.pages,
                  .noise = offer.noise,
                  .hiccups = offer.hiccups,
                  .classes = true},
                 models);
  std::vector<double> ends;
  double total = 0;
  for (std::uint32_t m = 0; m < offer.models; ++m) ends.push_back(total += 1.0 / (m + 1));
  Duration now = 10ms;
  while (now < 20s) {
    now += from_seconds(random.exponential(1 / offer.rate));
    const auto model =
        static_cast<std::uint32_t>(std::ranges::lower_bound(ends, random.uniform() * total) - ends.begin());
    const double deadline = offer.shortest_ms + (offer.longest_ms - offer.shortest_ms) *
                                                    ((model * 7) % offer.models) / offer.models;
    world.arrive({.id = {},
                  .model = {std::min(model, offer.models - 1)},
                  .app = {},
                  .arrival = {},
                  .deadline = TimePoint{now + from_ms(deadline)}},
                 TimePoint{now});
  }
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  AdmissionTold told;
  for (const auto& log : world.requests()) {
    told.on_time += log.outcome == testing::Outcome::on_time;
    told.late += log.outcome == testing::Outcome::late;
    if (log.outcome != testing::Outcome::refused) continue;
    ++told.refused;
    told.refused_later += log.answered - log.request.arrival > 5ms;
  }
  told.on_time /= static_cast<double>(world.requests().size());
  told.late /= static_cast<double>(world.requests().size());
  return told;
}

class AdmissionOf : public ::testing::TestWithParam<std::string> {};

const Offered linear{}, batches_gain{.models = 10, .alpha_ms = 0.2, .beta_ms = 4},
    four_devices{.pages = {200, 200, 200, 200}}, scarce{.pages = {120}, .load = 10ms},
    unlike_deadlines{.shortest_ms = 20, .longest_ms = 1000};

TEST_P(AdmissionOf, UnderOverloadRefusalsComeAtOnceAndAnswersStay) {
  const struct {
    std::string_view what;
    const Offered& offer;
    double rate, later, kept;
  } rows[] = {{"linear", linear, 600, 0.04, 0.97},
              {"four devices", four_devices, 2400, 0.04, 0.93},
              {"scarce memory", scarce, 600, 0.6, 0.97},  // LOADs are the policy's
              {"unlike deadlines", unlike_deadlines, 600, 0.13, 0.95}};
  for (const auto& row : rows) {
    Offered offer = row.offer;
    offer.rate = row.rate;
    const AdmissionTold without = offered(GetParam(), false, offer), with = offered(GetParam(), true, offer);
    SCOPED_TRACE(std::string(row.what) + ", without " + without.text() + ", with " + with.text());
    EXPECT_GT(static_cast<double>(without.refused_later), 0.9 * static_cast<double>(without.refused));
    EXPECT_LT(static_cast<double>(with.refused_later), row.later * static_cast<double>(with.refused));
    EXPECT_GT(with.on_time, row.kept * without.on_time);
  }
}

TEST_P(AdmissionOf, WithoutOverloadNothingIsLost) {
  const struct {
    const Offered& offer;
    double rate;
  } rows[] = {
      {linear, 270}, {four_devices, 1080}, {scarce, 270}, {unlike_deadlines, 270}, {batches_gain, 720}};
  for (const auto& row : rows) {
    Offered offer = row.offer;
    offer.rate = row.rate;
    const AdmissionTold without = offered(GetParam(), false, offer), with = offered(GetParam(), true, offer);
    EXPECT_GT(with.on_time, without.on_time - 0.006) << row.rate;
  }
}

// A model alone on a device whose runs take up to three times as long as usual: that few do is no reason to
// turn away at half the load.
TEST(AdmissionOfCarillon, WhereTimesVaryNothingIsLostWithoutOverload) {
  for (const double rate : {60.0, 80.0}) {
    const Offered offer{.rate = rate,
                        .models = 1,
                        .alpha_ms = 3,
                        .beta_ms = 0,
                        .shortest_ms = 28,
                        .longest_ms = 28,
                        .noise = 0.6};
    const AdmissionTold without = offered("carillon", false, offer), with = offered("carillon", true, offer);
    SCOPED_TRACE("without " + without.text() + ", with " + with.text());
    EXPECT_GT(with.on_time, without.on_time - 0.003);
  }
}

// What may well be late is better than nothing, however much is asked for.
TEST(AdmissionOfCarillon, AModelWhoseRunsAreOftenTooLongRunsUnderOverload) {
  const Offered offer{
      .rate = 60, .models = 1, .alpha_ms = 9, .beta_ms = 0, .shortest_ms = 28, .longest_ms = 28, .noise = 1};
  const AdmissionTold clockwork = offered("clockwork", false, offer),
                      told = offered("carillon", false, offer);
  SCOPED_TRACE("clockwork " + clockwork.text() + ", carillon " + told.text());
  EXPECT_GT(told.on_time, 0.8 * clockwork.on_time);
}

// Where a batch of many takes little longer than one, who waits is served: the queue is what makes it
// efficient.
TEST_P(AdmissionOf, QueuesThatBatchesLiveOnAreLeft) {
  Offered offer = batches_gain;
  offer.rate = 1600;
  EXPECT_GT(offered(GetParam(), true, offer).on_time, 0.97 * offered(GetParam(), false, offer).on_time);
}

INSTANTIATE_TEST_SUITE_P(All, AdmissionOf, ::testing::Values("clockwork", "symphony"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace carillon::schedule
