#include "carillon/schedule/parts/kinds.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/parts/waiting.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule::parts {
namespace {

// Batches of one model. All requests of a batch have one name. A batch takes what its longest request does.
class KindsTest : public ::testing::Test {
 protected:
  static constexpr ModelId model{0};

  KindsTest() { comes(model); }

  void comes(ModelId id) {
    kinds_.changed(id, model_comes(testing::linear_model(id.value, 10ms, 10ms, 0, 0ms, {1, 2, 4, 8})).info);
  }
  // A request of the application comes. True: it fills a batch of `rows`, which runs.
  bool asks(std::uint32_t app, double times, std::size_t rows = 4) {
    const Request request{
        .id = RequestId{next_++}, .model = model, .app = AppId{app}, .deadline = TimePoint::max()};
    kinds_.arrived(request, now_);
    follow();
    const ModelId as = kinds_.of(request);
    EXPECT_EQ(kinds_.model(as), model);
    now_ += 1ms;
    auto& waits = waiting_[as];
    waits.push_back(times);
    if (waits.size() < rows) return false;
    const double longest = *std::ranges::max_element(waits);
    waits.clear();
    const std::size_t index = rows == 1 ? 0 : rows == 2 ? 1 : rows == 4 ? 2 : 3;
    kinds_.ran(as, index, from_ns(10e6 * (1 + static_cast<double>(rows) * longest)), now_);
    follow();
    return true;
  }
  ModelId name(std::uint32_t app) const { return kinds_.of({.model = model, .app = AppId{app}}); }
  void follow() {
    auto changes = kinds_.take_changes();
    for (const auto& [from, to] : changes.moves) {
      auto moved = std::move(waiting_[from]);
      waiting_[from].clear();
      waiting_[to].insert(waiting_[to].end(), moved.begin(), moved.end());
    }
    for (const auto& come : changes.come) {
      told_[come.as] = come.info;
      last_ = std::max(last_, come.as);
    }
    forgotten_ += changes.forgotten ? 1 : 0;
  }

