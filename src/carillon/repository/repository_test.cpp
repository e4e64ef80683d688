#include "carillon/repository/repository.h"

#include <fstream>

#include "model_config.pb.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/folder.h"
#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

using graph::DataType;
using graph::Graph;
using graph::Model;
using graph::TensorSpec;
using ::testing::ElementsAre;

namespace fs = std::filesystem;
using ::testing::Test;

constexpr const char* full_config = R"(
# A comment.
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 4 ] }, { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output { name: "y" data_type: TYPE_BF16 dims: [ 10 ] }
dynamic_batching { preferred_batch_size: [ 4, 8, 4 ] }
instance_group [ { count: 1 kind: KIND_CPU } ]
default_model_filename: "net.onnx"
version_policy { latest { num_versions: 2 } }
parameters { key: "slo_ms" value { string_value: "12.5" } }
parameters { key: "miss_rate" value { string_value: "0.02" } }
parameters { key: "real_time_requests" value { string_value: "allow" } }
parameters [ { key: "class" value { string_value: "real_time" } }, { key: "precision" value: { string_value: "bf16" } } ]
)";

TEST(ParseConfig, ReadsTheLengthsOfWhatVaries) {
  const auto lengths_of = [](const std::string& text) {
    const auto parsed = parse_config("parameters [ { key: \"lengths\" value { string_value: \"" + text +
                                         "\" } }, { key: \"padding\" value { string_value: \"zero\" } }, "
                                         "{ key: \"mask\" value { string_value: \"m\" } } ]",
                                     "m");
    EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
    EXPECT_TRUE(parsed->config.padding);
    EXPECT_EQ(parsed->config.mask, "m");
    return parsed->config.lengths;
  };
  EXPECT_THAT(lengths_of("16, 32,128"), ElementsAre(16, 32, 128));
  EXPECT_THAT(lengths_of("7"), ElementsAre(7));
  EXPECT_THAT(lengths_of("8:32:8"), ElementsAre(8, 16, 24, 32));
  EXPECT_THAT(lengths_of("10:25:10"), ElementsAre(10, 20, 25));
}

TEST(ParseConfig, ReadsAllThatWeHeed) {
  const auto parsed = parse_config(full_config, "m");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const ModelConfig& config = parsed->config;
  EXPECT_EQ(config.name, "m");
  EXPECT_EQ(config.max_batch_size, 8);
  EXPECT_FALSE(config.batch_from_file);
  EXPECT_EQ(config.inputs,
            (std::vector<TensorSpec>{{"x", DataType::f32, {-1, 3, 4}}, {"ids", DataType::i64, {-1, -1}}}));
  EXPECT_EQ(config.outputs, (std::vector<TensorSpec>{{"y", DataType::bf16, {-1, 10}}}));
  EXPECT_EQ(config.batch_sizes, (std::vector<int>{1, 4, 8}));
  EXPECT_EQ(config.slo, 12500us);
  EXPECT_EQ(config.miss_rate, 0.02);
  EXPECT_EQ(config.model_class, "real_time");
  EXPECT_TRUE(config.real_time_requests);
  EXPECT_EQ(config.precision, "bf16");
  EXPECT_EQ(config.file, "net.onnx");
  EXPECT_EQ(config.ignored, std::vector<std::string>{});
  EXPECT_EQ(parsed->versions.latest, 2);
}

TEST(ParseConfig, ADecoupledModelIsServed) {
  EXPECT_TRUE(parse_config("model_transaction_policy { decoupled: true }", "m")->config.decoupled);
  EXPECT_FALSE(parse_config("model_transaction_policy { }", "m")->config.decoupled);
}

TEST(ParseConfig, AnEmptyOneLeavesAllToTheFile) {
  const auto parsed = parse_config("", "m");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_TRUE(parsed->config.batch_from_file);
  EXPECT_EQ(parsed->config.name, "m");
  EXPECT_EQ(parsed->config.file, "model.onnx");
  EXPECT_EQ(parsed->config.model_class, "normal");
  EXPECT_FALSE(parsed->config.real_time_requests);
  EXPECT_EQ(parsed->config.slo, std::nullopt);
  EXPECT_EQ(parsed->versions.kind, VersionPolicy::Kind::latest);
  EXPECT_EQ(parsed->versions.latest, 1);
}

TEST(ParseConfig, BatchSizesArePowersOfTwoUpToTheMaximum) {
  const struct {
    int max;
    std::vector<int> sizes;
  } rows[] = {{0, {1}},
              {1, {1}},
              {2, {1, 2}},
              {7, {1, 2, 4}},
              {16, {1, 2, 4, 8, 16}},
              {1000, {1, 2, 4, 8, 16, 32, 64, 128}}};
  for (const auto& row : rows) EXPECT_EQ(default_batch_sizes(row.max), row.sizes) << row.max;
}

