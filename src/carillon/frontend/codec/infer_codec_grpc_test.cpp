#include "carillon/frontend/codec/infer_codec_grpc.h"

#include <cstring>

#include "infer.pb.h"
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/graph/known_texts.h"
#include "carillon/repository/sequence_batching.h"

namespace carillon::frontend {
namespace {

using graph::DataType;
using ::testing::HasSubstr;

const TimePoint arrival{100s};

inference::ModelInferRequest message(const std::string& text) {
  inference::ModelInferRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

Result<InferRequest> parse(const controller::ModelView& model, const std::string& text,
                           TimePoint transport = TimePoint::max(), const Key* key = nullptr) {
  return parse_infer_grpc(model, message(text), arrival, transport, {.key = key});
}

const std::string typed =
    "id: 'q' inputs { name: 'n' datatype: 'INT32' shape: 1 shape: 2 contents { int_contents: 7 int_contents: "
    "-8 } } "
    "inputs { name: 'x' datatype: 'FP32' shape: 1 shape: 3 contents { fp32_contents: [1, 2, 3] } } ";
const std::string raw =
    "inputs { name: 'n' datatype: 'INT32' shape: 1 shape: 2 } inputs { name: 'x' datatype: 'FP32' shape: 1 "
    "shape: 3 } "
    "raw_input_contents: '\\001\\000\\000\\000\\002\\000\\000\\000' "
    "raw_input_contents: 'abcdefghijkl' ";

TEST(InferGrpc, TakesTypedAndRawContents) {
  const auto from_typed = parse(pair_model(), typed);
  ASSERT_TRUE(from_typed) << from_typed.error().message;
  EXPECT_EQ(from_typed->id, "q");
  const std::int32_t n[] = {7, -8};
  EXPECT_EQ(std::memcmp(from_typed->call->inputs[1].data(), n, 8), 0);
  EXPECT_EQ(from_typed->outputs.size(), 2U);

  const auto from_raw = parse(pair_model(), raw);
  ASSERT_TRUE(from_raw) << from_raw.error().message;
  EXPECT_EQ(std::memcmp(from_raw->call->inputs[0].data(), "abcdefghijkl", 12), 0);
}

TEST(InferGrpc, TheNearerOfTimeoutAndTheCallsOwnDeadlineCounts) {
  EXPECT_EQ(parse(pair_model(), typed)->call->deadline, TimePoint::max());
  EXPECT_EQ(parse(pair_model(), typed, TimePoint{105s})->call->deadline, TimePoint{105s});
  const auto both = parse(pair_model(), typed + "parameters { key: 'timeout' value { int64_param: 20000 } }",
                          TimePoint{105s});
  EXPECT_EQ(both->call->deadline, arrival + 20ms);
  const auto looser = parse(
      pair_model(), typed + "parameters { key: 'timeout' value { int64_param: 7000000 } }", TimePoint{105s});
  EXPECT_EQ(looser->call->deadline, TimePoint{105s});
  const auto none = parse(pair_model(),
                          typed +
                              "parameters { key: 'timeout' value { int64_param: 0 } } "
                              "parameters { key: 'priority' value { uint64_param: 1 } }",
                          TimePoint{105s});
  EXPECT_EQ(none->call->deadline, TimePoint{105s});
}

TEST(InferGrpc, PriorityOneIsRealTimeWhereSomebodySaidSo) {
  const std::string first = typed + "parameters { key: 'priority' value { uint64_param: 1 } }";
  const Key plain{.name = "a"}, urgent{.name = "b", .real_time = true};
  const auto class_for = [&](const controller::ModelView& model, const Key* key) {
    const auto request = parse(model, first, TimePoint::max(), key);
    EXPECT_TRUE(request->call->class_given);
    EXPECT_EQ(request->call->priority, 1U);
    return request->call->cls;
  };
  controller::ModelView allows = pair_model();
  allows.config.real_time_requests = true;
  EXPECT_EQ(class_for(pair_model(), nullptr), Class::normal);
  EXPECT_EQ(class_for(pair_model(), &plain), Class::normal);
  EXPECT_EQ(class_for(pair_model(), &urgent), Class::real_time);
  EXPECT_EQ(class_for(allows, nullptr), Class::real_time);
  EXPECT_EQ(class_for(allows, &plain), Class::real_time);
}

TEST(InferGrpc, RefusesWithAReason) {
  const struct {
    std::string text;
    std::string wanted;
  } rows[] = {
      {"", "needs input 'x', 'n'"},
      {raw + "raw_input_contents: 'x'", "raw_input_contents has 3 entries for 2 inputs"},
      {typed + "raw_input_contents: 'x' raw_input_contents: 'y'", "typed contents beside raw_input_contents"},
      {"inputs { name: 'x' datatype: 'FP32' shape: [1, 3] } raw_input_contents: 'abc'", "3 bytes"},
      {"inputs { name: 'x' datatype: 'FP32' shape: [1, 3] }", "has 0 elements"},
      {"inputs { name: 'x' datatype: 'FP32' shape: [1, 3] contents { fp32_contents: [1, 2] } }",
       "has 2 elements"},
      {"inputs { name: 'x' datatype: 'FP32' shape: [1, 3] contents { fp64_contents: [1, 2, 3] } }",
       "fp64_contents; FP32 goes into fp32_contents"},
      {"inputs { name: 'x' datatype: 'INT32' shape: [1, 3] }", "must be FP32"},
      {"inputs { name: 'x' datatype: 'FP32' shape: [9, 3] }", "1 to 4"},
      {"inputs { name: 'w' datatype: 'FP32' shape: [1, 3] }", "no input 'w'"},
      {"inputs { name: 'x' parameters { key: 'shared_memory_region' value { string_param: 'r' } } }",
       "inputs[0]: shared_memory_region is given without"},
      {typed + "outputs { name: 'z' }", "no output 'z'"},
      {typed + "outputs { name: 'y' parameters { key: 'classification' value { int64_param: -2 } } }",
       "'classification' is -2"},
      {typed + "outputs { name: 'y' parameters { key: 'classification' value { bool_param: true } } }",
       "must be an int64_param"},
      {typed + "parameters { key: 'timeout' value { int64_param: -5 } }", "'timeout' is -5"},
      {typed + "parameters { key: 'timeout' value { } }", "'timeout' has no value"},
  };
  for (const auto& [text, wanted] : rows) {
    const auto request = parse(pair_model(), text);
    ASSERT_FALSE(request) << text;
    EXPECT_THAT(request.error().message, HasSubstr(wanted)) << text;
  }
  const auto narrow = parse(model_of(DataType::i8, {1}),
                            "inputs { name: 'x' datatype: 'INT8' shape: 1 contents { int_contents: 300 } }");
  EXPECT_THAT(narrow.error().message, HasSubstr("element 0 is 300"));
  const auto half = parse(model_of(DataType::f16, {1}), "inputs { name: 'x' datatype: 'FP16' shape: 1 }");
  EXPECT_THAT(half.error().message, HasSubstr("raw_input_contents"));
}

TEST(InferGrpc, TakesTextsTypedAndRaw) {
  ASSERT_TRUE(graph::known_texts().add("cat"));
  const graph::TextHandle wanted[] = {graph::known_texts().find("cat"), graph::first_own_text};
  const std::string input = "inputs { name: 'x' datatype: 'BYTES' shape: 2 ";
  for (const std::string& given :
       {input + "contents { bytes_contents: 'cat' bytes_contents: 'dragon' } }",
        input + R"(} raw_input_contents: '\003\000\000\000cat\006\000\000\000dragon')"}) {
    const auto request = parse(model_of(DataType::string, {2}), given);
    ASSERT_TRUE(request) << request.error().message;
    ASSERT_EQ(request->call->inputs[0].size(), sizeof wanted);
    EXPECT_EQ(std::memcmp(request->call->inputs[0].data(), wanted, sizeof wanted), 0) << given;
  }
  const struct {
    std::string given;
    const char* wanted;
  } rows[] = {
      {"contents { bytes_contents: 'cat' } }", "has 1 elements"},
      {"contents { fp32_contents: 1 fp32_contents: 2 } }", "goes into bytes_contents"},
      {"} raw_input_contents: 'abc'", "it takes at least 8"},
      {"} raw_input_contents: '\\003\\000\\000\\000cat\\001'", "element 1 has no length"},
      {R"(} raw_input_contents: '\000\000\000\000\000\000\000\100')", "element 1 has a length of 1073741824"},
      {R"(} raw_input_contents: '\377\377\377\377\000\000\000\000')", "element 0 has a length of 4294967295"},
      {R"(} raw_input_contents: '\000\000\000\000\000\000\000\000x')", "1 bytes are behind the last"},
  };
  for (const auto& row : rows) {
    const auto refused = parse(model_of(DataType::string, {2}), input + row.given);
    ASSERT_FALSE(refused) << row.given;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("input 'x'"));
    EXPECT_THAT(refused.error().message, HasSubstr(row.wanted));
  }
}

TEST(InferGrpc, AnswersRawOneEntryAnOutput) {
  const auto model = pair_model();
  const auto request = parse(model, typed + "outputs { name: 's' } outputs { name: 'y' }");
  ASSERT_TRUE(request) << request.error().message;
  fill_outputs(model.config, *request->call);
  inference::ModelInferResponse response;
  ASSERT_TRUE(write_infer_grpc(model, *request, *request->call, response));
  EXPECT_EQ(response.model_name(), "pair");
  EXPECT_EQ(response.model_version(), "2");
  EXPECT_EQ(response.id(), "q");
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "s");
  EXPECT_EQ(response.outputs(0).datatype(), "INT64");
  EXPECT_EQ(response.outputs(1).shape(1), 3);
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0).size(), 8U);
  EXPECT_EQ(response.raw_output_contents(1).size(), 12U);
}

