#include "carillon/controller/gates/sizes.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/testing/fakes.h"
#include "carillon/worker/fake_model.h"

namespace carillon::controller {
namespace {

using graph::Extents;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace std::chrono_literals;

class ReadableClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint{Duration{now_.load()}}; }
  void advance(Duration d) { now_ += d.count(); }

 private:
  std::atomic<Duration::rep> now_{1'000'000};
};

// Makes sizes when the test lets it, and remembers which there are.
class SizeWorker final : public testing::HeldWorker {
 public:
  using Made = std::pair<Extents, std::vector<int>>;

  Result<AddedSize> add_size(ModelId, std::int64_t size, std::span<const std::int64_t> extents,
                             std::span<const int> batches) override {
    std::unique_lock lock(mutex_);
    const Extents wanted(extents.begin(), extents.end());
    asked_.push_back({wanted, {batches.begin(), batches.end()}});
    changed_.notify_all();
    changed_.wait(lock, [&] { return permits_ > 0 || ended_; });
    if (permits_ == 0) return fail(ErrorCode::cancelled, "nobody wants it any more");
    --permits_;
    if (before_made) before_made();
    if (wanted[0] == 13) return invalid("nothing fits together at 13");
    if (wanted[0] == 14) return fail(ErrorCode::resource_exhausted, "14 is too large");
    if (wanted[0] == 15) return fail(ErrorCode::internal, "a bad day");
    if (batches[0] > most_batch) return fail(ErrorCode::resource_exhausted, "too many");
    here_.insert({size, wanted});
    return AddedSize{.outputs = {{batches[0], 2, wanted[0]}, {batches[0], 1}},
                     .effort = {.operations = 100, .bytes = static_cast<std::uint64_t>(wanted[0])},
                     .memory = {static_cast<std::uint64_t>(1'000'000 * batches[0])}};
  }
  void end_sizes() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void remove_size(ModelId, std::int64_t size) override {
    const std::lock_guard lock(mutex_);
    here_.erase(size);
    changed_.notify_all();
  }

  void permit(int times = 1) {
    const std::lock_guard lock(mutex_);
    permits_ += times;
    changed_.notify_all();
  }
  // Until so many have been asked for in all.
  std::vector<Made> wait_asked(std::size_t times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_.size() >= times; });
    return {asked_.begin(), asked_.end()};
  }
  std::vector<Extents> here() {
    const std::lock_guard lock(mutex_);
    std::vector<Extents> out;
    for (const auto& [size, extents] : here_) out.push_back(extents);
    return out;
  }

  std::function<void()> before_made;  // under the lock
  int most_batch = 1 << 30;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Made> asked_;
  std::multimap<std::int64_t, Extents> here_;
  int permits_ = 0;
  bool ended_ = false;
};

class SizesTest : public ::testing::Test {
 protected:
  struct Gone {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    Result<> result;
    std::optional<Duration> would_take;
  };

  void start(SizeOptions options = {}, std::vector<int> batches = {1}, bool one_plan = false) {
    model_ = std::make_unique<worker::testing::FakeModel>(
        worker::testing::FakeModel::Config{.batches = std::move(batches), .reference = 4, .later = one_plan});
    sizes_ = std::make_unique<Sizes>(
        options, clock_, [this](Sizes::Waiting waiting, Result<> result, std::optional<Duration> would_take) {
          const std::lock_guard lock(mutex_);
          gone_.push_back({waiting.ticket, std::move(waiting.call), std::move(result), would_take});
          changed_.notify_all();
        });
    sizes_->add_model(ModelId{0}, *model_, true);
    sizes_->start({&worker_});
  }
  ~SizesTest() override {
    worker_.permit(1000);
    sizes_.reset();
  }
  // The call, where there is a size for it at once.
  std::unique_ptr<InferCall> submit(std::uint64_t ticket, std::int64_t extent,
                                    TimePoint deadline = TimePoint::max()) {
    auto call = std::make_unique<InferCall>();
    call->model = ModelId{0};
    call->arrival = clock_.now();
    call->extents = {extent};
    Sizes::Waiting waiting{
        .ticket = ticket, .call = std::move(call), .handler = [](InferAnswer) {}, .deadline = deadline};
    return sizes_->submit(waiting) ? std::move(waiting.call) : nullptr;
  }
  Gone wait_gone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !gone_.empty(); });
    Gone out = std::move(gone_.front());
    gone_.pop_front();
    return out;
  }
  // Asks for it, and waits until it is made.
  std::unique_ptr<InferCall> made(std::int64_t extent) {
    worker_.permit();
    auto call = submit(1000, extent);
    return call != nullptr ? std::move(call) : wait_gone().call;
  }

  ReadableClock clock_;
  SizeWorker worker_;
  std::unique_ptr<worker::testing::FakeModel> model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Gone> gone_;
  std::unique_ptr<Sizes> sizes_;
};