TEST(ParseConfig, ErrorsSayWhatWouldBeRight) {
  const struct {
    const char* text;
    ErrorCode code;
    const char* message;  // its beginning
  } rows[] = {
      {"name: \"m\"\nmax_batch_size 8", ErrorCode::invalid_argument, "line 2, column 16: "},
      {"input [ { name: \"x\"", ErrorCode::invalid_argument, "line 1, column "},
      {"input { name: \"x\" data_type: TYPE_FLOAT dims: [1] }", ErrorCode::invalid_argument,
       "line 1, column 41: Unknown enumeration value of \"TYPE_FLOAT\" for field \"data_type\"."},
      {"name: \"other\"", ErrorCode::invalid_argument,
       "name is 'other', but the model's folder is 'm'; they must agree, or name be left out"},
      {"instance_group { count: -1 }", ErrorCode::invalid_argument,
       "instance_group: count is -1; it is 1 or more, or left out"},
      {"max_batch_size: -1", ErrorCode::invalid_argument, "max_batch_size is -1; it is 0 (no batch) to 4096"},
      {"max_batch_size: 2000000000", ErrorCode::invalid_argument, "max_batch_size is 2000000000; it is 0"},
      {"max_batch_size: 99999999999999", ErrorCode::invalid_argument, "line 1, column "},
      {"platform: \"tensorrt_plan\"", ErrorCode::unsupported,
       "platform 'tensorrt_plan' is not supported; ONNX models have 'onnxruntime_onnx', or none"},
      {"parameters { key: \"engine\" value { string_value: \"tvm\" } }", ErrorCode::invalid_argument,
       "parameter engine is 'tvm'; it is carillon, openvino or onnxruntime"},
      {"backend: \"python\"", ErrorCode::unsupported, "backend 'python' is not supported"},
      {"ensemble_scheduling { }", ErrorCode::invalid_argument, "ensemble_scheduling: no step"},
      {"sequence_batching { iterative_sequence: true }", ErrorCode::unsupported,
       "sequence_batching: iterative"},
      {"batch_input { }", ErrorCode::unsupported, "batch_input is not supported"},
      {"input { data_type: TYPE_FP32 dims: [1] }", ErrorCode::invalid_argument, "input without a name"},
      {"input { name: \"x\" dims: [1] }", ErrorCode::invalid_argument,
       "input 'x': data_type is missing or unknown; for example TYPE_FP32"},
      {"input { name: \"x\" data_type: 77 dims: [1] }", ErrorCode::invalid_argument,
       "input 'x': data_type is missing"},
      {"max_batch_size: 2 input { name: \"x\" data_type: TYPE_FP32 }", ErrorCode::invalid_argument,
       "input 'x': dims is missing"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [0] }", ErrorCode::invalid_argument,
       "input 'x': dims has 0"},
      {"output { name: \"y\" data_type: TYPE_FP32 dims: [-2] }", ErrorCode::invalid_argument,
       "output 'y': dims has -2"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [9000000000, 9000000000] }",
       ErrorCode::invalid_argument, "input 'x': dims: "},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [3] reshape { shape: [] } }",
       ErrorCode::invalid_argument,
       "input 'x': reshape makes [] of dims [3], which have another number of elements"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [3] reshape { shape: [-1, 3] } }",
       ErrorCode::invalid_argument, "input 'x': reshape makes [-1,3] of dims [3]; each may have one -1"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [-1, -1] reshape { shape: [-1, -1] } }",
       ErrorCode::invalid_argument, "input 'x': reshape makes [-1,-1] of dims [-1,-1]; each may have one -1"},
      {"output { name: \"y\" data_type: TYPE_FP32 dims: [3] reshape { shape: [0, 3] } }",
       ErrorCode::invalid_argument, "output 'y': reshape has 0"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [1] reshape { shape: [9000000000, 9000000000] } }",
       ErrorCode::invalid_argument, "input 'x': reshape: "},
      {"output { name: \"y\" data_type: TYPE_FP32 dims: [3] reshape { shape: [3, 1] } }",
       ErrorCode::invalid_argument, "output 'y': reshape needs max_batch_size or inputs"},
      {"input [{ name: \"x\" data_type: TYPE_FP32 dims: [1] }, { name: \"x\" data_type: TYPE_FP32 dims: [1] "
       "}]",
       ErrorCode::invalid_argument, "input 'x' is there twice"},
      {"max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 8 ] }", ErrorCode::invalid_argument,
       "dynamic_batching: preferred_batch_size is 8; it is 1 to max_batch_size, here 4"},
      {"max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 0 ] }", ErrorCode::invalid_argument,
       "dynamic_batching: preferred_batch_size is 0"},
      {"parameters { key: \"real_time_requests\" value { string_value: \"yes\" } }",
       ErrorCode::invalid_argument, "parameter real_time_requests is 'yes'; it is allow, or deny"},
      {"parameters { key: \"slo_ms\" value { string_value: \"fast\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms is 'fast'; it is a number of milliseconds, at least 0.001"},
      {"parameters { key: \"slo_ms\" value { string_value: \"10ms\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"slo_ms\" value { string_value: \"-1\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"slo_ms\" value { string_value: \"0\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"slo_ms\" value { string_value: \"nan\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"slo_ms\" value { string_value: \"inf\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"slo_ms\" value { string_value: \"1e300\" } }", ErrorCode::invalid_argument,
       "parameter slo_ms"},
      {"parameters { key: \"miss_rate\" value { string_value: \"0.6\" } }", ErrorCode::invalid_argument,
       "parameter miss_rate is '0.6'; it is the share of answers that may be late, above 0 and at most 0.5"},
      {"parameters { key: \"miss_rate\" value { string_value: \"0\" } }", ErrorCode::invalid_argument,
       "parameter miss_rate is '0'"},
      {"parameters { key: \"miss_rate\" value { string_value: \"1%\" } }", ErrorCode::invalid_argument,
       "parameter miss_rate is '1%'"},
      {"parameters { key: \"slo_ms\" }", ErrorCode::invalid_argument, "parameter slo_ms is ''"},
      {"parameters { key: \"class\" value { string_value: \"rt\" } }", ErrorCode::invalid_argument,
       "parameter class is 'rt'; it is normal, real_time or best_effort"},
      {"parameters { key: \"precision\" value { string_value: \"fp16\" } }", ErrorCode::invalid_argument,
       "parameter precision is 'fp16'; it is f32, bf16 or (on GPUs) f16"},
      {"parameters { key: \"lengths\" value { string_value: \"\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '': '' does not start with such an extent"},
      {"parameters { key: \"lengths\" value { string_value: \"16,8\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '16,8': they must ascend"},
      {"parameters { key: \"lengths\" value { string_value: \"16,0\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '16,0': '0' does not start with such an extent"},
      {"parameters { key: \"lengths\" value { string_value: \"16 32\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '16 32': ',' is missing between two numbers"},
      {"parameters { key: \"lengths\" value { string_value: \"1:1000000:1\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '1:1000000:1': too many; it is a list such as \"16,32,64\" or a range "
       "\"first:last:step\", at most 64 extents"},
      {"parameters { key: \"lengths\" value { string_value: \"8:4:1\" } }", ErrorCode::invalid_argument,
       "parameter lengths is '8:4:1': not a range"},
      {"parameters { key: \"padding\" value { string_value: \"zero\" } }", ErrorCode::invalid_argument,
       "parameter padding needs parameter lengths"},
      {"parameters { key: \"mask\" value { string_value: \"m\" } }", ErrorCode::invalid_argument,
       "parameter mask needs parameter lengths"},
      {"default_model_filename: \"../other/1/model.onnx\"", ErrorCode::invalid_argument,
       "default_model_filename is"},
      {"default_model_filename: \"..\"", ErrorCode::invalid_argument, "default_model_filename is"},
      {"default_model_filename: \"a\\0b\"", ErrorCode::invalid_argument, "default_model_filename is"},
      {"input { name: \"a\\377\" data_type: TYPE_FP32 dims: [1] }", ErrorCode::invalid_argument,
       "name holds bytes that are not UTF-8"},
      {"parameters { key: \"\\xff\" value { string_value: \"1\" } }", ErrorCode::invalid_argument,
       "key holds bytes that are not UTF-8"},
      {"input { name: \"a\\nb\" data_type: TYPE_FP32 dims: [1] }", ErrorCode::invalid_argument,
       "input whose name has control characters"},
      {"version_policy { specific { } }", ErrorCode::invalid_argument,
       "version_policy: specific without versions"},
      {"version_policy { specific { versions: [ 0 ] } }", ErrorCode::invalid_argument,
       "version_policy: specific version 0"},
  };
  for (const auto& row : rows) {
    const auto parsed = parse_config(row.text, "m");
    ASSERT_FALSE(parsed.has_value()) << row.text;
    EXPECT_EQ(parsed.error().code, row.code) << row.text;
    EXPECT_TRUE(parsed.error().message.starts_with(row.message)) << row.text << "\n"
                                                                 << parsed.error().message;
  }
}

