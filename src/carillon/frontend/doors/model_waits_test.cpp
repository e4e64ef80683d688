#include "carillon/frontend/doors/model_waits.h"

#include <chrono>
#include <future>

#include <gtest/gtest.h>

#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

TimePoint after(Duration time) {
  return TimePoint{time};
}

// A server that loads its models, of which "late" is still to come, and "broken" cannot be loaded.
class LoadingService final : public FakeService {
 public:
  LoadingService() {
    for (const char* name : {"late", "broken", "quick"})
      models_[name] = std::make_shared<controller::ModelView>(model_of(graph::DataType::f32, {1}, name));
    models_["late"]->ready = models_["broken"]->ready = false;
    models_["late"]->coming = true;
    models_["late"]->config.slo = slo;
  }
  static constexpr Duration slo = 50ms;

  bool loading() const override { return loading_; }
  Result<std::shared_ptr<const controller::ModelView>> find(std::string_view model,
                                                            std::string_view) const override {
    const std::lock_guard lock(mutex_);
    ++found_;
    if (const auto at = models_.find(model); at != models_.end())
      return std::make_shared<const controller::ModelView>(*at->second);
    return fail(named_ ? ErrorCode::not_found : ErrorCode::unavailable, "there is none");
  }
  TimePoint now() const override { return TimePoint{Duration{now_}}; }

  void loaded(const std::string& model) {
    const std::lock_guard lock(mutex_);
    models_[model]->ready = true;
  }
  void end_loading() { loading_ = false; }
  void pass(Duration time) { now_ += time.count(); }
  void name_all() { named_ = true; }
  int found() const { return found_; }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<controller::ModelView>, std::less<>> models_;
  std::atomic<bool> loading_ = true, named_ = false;
  std::atomic<std::int64_t> now_ = 0;
  mutable std::atomic<int> found_ = 0;
};

class ModelWaitsTest : public ::testing::Test {
 protected:
  ~ModelWaitsTest() override {
    draining_ = true;
    waits_.settle();
  }
  // Ready once the request goes on.
  std::future<void> wait(std::string model, TimePoint until = TimePoint::max()) {
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    waits_.wait(service_,
                {.model = std::move(model), .version = "", .until = until, .gone = gone_, .go_on = [done] {
                   done->set_value();
                 }});
    return future;
  }
  static bool goes_on(std::future<void>& request) {
    return request.wait_for(std::chrono::seconds{20}) == std::future_status::ready;
  }
  static bool waits(std::future<void>& request) {
    return request.wait_for(std::chrono::milliseconds{30}) == std::future_status::timeout;
  }

  LoadingService service_;
  WorkPool heavy_{1, 4};
  std::atomic<bool> draining_ = false;
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  ModelWaits waits_{heavy_, draining_};
};

TEST_F(ModelWaitsTest, OnlyForWhatIsStillToBeLoadedIsThereAnythingToWaitFor) {
  EXPECT_EQ(waits_.would(service_, "late", "", after(3ms)), after(3ms) + LoadingService::slo);
  EXPECT_EQ(waits_.would(service_, "broken", "", after(0ms)), std::nullopt);
  EXPECT_EQ(waits_.would(service_, "other", "", after(0ms)), TimePoint::max())
      << "the repository was not looked at";
  service_.name_all();
  EXPECT_EQ(waits_.would(service_, "other", "", after(0ms)), std::nullopt);
  EXPECT_EQ(waits_.would(service_, "quick", "", after(0ms)), TimePoint::max()) << "it became ready just now";
  service_.end_loading();
  EXPECT_EQ(waits_.would(service_, "late", "", after(0ms)), std::nullopt);
}

TEST_F(ModelWaitsTest, ARequestGoesOnOnceItsModelIsReady) {
  auto request = wait("late");
  EXPECT_TRUE(waits(request));
  service_.loaded("late");
  EXPECT_TRUE(goes_on(request));
}

TEST_F(ModelWaitsTest, ARequestGoesOnOnceItIsTooLate) {
  auto request = wait("late", after(40ms)), other = wait("late", after(60ms));
  service_.pass(50ms);
  EXPECT_TRUE(goes_on(request));
  EXPECT_TRUE(waits(other));
}

TEST_F(ModelWaitsTest, ARequestGoesOnOnceNothingIsLoadedAnyMore) {
  auto request = wait("late");
  service_.end_loading();
  EXPECT_TRUE(goes_on(request));
}

TEST_F(ModelWaitsTest, ARequestGoesOnOnceItsClientHasGone) {
  auto request = wait("late");
  *gone_ = true;
  EXPECT_TRUE(goes_on(request));
}

TEST_F(ModelWaitsTest, NobodyWaitsForAServerThatEnds) {
  auto request = wait("late");
  draining_ = true;
  EXPECT_TRUE(goes_on(request));
  EXPECT_EQ(waits_.would(service_, "late", "", after(0ms)), std::nullopt);
  waits_.settle();
}

TEST_F(ModelWaitsTest, AllGoOnWhereHeavyThreadsHaveMoreToDoThanTheyTake) {
  std::vector<std::future<void>> requests;
  for (int i = 0; i < 100; ++i) requests.push_back(wait("late"));
  service_.loaded("late");
  for (auto& request : requests) EXPECT_TRUE(goes_on(request));
}

TEST_F(ModelWaitsTest, ThoseWhoWaitForOneModelLookForItTogether) {
  std::vector<std::future<void>> requests;
  for (int i = 0; i < 100; ++i) requests.push_back(wait("late"));
  const int before = service_.found();
  EXPECT_TRUE(waits(requests.back()));
  EXPECT_LT(service_.found() - before, 100);
  service_.loaded("late");
  for (auto& request : requests) EXPECT_TRUE(goes_on(request));
}

TEST_F(ModelWaitsTest, NoMoreWaitThanThereIsRoomFor) {
  std::vector<std::future<void>> requests;
  for (std::size_t i = 0; i < ModelWaits::most; ++i) requests.push_back(wait("late"));
  EXPECT_EQ(waits_.would(service_, "late", "", after(0ms)), std::nullopt);
  auto one_too_many = wait("late");
  EXPECT_TRUE(goes_on(one_too_many));
  service_.loaded("late");
  for (auto& request : requests) EXPECT_TRUE(goes_on(request));
}

}  // namespace
}  // namespace carillon::frontend
