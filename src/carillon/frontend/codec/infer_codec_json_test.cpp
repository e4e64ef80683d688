#include "carillon/frontend/codec/infer_codec_json.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/base/random.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/graph/known_texts.h"

namespace carillon::frontend {
namespace {

using graph::DataType;
using ::testing::HasSubstr;

const TimePoint arrival{100s};

Result<InferRequest> parse(const controller::ModelView& model, const std::string& json,
                           const std::string& blobs = {}, const Key* key = nullptr) {
  return parse_infer_json(model, PaddedBytes(json + blobs),
                          blobs.empty() ? std::nullopt : std::optional(json.size()), arrival, {.key = key});
}

template <typename T>
std::vector<T> values(const std::vector<std::byte>& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

template <typename T>
std::string blob(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(T)};
}

std::string input_x(const std::string& datatype, const std::string& shape, const std::string& data) {
  return R"({"inputs":[{"name":"x","datatype":")" + datatype + R"(","shape":)" + shape + R"(,"data":)" +
         data + "}]}";
}

const std::string good_pair =
    R"({"id":"a1","inputs":[{"name":"n","datatype":"INT32","shape":[2,2],"data":[[1,2],[3,-4]]},)"
    R"({"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2.5,3,4e0,5,-6]}]})";

TEST(InferJson, TakesInputsInAnyOrderFlatOrNested) {
  const auto request = parse(pair_model(), good_pair);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->id, "a1");
  EXPECT_EQ(request->call->model, ModelId{7});
  EXPECT_EQ(request->call->rows, 2);
  EXPECT_EQ(values<float>(request->call->inputs[0]), (std::vector<float>{1, 2.5, 3, 4, 5, -6}));
  EXPECT_EQ(values<std::int32_t>(request->call->inputs[1]), (std::vector{1, 2, 3, -4}));
  ASSERT_EQ(request->outputs.size(), 2U);
  EXPECT_FALSE(request->outputs[0].binary);
  EXPECT_EQ(request->call->arrival, arrival);
  EXPECT_EQ(request->call->deadline, TimePoint::max());
  EXPECT_FALSE(request->call->class_given);
}

TEST(InferJson, AMemberThatIsMisspeltIsRefused) {
  const struct {
    std::string key, meant;
  } rows[] = {{"params", "parameters"}, {"parameter", "parameters"}, {"Parameters", "parameters"},
              {"param", "parameters"},  {"paramters", "parameters"}, {"parametres", "parameters"},
              {"output", "outputs"},    {"OUTPUTS", "outputs"},      {"ouputs", "outputs"},
              {"input", "inputs"},      {"inptus", "inputs"},        {"ID", "id"}};
  for (const auto& [key, meant] : rows) {
    auto json = nlohmann::json::parse(good_pair);
    json.erase(meant);
    json[key] = nlohmann::json::object();
    const auto request = parse(pair_model(), json.dump());
    ASSERT_FALSE(request) << key;
    EXPECT_EQ(request.error(), (Error{ErrorCode::invalid_argument, "a request has no member \"" + key +
                                                                       "\"; is \"" + meant + "\" meant?"}));
  }
}

// As in Triton.
TEST(InferJson, OtherMembersMeanNothing) {
  for (const char* key : {"model_name", "model_version", "options", "ip", "", "inp", "data", "outlook",
                          "import", "instances", "input_ids", "parameters_of_the_request"}) {
    auto json = nlohmann::json::parse(good_pair);
    json[key] = nlohmann::json::array({1});
    const auto request = parse(pair_model(), json.dump());
    EXPECT_TRUE(request) << key << ": " << request.error().message;
  }
  // Nor does one that looks like a member that is there.
  auto json = nlohmann::json::parse(good_pair);
  json["input"] = json["Id"] = 1;
  EXPECT_TRUE(parse(pair_model(), json.dump()));
}

TEST(InferJson, TakesBlobsInTheOrderOfTheInputs) {
  const std::string json =
      R"({"inputs":[{"name":"n","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},)"
      R"({"name":"x","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}}],)"
      R"("parameters":{"binary_data_output":true}})";
  const auto request = parse(pair_model(), json, blob<std::int32_t>({7, 8}) + blob<float>({1, 2, 3}));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(values<float>(request->call->inputs[0]), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(values<std::int32_t>(request->call->inputs[1]), (std::vector{7, 8}));
  EXPECT_TRUE(request->outputs[0].binary);
  EXPECT_TRUE(request->outputs[1].binary);
}

TEST(InferJson, OutputsAreThoseAskedForInThatOrder) {
  auto json = nlohmann::json::parse(good_pair);
  json["outputs"] = nlohmann::json::parse(R"([{"name":"s","parameters":{"binary_data":true}},{"name":"y"}])");
  const auto request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->outputs.size(), 2U);
  EXPECT_EQ(request->outputs[0].index, 1U);
  EXPECT_TRUE(request->outputs[0].binary);
  EXPECT_EQ(request->outputs[1].index, 0U);
  EXPECT_FALSE(request->outputs[1].binary);
}