TEST(ParseConfig, SaysWhatItIgnores) {
  const struct {
    const char* text;
    const char* note;
  } rows[] = {
      {"optimization { graph { level: 1 } }", "optimization: every graph is optimised in the same way"},
      {"response_cache { enable: true }", "response_cache: answers are not cached"},
      {"version_policy { latest { } }",
       "version_policy: latest without num_versions, or with 0, is taken for 1"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [ 3 ] is_non_linear_format_io: true }",
       "input 'x': is_non_linear_format_io: "},
      {"output { name: \"y\" data_type: TYPE_FP32 dims: [ 3 ] is_non_linear_format_io: true }",
       "output 'y': is_non_linear_format_io: "},
      {"instance_group [ { name: \"a\" }, { name: \"b\" } ]", "instance_group: 2 groups: "},
      {"dynamic_batching { default_queue_policy { default_timeout_microseconds: 90000000000 "
       "allow_timeout_override: true } }",
       "dynamic_batching: default_queue_policy: default_timeout_microseconds: 90000000000 is taken for a "
       "day"},
      {"sequence_batching { state { input_name: \"s\" output_name: \"t\" data_type: TYPE_FP32 dims: [ 2 ] "
       "use_growable_memory: true } }",
       "sequence_batching: state 's': use_same_buffer_for_input_output and use_growable_memory: "},
      {"dynamic_batching { max_queue_delay_microseconds: 100 }",
       "dynamic_batching: max_queue_delay_microseconds: "},
      {"dynamic_batching { default_queue_policy { default_timeout_microseconds: 5 timeout_action: DELAY } }",
       "dynamic_batching: default_queue_policy: allow_timeout_override: false"},
      {"instance_group { count: 3 }", "instance_group: count 3: "},
      {"instance_group { kind: KIND_GPU }", "instance_group: KIND_GPU: "},
      {"parameters { key: \"colour\" value { string_value: \"red\" } }",
       "parameter 'colour': not known here; known are slo_ms, miss_rate, class, real_time_requests, "
       "precision"},
      {"parameters { key: \"slo\" value { string_value: \"5\" } }",
       "parameter 'slo': not known here; known are"},
      {"parameters { key: \"slo_msec\" value { string_value: \"5\" } }",
       "parameter 'slo_msec': not known here; the nearest is 'slo_ms'; known are"},
      {"input { name: \"x\" data_type: TYPE_FP32 dims: [1] format: FORMAT_NCHW }", "input 'x': format: "},
      {"max_batch_size: 200 dynamic_batching { preferred_batch_size: [ 200 ] }",
       "preferred_batch_size 200: the largest"},
  };
  for (const auto& row : rows) {
    const auto parsed = parse_config(row.text, "m");
    ASSERT_TRUE(parsed.has_value()) << row.text << "\n" << parsed.error().message;
    ASSERT_EQ(parsed->config.ignored.size(), 1U) << row.text;
    EXPECT_NE(parsed->config.ignored[0].find(row.note), std::string::npos) << parsed->config.ignored[0];
  }
}