TEST_F(SizesTest, TheReferenceIsThereAndOthersAreMadeOnce) {
  start();
  const auto reference = submit(1, 4);
  ASSERT_NE(reference, nullptr);
  EXPECT_EQ(reference->length, 0);
  EXPECT_THAT(reference->size->outputs, ElementsAre(graph::Shape{1, 2, 4}, graph::Shape{1, 1}));

  EXPECT_EQ(submit(2, 7), nullptr);
  EXPECT_EQ(submit(3, 7), nullptr);
  EXPECT_EQ(sizes_->counts().waiting, 2U);
  worker_.permit();
  for (const std::uint64_t ticket : {2, 3}) {
    const Gone gone = wait_gone();
    EXPECT_EQ(gone.ticket, ticket);
    ASSERT_TRUE(gone.result.has_value());
    EXPECT_EQ(gone.call->length, 1);
    EXPECT_THAT(gone.call->size->outputs, ElementsAre(graph::Shape{1, 2, 7}, graph::Shape{1, 1}));
  }
  const auto again = submit(4, 7);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->length, 1);
  EXPECT_EQ(worker_.wait_asked(1).size(), 1U);
  EXPECT_EQ(sizes_->counts().ready, 1U);
  EXPECT_EQ(sizes_->counts().made, 1U);
}

TEST_F(SizesTest, WhatDoesNotFitIsRememberedAndABadDayIsNot) {
  start();
  worker_.permit(3);
  submit(1, 13);
  const Gone fits = wait_gone();
  EXPECT_EQ(fits.result.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(fits.result.error().message, HasSubstr("nothing fits together at 13"));
  submit(2, 14);
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::invalid_argument) << "the request asks for too much";
  submit(3, 15);
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::internal);
  for (const std::int64_t extent : {13, 14}) {
    EXPECT_EQ(submit(4, extent), nullptr);
    EXPECT_FALSE(wait_gone().result.has_value()) << "at once, as nothing is permitted";
  }
  EXPECT_EQ(worker_.wait_asked(3).size(), 3U);
  submit(5, 15);
  EXPECT_EQ(worker_.wait_asked(4).back().first, Extents{15});
}

TEST_F(SizesTest, OnlySoManyFailuresAreRemembered) {
  start({.most_tried = 1});
  worker_.permit(3);
  submit(1, 13);
  wait_gone();
  submit(2, 14);
  wait_gone();
  submit(3, 13);
  wait_gone();
  EXPECT_EQ(worker_.wait_asked(3).size(), 3U);
}

TEST_F(SizesTest, WhoWouldBeLateIsRefusedAndTheSizeIsMade) {
  start();
  worker_.before_made = [this] { clock_.advance(50ms); };
  made(7);
  EXPECT_EQ(submit(1, 8, clock_.now() + 40ms), nullptr);
  const Gone late = wait_gone();
  EXPECT_EQ(late.result.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(late.would_take, 50ms);
  EXPECT_THAT(late.result.error().message, HasSubstr("about 50 ms"));
  EXPECT_EQ(submit(2, 8, clock_.now() + 60ms), nullptr);
  worker_.permit();
  const Gone in_time = wait_gone();
  EXPECT_EQ(in_time.ticket, 2U);
  EXPECT_TRUE(in_time.result.has_value());
  EXPECT_NE(submit(3, 8, clock_.now() + 1ms), nullptr);
}

TEST_F(SizesTest, TheLeastRecentlyAskedForMakesRoom) {
  start({.most = 2});
  made(7);
  made(8);
  EXPECT_NE(submit(1, 7), nullptr);
  made(9);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{9}));
  EXPECT_EQ(sizes_->counts().ready, 2U);
}

TEST_F(SizesTest, NoSizeGoesThatACallHas) {
  start({.most = 2});
  auto seven = made(7);
  const auto eight = made(8);
  worker_.permit();
  EXPECT_EQ(submit(1, 9), nullptr);
  const Gone none = wait_gone();
  EXPECT_EQ(none.result.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{8}));
  seven.reset();
  made(9);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{8}, Extents{9}));
}