// ids[-1, L] and mask[-1, L] in; tokens[-1, L, 2] out.
controller::ModelView sequences(bool padding, bool mask = true) {
  controller::ModelView view = pair_model();
  view.config.inputs = {{"ids", DataType::i32, {graph::batch_dimension, graph::length_dimension}},
                        {"mask", DataType::f32, {graph::batch_dimension, graph::length_dimension}}};
  view.config.outputs = {{"tokens", DataType::f32, {graph::batch_dimension, graph::length_dimension, 2}}};
  view.config.lengths = {2, 4, 8};
  view.config.padding = padding;
  if (mask) view.config.mask = "mask";
  return view;
}
std::string ids(const std::string& shape, const std::string& data, const std::string& more = "") {
  return R"({"inputs":[{"name":"ids","datatype":"INT32","shape":)" + shape + R"(,"data":)" + data + "}" +
         more + "]}";
}

TEST(InferJson, TheLengthIsTheRequestsOwn) {
  const auto request = parse(sequences(true), ids("[2,3]", "[1,2,3,4,5,6]"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->rows, 2);
  EXPECT_EQ(request->call->length, 3);
  // The mask was left out: all of it is there.
  EXPECT_EQ(values<float>(request->call->inputs[1]), std::vector<float>(6, 1));
  controller::InferCall& call = *request->call;
  call.outputs.assign(1, std::vector<std::byte>(std::size_t{2} * 3 * 2 * 4));
  ASSERT_TRUE(check_outputs(sequences(true).config, call));
  const auto body = write_infer_json(sequences(true), *request, call);
  EXPECT_EQ(nlohmann::json::parse(body.json)["outputs"][0]["shape"], (nlohmann::json{2, 3, 2}));

  const auto given =
      parse(sequences(true),
            ids("[1,2]", "[1,2]", R"(,{"name":"mask","datatype":"FP32","shape":[1,2],"data":[1,0]})"));
  ASSERT_TRUE(given) << given.error().message;
  EXPECT_EQ(values<float>(given->call->inputs[1]), (std::vector<float>{1, 0}));
}

TEST(InferJson, LengthsWithoutAPlanAreRefused) {
  const auto error_of = [](const controller::ModelView& model, const std::string& json) {
    const auto request = parse(model, json);
    return request ? std::string("taken") : request.error().message;
  };
  EXPECT_THAT(
      error_of(sequences(true), ids("[1,9]", "[1,2,3,4,5,6,7,8,9]")),
      HasSubstr("input 'ids' of model 'pair' has shape [1,9]; it must be [-1,-1] with 1 to 4 in place of "
                "the first -1 and 1 to 8 in place of the other"));
  EXPECT_THAT(error_of(sequences(true), ids("[1,0]", "[]")), HasSubstr("1 to 8 in place of the other"));
  EXPECT_EQ(error_of(sequences(false), ids("[1,4]", "[1,2,3,4]")), "taken");
  EXPECT_THAT(error_of(sequences(false), ids("[1,3]", "[1,2,3]")),
              HasSubstr("2, 4 or 8 in place of the other"));
  EXPECT_THAT(
      error_of(sequences(true),
               ids("[1,2]", "[1,2]", R"(,{"name":"mask","datatype":"FP32","shape":[1,3],"data":[1,0,1]})")),
      HasSubstr("input 'mask' of model 'pair' has a length of 3, the inputs before it 2"));
  EXPECT_THAT(error_of(sequences(true, false), ids("[1,2]", "[1,2]")), HasSubstr("needs input 'mask'"));
}

TEST(InferJson, TakesTheEndsOfEveryType) {
  const struct {
    DataType type;
    std::string data;
    std::string bytes;
  } rows[] = {
      {DataType::i8, "[-128,127]", blob<std::int8_t>({-128, 127})},
      {DataType::u8, "[0,255]", blob<std::uint8_t>({0, 255})},
      {DataType::i16, "[-32768,32767]", blob<std::int16_t>({-32768, 32767})},
      {DataType::u16, "[0,65535]", blob<std::uint16_t>({0, 65535})},
      {DataType::i32, "[-2147483648,2147483647]", blob<std::int32_t>({INT32_MIN, INT32_MAX})},
      {DataType::u32, "[0,4294967295]", blob<std::uint32_t>({0, UINT32_MAX})},
      {DataType::i64, "[-9223372036854775808,9223372036854775807]",
       blob<std::int64_t>({INT64_MIN, INT64_MAX})},
      {DataType::u64, "[0,18446744073709551615]", blob<std::uint64_t>({0, UINT64_MAX})},
      {DataType::f32, "[3.4028234663852886e38,-0.5]",
       blob<float>({std::numeric_limits<float>::max(), -0.5F})},
      {DataType::f64, "[1e308,7]", blob<double>({1e308, 7})},
      {DataType::boolean, "[true,0]", blob<bool>({true, false})},
  };
  for (const auto& [type, data, bytes] : rows) {
    const auto request = parse(model_of(type, {2}), input_x(std::string(kserve_name(type)), "[2]", data));
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(request->call->inputs[0].size(), bytes.size());
    EXPECT_EQ(std::memcmp(request->call->inputs[0].data(), bytes.data(), bytes.size()), 0) << data;
  }
}

TEST(InferJson, SchedulingParameters) {
  auto json = nlohmann::json::parse(good_pair);
  json["parameters"] = {{"timeout", 50000}, {"priority", 1}, {"application", "maps"}, {"anything", nullptr}};
  auto request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->deadline, arrival + 50ms);
  EXPECT_TRUE(request->call->class_given);
  EXPECT_EQ(request->call->cls, Class::normal) << "nobody has said that it may be real-time";
  EXPECT_EQ(request->call->priority, 1U);
  EXPECT_EQ(request->call->application, "maps");

  json["parameters"] = {{"timeout", "1000"}, {"priority", 9}};
  request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->deadline, arrival + 1ms);
  EXPECT_EQ(request->call->cls, Class::normal);
  EXPECT_TRUE(request->call->class_given);
  EXPECT_EQ(request->call->priority, 9U);

  json["parameters"] = {{"timeout", 0}, {"priority", 0}};
  request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->deadline, TimePoint::max());
  EXPECT_FALSE(request->call->class_given);

  json["parameters"] = {{"timeout", std::numeric_limits<std::uint64_t>::max()}};
  request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->deadline, arrival + std::chrono::hours(24));
}