TEST(ParseConfig, HostileTextGetsAnError) {
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "a{";
  EXPECT_EQ(parse_config(deep, "m").error().message, "line 1: messages nested deeper than 32");
  deep.clear();
  for (int i = 0; i < 200'000; ++i) deep += "a<";
  EXPECT_FALSE(parse_config(deep, "m").has_value());
  deep = "a: " + std::string(200'000, '[');
  EXPECT_FALSE(parse_config(deep, "m").has_value());
  // Braces within strings and comments do not count.
  EXPECT_TRUE(
      parse_config(
          "# " + std::string(100, '{') + "\nparameters { key: \"" + std::string(100, '{') + "\\\"{\" }", "m")
          .has_value());
}

// Any bytes give a config or an error, never a crash.
TEST(ParseConfig, DamagedTextNeverCrashes) {
  Random random(7);
  const std::string whole = full_config;
  int good = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    const std::uint64_t edits = 1 + random.below(4);
    for (std::uint64_t e = 0; e < edits; ++e) {
      if (text.empty()) text = whole;
      const std::size_t at = random.below(text.size());
      switch (random.below(4)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, 1 + random.below(20));
          break;
        case 2:
          text.insert(at, text.substr(random.below(text.size()), random.below(30)));
          break;
        default:
          text.resize(std::max<std::size_t>(1, at));
      }
    }
    const auto parsed = parse_config(text, "m");
    good += parsed.has_value();
    if (!parsed) {
      EXPECT_FALSE(parsed.error().message.empty());
    }
  }
  EXPECT_GT(good, 50);
}

class FakeModel final : public Model {
 public:
  FakeModel(bool batched, std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs)
      : batched_(batched), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  const std::string& name() const override { return name_; }
  const std::vector<TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return batched_; }
  Result<Graph> specialize(std::int64_t, std::int64_t) const override {
    return fail(ErrorCode::internal, "not here");
  }

 private:
  std::string name_ = "fake";
  bool batched_;
  std::vector<TensorSpec> inputs_, outputs_;
};

const FakeModel batched_model(true, {{"x", DataType::f32, {-1, 3, 4}}, {"ids", DataType::i64, {-1, 7}}},
                              {{"y", DataType::f32, {-1, 10}}, {"z", DataType::f32, {-1, 2}}});
const FakeModel whole_model(false, {{"x", DataType::f32, {1, 3}}}, {{"y", DataType::f32, {1, 10}}});

Result<ModelConfig> completed(const char* text, const Model& model) {
  auto parsed = parse_config(text, "m");
  if (!parsed) return std::unexpected(parsed.error());
  return complete_config(std::move(parsed->config), model);
}

TEST(CompleteConfig, WithoutAConfigTheFileDecides) {
  const auto config = completed("", batched_model);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->max_batch_size, 16);
  EXPECT_EQ(config->batch_sizes, (std::vector<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(config->inputs, batched_model.inputs());
  EXPECT_EQ(config->outputs, batched_model.outputs());
  inference::ModelConfig message;
  ASSERT_TRUE(message.ParseFromString(config->serialized));
  EXPECT_EQ(message.name(), "m");
  EXPECT_EQ(message.max_batch_size(), 16);
  EXPECT_EQ(message.platform(), "onnxruntime_onnx");
  ASSERT_EQ(message.input_size(), 2);
  EXPECT_EQ(message.input(0).data_type(), inference::TYPE_FP32);
  ASSERT_EQ(message.input(0).dims_size(), 2) << "without the batch";
  EXPECT_EQ(message.input(0).dims(1), 4);
  EXPECT_EQ(message.version_policy().latest().num_versions(), 1U);
  EXPECT_EQ(message.dynamic_batching().preferred_batch_size_size(), 5);

  const auto whole = completed("", whole_model);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->max_batch_size, 0);
  EXPECT_EQ(whole->batch_sizes, (std::vector<int>{1}));
  ASSERT_TRUE(message.ParseFromString(whole->serialized));
  EXPECT_EQ(message.input(0).dims_size(), 2);
}

TEST(CompleteConfig, TakesTheFilesOrderAndDimensions) {
  const auto config = completed(R"(max_batch_size: 4
      input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
      input { name: "x" data_type: TYPE_FP32 dims: [ 3, 4 ] format: FORMAT_NCHW }
      output { name: "z" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "l.txt" })",
                                batched_model);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->inputs, batched_model.inputs());
  EXPECT_EQ(config->batch_sizes, (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(config->ignored.back(),
            "outputs that the config leaves out are served as well: the file has 'y', 'z'");
  inference::ModelConfig message;
  ASSERT_TRUE(message.ParseFromString(config->serialized));
  EXPECT_EQ(message.input(0).name(), "x");
  EXPECT_EQ(message.input(0).format(), inference::ModelInput::FORMAT_NCHW) << "what was said stays";
  EXPECT_EQ(message.input(1).dims(0), 7);
  EXPECT_EQ(message.output(1).label_filename(), "l.txt");
}

TEST(CompleteConfig, OutputsAloneStillLeaveTheBatchToTheFile) {
  const auto config = completed("output { name: \"y\" data_type: TYPE_FP32 dims: [ 10 ] }", batched_model);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->max_batch_size, 16);
}

TEST(CompleteConfig, TheVersionPolicyIsToldAnew) {
  auto config = completed("", batched_model);
  ASSERT_TRUE(config.has_value());
  const auto other = parse_config("version_policy { specific { versions: [ 3 ] } }", "m");
  ASSERT_TRUE(other.has_value());
  EXPECT_TRUE(same_version_policy(*config, parse_config("", "m")->config)) << "the newest alone, by default";
  EXPECT_FALSE(same_version_policy(*config, other->config));
  take_version_policy(other->config, *config);
  EXPECT_TRUE(same_version_policy(*config, other->config));
  inference::ModelConfig message;
  ASSERT_TRUE(message.ParseFromString(config->serialized));
  EXPECT_EQ(message.version_policy().specific().versions(0), 3);
  EXPECT_EQ(message.max_batch_size(), 16) << "the rest stays";
}