TEST_F(SizesTest, PlansTakeOnlySoMuchMemory) {
  start({.memory = {2'500'000}});
  made(7);
  made(8);
  EXPECT_EQ(sizes_->counts().memory, Bytes{2'000'000});
  EXPECT_NE(submit(1, 7), nullptr);
  made(9);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{9}));
  EXPECT_EQ(sizes_->counts().memory, Bytes{2'000'000});
  sizes_->remove_model(ModelId{0});
  EXPECT_EQ(sizes_->counts().memory, Bytes{});
}

TEST_F(SizesTest, NoSizeGoesForMemoryThatACallHas) {
  start({.memory = {2'500'000}});
  auto seven = made(7);
  const auto eight = made(8);
  worker_.permit();
  EXPECT_EQ(submit(1, 9), nullptr);
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{8}));
  seven.reset();
  made(9);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{8}, Extents{9}));
}

TEST_F(SizesTest, ASizeThatTakesMoreThanAllMayIsRefused) {
  start({.memory = {500'000}});
  worker_.permit();
  submit(1, 7);
  const Gone none = wait_gone();
  EXPECT_EQ(none.result.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(none.result.error().message, HasSubstr("its plan takes"));
  EXPECT_THAT(worker_.here(), IsEmpty());
  submit(2, 7);
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(worker_.wait_asked(1).size(), 1U) << "it is remembered";
}

// Larger batches of a size count, and make room as others do.
TEST_F(SizesTest, LargerBatchesTakeMemoryToo) {
  start({.memory = {4'000'000}}, {1, 2});
  made(6);
  made(7);
  EXPECT_NE(submit(1, 7), nullptr);
  worker_.permit();
  worker_.wait_asked(3);
  made(8);  // when it is there the batch of 2 has been counted
  EXPECT_EQ(sizes_->counts().memory, Bytes{4'000'000}) << "1 and 2 rows at 7, 1 at 8";
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{7}, Extents{8}));
}

// A model that comes with one plan has that size twice once it is worth it.
TEST_F(SizesTest, AReferenceOfOnePlanGetsTheOthersOnceItIsAskedForAgain) {
  start({}, {1, 2}, true);
  EXPECT_EQ(submit(1, 4)->length, 0);
  made(7);
  EXPECT_EQ(worker_.wait_asked(1).size(), 1U) << "one call is not worth it";
  EXPECT_EQ(submit(2, 4)->length, 0);
  worker_.permit(2);
  EXPECT_THAT(worker_.wait_asked(3), ElementsAre(SizeWorker::Made{{7}, {1}}, SizeWorker::Made{{4}, {1}},
                                                 SizeWorker::Made{{4}, {2}}));
  made(8);  // when it is there these have been counted
  const auto call = submit(3, 4);
  EXPECT_EQ(call->length, 2);
  EXPECT_THAT(call->size->outputs, ElementsAre(graph::Shape{1, 2, 4}, graph::Shape{1, 1}));
}

TEST_F(SizesTest, AReferenceWhosePlansWentRunsByTheOneThatStays) {
  start({.memory = {4'000'000}}, {1, 2}, true);
  for (const std::uint64_t ticket : {1, 2}) EXPECT_EQ(submit(ticket, 4)->length, 0);
  worker_.permit(2);
  worker_.wait_asked(2);
  made(7);
  made(8);
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{8}));
  // It becomes harder each time: the third call is not enough, the fourth is.
  EXPECT_EQ(submit(3, 4)->length, 0);
  made(9);
  EXPECT_EQ(worker_.wait_asked(5).back().first, Extents{9});
  EXPECT_EQ(submit(4, 4)->length, 0);
  worker_.permit();
  EXPECT_EQ(worker_.wait_asked(6).back().first, Extents{4});
}

TEST_F(SizesTest, AReferenceOfAllPlansIsNotMadeAgain) {
  start({}, {1, 2});
  for (const std::uint64_t ticket : {1, 2, 3, 4}) EXPECT_EQ(submit(ticket, 4)->length, 0);
  made(7);
  EXPECT_THAT(worker_.wait_asked(1), ElementsAre(SizeWorker::Made{{7}, {1}}));
}

// A batch of a size without its plan runs row after row; another size's calls would wait for theirs.
TEST_F(SizesTest, NoSizeGoesForLargerBatches) {
  start({.memory = {2'500'000}}, {1, 2});
  made(6);
  made(7);
  EXPECT_NE(submit(1, 7), nullptr);
  made(8);  // when it is there a larger batch would have come before it
  EXPECT_THAT(worker_.wait_asked(3), ElementsAre(SizeWorker::Made{{6}, {1}}, SizeWorker::Made{{7}, {1}},
                                                 SizeWorker::Made{{8}, {1}}));
  EXPECT_THAT(worker_.here(), UnorderedElementsAre(Extents{7}, Extents{8}));
}