TEST(InferJson, PriorityOneIsRealTimeWhereSomebodySaidSo) {
  const Key plain{.name = "a"}, urgent{.name = "b", .real_time = true};
  const struct {
    const char* of_class;
    bool allows;
    const Key* key;
    std::uint32_t priority;
    Class want;
  } rows[] = {
      {"normal", false, nullptr, 1, Class::normal},        {"normal", false, &plain, 1, Class::normal},
      {"normal", false, &urgent, 1, Class::real_time},     {"normal", false, &urgent, 2, Class::normal},
      {"normal", true, nullptr, 1, Class::real_time},      {"normal", true, &plain, 1, Class::real_time},
      {"normal", true, nullptr, 2, Class::normal},         {"best_effort", false, nullptr, 1, Class::normal},
      {"best_effort", true, nullptr, 1, Class::real_time}, {"real_time", false, nullptr, 1, Class::real_time},
      {"real_time", false, nullptr, 2, Class::normal},
  };
  for (const auto& row : rows) {
    controller::ModelView view = pair_model();
    view.config.model_class = row.of_class;
    view.config.real_time_requests = row.allows;
    auto json = nlohmann::json::parse(good_pair);
    json["parameters"] = {{"priority", row.priority}};
    const auto request = parse(view, json.dump(), {}, row.key);
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_TRUE(request->call->class_given);
    EXPECT_EQ(request->call->priority, row.priority);
    EXPECT_EQ(request->call->cls, row.want)
        << row.of_class << " " << row.allows << " " << (row.key ? row.key->name : "-") << " " << row.priority;
  }
}