TEST(CompleteConfig, WhatAnInitializerSetsIsNoInput) {
  const std::vector<TensorSpec> fixed{{"w", DataType::f32, {3, 4}}, {"s", DataType::f32, {}}};
  const auto rest = [&](const std::string& inputs) {
    auto parsed = parse_config("max_batch_size: 4 " + inputs, "m");
    return without_fixed_inputs(std::move(parsed->config), fixed);
  };
  const auto config = rest(
      "input { name: 'x' data_type: TYPE_FP32 dims: [ 3, 4 ] optional: true } "
      "input { name: 'ids' data_type: TYPE_INT64 dims: [ 7 ] } "
      "input { name: 'w' data_type: TYPE_FP32 dims: [ 3, -1 ] optional: true } "
      "input { name: 's' data_type: TYPE_FP32 dims: [ 1 ] }");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->fixed, (std::vector<std::string>{"w", "s"}));
  EXPECT_EQ(config->ignored, (std::vector<std::string>{
                                 "input 'w': an initializer of the file sets it: requests leave it out",
                                 "input 's': an initializer of the file sets it: requests leave it out"}));
  const auto whole = complete_config(*config, batched_model);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->inputs, batched_model.inputs());
  EXPECT_EQ(whole->ignored.back(),
            "input 'x': optional: the file has no value of its own for it, so that every request gives it");
  EXPECT_EQ(rest("")->fixed.size(), 2U) << "whether or not the config lists them";
  for (const char* wrong : {"input { name: 'w' data_type: TYPE_FP32 dims: [ 3, 5 ] }",
                            "input { name: 'w' data_type: TYPE_FP16 dims: [ 3, 4 ] }",
                            "input { name: 'w' data_type: TYPE_FP32 dims: [ 4 ] }"}) {
    const auto refused = rest(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_NE(refused.error().message.find("FP32[3,4] in the file, where an initializer sets it"),
              std::string::npos)
        << refused.error().message;
  }
}

TEST(CompleteConfig, DisagreementsAreErrors) {
  const struct {
    const char* text;
    const Model& model;
    const char* message;
  } rows[] = {
      {"max_batch_size: 4 input { name: \"x\" data_type: TYPE_FP32 dims: [ 3, 5 ] }", batched_model,
       "input 'x' is FP32[-1,3,5] by the config (-1 first where it batches), but FP32[-1,3,4] in the file"},
      {"max_batch_size: 4 input { name: \"x\" data_type: TYPE_FP16 dims: [ 3, 4 ] }", batched_model,
       "input 'x' is FP16[-1,3,4] by the config"},
      {"max_batch_size: 4 input { name: \"x\" data_type: TYPE_FP32 dims: [ 3 ] }", batched_model,
       "input 'x' is FP32[-1,3] by the config"},
      {"max_batch_size: 4 input { name: \"q\" data_type: TYPE_FP32 dims: [ 3 ] }", batched_model,
       "input 'q' of the config is not in the file, which has 'x', 'ids'"},
      {"max_batch_size: 4 input { name: \"x\" data_type: TYPE_FP32 dims: [ 3, 4 ] }", batched_model,
       "the file's input 'ids' INT64[-1,7] is missing from the config, which has 'x'"},
      {"max_batch_size: 4 output { name: \"y\" data_type: TYPE_FP32 dims: [ 11 ] }", batched_model,
       "output 'y' is FP32[-1,11] by the config"},
      {"max_batch_size: 4", whole_model,
       "max_batch_size is 4, but the first dimension of the file's inputs is fixed"},
  };
  for (const auto& row : rows) {
    const auto config = completed(row.text, row.model);
    ASSERT_FALSE(config.has_value()) << row.text;
    EXPECT_TRUE(config.error().message.starts_with(row.message)) << config.error().message;
  }
}

class RepositoryTest : public Test {
 protected:
  RepositoryTest() { fs::create_directory(root); }
  void write(const fs::path& relative, std::string_view text = "onnx") {
    fs::create_directories((root / relative).parent_path());
    std::ofstream(root / relative, std::ios::binary) << text;
  }
  std::vector<RepositoryEntry> read() {
    auto entries = read_repository(root);
    EXPECT_TRUE(entries.has_value()) << entries.error().message;
    return entries ? std::move(*entries) : std::vector<RepositoryEntry>{};
  }
  // The one entry's error text.
  std::string error() {
    const auto entries = read();
    EXPECT_EQ(entries.size(), 1U);
    if (entries.size() != 1 || entries[0].config) return "no error";
    EXPECT_TRUE(entries[0].versions.empty());
    return entries[0].config.error().message;
  }
  static std::vector<std::int64_t> numbers(const RepositoryEntry& entry) {
    std::vector<std::int64_t> out;
    for (const ModelVersion& version : entry.versions) out.push_back(version.version);
    return out;
  }
  carillon::testing::Folder folder;
  const fs::path base = folder.path(), root = base / "models";
};

TEST_F(RepositoryTest, ReadsModelsInNameOrderAndPassesOverTheRest) {
  write("b/1/model.onnx");
  write("b/config.pbtxt", "max_batch_size: 2");
  write("a/1/model.onnx");
  write("README.md", "hello");
  write(".git/config", "x");
  write("b/notes/x", "y");
  write("b/01/model.onnx");
  write("b/-1/model.onnx");
  const auto entries = read();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_TRUE(entries[0].config->batch_from_file);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].config->max_batch_size, 2);
  EXPECT_EQ(numbers(entries[1]), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(entries[1].versions[0].file, root / "b/1/model.onnx");
}

