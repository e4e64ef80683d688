#include "carillon/controller/gates/sequences.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

using repository::SequenceBatching;
using Signal = SequenceBatching::Signal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<std::byte> bytes(T value) {
  std::vector<std::byte> out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
template <typename T>
T number(const std::vector<std::byte>& from) {
  T out;
  EXPECT_EQ(from.size(), sizeof out);
  std::memcpy(&out, from.data(), sizeof out);
  return out;
}

// Model 0 adds what it is given to its state, which is its answer and the state that follows. It is told all
// four signals. The first state is 100.
class SequencesTest : public ::testing::Test {
 protected:
  SequencesTest() {
    SequenceBatching batching;
    batching.controls = {{Signal::start, "start", graph::DataType::f32, 0, 1},
                         {Signal::end, "end", graph::DataType::i32, -1, 1},
                         {Signal::ready, "ready", graph::DataType::boolean, 0, 1},
                         {Signal::id, "id", graph::DataType::u32}};
    batching.states = {{.input = "before", .output = "after", .dims = {1}, .initial = bytes(100.0F)}};
    batching.idle = 10ms;
    const auto tensor = [](const char* name, graph::DataType type = graph::DataType::f32) {
      return graph::TensorSpec{name, type, {graph::batch_dimension, 1}};
    };
    batching.inputs = {tensor("before"),
                       tensor("start"),
                       tensor("x"),
                       tensor("end", graph::DataType::i32),
                       tensor("ready", graph::DataType::boolean),
                       tensor("id", graph::DataType::u32)};
    batching.outputs = {tensor("after"), tensor("y")};
    config.name = "m";
    config.inputs = {tensor("x")};
    config.outputs = {tensor("y")};
    config.sequence = std::make_shared<const SequenceBatching>(std::move(batching));
    make({.most = 3, .most_waiting = 2, .state = Bytes{1024}});
  }
  void make(const SequenceOptions& options) {
    sequences = std::make_unique<Sequences>(options, [this](Sequences::Waiting waiting, Result<> result) {
      if (result)
        went.push_back(std::move(waiting));
      else
        waiting.handler({std::move(result), std::move(waiting.call), now, std::nullopt});
    });
    sequences->add_model({0}, config);
  }

  struct Ask {
    std::uint64_t id = 7;
    bool start = false, end = false;
    float x = 1;
    std::string text = "";
  };
  void ask(const Ask& of) {
    auto call = std::make_unique<InferCall>();
    call->sequence = SequenceMark{of.id, of.text, of.start, of.end};
    call->inputs.push_back(bytes(of.x));
    sequences->submit(
        {++tickets, std::move(call),
         [this](InferAnswer answer) {
           if (!answer.status)
             said.push_back(answer.status.error().message);
           else
             said.push_back(std::to_string(static_cast<int>(number<float>(answer.call->outputs.at(0)))));
           if (answer.status) {
             EXPECT_EQ(answer.call->outputs.size(), 1U);
           }
         }},
        now);
  }
  // What the model does with the oldest call that it has.
  void run(Result<> status = {}) {
    Sequences::Waiting waiting = std::move(went.front());
    went.erase(went.begin());
    InferCall& call = *waiting.call;
    const float sum = number<float>(call.inputs.at(0)) + number<float>(call.inputs.at(2));
    if (status) call.outputs = {bytes(sum), bytes(sum)};
    waiting.handler({std::move(status), std::move(waiting.call), now, std::nullopt});
  }
  void do_one(const Ask& of, Result<> status = {}) {
    ask(of);
    ASSERT_EQ(went.size(), 1U) << said.back();
    run(std::move(status));
  }

  TimePoint now{1s};
  repository::ModelConfig config;
  std::unique_ptr<Sequences> sequences;
  std::vector<Sequences::Waiting> went;
  std::vector<std::string> said;
  std::uint64_t tickets = 0;
};

TEST_F(SequencesTest, StateGoesFromOneToTheNext) {
  do_one({.start = true, .x = 1});
  do_one({.x = 2});
  do_one({.id = 8, .start = true, .x = 50});
  do_one({.end = true, .x = 3});
  EXPECT_THAT(said, ElementsAre("101", "103", "150", "106"));
  EXPECT_EQ(sequences->counts().open, 1U);
  EXPECT_EQ(sequences->counts().state, Bytes{4});
  ask({.x = 1});
  EXPECT_THAT(said.back(),
              HasSubstr("inference request for sequence 7 to model 'm' must specify the START flag on the "
                        "first request of the sequence"));
  do_one({.start = true, .x = 4});
  do_one({.start = true, .x = 5});
  EXPECT_EQ(said.back(), "105") << "it began anew";
}

TEST_F(SequencesTest, TheModelIsToldTheSignals) {
  const auto signals = [this] {
    const auto& inputs = went.back().call->inputs;
    std::string out = std::to_string(number<float>(inputs[1])).substr(0, 1) + " " +
                      std::to_string(number<std::int32_t>(inputs[3])) + " " +
                      std::to_string(number<std::uint8_t>(inputs[4])) + " " +
                      std::to_string(number<std::uint32_t>(inputs[5]));
    run();
    return out;
  };
  ask({.start = true});
  EXPECT_EQ(signals(), "1 -1 1 7");
  ask({});
  EXPECT_EQ(signals(), "0 -1 1 7");
  ask({.end = true});
  EXPECT_EQ(signals(), "0 1 1 7");
  ask({.start = true, .end = true});
  EXPECT_EQ(signals(), "1 1 1 7");
  EXPECT_EQ(sequences->counts().open, 0U);
}

TEST_F(SequencesTest, OneAtATimeAndInOrder) {
  ask({.start = true, .x = 1});
  ask({.x = 2});
  ask({.id = 8, .start = true, .x = 9});
  ask({.x = 3});
  EXPECT_EQ(went.size(), 2U) << "of each sequence one";
  EXPECT_EQ(sequences->waiting({0}), 2U);
  ask({.x = 4});
  EXPECT_EQ(said.back(),
            "2 requests of sequence 7 of model 'm' wait already for those before them; wait for answers");
  said.clear();
  while (!went.empty()) run();
  EXPECT_THAT(said, ElementsAre("101", "109", "103", "106"));
}

// A stream lets in so many at a time: none in the middle is to find no place.
TEST_F(SequencesTest, HoldsAllThatAStreamLetsIn) {
  make({});
  ask({.start = true, .x = 1});
  for (std::size_t i = 0; i < sequence_waiting_most; ++i) ask({.x = 1});
  EXPECT_THAT(said, ElementsAre());
  EXPECT_EQ(sequences->waiting({0}), 128U);
  ask({.x = 1});
  EXPECT_THAT(said, ElementsAre(HasSubstr("wait already for those before them")));
}

TEST_F(SequencesTest, WhatIsRefusedChangesNothing) {
  do_one({.start = true, .x = 1});
  do_one({.x = 2}, fail(ErrorCode::deadline_exceeded, "late"));
  do_one({.x = 3});
  do_one({.end = true, .x = 4}, fail(ErrorCode::deadline_exceeded, "late"));
  do_one({.start = true, .x = 5}, fail(ErrorCode::internal, "broken"));
  do_one({.x = 6});
  EXPECT_THAT(said, ElementsAre("101", "late", "104", "late", "broken", "110"));
  do_one({.id = 9, .start = true}, fail(ErrorCode::deadline_exceeded, "late"));
  EXPECT_EQ(sequences->counts().open, 1U) << "the other did not begin";
  ask({.id = 9});
  EXPECT_THAT(said.back(), HasSubstr("must specify the START flag"));
}

TEST_F(SequencesTest, ThoseBehindAnEndNeedAStart) {
  ask({.start = true, .end = true, .x = 1});
  ask({.x = 2});
  ask({.start = true, .x = 3});
  run();
  EXPECT_EQ(said.at(0), "101");
  EXPECT_THAT(said.at(1), HasSubstr("the request before it ended the sequence"));
  run();
  EXPECT_EQ(said.at(2), "103");
}

TEST_F(SequencesTest, OneThatIsIdleEnds) {
  do_one({.start = true, .x = 1});
  now += 9ms;
  do_one({.x = 1});
  now += 9ms;
  ask({.x = 1});
  now += 1s;  // it is not idle while its request runs
  run();
  EXPECT_EQ(said.back(), "103");
  now += 10ms;
  ask({.x = 1});
  EXPECT_THAT(said.back(),
              HasSubstr("must specify the START flag on the first request of the sequence; one that is "
                        "idle for 10 ms has ended"));
  EXPECT_EQ(sequences->counts().open, 0U);
  EXPECT_EQ(sequences->counts().state, Bytes{0});
}

TEST_F(SequencesTest, AModelThatIsLoadedAnewEndsThem) {
  do_one({.start = true, .x = 1});
  do_one({.id = 8, .start = true, .x = 1});
  const std::string idle = "one that is idle for 10 ms has ended";
  const std::string anew = "the model was loaded anew, which ends its sequences";
  const auto ask_anew = [&](std::uint64_t id) {
    auto call = std::make_unique<InferCall>();
    call->model = ModelId{1};
    call->sequence = SequenceMark{.number = id, .text = {}};
    sequences->submit({++tickets, std::move(call),
                       [this](InferAnswer answer) { said.push_back(answer.status.error().message); }},
                      now);
    return said.back();
  };
  // The old one goes once all that it has is answered.
  sequences->add_model({1}, config);
  EXPECT_THAT(ask_anew(7), HasSubstr(anew));
  sequences->remove_model({0});
  EXPECT_THAT(ask_anew(7), HasSubstr(anew));
  EXPECT_THAT(ask_anew(8), HasSubstr(anew));
  EXPECT_THAT(ask_anew(9), HasSubstr(idle));
}

TEST_F(SequencesTest, ThereAreOnlySoMany) {
  for (std::uint64_t id = 1; id <= 3; ++id) do_one({.id = id, .start = true});
  ask({.id = 4, .start = true});
  EXPECT_EQ(
      said.back(),
      "sequence 4 of model 'm' cannot begin: 3 sequences are open, as many as there may be; end some with "
      "sequence_end, or try again later");
  do_one({.id = 3, .end = true});
  do_one({.id = 4, .start = true});
  now += 10ms;
  do_one({.id = 5, .start = true});
  EXPECT_EQ(sequences->counts().open, 1U) << "the idle ones made room";
  make({.most = 3, .most_waiting = 2, .state = Bytes{7}});
  do_one({.id = 1, .start = true});
  ask({.id = 2, .start = true});
  EXPECT_THAT(said.back(),
              HasSubstr("1 sequences hold 4 B of state, of 7 B that there may be, and it takes 4 B"));
}

TEST_F(SequencesTest, WrongOnesAreRefused) {
  ask({.id = 0, .start = true});
  EXPECT_THAT(
      said.back(),
      HasSubstr("inference request to model 'm' must specify a non-zero or non-empty correlation ID"));
  ask({.id = 0, .start = true, .text = "seven"});
  EXPECT_EQ(said.back(),
            "sequence_id is text, 'seven', and model 'm' takes its sequence's id as a number, UINT32");
  ask({.id = std::uint64_t{1} << 32, .start = true});
  EXPECT_THAT(said.back(), HasSubstr("takes its sequence's id as UINT32, at most 4294967295"));
  auto call = std::make_unique<InferCall>();
  call->sequence = SequenceMark{.number = 7, .text = {}, .start = true};
  call->rows = 2;
  sequences->submit(
      {1, std::move(call), [this](InferAnswer answer) { said.push_back(answer.status.error().message); }},
      now);
  EXPECT_THAT(said.back(), HasSubstr("must specify batch-size 1"));
  EXPECT_EQ(sequences->counts().open, 0U);
}

TEST_F(SequencesTest, CallsThatWaitCanBeCancelledAndEnd) {
  ask({.start = true, .x = 1});
  ask({.x = 2});
  ask({.x = 3});
  sequences->cancel(2);
  EXPECT_THAT(said, ElementsAre("the client has gone"));
  run();
  EXPECT_EQ(went.front().ticket, 3U);
  ask({.x = 4});
  sequences->stop();
  EXPECT_EQ(said.back(), "the server is stopping");
  run();
  EXPECT_EQ(said.back(), "104");
  sequences->remove_model({0});
  EXPECT_EQ(sequences->counts().open, 0U);
  EXPECT_EQ(sequences->counts().state, Bytes{0});
}

}  // namespace
}  // namespace carillon::controller