TEST(InferJson, UnknownParametersAreNotedNotRefused) {
  auto json = nlohmann::json::parse(good_pair);
  json["parameters"] = {{"sequence_id", 7}, {"timeout_ms", {1, 2}}, {"timeout", 1000}, {"triton_x", true}};
  json["inputs"][0]["parameters"] = {{"mine", 1}};
  json["outputs"] = nlohmann::json::parse(R"([{"name":"y","parameters":{"yours":0,"classification":0}}])");
  const auto request = parse(pair_model(), json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(request->unheeded,
              ::testing::ElementsAre("timeout_ms", "triton_x", "mine", "yours",
                                     "sequence_id (of a model without sequence_batching)"));
  EXPECT_FALSE(request->call->sequence.has_value());
  EXPECT_EQ(request->call->deadline, arrival + 1ms);
  json["parameters"] = nlohmann::json::object();
  for (int i = 0; i < 1000; ++i) json["parameters"]["p" + std::to_string(i)] = i;
  EXPECT_LE(parse(pair_model(), json.dump())->unheeded.size(), 8U);
}

TEST(InferJson, ReadsOfWhichSequenceItIs) {
  auto model = pair_model();
  model.config.steps.emplace_back();  // of an ensemble: its models may want it
  auto json = nlohmann::json::parse(good_pair);
  json["parameters"] = {{"sequence_id", 7}, {"sequence_start", true}};
  auto request = parse(model, json.dump());
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_TRUE(request->call->sequence.has_value());
  EXPECT_EQ(request->call->sequence->number, 7U);
  EXPECT_TRUE(request->call->sequence->start);
  EXPECT_FALSE(request->call->sequence->end);
  json["parameters"] = {{"sequence_id", "seven"}, {"sequence_end", true}};
  request = parse(model, json.dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->sequence->text, "seven");
  EXPECT_TRUE(request->call->sequence->end);
  const struct {
    const char* name;
    nlohmann::json value;
    const char* message;
  } rows[] = {{"sequence_id", -1,
               "parameter 'sequence_id' is -1; it must be a whole number, or text of at most 128 bytes"},
              {"sequence_id", std::string(129, 'x'), "parameter 'sequence_id' is \"xxx"},
              {"sequence_start", 1, "parameter 'sequence_start' is 1; it must be true or false"}};
  for (const auto& row : rows) {
    json["parameters"] = {{row.name, row.value}};
    request = parse(model, json.dump());
    ASSERT_FALSE(request);
    EXPECT_TRUE(request.error().message.find(row.message) != std::string::npos) << request.error().message;
  }
}

TEST(InferJson, TakesNaNAndInfinities) {
  for (const auto type : {DataType::f32, DataType::f64}) {
    const auto request = parse(
        model_of(type, {2, 3}),
        input_x(std::string(kserve_name(type)), "[2,3]", "[[NaN,Infinity,-Infinity],[Inf, -Inf ,1.5]]"));
    ASSERT_TRUE(request) << request.error().message;
    std::vector<double> got;
    if (type == DataType::f64) got = values<double>(request->call->inputs[0]);
    if (type == DataType::f32)
      for (const float v : values<float>(request->call->inputs[0])) got.push_back(v);
    const double inf = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_EQ(std::vector(got.begin() + 1, got.end()), (std::vector<double>{inf, -inf, inf, -inf, 1.5}));
  }
  const auto message = [](const std::string& type, const std::string& shape, const std::string& data) {
    const auto request =
        parse(model_of(type == "INT32" ? DataType::i32 : DataType::f32, {2}), input_x(type, shape, data));
    return request ? "taken" : request.error().message;
  };
  EXPECT_THAT(message("INT32", "[2]", "[1,NaN]"),
              HasSubstr("element 1 is NaN, which is not a value of INT32"));
  EXPECT_THAT(message("FP32", "[NaN]", "[1,2]"), HasSubstr("NaN"));
  EXPECT_THAT(message("FP32", "[2]", "[1,\"NaN\"]"), HasSubstr("element 1 is \"NaN\""));
  EXPECT_THAT(message("FP32", "[2]", "[NaN,1"), HasSubstr("'}' where ',' or ']' should be"));
}

// Of each type: what it cannot hold is told with the input's name and the number, never made an infinity.
TEST(InferJson, RefusesNumbersBeyondTheirType) {
  const DataType types[] = {DataType::f16, DataType::f32, DataType::f64, DataType::i8,
                            DataType::i16, DataType::i32, DataType::i64, DataType::u8,
                            DataType::u16, DataType::u32, DataType::u64, DataType::boolean};
  const auto message = [](DataType type, const std::string& number) {
    const auto request =
        parse(model_of(type, {2}), input_x(std::string(kserve_name(type)), "[2]", "[0," + number + "]"));
    return request ? "taken" : request.error().message;
  };
  for (const DataType type : types)
    for (const char* const number : {"1e999999999999", "-1e999999999999", "1e309", "1.8e308"})
      EXPECT_EQ(message(type, number), "input 'x' of model 'one': element 1 is " + std::string(number) +
                                           ", which is not a value of " + std::string(kserve_name(type)));
  const struct {
    DataType type;
    const char* taken;
    const char* beyond;
  } rows[] = {
      {DataType::f16, "65519", "65520"},
      {DataType::f16, "-6.5e4", "70000"},
      {DataType::f16, "1e-30", "100000000000000000000"},
      {DataType::f32, "3.4028235e38", "3.5e+38"},
      {DataType::f32, "100000000000000000000", "1000000000000000000000000000000000000000"},
      {DataType::f32, "1e-999999999999", "-1e+39"},
      {DataType::f64, "1e39", "1e310"},
      {DataType::f64, "1000000000000000000000000000000000000000", "-1e400"},
      {DataType::i64, "9223372036854775807", "9223372036854775808"},
      {DataType::i64, "-9223372036854775808", "-9223372036854775809"},
      {DataType::u64, "18446744073709551615", "18446744073709551616"},
      {DataType::u8, "255", "256"},
      {DataType::boolean, "1", "18446744073709551617"},
  };
  for (const auto& [type, taken, beyond] : rows) {
    EXPECT_EQ(message(type, taken), "taken") << taken;
    EXPECT_THAT(message(type, beyond),
                HasSubstr("'x' of model 'one': element 1 is " + std::string(beyond) + ", which"));
  }
  EXPECT_THAT(message(DataType::f32, std::string(1000, '7')),
              HasSubstr("is " + std::string(64, '7') + "..., which"));
  const auto text = parse(model_of(DataType::string, {2}), input_x("BYTES", "[2]", "[\"a\",1e400]"));
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message, HasSubstr("element 1 is 1e400"));
}