TEST_F(RepositoryTest, EachFolderThatIsPassedOverIsTold) {
  for (const char* version : {"1", "9223372036854775807", "01", "1.0", "-1", "+1", "0", "latest",
                              "9223372036854775808", "warmup", "initial_state"})
    write(fs::path("m") / version / "model.onnx");
  write("m/config.pbtxt", "version_policy { all { } }");
  write("m/7", "a file");
  write("m/labels.txt");
  write("README.md");
  write("other.onnx");
  write(".hidden/1/model.onnx");
  write("..model/1/model.onnx");
  fs::create_symlink(base / "nowhere", root / "m" / "2");
  fs::create_symlink(base / "nowhere", root / "gone");
  std::vector<std::string> skipped;
  const auto entries = read_repository(root, {}, &skipped);
  ASSERT_TRUE(entries.has_value());
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(numbers(entries->front()), (std::vector<std::int64_t>{1, 9223372036854775807}));
  const std::string here = root.string() + ": ", in_m = (root / "m").string() + ": ";
  std::ranges::sort(skipped);
  std::vector<std::string> wanted{
      here +
          "'..model' is passed over: folders whose names begin with '.' are hidden; a model's name begins "
          "otherwise",
      here +
          "'.hidden' is passed over: folders whose names begin with '.' are hidden; a model's name begins "
          "otherwise",
      here + "'gone' is passed over: it is a symbolic link to nothing",
      here + "'other.onnx' is passed over: it is a file, and a model is a folder here: " +
          (root / "other/1/model.onnx").string() + ", or --model " + (root / "other.onnx").string() +
          " without a repository",
      in_m + "'01' is passed over: a version has no leading zeros",
      in_m + "'1.0' is passed over: a version is a whole number, such as 1",
      in_m + "'-1' is passed over: a version is 1 or more",
      in_m + "'+1' is passed over: a version is a whole number, such as 1",
      in_m + "'0' is passed over: a version is 1 or more",
      in_m + "'latest' is passed over: a version is a whole number, such as 1",
      in_m + "'9223372036854775808' is passed over: a version is at most 9223372036854775807",
      in_m + "'7' is passed over: a version is a folder, and this is none",
      in_m + "'2' is passed over: it is a symbolic link to nothing"};
  std::ranges::sort(wanted);
  EXPECT_EQ(skipped, wanted);
  skipped.clear();
  ASSERT_TRUE(read_entry(root, "m", std::nullopt, {}, &skipped).has_value());
  EXPECT_EQ(skipped.size(), 9U);
  for (const char* name : {".hidden", "..model"}) {
    const auto entry = read_entry(root, name);
    ASSERT_FALSE(entry.has_value());
    EXPECT_NE(entry.error().message.find("are hidden"), std::string::npos) << entry.error().message;
  }
  // As many as a person reads.
  for (int i = 0; i < 50; ++i) write(fs::path("m") / ("v" + std::to_string(i)) / "model.onnx");
  skipped.clear();
  ASSERT_TRUE(read_entry(root, "m", std::nullopt, {}, &skipped).has_value());
  EXPECT_EQ(skipped.size(), 21U);
  EXPECT_EQ(skipped.back(), in_m + "39 more are passed over, for such reasons");
}

TEST_F(RepositoryTest, AVersionIsTheSameWhicheverAreServed) {
  for (const char* version : {"1", "2"}) write(fs::path("m") / version / "model.onnx");
  const auto stamp = [&](const char* config) {
    write("m/config.pbtxt", config);
    const auto entries = read();
    return stamp_of(entries[0], entries[0].versions.back());
  };
  const std::string first = stamp("max_batch_size: 8");
  EXPECT_EQ(stamp("max_batch_size: 8 version_policy { all { } }"), first);
  EXPECT_EQ(stamp("max_batch_size: 8 version_policy { specific { versions: [ 2 ] } }"), first);
  EXPECT_NE(stamp("max_batch_size: 4"), first);
}

TEST_F(RepositoryTest, VersionPoliciesSelect) {
  for (const char* version : {"1", "2", "9", "10"}) write(fs::path("m") / version / "model.onnx");
  const struct {
    const char* policy;
    std::vector<std::int64_t> versions;
  } rows[] = {{"", {10}},
              {"version_policy { latest { } }", {10}},
              {"version_policy { latest { num_versions: 3 } }", {2, 9, 10}},
              {"version_policy { latest { num_versions: 99 } }", {1, 2, 9, 10}},
              {"version_policy { all { } }", {1, 2, 9, 10}},
              {"version_policy { specific { versions: [ 9, 1, 9 ] } }", {1, 9}}};
  for (const auto& row : rows) {
    write("m/config.pbtxt", row.policy);
    EXPECT_EQ(numbers(read().at(0)), row.versions) << row.policy;
  }
  write("m/config.pbtxt", "version_policy { specific { versions: [ 3 ] } }");
  EXPECT_EQ(error(), "version_policy: there is no version 3 in " + (root / "m").string());
}

TEST_F(RepositoryTest, WhatIsMissingIsNamed) {
  fs::create_directories(root / "m");
  EXPECT_EQ(error(), (root / "m").string() + " has no version folder: the model's file belongs there as " +
                         (root / "m/1/model.onnx").string());
  fs::create_directories(root / "m/1");
  EXPECT_EQ(error(), (root / "m/1/model.onnx").string() + " is not there");
  fs::create_directories(root / "m/1/model.onnx");
  EXPECT_EQ(error(), (root / "m/1/model.onnx").string() + " is not a regular file");
}

TEST_F(RepositoryTest, AModelsOwnFolderInPlaceOfARepositoryIsTold) {
  write("1/model.onnx");
  EXPECT_THAT(error(), ::testing::EndsWith("; where " + (root / "1").string() + " is itself a version, " +
                                           root.string() +
                                           " is a model's folder, and the repository is the folder above"));
}

TEST_F(RepositoryTest, AConfigErrorNamesItsFile) {
  write("m/1/model.onnx");
  write("m/config.pbtxt", "name: \"m\"\nmax_batch_size: x");
  EXPECT_TRUE(error().starts_with((root / "m/config.pbtxt").string() + ": line 2, column 17: ")) << error();
  write("m/config.pbtxt", std::string((1 << 20) + 1, '\n'));
  EXPECT_EQ(error(), (root / "m/config.pbtxt").string() + " is longer than 1048576 bytes");
  fs::remove(root / "m/config.pbtxt");
  fs::create_directory(root / "m/config.pbtxt");
  EXPECT_EQ(error(), (root / "m/config.pbtxt").string() + " is not a regular file");
}

