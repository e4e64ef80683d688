#include "carillon/repository/sequence_batching.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

using graph::DataType;
using graph::TensorSpec;
using Signal = SequenceBatching::Signal;
using ::testing::HasSubstr;

constexpr const char* controls = R"(
control_input { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
)";
constexpr const char* state = R"(
state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 4 ] }
)";

std::string text_of(const std::string& batching) {
  return "max_batch_size: 4 sequence_batching { " + batching + " }";
}

TEST(ReadSequenceBatching, ReadsSignalsAndStates) {
  const auto parsed = parse_config(
      text_of("max_sequence_idle_microseconds: 5000000 oldest { } " + std::string(controls) + state), "m");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_NE(parsed->config.sequence, nullptr);
  const SequenceBatching& got = *parsed->config.sequence;
  EXPECT_EQ(got.idle, 5s);
  ASSERT_EQ(got.controls.size(), 2U);
  EXPECT_EQ(got.controls[0].signal, Signal::start);
  EXPECT_EQ(got.controls[0].type, DataType::f32);
  EXPECT_EQ(got.controls[1].signal, Signal::id);
  EXPECT_EQ(got.controls[1].type, DataType::u64);
  ASSERT_EQ(got.states.size(), 1U);
  EXPECT_EQ(got.states[0].output, "after");
  EXPECT_EQ(parsed->config.ignored.size(), 1U) << "the strategy";
}

TEST(ReadSequenceBatching, ErrorsSayWhatWouldBeRight) {
  const struct {
    std::string batching;
    const char* message;
  } rows[] = {
      {"iterative_sequence: true", "sequence_batching: iterative_sequence is not supported"},
      {"control_input { control { } }", "sequence_batching: a control_input needs a name"},
      {"control_input { name: \"s\" }", "sequence_batching: control_input 's' has 0 controls"},
      {"control_input { name: \"s\" control { } }",
       "sequence_batching: control_input 's', CONTROL_SEQUENCE_START must have one of int32_false_true"},
      {"control_input { name: \"s\" control { int32_false_true: [ 1 ] } }",
       "sequence_batching: control_input 's', CONTROL_SEQUENCE_START has 1 values; it is [ false's, true's "
       "]"},
      {"control_input { name: \"s\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } }",
       "sequence_batching: control_input 's', CONTROL_SEQUENCE_CORRID: data_type must be TYPE_UINT64"},
      {"control_input { name: \"s\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }",
       "sequence_batching: control_input 's', CONTROL_SEQUENCE_CORRID: TYPE_STRING"},
      {std::string(controls) + controls,
       "sequence_batching: control_input 'start', CONTROL_SEQUENCE_START is there"},
      {"state { input_name: \"a\" }", "sequence_batching: a state needs input_name and output_name"},
      {"state { input_name: \"a\" output_name: \"b\" }",
       "sequence_batching: state 'a': data_type is missing"},
      {"state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 initial_state { data_type: "
       "TYPE_FP32 } }",
       "sequence_batching: state 'a': initial_state says neither"},
      {"state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 initial_state { data_type: "
       "TYPE_FP32 "
       "data_file: \"../x\" } }",
       "sequence_batching: state 'a': data_file is '../x'; it is the name of a file"},
      {"state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: [ -1, 2 ] initial_state { "
       "data_type: TYPE_FP32 dims: [ 4, 3 ] zero_data: true } }",
       "sequence_batching: state 'a': the initial_state's dims must be the state's"},
      {std::string(state) + state, "sequence_batching: input 'before' is there twice"},
  };
  for (const auto& row : rows) {
    const auto parsed = parse_config(text_of(row.batching), "m");
    ASSERT_FALSE(parsed.has_value()) << row.batching;
    EXPECT_EQ(parsed.error().message.substr(0, std::string_view(row.message).size()), row.message);
  }
}

class CompleteSequenceTest : public ::testing::Test {
 protected:
  CompleteSequenceTest() {
    config.max_batch_size = 4;
    config.inputs = {
        {"x", DataType::f32, {-1, 3}}, {"start", DataType::f32, {-1, 1}}, {"before", DataType::f32, {-1, 4}}};
    config.outputs = {{"after", DataType::f32, {-1, 4}}, {"y", DataType::f32, {-1, 3}}};
    sequence.controls = {{Signal::start, "start", DataType::f32}};
    sequence.states = {{.input = "before", .output = "after", .dims = {-1}}};
  }
  std::string error() {
    ModelConfig of = config;
    const auto done = complete_sequence(sequence, of);
    EXPECT_FALSE(done.has_value());
    return done ? "" : done.error().message;
  }
  ModelConfig config;
  SequenceBatching sequence;
};

TEST_F(CompleteSequenceTest, ClientsSeeWhatIsTheirs) {
  ASSERT_TRUE(complete_sequence(sequence, config).has_value());
  EXPECT_EQ(config.inputs, (std::vector<TensorSpec>{{"x", DataType::f32, {-1, 3}}}));
  EXPECT_EQ(config.outputs, (std::vector<TensorSpec>{{"y", DataType::f32, {-1, 3}}}));
  EXPECT_EQ(config.sequence->inputs.size(), 3U);
  EXPECT_EQ(config.sequence->states[0].initial, std::vector<std::byte>(16));
}

TEST_F(CompleteSequenceTest, AStateMayBeAnAnswerToo) {
  sequence.states[0].shown = true;
  ASSERT_TRUE(complete_sequence(sequence, config).has_value());
  EXPECT_EQ(config.outputs.size(), 2U);
}

TEST_F(CompleteSequenceTest, SaysWhatDoesNotFit) {
  sequence.controls[0].type = DataType::i32;
  EXPECT_EQ(error(),
            "sequence_batching: control_input 'start' is INT32 by the config, but FP32[-1,1] in the file");
  sequence.controls[0] = {Signal::start, "x", DataType::f32};
  EXPECT_EQ(error(),
            "sequence_batching: control_input 'x' is FP32[-1,3] in the file; it must have one value a row");
  sequence.controls[0] = {Signal::start, "begin", DataType::f32};
  EXPECT_EQ(error(),
            "sequence_batching: control_input 'begin' is not in the file, which has 'x', 'start', 'before'");
  sequence.controls.clear();
  sequence.states[0].dims = {5};
  EXPECT_EQ(error(),
            "sequence_batching: state input 'before' has dims [5], without the batch, by the config, but is "
            "FP32[-1,4] in the file");
  sequence.states[0].dims = {4};
  sequence.states[0].file = "zeros";
  EXPECT_THAT(error(), HasSubstr("data_file 'zeros' has 0 bytes; FP32[-1,4] takes 16 for a row"));
  sequence.states[0].output = "y";
  EXPECT_THAT(error(), HasSubstr("they must be the same"));
}

}  // namespace
}  // namespace carillon::repository
