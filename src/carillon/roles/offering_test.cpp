#include "carillon/roles/offering.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"

namespace carillon::roles {
namespace {

constexpr TimePoint time_of(Duration d) {
  return TimePoint{d};
}

class OfferingTest : public ::testing::Test, protected OfferingOut {
 protected:
  OfferingTest()
      : core(
            [this](controller::Holder& holder, dispatch::Notes&) {
              auto made = std::make_unique<Offering>(holder, static_cast<OfferingOut&>(*this), "here:1");
              offering = made.get();
              return made;
            },
            nullptr, {}) {
    core.start(time_of(0ms));
  }
  void send(transport::Message message) override { sent.push_back(std::move(message)); }
  std::uint64_t open(RequestId, transport::RowTensors) override { return ++opened; }
  void close(std::uint64_t key) override { closed.push_back(key); }
  void model_comes(const wire::Model& model) override { came.push_back(model.info.id); }
  void model_goes(ModelId id) override { went.push_back(id); }
  void models_told() override {}

  wire::Model told(std::uint32_t theirs) const {
    wire::Model model{.info = controller::testing::served(theirs).info, .hash = 5};
    model.info.name = "m";
    return model;
  }
  void come(TimePoint now = TimePoint{1ms}) {
    controller::ServedModel served = controller::testing::served(static_cast<std::uint32_t>(core.models()));
    served.info.name = "m";
    served.hash = 5;
    core.book().add_model("m", 1);
    core.come(std::move(served), now);
  }
  template <typename What>
  void hear(What what, TimePoint now = time_of(1ms)) {
    core.react([&](TimePoint t) { offering->heard(transport::Message{std::move(what)}, t); }, now);
  }
  template <typename What>
  std::size_t count() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        sent, [](const auto& message) { return std::holds_alternative<What>(message); }));
  }

  std::vector<transport::Message> sent;
  std::uint64_t opened = 0;
  std::vector<std::uint64_t> closed;
  std::vector<ModelId> came, went;
  Offering* offering = nullptr;
  controller::Core core;
};

TEST_F(OfferingTest, AModelThatComesAnewWhileItGoesIsAskedForAgain) {
  core.react([&](TimePoint t) { offering->leads(t); }, time_of(0ms));
  hear(transport::ModelComes{told(7)});
  EXPECT_EQ(came.size(), 1U);
  come();
  hear(transport::ModelGoes{ModelId{7}});
  EXPECT_EQ(went, std::vector<ModelId>{ModelId{0}});
  hear(transport::ModelComes{told(8)});
  EXPECT_EQ(came.size(), 2U);
  core.go(ModelId{0}, time_of(2ms));
  come(time_of(2ms));
  core.submit(
      1, controller::testing::call_of(ModelId{1}, 1, time_of(2ms), time_of(1s)),
      [](controller::InferAnswer) {}, time_of(2ms));
  EXPECT_EQ(count<transport::Offer>(), 1U);
}

TEST_F(OfferingTest, AModelThatANewLeaderDoesNotTellOfGoesAfterAWhile) {
  core.react([&](TimePoint t) { offering->leads(t); }, time_of(0ms));
  hear(transport::ModelComes{told(7)});
  come();
  core.react([&](TimePoint t) { offering->leads(t); }, time_of(1s));
  EXPECT_EQ(core.wake_at(), time_of(1s) + Offering::model_grace);
  core.wake(core.wake_at());
  EXPECT_EQ(went, std::vector<ModelId>{ModelId{0}});
  EXPECT_EQ(core.wake_at(), TimePoint::max());
}

TEST_F(OfferingTest, ARowOfWhichTheLeaderSpeaksAfterItsEndIsWithdrawn) {
  core.react([&](TimePoint t) { offering->leads(t); }, time_of(0ms));
  hear(transport::Lost{{RequestId{77}}, "its worker went"});
  EXPECT_EQ(count<transport::Withdraw>(), 1U);
}

TEST_F(OfferingTest, OutputsThatComeOfAnOrderNobodyToldOfAnswerTheCall) {
  core.react([&](TimePoint t) { offering->leads(t); }, time_of(0ms));
  hear(transport::ModelComes{told(7)});
  come();
  int answers = 0;
  core.submit(
      1, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(1s)),
      [&](controller::InferAnswer answer) {
        EXPECT_TRUE(answer.status);
        ++answers;
      },
      time_of(1ms));
  hear(transport::ModelComes{told(7)});
  wire::Report report{.status = ledger::ActionStatus::success};
  core.react([&](TimePoint t) { offering->outputs(RequestId{0}, report, t); }, time_of(5ms));
  core.react([&](TimePoint t) { offering->outputs(RequestId{0}, report, t); }, time_of(6ms));
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(offering->counters().late_wins, 1U);
  EXPECT_EQ(closed, std::vector<std::uint64_t>{1});
  EXPECT_EQ(offering->open_rows(), 0U);
}

}  // namespace
}  // namespace carillon::roles