TEST_F(RepositoryTest, OpenVinosFilesAreTakenWhereThereIsNoOnnx) {
  write("m/1/model.xml");
  EXPECT_EQ(error(), (root / "m/1/model.bin").string() + " is not there");
  write("m/1/model.bin");
  auto entries = read();
  ASSERT_TRUE(entries[0].config) << entries[0].config.error().message;
  EXPECT_EQ(entries[0].versions[0].file, root / "m/1/model.xml");
  write("m/1/model.onnx");
  EXPECT_EQ(read()[0].versions[0].file, root / "m/1/model.onnx");
  write("m/config.pbtxt", "backend: \"openvino\" default_model_filename: \"model.xml\"");
  entries = read();
  EXPECT_EQ(entries[0].versions[0].file, root / "m/1/model.xml");
  EXPECT_EQ(entries[0].config->engine, "openvino");
  fs::remove(root / "m/1/model.bin");
  fs::create_symlink(base / "elsewhere.bin", root / "m/1/model.bin");
  std::ofstream(base / "elsewhere.bin") << "secret";
  EXPECT_NE(error().find("leads out of the repository"), std::string::npos) << error();
}

TEST_F(RepositoryTest, OtherFormatsAreRefusedWithWhatToDo) {
  fs::create_directories(root / "m/1");
  EXPECT_EQ(error(), (root / "m/1/model.onnx").string() + " is not there");
  write("m/1/model.pt2");
  EXPECT_NE(error().find("model.pt2 beside it is an exported PyTorch program"), std::string::npos) << error();
  EXPECT_NE(error().find("torch.onnx.export(torch.export.load('model.pt2')"), std::string::npos) << error();
  write("m/1/model.onnx");
  EXPECT_TRUE(read()[0].config);
}

TEST_F(RepositoryTest, OneBadModelDoesNotSpoilTheOthers) {
  write("bad/1/model.onnx");
  write("bad/config.pbtxt", "platform: \"pytorch_libtorch\"");
  write("good/1/model.onnx");
  const auto entries = read();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].config.error().code, ErrorCode::unsupported);
  EXPECT_TRUE(entries[1].config.has_value());
}

TEST_F(RepositoryTest, LabelsAreALineForEachClass) {
  const auto config = [](const std::string& file) {
    return "output { name: 'y' data_type: TYPE_FP32 dims: [ 3 ] label_filename: '" + file + "' }";
  };
  write("m/1/model.onnx");
  write("m/config.pbtxt", config("names.txt"));
  write("m/names.txt", "cat\r\na dog\n\nlast");
  const auto entries = read();
  ASSERT_TRUE(entries[0].config.has_value()) << entries[0].config.error().message;
  EXPECT_EQ(entries[0].config->labels->at("y"), (std::vector<std::string>{"cat", "a dog", "", "last"}));
  const std::string before = stamp_of(entries[0], entries[0].versions[0]);
  write("m/names.txt", "other");
  const auto changed = read();
  EXPECT_NE(stamp_of(changed[0], changed[0].versions[0]), before);

  write("m/config.pbtxt", config("nothing.txt"));
  EXPECT_NE(error().find("output 'y': label_filename"), std::string::npos) << error();
  std::ofstream(base / "secret") << "secret";
  write("m/config.pbtxt", config("../../secret"));
  EXPECT_NE(error().find("leads out of the repository"), std::string::npos) << error();
  write("m/config.pbtxt", config("/etc/passwd"));
  EXPECT_NE(error().find("must be a file in the model's folder"), std::string::npos) << error();
  write("m/config.pbtxt", config("1"));
  EXPECT_NE(error().find("not a regular file"), std::string::npos) << error();
}

TEST_F(RepositoryTest, LinksLeadNowhereOutside) {
  fs::create_directories(base / "outside/1");
  std::ofstream(base / "outside/1/model.onnx") << "secret";
  std::ofstream(base / "outside/config.pbtxt") << "";
  const std::string leads_out = "leads out of the repository";

  fs::create_directory_symlink(base / "outside", root / "m");
  EXPECT_NE(error().find(leads_out), std::string::npos) << error();
  fs::remove(root / "m");
  fs::create_directories(root / "m");
  fs::create_directory_symlink(base / "outside/1", root / "m/1");
  EXPECT_NE(error().find(leads_out), std::string::npos) << error();
  fs::remove(root / "m/1");
  fs::create_directories(root / "m/1");
  fs::create_symlink(base / "outside/1/model.onnx", root / "m/1/model.onnx");
  EXPECT_NE(error().find(leads_out), std::string::npos) << error();
  fs::remove(root / "m/1/model.onnx");
  write("m/1/model.onnx");
  fs::create_symlink(base / "outside/config.pbtxt", root / "m/config.pbtxt");
  EXPECT_NE(error().find(leads_out), std::string::npos) << error();
  fs::remove(root / "m/config.pbtxt");
  fs::create_symlink(root / "m/nothing", root / "m/config.pbtxt");
  EXPECT_EQ(error(), (root / "m/config.pbtxt").string() + " is a symbolic link to nothing");
  // Inside is fine, also where the repository itself is reached by a link.
  fs::remove(root / "m/config.pbtxt");
  write("n/1/net.onnx");
  fs::remove(root / "m/1/model.onnx");
  fs::create_symlink("../../n/1/net.onnx", root / "m/1/model.onnx");
  fs::rename(root / "n/1/net.onnx", root / "n/1/model.onnx");
  fs::remove(root / "m/1/model.onnx");
  fs::create_symlink("../../n/1/model.onnx", root / "m/1/model.onnx");
  fs::create_directory_symlink(root, base / "link");
  const auto entries = read_repository(base / "link");
  ASSERT_TRUE(entries.has_value());
  for (const RepositoryEntry& entry : *entries)
    EXPECT_TRUE(entry.config.has_value()) << entry.config.error().message;
}