TEST(InferJson, RefusesParametersBeyond64Bits) {
  for (const std::string name : {"timeout", "priority", "sequence_id", "application", "binary_data_output"})
    for (const std::string number : {"1e999999999999", "1e400", "99999999999999999999999", "1e39", "NaN"}) {
      std::string json = good_pair;
      json.insert(json.find('{') + 1, "\"parameters\":{\"" + name + "\":" + number + "},");
      const auto request = parse(pair_model(), json);
      ASSERT_FALSE(request) << name << " " << number;
      const std::string shown = number == "1e39" ? "1e+39" : number == "NaN" ? "nan" : number;
      EXPECT_THAT(request.error().message,
                  HasSubstr("parameter '" + name + "' is " + shown + "; it must be "));
    }
}

// Each row: what a client gets wrong, and what it must be told.
TEST(InferJson, RefusesWithAReason) {
  const auto pair = pair_model();
  const auto with = [](const char* pointer, const std::string& value) {
    auto json = nlohmann::json::parse(good_pair);
    json[nlohmann::json::json_pointer(pointer)] = nlohmann::json::parse(value);
    return json.dump();
  };
  const struct {
    std::string json;
    std::vector<std::string> wanted;
  } rows[] = {
      {"", {"no JSON"}},
      {"{", {"not JSON", "the end", "at byte 1 (line 1, column 2)"}},
      {"{\"inputs\":\n [1,}", {"not JSON: '}' where a value should be, at byte 15 (line 2, column 5)"}},
      {"[1]", {"the request is an array", "object"}},
      {"{}", {"no \"inputs\""}},
      {R"({"inputs":{}})", {"\"inputs\" is an object", "array"}},
      {R"({"inputs":[],"inputs":[]})", {"\"inputs\" twice"}},
      {R"({"inputs":[]})", {"needs input 'x', 'n'"}},
      {R"({"inputs":[3]})", {"inputs[0] is 3", "object"}},
      {R"({"inputs":[{"datatype":"FP32","shape":[1,3],"data":[1,2,3]}]})", {"inputs[0] has no \"name\""}},
      {with("/inputs/0/name", "\"z\""), {"no input 'z'", "'x', 'n'"}},
      {with("/inputs/0/name", "\"x\""), {"INT32", "FP32"}},
      {with("/inputs/1", R"({"name":"n","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]})"),
       {"'n'", "given twice"}},
      {with("/inputs/0/datatype", "\"INT64\""), {"'INT64'", "must be INT32"}},
      {with("/inputs/0/datatype", "\"BYTES\""), {"'BYTES'", "must be INT32"}},
      {with("/inputs/0/datatype", "5"), {"datatype is 5", "string"}},
      {with("/inputs/0/shape", "[2,3]"), {"[2,3]", "[-1,2]", "1 to 4"}},
      {with("/inputs/0/shape", "[2]"), {"[2]", "[-1,2]"}},
      {with("/inputs/0/shape", "[0,2]"), {"[0,2]", "1 to 4"}},
      {with("/inputs/0/shape", "[5,2]"), {"[5,2]", "1 to 4"}},
      {with("/inputs/0/shape", "[-1,2]"), {"[-1,2]", "1 to 4"}},
      {with("/inputs/0/shape", "[4611686018427387904,2]"), {"1 to 4"}},
      {with("/inputs/0/shape", "[2.5,2]"), {"2.5", "whole number"}},
      {with("/inputs/0/shape", "[1,2]"), {"dimension 0 has more than 1 elements", "shape [1,2]"}},
      {with("/inputs/1", R"({"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]})"),
       {"'x'", "batch of 1", "before it 2"}},
      {with("/inputs/1/data", "[1,2,3,4,5]"), {"has 5 elements", "[2,3] takes 6"}},
      {with("/inputs/1/data", "[1,2,3,4,5,6,7]"), {"more than 6 elements"}},
      {with("/inputs/1/data", "[[1,2,3],[4,5]]"), {"dimension 1 has 2 elements"}},
      {with("/inputs/1/data", "[[1,2,3],4]"), {"nested unlike", "4 where an array"}},
      {with("/inputs/1/data", "[1,2,3,4,5,\"six\"]"), {"element 5 is \"six\"", "FP32"}},
      {with("/inputs/1/data", "[1,2,3,4,null,6]"), {"element 4 is null"}},
      {with("/inputs/1/data", "[1,2,3,4,1e39,6]"), {"element 4", "FP32"}},
      {with("/inputs/1/data", "7"), {"\"data\" is 7", "array"}},
      {with("/inputs/0/data", "[1,2,3,2147483648]"), {"element 3 is 2147483648", "INT32"}},
      {with("/inputs/0/data", "[1,2,3,1.5]"), {"element 3 is 1.5", "INT32"}},
      {with("/inputs/0/parameters", R"({"binary_data_size":16})"), {"both"}},
      {with("/inputs/0/parameters", R"({"shared_memory_region":"r"})"),
       {"inputs[0]", "shared_memory_byte_size"}},
      {with("/outputs", R"([{"name":"q"}])"), {"no output 'q'", "'y', 's'"}},
      {with("/outputs", R"([{"name":"y"},{"name":"y"}])"), {"'y'", "twice"}},
      {with("/outputs", R"([{}])"), {"outputs[0] has no \"name\""}},
      {with("/outputs", R"([{"name":"y","parameters":{"binary_data":1}}])"),
       {"binary_data", "true or false"}},
      {with("/outputs", R"([{"name":"y","parameters":{"classification":-3}}])"), {"'classification' is -3"}},
      {with("/outputs", R"([{"name":"y","parameters":{"classification":1.5}}])"),
       {"classification", "whole"}},
      {with("/outputs", R"([{"name":"y","parameters":{"classification":99999999999999999999}}])"),
       {"classification"}},
      {with("/id", "5"), {"\"id\" is 5", "string"}},
      {with("/parameters", R"({"timeout":-1})"), {"'timeout' is -1", "microseconds"}},
      {with("/parameters", R"({"timeout":1.5})"), {"'timeout' is 1.5"}},
      {with("/parameters", R"({"timeout":"soon"})"), {"\"soon\""}},
      {with("/parameters", R"({"timeout":[1]})"), {"'timeout' is an array"}},
      {with("/parameters", R"({"priority":-2})"), {"'priority' is -2"}},
      {with("/parameters", R"({"priority":4294967296})"), {"'priority' is 4294967296"}},
      {with("/parameters", R"({"application":7})"), {"'application' is 7", "text"}},
      {with("/parameters", R"({"binary_data_output":"yes"})"), {"binary_data_output", "true or false"}},
      {with("/parameters", "[]"), {"\"parameters\" is an array"}},
      {std::string(4000, '[') + std::string(4000, ']'), {"not JSON", "nested", "byte 1024"}},
      {R"({"parameters":{"timeout":1000,"timeout":900000}})", {"parameter 'timeout' twice"}},
      {R"({"parameters":{"priority":1,"x":2,"priority":1}})", {"parameter 'priority' twice"}},
      {R"({"parameters":{"binary_data_output":true,"binary_data_output":false}})",
       {"'binary_data_output' twice"}},
      {R"({"inputs":[{"name":"n","datatype":"INT32","shape":[1,2],)"
       R"("parameters":{"binary_data_size":8,"binary_data_size":4}}]})",
       {"inputs[0] has parameter 'binary_data_size' twice"}},
      {with("/parameters", R"({"timeout":null})"), {"'timeout' is null"}},
      {with("/inputs/0/data", "[1,2,3,null]"), {"element 3 is null", "INT32"}},
  };
  for (const auto& [json, wanted] : rows) {
    const auto request = parse(pair, json);
    ASSERT_FALSE(request) << json;
    for (const auto& words : wanted)
      EXPECT_THAT(request.error().message, HasSubstr(words)) << json.substr(0, 400);
    EXPECT_TRUE(request.error().code == ErrorCode::invalid_argument ||
                request.error().code == ErrorCode::unsupported);
  }
}