  Kinds kinds_{true, false};
  TimePoint now_{};
  std::uint64_t next_ = 0;
  std::map<ModelId, std::vector<double>> waiting_;
  std::map<ModelId, std::shared_ptr<const ModelInfo>> told_;
  ModelId last_{0};
  int forgotten_ = 0;
};

TEST_F(KindsTest, OneApplicationHasNoKinds) {
  for (int i = 0; i < 1000; ++i) asks(7, i % 2 == 0 ? 1 : 5);
  EXPECT_EQ(name(7), model);
  EXPECT_TRUE(told_.empty());
}

TEST_F(KindsTest, ApplicationsOfAlikeTimesAreOfOneKind) {
  for (int i = 0; i < 400; ++i) {
    asks(1, 1);
    asks(2, 4);
    asks(3, 1.1);
    asks(0, 2);  // tells none
  }
  EXPECT_EQ(kinds_.kinds(model), 2U);
  EXPECT_EQ(name(1), name(3));
  EXPECT_NE(name(1), name(2));
  EXPECT_EQ(name(0), model);
  EXPECT_EQ(name(9), model) << "not known yet";
  // Where batches of one size ran, those of others are expected to take more for the rows than for the rest.
  const auto& batches = told_.at(name(2))->batches;
  EXPECT_NEAR(to_seconds(batches[2].exec), 0.170, 0.02);
  EXPECT_GT(to_seconds(batches[3].exec), 0.28);
  EXPECT_LT(to_seconds(batches[0].exec), 0.08);
}

TEST_F(KindsTest, KindsOfBatchesOfUnlikeSizesAreTheSame) {
  for (int i = 0; i < 400; ++i) {
    asks(1, 1, 1);
    asks(2, 4, 8);
    asks(3, 4, i % 3 == 0 ? 2 : 4);
  }
  EXPECT_EQ(kinds_.kinds(model), 2U);
  EXPECT_EQ(name(2), name(3));
}

TEST_F(KindsTest, WhatTakesAHundredTimesAsLongIsAnotherKindAndComesBack) {
  const auto both = [&](double times) {
    for (int i = 0; i < 2000; ++i) {
      asks(1, times);
      asks(2, 1);
      asks(3, 4);
    }
  };
  both(1);
  EXPECT_EQ(name(1), name(2));
  both(100);
  EXPECT_NE(name(1), name(2));
  EXPECT_NE(name(2), name(3));
  both(1);
  EXPECT_EQ(name(1), name(2));
  EXPECT_EQ(kinds_.kinds(model), 2U);
}

TEST_F(KindsTest, OneOddBatchOfATrialCountsForNothing) {
  bool odd = false;
  for (int i = 0; i < 400; ++i) {
    asks(1, 1);
    asks(2, !odd && kinds_.model(name(2)) != name(2) ? (odd = true, 50) : 1);
  }
  EXPECT_TRUE(odd);
  EXPECT_EQ(name(1), name(2));
}

TEST_F(KindsTest, WhatComesOnceIsNeverTried) {
  for (std::uint32_t i = 1; i <= 1'000'000; ++i) {
    asks(i, 1);
    EXPECT_EQ(name(i), model);
  }
  EXPECT_EQ(last_, model);
}

TEST_F(KindsTest, KnownApplicationsAreKeptThoughManyOthersCome) {
  std::uint32_t other = 100;
  for (int i = 0; i < 2000; ++i) {
    asks(1, 1);
    asks(2, 4);
    for (int k = 0; k < 10; ++k) asks(other++, 1);
  }
  EXPECT_NE(name(1), name(2));
  EXPECT_NE(name(1), model);
}

TEST_F(KindsTest, NamesAreFewHoweverManyKindsThereAre) {
  double times = 1;
  for (std::uint32_t app = 1; app < 60; ++app, times *= 1.3)
    for (int i = 0; i < 60; ++i) asks(app, times), asks(60, 1);
  EXPECT_EQ(kinds_.kinds(model), Kinds::most_kinds);
  EXPECT_LE(last_.value, 1 + Kinds::most_kinds);
}

TEST_F(KindsTest, AnotherVersionOfTheModelIsLearnedAnew) {
  for (int i = 0; i < 400; ++i) asks(1, 1), asks(2, 4);
  const ModelId before = name(2);
  comes(model);
  follow();
  EXPECT_EQ(name(2), model);
  kinds_.ran(before, 0, 1ms, now_);  // was under way
  for (int i = 0; i < 400; ++i) asks(1, 1), asks(2, 4);
  EXPECT_NE(name(1), name(2));
  EXPECT_LE(last_.value, 3U) << "names are used again";
}

TEST_F(KindsTest, ANewModelTakesTheNameOfAKind) {
  for (int i = 0; i < 400; ++i) asks(1, 1), asks(2, 4);
  const ModelId before = name(1);
  comes(ModelId{1});
  follow();
  EXPECT_EQ(forgotten_, 1);
  EXPECT_EQ(kinds_.model(ModelId{1}), ModelId{1});
  EXPECT_EQ(name(1), model);
  kinds_.ran(before, 0, 1ms, now_);
  for (int i = 0; i < 400; ++i) asks(1, 1), asks(2, 4);
  EXPECT_NE(name(1), name(2));
  EXPECT_GT(name(1).value, 1U);
}

// In a slow spell a kind was found to take longer than its requests have, so that nothing of it runs.
TEST_F(KindsTest, WhatSeemsToTakeTooLongIsTriedAgain) {
  for (int i = 0; i < 400; ++i) asks(1, 1), asks(2, 4);
  for (int i = 0; i < 400; ++i) asks(1, 100), asks(2, 400);
  const ModelId slow = name(2);
  ASSERT_GT(told_.at(slow)->batches.front().exec, 1s);
  int tried = 0;
  for (int i = 0; i < 40; ++i) {  // a request in half a second; whatever is not on trial is refused
    const Request request{
        .id = RequestId{next_++}, .model = model, .app = AppId{2}, .arrival = now_, .deadline = now_ + 500ms};
    kinds_.arrived(request, now_);
    follow();
    const ModelId as = kinds_.of(request);
    if (told_.at(as)->batches.front().exec < 500ms) {
      ++tried;
      kinds_.ran(as, 0, i < 20 ? Duration{4s} : Duration{50ms}, now_);
      follow();
    }
    now_ += 500ms;
  }
  EXPECT_GT(tried, 5);
  EXPECT_LT(tried, 25);
  EXPECT_LT(told_.at(name(2))->batches.front().exec, 100ms);
}

TEST(WaitingByName, CountsForTheModelThatHasTheName) {
  Waiting waiting;
  const ModelId name{7};
  const auto request = [](std::uint64_t id, std::uint32_t model) {
    return Request{.id = RequestId{id}, .model = ModelId{model}, .deadline = TimePoint{1s}};
  };
  waiting.know(name, ModelId{0});
  waiting.put(request(1, 0), name);
  waiting.put(request(2, 0));
  EXPECT_EQ(waiting.size(ModelId{0}), 2U);
  EXPECT_EQ(waiting.all(ModelId{0}).size(), 2U);
  EXPECT_EQ(waiting.head(ModelId{0})->id, RequestId{1});
  waiting.move(name, ModelId{0}, Class::normal);
  EXPECT_EQ(waiting.size(name, Class::normal), 0U);
  EXPECT_EQ(waiting.size(ModelId{0}, Class::normal), 2U);
  EXPECT_TRUE(waiting.remove(RequestId{1}));
  waiting.know(name, ModelId{1});  // another model's now
  waiting.put(request(3, 1), name);
  EXPECT_EQ(waiting.size(ModelId{0}), 1U);
  EXPECT_EQ(waiting.size(ModelId{1}), 1U);
}

TEST_F(KindsTest, WhatNeverRunsIsTriedEverMoreSeldom) {
  asks(1, 1);
  int tried = 0;
  bool on_trial = false;
  for (int i = 0; i < 20000; ++i) {
    const Request request{
        .id = RequestId{next_++}, .model = model, .app = AppId{2}, .deadline = TimePoint::max()};
    kinds_.arrived(request, now_);
    follow();
    const bool now = name(2) != model;
    tried += now && !on_trial ? 1 : 0;
    on_trial = now;
  }
  EXPECT_GE(tried, 2);
  EXPECT_LE(tried, 12);
}

}  // namespace
}  // namespace carillon::schedule::parts