TEST(InferGrpc, ASequenceIdWithASignIsTheOneWithout) {
  auto model = pair_model();
  model.config.sequence = std::make_shared<const repository::SequenceBatching>();
  for (const char* id : {"int64_param: -5", "uint64_param: 18446744073709551611"}) {
    const auto request =
        parse(model, typed + "parameters { key: 'sequence_id' value { " + id + " } }", TimePoint::max());
    ASSERT_TRUE(request) << request.error().message;
    ASSERT_TRUE(request->call->sequence);
    EXPECT_EQ(request->call->sequence->number, 18446744073709551611U) << id;
  }
}

TEST(InferGrpc, AFarTimeoutIsTakenAsADay) {
  for (const char* us : {"int64_param: 86400000001", "uint64_param: 18446744073709551615"}) {
    const auto request =
        parse(pair_model(), typed + "parameters { key: 'timeout' value { " + us + " } }", TimePoint::max());
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(request->call->deadline, arrival + longest_timeout) << us;
  }
}

TEST(InferGrpc, SurvivesMangledMessages) {
  const auto model = pair_model();
  const std::string whole[] = {
      message(typed + "outputs { name: 'y' }").SerializeAsString(),
      message(raw + "parameters { key: 'timeout' value { int64_param: 9 } }").SerializeAsString()};
  const google::protobuf::LogSilencer silence;  // of text that is not UTF-8
  Random random(77);
  int good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole[random.below(2)];
    const auto edits = 1 + random.below(3);
    for (std::uint64_t e = 0; e < edits; ++e)
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    inference::ModelInferRequest mangled;
    if (!mangled.ParseFromString(bytes)) continue;
    const auto request = parse_infer_grpc(model, mangled, arrival, TimePoint::max());
    if (!request) {
      ASSERT_FALSE(request.error().message.empty());
      continue;
    }
    ++good;
    ASSERT_EQ(request->call->inputs[0].size(), static_cast<std::size_t>(request->call->rows) * 12);
    ASSERT_EQ(request->call->inputs[1].size(), static_cast<std::size_t>(request->call->rows) * 8);
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace carillon::frontend