TEST(InferJson, RefusesWrongBlobs) {
  const auto model = model_of(DataType::f32, {any_batch, 2});
  const auto json = [](int size) {
    return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":)" +
           std::to_string(size) + "}}]}";
  };
  const std::string eight(8, '\1');
  EXPECT_TRUE(parse(model, json(8), eight));
  EXPECT_THAT(parse(model, json(8), eight + "x").error().message, HasSubstr("1 bytes behind the JSON"));
  EXPECT_THAT(parse(model, json(9), eight + "x").error().message,
              HasSubstr("has 9 bytes; shape [1,2] of FP32 takes 8"));
  EXPECT_THAT(parse(model, json(80), eight).error().message, HasSubstr("only 8 bytes are left"));
  EXPECT_THAT(parse(model, json(-1), eight).error().message, HasSubstr("binary_data_size"));
  const auto beyond = parse_infer_json(model, PaddedBytes(json(8)), 10000, arrival);
  EXPECT_THAT(beyond.error().message, HasSubstr("Inference-Header-Content-Length is 10000"));
  EXPECT_THAT(parse_infer_json(model, PaddedBytes(json(8)), 0, arrival).error().message,
              HasSubstr("no JSON"));
}

TEST(InferJson, BrainFloatsAreBlobsOnly) {
  const auto model = model_of(DataType::bf16, {2});
  EXPECT_THAT(parse(model, input_x("BF16", "[2]", "[1,2]")).error().message, HasSubstr("blob"));
  const std::string json = R"({"inputs":[{"name":"x","datatype":"BF16","shape":[2],)"
                           R"("parameters":{"binary_data_size":4}}],"outputs":[{"name":"y")";
  EXPECT_THAT(parse(model, json + "}]}", "abcd").error().message, HasSubstr("binary_data"));
  EXPECT_TRUE(parse(model, json + R"(,"parameters":{"binary_data":true}}]})", "abcd"));
}