TEST_F(RepositoryTest, LinksAreFollowedWhereTheOptionsSaySo) {
  const ReadOptions following{.follow_links = true};
  fs::create_directories(base / "outside/1");
  std::ofstream(base / "outside/1/model.onnx") << "a model";
  std::ofstream(base / "secret") << "secret";
  fs::create_directory_symlink(base / "outside", root / "m");
  EXPECT_FALSE(read_repository(root)->front().config.has_value());
  EXPECT_FALSE(read_entry(root, "m")->config.has_value());
  auto entries = read_repository(root, following);
  ASSERT_TRUE(entries.has_value());
  ASSERT_TRUE(entries->front().config.has_value()) << entries->front().config.error().message;
  EXPECT_EQ(entries->front().versions.front().file, root / "m/1/model.onnx");
  EXPECT_TRUE(read_entry(root, "m", std::nullopt, following)->config.has_value());
  // Names are another matter.
  std::ofstream(base / "outside/config.pbtxt")
      << R"(output { name: "y" data_type: TYPE_FP32 dims: [1] label_filename: "../../secret" })";
  entries = read_repository(root, following);
  EXPECT_EQ(entries->front().config.error().message,
            (root / "m/config.pbtxt").string() +
                ": output 'y': label_filename: '../../secret' leads out of the repository");
}

TEST_F(RepositoryTest, NamesMustBeText) {
  write("a\nb/1/model.onnx");
  EXPECT_EQ(error(), "the folder's name, a\\x0ab, is not UTF-8 text without control characters");
  fs::remove_all(root / "a\nb");
  write("\xff\xfe/1/model.onnx");
  EXPECT_EQ(error(), "the folder's name, \\xff\\xfe, is not UTF-8 text without control characters");
  fs::remove_all(root / "\xff\xfe");
  write(
      "m\xc3\xb6"
      "del/1/model.onnx");
  EXPECT_TRUE(read().at(0).config.has_value());
}

TEST_F(RepositoryTest, ErrorsOfTheWhole) {
  EXPECT_EQ(read_repository(base / "none").error().code, ErrorCode::not_found);
  EXPECT_EQ(check_repository(base / "none").error(),
            (Error{ErrorCode::not_found,
                   "model repository '" + (base / "none").string() + "': No such file or directory"}));
  std::ofstream(base / "file") << "x";
  EXPECT_TRUE(read_repository(base / "file")
                  .error()
                  .message.ends_with("is not a directory; it is one with a folder for each model"));
  EXPECT_TRUE(read().empty()) << "an empty one is no error";
}

TEST_F(RepositoryTest, FilesAloneAreARepository) {
  write("b.onnx");
  write("net.xml");
  write("net.bin");
  fs::create_symlink(root / "b.onnx", root / "linked=here.onnx");
  std::vector<ModelFile> files;
  for (const std::string& text : {(root / "b.onnx").string(), "a=" + (root / "net.xml").string(),
                                  (root / "linked=here.onnx").string()}) {
    auto file = model_file(text);
    ASSERT_TRUE(file.has_value()) << file.error().message;
    files.push_back(std::move(*file));
  }
  const auto entries = read_repository({}, {.files = files});
  ASSERT_TRUE(entries.has_value()) << entries.error().message;
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[2].name, "linked=here") << "a path may have an '='";
  for (const RepositoryEntry& entry : *entries) {
    ASSERT_TRUE(entry.config.has_value()) << entry.config.error().message;
    EXPECT_THAT(numbers(entry), ElementsAre(1));
  }
  EXPECT_EQ((*entries)[0].versions[0].file, root / "net.xml");
  EXPECT_TRUE(read_entry({}, "b", std::nullopt, {.files = files}).has_value());
  EXPECT_EQ(read_entry({}, "c", std::nullopt, {.files = files}).error().code, ErrorCode::not_found);

  // What has gone since is an error of its entry.
  fs::remove(root / "b.onnx");
  EXPECT_FALSE(read_entry({}, "b", std::nullopt, {.files = files})->config.has_value());
}

TEST_F(RepositoryTest, FilesThatCannotBeServedSayWhatWouldBeRight) {
  write("net.xml");
  write("weights.pt");
  write("notes.txt");
  write("\x01.onnx");
  write("one/m.onnx");
  write("two/m.onnx");
  const auto text = [&](const char* relative) { return (root / relative).string(); };
  const std::pair<std::string, std::string> rows[] = {
      {text("none.onnx"), text("none.onnx") + " is not there"},
      {root.string(), root.string() + " is a folder, where one file is wanted; a model repository"},
      {text("net.xml"), text("net.bin") + " is not there"},
      {text("weights.pt"), text("weights.pt") + " is a TorchScript or PyTorch file; export it"},
      {text("notes.txt"), text("notes.txt") + " is neither an ONNX file"},
      {text("\x01.onnx"), "'\\x01' cannot be a model's name; give it one: NAME="},
      {".m=" + text("one/m.onnx"), "'.m' cannot be a model's name"},
      {"=" + text("one/m.onnx"), "'' cannot be a model's name"},
      {"m=", "a model's file is missing"},
      {"", "a model's file is missing"},
  };
  for (const auto& [given, said] : rows) {
    const auto file = model_file(given);
    ASSERT_FALSE(file.has_value()) << given;
    EXPECT_TRUE(file.error().message.starts_with(said)) << file.error().message;
  }
  const auto one = model_file(text("one/m.onnx")), two = model_file(text("two/m.onnx"));
  ASSERT_TRUE(one && two);
  const auto twice = read_repository({}, {.files = {*one, *two}});
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().message, "two models are called 'm', of " + text("one/m.onnx") + " and of " +
                                       text("two/m.onnx") +
                                       "; give one another name: NAME=" + text("two/m.onnx"));
}

TEST_F(RepositoryTest, UnreadableOnesSayNoPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write("m/1/model.onnx");
  fs::permissions(root / "m/1/model.onnx", fs::perms::none);
  EXPECT_TRUE(error().ends_with("cannot be opened: Permission denied")) << error();
}

}  // namespace
}  // namespace carillon::repository