TEST_F(SizesTest, TheEffortOfASizeIsTold) {
  start();
  EXPECT_EQ(made(7)->size->effort, (Effort{.operations = 100, .bytes = 7}));
}

// What is being made when the end comes is given up.
TEST_F(SizesTest, TheEndWaitsForNoPlan) {
  start();
  submit(1, 7);
  worker_.wait_asked(1);  // and nobody permits it
  sizes_->stop();
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::unavailable);
}

TEST_F(SizesTest, OnlySoManyWaitToBeMade) {
  start({.most_queued = 1});
  submit(1, 7);
  worker_.wait_asked(1);  // it is being made
  submit(2, 8);
  submit(3, 9);
  const Gone full = wait_gone();
  EXPECT_EQ(full.ticket, 3U);
  EXPECT_EQ(full.result.error().code, ErrorCode::resource_exhausted);
  submit(4, 8);  // one that waits already
  worker_.permit(2);
  EXPECT_EQ(wait_gone().ticket, 1U);
  EXPECT_EQ(wait_gone().ticket, 2U);
  EXPECT_EQ(wait_gone().ticket, 4U);
}

TEST_F(SizesTest, WhoIsGoneIsAnsweredSo) {
  start();
  submit(1, 7);
  submit(2, 7);
  sizes_->cancel(1);
  sizes_->cancel(77);
  worker_.permit();
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::cancelled);
  EXPECT_TRUE(wait_gone().result.has_value());
}

TEST_F(SizesTest, TheEndAnswersWhoWaits) {
  start();
  submit(1, 7);
  submit(2, 8);
  worker_.wait_asked(1);
  worker_.permit();  // what is being made is made
  sizes_->stop();
  std::map<std::uint64_t, bool> answered;
  for (int i = 0; i < 2; ++i) {
    const Gone gone = wait_gone();
    answered[gone.ticket] = gone.result.has_value();
    if (!gone.result) {
      EXPECT_EQ(gone.result.error().code, ErrorCode::unavailable);
    }
  }
  EXPECT_TRUE(answered.contains(1) && answered.contains(2));
  EXPECT_EQ(submit(3, 9), nullptr);
  EXPECT_EQ(wait_gone().result.error().code, ErrorCode::unavailable);
}

// The smallest batch is enough to go on; the rest where a size is asked for again.
TEST_F(SizesTest, LargerBatchesComeLater) {
  start({}, {1, 2, 4});
  made(7);
  EXPECT_THAT(worker_.wait_asked(1), ElementsAre(SizeWorker::Made{{7}, {1}}));
  EXPECT_NE(submit(1, 7), nullptr);
  worker_.permit(2);
  EXPECT_THAT(worker_.wait_asked(3), ElementsAre(SizeWorker::Made{{7}, {1}}, SizeWorker::Made{{7}, {2}},
                                                 SizeWorker::Made{{7}, {4}}));
}

TEST_F(SizesTest, WhoWaitsGoesBeforeLargerBatchesOfOthers) {
  start({}, {1, 2, 4});
  made(7);
  EXPECT_NE(submit(1, 7), nullptr);
  worker_.wait_asked(2);  // batch 2 is being made
  submit(2, 8);
  worker_.permit(2);
  const auto asked = worker_.wait_asked(4);
  EXPECT_EQ(asked[2], (SizeWorker::Made{{8}, {1}}));
  EXPECT_EQ(asked[3], (SizeWorker::Made{{7}, {4}}));
}

TEST_F(SizesTest, ABatchThatDoesNotFitIsLeftOut) {
  start({}, {1, 2, 4});
  worker_.most_batch = 1;
  made(7);
  EXPECT_NE(submit(1, 7), nullptr);
  worker_.permit();
  worker_.wait_asked(2);
  made(8);
  EXPECT_EQ(worker_.wait_asked(3)[2], (SizeWorker::Made{{8}, {1}})) << "and no batch of 4 at 7";
  EXPECT_NE(submit(2, 7), nullptr) << "alone it goes on";
}

TEST(Sizes, KnowsNoOtherModels) {
  const ReadableClock clock;
  Sizes sizes({}, clock, [](auto&&...) { FAIL(); });
  const worker::testing::FakeModel fixed({});
  sizes.add_model(ModelId{0}, fixed, true);
  sizes.start({});
  EXPECT_FALSE(sizes.is_open(ModelId{0}));
  sizes.cancel(1);
}

}  // namespace
}  // namespace carillon::controller