TEST(InferJson, HalfFloatsAreNumbers) {
  const auto model = model_of(DataType::f16, {6});
  const auto request = parse(model, input_x("FP16", "[6]", "[1,-2.5,65504,6e-8,NaN,-Infinity]"));
  ASSERT_TRUE(request) << request.error().message;
  auto bits = values<std::uint16_t>(request->call->inputs[0]);
  EXPECT_EQ(bits, (std::vector<std::uint16_t>{0x3c00, 0xc100, 0x7bff, 0x0001, 0x7e00, 0xfc00}));
  EXPECT_THAT(parse(model, input_x("FP16", "[6]", "[1,2,3,4,5,65520]")).error().message,
              HasSubstr("element 5 is 65520"));
  EXPECT_THAT(parse(model, input_x("FP16", "[6]", "[1,2,3,4,5,\"six\"]")).error().message, HasSubstr("FP16"));
  controller::InferCall call = std::move(*request->call);
  call.outputs = {call.inputs[0]};
  EXPECT_THAT(write_infer_json(model, *request, call).json,
              HasSubstr(R"("data":[1,-2.5,65504,5.9604645e-08,NaN,-Infinity])"));
  const auto blob = parse(model,
                          R"({"inputs":[{"name":"x","datatype":"FP16","shape":[6],)"
                          R"("parameters":{"binary_data_size":12}}]})",
                          "abcdefghijkl");
  EXPECT_TRUE(blob) << blob.error().message;
}

TEST(InferJson, TakesTexts) {
  ASSERT_TRUE(graph::known_texts().add("cat"));
  const graph::TextHandle wanted[] = {graph::first_own_text, graph::known_texts().find("cat")};
  const auto request = parse(model_of(DataType::string, {2}), input_x("BYTES", "[2]", R"(["dragon","cat"])"));
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->call->inputs[0].size(), sizeof wanted);
  EXPECT_EQ(std::memcmp(request->call->inputs[0].data(), wanted, sizeof wanted), 0);
  for (const char* const bad : {"[\"cat\",1]", "[\"cat\",null]", "[\"cat\",NaN]"}) {
    const auto refused = parse(model_of(DataType::string, {2}), input_x("BYTES", "[2]", bad));
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("'x' of model"));
    EXPECT_THAT(refused.error().message, HasSubstr("element 1"));
  }
}

// What stands for numbers that the fast parser does not read cannot be sent.
TEST(InferJson, NoTextOfAClientStandsForANumber) {
  for (const std::string text : {"\x7fN", "\x7fP", "\x7f#1"}) {
    const auto taken = parse(model_of(DataType::string, {1}), input_x("BYTES", "[1]", "[\"" + text + "\"]"));
    EXPECT_TRUE(taken) << taken.error().message;
    const auto number = parse(model_of(DataType::f32, {2}), input_x("FP32", "[2]", "[NaN,\"" + text + "\"]"));
    ASSERT_FALSE(number);
    EXPECT_THAT(number.error().message, HasSubstr("element 1"));
  }
}

TEST(InferJson, ScalarsAndBoolBlobs) {
  const auto scalar = parse(model_of(DataType::f32, {}), input_x("FP32", "[]", "[2.5]"));
  ASSERT_TRUE(scalar) << scalar.error().message;
  EXPECT_EQ(values<float>(scalar->call->inputs[0]), std::vector{2.5F});
  const auto bools =
      parse(model_of(DataType::boolean, {3}),
            R"({"inputs":[{"name":"x","datatype":"BOOL","shape":[3],"parameters":{"binary_data_size":3}}]})",
            std::string("\0\x7f\1", 3));
  ASSERT_TRUE(bools) << bools.error().message;
  EXPECT_EQ(values<std::uint8_t>(bools->call->inputs[0]), (std::vector<std::uint8_t>{0, 1, 1}));
}

TEST(InferJson, WritesJsonAndBlobs) {
  const auto model = pair_model();
  auto request = parse(model, good_pair);
  ASSERT_TRUE(request);
  auto& call = *request->call;
  const std::vector<float> y{0.1F,
                             -2,
                             1e20F,
                             std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN(),
                             -std::numeric_limits<float>::infinity()};
  const std::vector<std::int64_t> s{INT64_MIN, 5};
  const auto bytes_of = [](const auto& v) {
    const auto bytes = std::as_bytes(std::span(v));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  call.outputs = {bytes_of(y), bytes_of(s)};

  auto body = write_infer_json(model, *request, call);
  EXPECT_FALSE(body.binary);
  EXPECT_THAT(body.json, HasSubstr("\"data\":[0.1,-2,1e+20,Infinity,NaN,-Infinity]"));
  const auto plain = [](const std::string& text) {  // what the test's parser reads
    return nlohmann::json::parse(std::regex_replace(text, std::regex("-?Infinity|NaN"), "null"));
  };
  auto json = plain(body.json);
  EXPECT_EQ(json["model_name"], "pair");
  EXPECT_EQ(json["model_version"], "2");
  EXPECT_EQ(json["id"], "a1");
  EXPECT_EQ(json["outputs"][0]["shape"], (nlohmann::json{2, 3}));
  EXPECT_EQ(json["outputs"][0]["data"][0].get<float>(), 0.1F);
  EXPECT_EQ(json["outputs"][0]["data"][2].get<float>(), 1e20F);
  EXPECT_TRUE(json["outputs"][0]["data"][3].is_null());
  EXPECT_TRUE(json["outputs"][0]["data"][4].is_null());
  EXPECT_EQ(json["outputs"][1]["data"], (nlohmann::json{INT64_MIN, 5}));
  EXPECT_FALSE(json["outputs"][0].contains("parameters"));

  request->outputs = {{1, true}, {0, false}};
  request->id.clear();
  body = write_infer_json(model, *request, call);
  EXPECT_TRUE(body.binary);
  json = plain(body.json);
  EXPECT_FALSE(json.contains("id"));
  EXPECT_EQ(json["outputs"][0]["name"], "s");
  EXPECT_EQ(json["outputs"][0]["parameters"]["binary_data_size"], 16);
  EXPECT_FALSE(json["outputs"][0].contains("data"));
  ASSERT_EQ(body.blobs.size(), 1U);
  EXPECT_EQ(body.blobs[0].data(), call.outputs[1].data()) << "blobs are not copied";
}

TEST(InferJson, ErrorsAreJson) {
  EXPECT_EQ(nlohmann::json::parse(error_json("a \"b\"\n\xff"))["error"], "a \"b\"\n\xEF\xBF\xBD");
}

// Mangled requests: any answer is fine but a crash, an error without words or a call of the wrong sizes.
TEST(InferJson, SurvivesMangledRequests) {
  const auto model = pair_model();
  const std::string json =
      R"({"id":"i","parameters":{"timeout":5000,"priority":2,"application":"a","binary_data_output":true},)"
      R"("inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}},)"
      R"({"name":"n","datatype":"INT32","shape":[1,2],"data":[[1,2]]}],)"
      R"("outputs":[{"name":"y","parameters":{"binary_data":false}}]})";
  const std::string whole = json + blob<float>({1, 2, 3});
  const char* const pieces[] = {
      "{",         "}",       "[",    "]",    "\"", ",", ":", "-1", "1e999", "null", "9223372036854775808",
      "\"shape\"", "\\u0000", "\xff", "true", "4",  "0"};
  Random random(20240607);
  int good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string body = whole;
    const auto edits = 1 + random.below(3);
    for (std::uint64_t e = 0; e < edits && !body.empty(); ++e) {
      const auto at = random.below(body.size());
      switch (random.below(4)) {
        case 0:
          body[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          body.erase(at, 1 + random.below(8));
          break;
        case 2:
          body.insert(at, pieces[random.below(std::size(pieces))]);
          break;
        default:
          body.insert(at, body.substr(random.below(body.size()), random.below(40)));
      }
    }
    std::optional<std::size_t> size = json.size();
    if (random.below(8) == 0) size = random.below(body.size() + 3);
    if (random.below(16) == 0) size.reset();
    const auto request = parse_infer_json(model, PaddedBytes(body), size, arrival);
    if (!request) {
      ASSERT_FALSE(request.error().message.empty());
      continue;
    }
    ++good;
    const auto rows = static_cast<std::size_t>(request->call->rows);
    ASSERT_TRUE(rows >= 1 && rows <= 4);
    ASSERT_EQ(request->call->inputs[0].size(), rows * 12);
    ASSERT_EQ(request->call->inputs[1].size(), rows * 8);
    ASSERT_GT(request->call->deadline, arrival);
    ASSERT_FALSE(request->outputs.empty());
  }
  EXPECT_GT(good, 100) << "the mangling is too strong to test what lies behind the parser";
}

}  // namespace
}  // namespace carillon::frontend
