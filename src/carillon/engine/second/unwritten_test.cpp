// Runs that leave a result unwritten: nobody gets what another run, perhaps another client's, had left there.
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/onnxruntime/onnxruntime.h"
#include "carillon/engine/openvino/openvino.h"
#include "carillon/engine/second/second_engine.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/testing.h"

namespace carillon::engine {
namespace {

using graph::DataType;
using graph::Shape;
using graph::Tensor;
using graph::testing::Dims;
using graph::testing::Folder;
using graph::testing::Onnx;
using ::testing::HasSubstr;

struct Placed {
  const second::Kind* kind;
  const char* module;  // nullptr: this build has none
  bool apart;
};
#ifdef CARILLON_OPENVINO_MODULE
constexpr const char* openvino_module = CARILLON_OPENVINO_MODULE;
#else
constexpr const char* openvino_module = nullptr;
#endif
#ifdef CARILLON_ONNXRUNTIME_MODULE
constexpr const char* onnxruntime_module = CARILLON_ONNXRUNTIME_MODULE;
#else
constexpr const char* onnxruntime_module = nullptr;
#endif

// What the client before had: it must come out of no later run.
constexpr float secret = 7777;
constexpr std::byte poison{0xa5};

using Inputs = std::map<std::string, Tensor>;

Tensor filled(const Shape& shape, float value) {
  Tensor out({DataType::f32, shape});
  for (float& each : out.as<float>()) each = value;
  return out;
}
Tensor flag(bool value) {
  Tensor out({DataType::boolean, {}});
  out.bytes()[0] = std::byte{value};
  return out;
}

class Unwritten : public ::testing::TestWithParam<Placed> {
 protected:
  void SetUp() override {
    if (GetParam().module == nullptr)
      GTEST_SKIP() << "this build has no module for " << GetParam().kind->title << GetParam().kind->remedy;
    engine_ = make_second_engine(*GetParam().kind,
                                 {.threads = 1, .module = GetParam().module, .apart = GetParam().apart});
  }
  bool openvino_runs() const { return GetParam().kind == &openvino; }

  Result<> load(const Onnx& onnx, const graph::ImportOptions& import) {
    const Folder folder;
    auto source = engine_->read(folder.write("model.onnx", onnx.bytes()), import);
    if (!source) return std::unexpected(source.error());
    auto compiled = engine_->compile(**source, {.batch_sizes = {1}});
    if (!compiled) return std::unexpected(compiled.error());
    compiled_ = *compiled;
    return {};
  }

  // The bytes of all outputs, as far as their extents say, in memory that was full of poison.
  Result<std::vector<std::byte>> run(const Plan& plan, const Inputs& given) {
    std::vector<const std::byte*> from;
    for (const graph::TensorSpec& input : plan.inputs()) from.push_back(given.at(input.name).bytes().data());
    std::vector<Tensor> room;
    std::vector<std::byte*> to;
    for (const graph::TensorSpec& output : plan.outputs()) {
      const auto bytes = static_cast<std::int64_t>(graph::memory_of(output.type, output.shape).count);
      room.emplace_back(graph::TensorType{DataType::u8, {std::max<std::int64_t>(1, bytes)}});
      std::ranges::fill(room.back().bytes(), poison);
    }
    for (Tensor& each : room) to.push_back(each.bytes().data());
    if (auto ran = plan.run({0, 1}, {.inputs = from, .outputs = to}, {}); !ran)
      return std::unexpected(ran.error());
    std::vector<std::byte> out;
    for (std::size_t i = 0; i < room.size(); ++i) {
      const graph::TensorSpec& output = plan.outputs()[i];
      const auto memory = room[i].bytes().first(graph::memory_of(output.type, output.shape).count);
      const auto shape = graph::shape_in(output.type, output.shape, memory);
      if (!shape) return std::unexpected(shape.error());
      const auto answer = memory.first(graph::TensorType{output.type, *shape}.bytes().count);
      out.insert(out.end(), answer.begin(), answer.end());
    }
    return out;
  }
  Result<std::vector<std::byte>> run(const Inputs& given) { return run(*compiled_->plan(1), given); }

  static bool has_secret(const std::vector<std::byte>& answer) {
    for (std::size_t i = 0; i + sizeof(float) <= answer.size(); i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, answer.data() + i, sizeof value);
      if (value > secret / 2 || std::memcmp(answer.data() + i, "\xa5\xa5\xa5\xa5", 4) == 0) return true;
    }
    return false;
  }

  std::shared_ptr<ReadingEngine> engine_;
  std::shared_ptr<const CompiledModel> compiled_;
};

INSTANTIATE_TEST_SUITE_P(Placed, Unwritten,
                         ::testing::Values(Placed{&openvino, openvino_module, true},
                                           Placed{&openvino, openvino_module, false},
                                           Placed{&onnxruntime, onnxruntime_module, true},
                                           Placed{&onnxruntime, onnxruntime_module, false}),
                         [](const auto& each) {
                           return std::string(each.param.kind->name) +
                                  (each.param.apart ? "Apart" : "Inside");
                         });

// Collects x three times, where `go`; `carried_on`: what comes out is that and 1.
Onnx loop(bool carried_on, const std::string& before = "go") {
  Onnx body;
  body.input("i", {}, DataType::i64).input("c", {}, DataType::boolean).input("s", {"2", "3"});
  body.node("Identity", {"c"}, {"c_out"}).node("Add", {"s", "x"}, {"s_out"});
  body.node("Identity", {"s_out"}, {"each"});
  body.output("c_out", DataType::boolean).output("s_out").output("each");
  Onnx m;
  m.input("x", {"2", "3"}).input("go", {}, DataType::boolean).i64("three", {}, {3}).f32("one", {1}, {1});
  m.node("Loop", {"three", before, "x"}, {"last", "all"}, "gathers").set("body", body);
  if (carried_on) m.node("Add", {"all", "one"}, {"more"});
  m.output(carried_on ? "more" : "all");
  auto* shape =
      m.proto.mutable_graph()->mutable_output(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  for (const int extent : {3, 2, 3}) shape->add_dim()->set_dim_value(extent);
  return m;
}

TEST_P(Unwritten, WhatALoopOfNoIterationsWouldCollect) {
  for (const bool carried_on : {false, true}) {
    const auto loaded = load(loop(carried_on), {.batched = false});
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (int round = 0; round < 2; ++round) {
      Inputs before, then;
      before.emplace("x", filled({2, 3}, secret));
      before.emplace("go", flag(true));
      const auto theirs = run(before);
      ASSERT_TRUE(theirs) << theirs.error().message;
      ASSERT_TRUE(has_secret(*theirs));
      then.emplace("x", filled({2, 3}, 1));
      then.emplace("go", flag(false));
      const auto mine = run(then);
      // There are no elements, where the model promises three of [2,3].
      ASSERT_FALSE(mine) << "it answered " << mine->size() << " bytes";
      if (openvino_runs()) {
        EXPECT_THAT(mine.error().message, HasSubstr("' runs 0 times"));
      }
    }
  }
}

TEST_P(Unwritten, ALoopThatNeverRunsIsRefusedAtOnce) {
  Onnx m = loop(false, "never");
  m.tensor("never", {}, DataType::boolean)->set_raw_data(std::string(1, '\0'));
  const auto loaded = load(m, {.batched = false});
  if (openvino_runs()) {
    EXPECT_FALSE(loaded);
  } else if (loaded) {  // it finds out when it runs
    Inputs inputs;
    inputs.emplace("x", filled({2, 3}, 1));
    inputs.emplace("go", flag(true));
    EXPECT_FALSE(run(inputs));
  }
}

TEST_P(Unwritten, ALoopThatSurelyRunsIsServed) {
  Onnx m = loop(false, "always");
  m.tensor("always", {}, DataType::boolean)->set_raw_data(std::string(1, '\1'));
  const auto loaded = load(m, {.batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  Inputs inputs;
  inputs.emplace("x", filled({2, 3}, 1));
  inputs.emplace("go", flag(false));
  const auto answer = run(inputs);
  ASSERT_TRUE(answer) << answer.error().message;
  float last = 0;
  ASSERT_EQ(answer->size(), 18 * sizeof last);
  std::memcpy(&last, answer->data() + 17 * sizeof last, sizeof last);
  EXPECT_EQ(last, 4);
}

// Attention over a context of any length: softmax(q k) v.
TEST_P(Unwritten, WhatIsMadeOfAnInputWithoutElements) {
  Onnx m;
  m.input("q", {"2", "4"}).input("k", {"4", "length"}).input("v", {"length", "4"});
  m.node("MatMul", {"q", "k"}, {"s"}).node("Softmax", {"s"}, {"p"}).set("axis", -1);
  m.node("MatMul", {"p", "v"}, {"y"}, "attends").output("y");
  const auto loaded = load(m, {.open = true, .batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto asked = [&](std::int64_t length, float value) -> Result<std::vector<std::byte>> {
    auto plans = compiled_->make_plans(std::array{length}, std::array{1}, nullptr);
    if (!plans) return std::unexpected(plans.error());
    Inputs inputs;
    inputs.emplace("q", filled({2, 4}, 0.5F));
    inputs.emplace("k", filled({4, length}, 0.5F));
    inputs.emplace("v", filled({length, 4}, value));
    return run(*plans->front(), inputs);
  };
  const auto theirs = asked(3, secret);
  ASSERT_TRUE(theirs) << theirs.error().message;
  ASSERT_TRUE(has_secret(*theirs));
  const auto mine = asked(0, 1);
  if (openvino_runs()) {
    ASSERT_FALSE(mine);
    EXPECT_THAT(mine.error().message, HasSubstr("without elements"));
  } else {
    ASSERT_TRUE(mine) << mine.error().message;
    EXPECT_EQ(*mine, std::vector<std::byte>(2 * 4 * sizeof(float)));
  }
}

// The place of the largest of those rows of a table that the data choose: of none, where they choose none.
TEST_P(Unwritten, WhatIsMadeOfRowsThatTheDataDoNotChoose) {
  Onnx m;
  m.input("x", {"4"}).random("table", {4, 5}).i64("first", {1}, {0});
  m.node("NonZero", {"x"}, {"found"}).node("Squeeze", {"found", "first"}, {"rows"});
  m.node("Gather", {"table", "rows"}, {"chosen"}).set("axis", 0);
  m.node("ArgMax", {"chosen"}, {"y"}, "largest").set("axis", 0).set("keepdims", 0);
  m.output("y", DataType::i64);
  const auto loaded = load(m, {.batched = false});
  if (!openvino_runs() && !loaded) GTEST_SKIP() << loaded.error().message;
  ASSERT_TRUE(loaded) << loaded.error().message;
  Inputs all, none;
  all.emplace("x", filled({4}, 1));
  none.emplace("x", filled({4}, 0));
  const auto theirs = run(all);
  ASSERT_TRUE(theirs) << theirs.error().message;
  EXPECT_EQ(theirs->size(), 5 * sizeof(std::int64_t));
  const auto mine = run(none);
  ASSERT_FALSE(mine);
  if (openvino_runs()) {
    EXPECT_THAT(mine.error().message, HasSubstr("has an operand without elements, 'chosen'"));
  }
  EXPECT_TRUE(run(all)) << "the next run is none the worse for it";
}

// OpenVINO's Unique finds one number in none, though its shapes say none.
TEST_P(Unwritten, WhatIsUniqueInAnInputWithoutElements) {
  Onnx m;
  m.input("x", {"length"}).node("Unique", {"x"}, {"y"}, "unique").set("axis", 0).output("y");
  const auto loaded = load(m, {.open = true, .batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto asked = [&](std::int64_t length) -> Result<std::vector<std::byte>> {
    auto plans = compiled_->make_plans(std::array{length}, std::array{1}, nullptr);
    if (!plans) return std::unexpected(plans.error());
    Inputs inputs;
    inputs.emplace("x", filled({length}, secret));
    return run(*plans->front(), inputs);
  };
  const auto theirs = asked(3);
  ASSERT_TRUE(theirs) << theirs.error().message;
  EXPECT_EQ(theirs->size(), sizeof(float));
  const auto mine = asked(0);
  if (openvino_runs()) {
    ASSERT_FALSE(mine);
    EXPECT_EQ(mine.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(mine.error().message, HasSubstr("Unique 'y' has an operand without elements, 'x'"));
  } else {
    ASSERT_TRUE(mine) << mine.error().message;
    EXPECT_TRUE(mine->empty());
  }
}

// OpenVINO's recurrences divide by the batch.
TEST_P(Unwritten, ARecurrenceOfNoRows) {
  for (const auto& [op, gates] : {std::pair("RNN", 1), std::pair("GRU", 3), std::pair("LSTM", 4)}) {
    SCOPED_TRACE(op);
    Onnx m;
    m.input("x", {"3", "rows", "4"}).random("w", {1, gates * 2, 4}).random("r", {1, gates * 2, 2});
    m.node(op, {"x", "w", "r"}, {"y"}).set("hidden_size", 2).output("y");
    const auto loaded = load(m, {.open = true, .batched = false});
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto asked = [&](std::int64_t rows) -> Result<std::vector<std::byte>> {
      auto plans = compiled_->make_plans(std::array{rows}, std::array{1}, nullptr);
      if (!plans) return std::unexpected(plans.error());
      Inputs inputs;
      inputs.emplace("x", filled({3, rows, 4}, 1));
      return run(*plans->front(), inputs);
    };
    const auto mine = asked(0);
    if (openvino_runs()) {
      ASSERT_FALSE(mine);
      EXPECT_EQ(mine.error().code, ErrorCode::invalid_argument);
      EXPECT_THAT(mine.error().message, HasSubstr("has an operand without elements"));
    }
    const auto more = asked(2);
    ASSERT_TRUE(more) << more.error().message;
    EXPECT_EQ(more->size(), 3 * 2 * 2 * sizeof(float));
  }
}

TEST_P(Unwritten, WhatIsUniqueAmongRowsThatTheDataDoNotChoose) {
  Onnx m;
  m.input("x", {"4"}).i64("first", {1}, {0});
  m.node("NonZero", {"x"}, {"found"}).node("Squeeze", {"found", "first"}, {"rows"});
  m.node("Unique", {"rows"}, {"y"}, "unique").set("axis", 0).output("y", DataType::i64);
  const auto loaded = load(m, {.batched = false});
  if (!openvino_runs() && !loaded) GTEST_SKIP() << loaded.error().message;
  ASSERT_TRUE(loaded) << loaded.error().message;
  Inputs all, none;
  all.emplace("x", filled({4}, 1));
  none.emplace("x", filled({4}, 0));
  const auto theirs = run(all);
  ASSERT_TRUE(theirs) << theirs.error().message;
  EXPECT_EQ(theirs->size(), 4 * sizeof(std::int64_t));
  const auto mine = run(none);
  ASSERT_FALSE(mine);
  EXPECT_EQ(mine.error().code, ErrorCode::invalid_argument) << mine.error().message;
  EXPECT_TRUE(run(all)) << "the next run is none the worse for it";
}

Tensor places(const Shape& shape, const std::vector<std::int64_t>& values) {
  Tensor out({DataType::i64, shape});
  std::ranges::copy(values, out.as<std::int64_t>().begin());
  return out;
}

// Of four rows of four numbers those at two places, or two rows put there.
struct Indexes {
  std::string name;
  Dims places;        // the shape of what says where
  bool puts = false;  // with an operand of what to put there
  bool by_axis = true;
};
const Indexes index_operators[] = {{"Gather", {"2"}, false},
                                   {"GatherElements", {"2", "4"}, false},
                                   {"GatherND", {"2", "1"}, false, false},
                                   {"ScatterElements", {"2", "4"}, true},
                                   {"ScatterND", {"2", "1"}, true, false}};

TEST_P(Unwritten, WhatLiesAtAnIndexOutsideOfItsAxis) {
  for (const Indexes& how : index_operators) {
    SCOPED_TRACE(how.name);
    for (const bool open : {false, true}) {
      Onnx m;
      m.input("x", {open ? "rows" : "4", "4"}).input("i", how.places, DataType::i64);
      std::vector<std::string> operands{"x", "i"};
      if (how.puts) operands.emplace_back("put"), m.input("put", {"2", "4"});
      auto& node = m.node(how.name, operands, {"y"}, "at");
      if (how.by_axis) node.set("axis", 0);
      m.output("y");
      const auto loaded = load(m, {.open = open, .batched = false});
      ASSERT_TRUE(loaded) << loaded.error().message;
      const auto asked = [&](std::int64_t index, float value) -> Result<std::vector<std::byte>> {
        Inputs inputs;
        inputs.emplace("x", filled({4, 4}, value));
        inputs.emplace("put", filled({2, 4}, value));
        const std::int64_t width = how.places.size() == 2 && how.by_axis ? 4 : 1;
        std::vector<std::int64_t> values(static_cast<std::size_t>(2 * width), 1);
        for (std::int64_t i = 0; i < width; ++i) values[static_cast<std::size_t>(i)] = index;
        inputs.emplace("i", places(how.by_axis && width == 1 ? Shape{2} : Shape{2, width}, values));
        if (!open) return run(inputs);
        auto plans = compiled_->make_plans(std::array<std::int64_t, 1>{4}, std::array{1}, nullptr);
        if (!plans) return std::unexpected(plans.error());
        return run(*plans->front(), inputs);
      };
      for (int round = 0; round < 2; ++round) {
        const auto theirs = asked(3, secret);
        ASSERT_TRUE(theirs) << theirs.error().message;
        ASSERT_TRUE(has_secret(*theirs));
        for (const std::int64_t bad : {4L, 5L, 100'000L, -5L, -6L, -100'000L, 1L << 32U, (1L << 40U) + 1}) {
          const auto mine = asked(bad, 1);
          ASSERT_FALSE(mine) << "index " << bad << ": it answered " << mine->size() << " bytes";
          EXPECT_EQ(mine.error().code, ErrorCode::invalid_argument) << mine.error().message;
          if (openvino_runs()) {
            EXPECT_THAT(mine.error().message,
                        HasSubstr(bad < 1L << 32U ? "'y' has an index outside of its axis"
                                                  : "input 'i' has the number"));
          }
        }
        for (const std::int64_t good : {0L, 3L, -1L, -4L}) {
          const auto mine = asked(good, 1);
          ASSERT_TRUE(mine) << "index " << good << ": " << mine.error().message;
          EXPECT_FALSE(has_secret(*mine));
        }
      }
    }
  }
}

TEST_P(Unwritten, AnIndexThatIsKnownToBeOutsideIsRefusedAtOnce) {
  for (const Indexes& how : index_operators) {
    if (how.puts) continue;
    Onnx m;
    m.input("x", {"4", "4"});
    const Dims& dims = how.places;
    std::vector<std::int64_t> shape, values(dims.size() == 2 && how.by_axis ? 8 : 2, 1);
    for (const auto& each : dims) shape.push_back(std::stoll(each));
    values.back() = 4;
    m.i64("i", shape, values);
    auto& node = m.node(how.name, {"x", "i"}, {"y"}, "at");
    if (how.by_axis) node.set("axis", 0);
    m.output("y");
    const auto loaded = load(m, {.batched = false});
    if (!openvino_runs()) continue;  // it finds out when it runs
    ASSERT_FALSE(loaded) << how.name;
    EXPECT_THAT(loaded.error().message, HasSubstr("has the index 4, which is outside of 4"));
  }
}

// OpenVINO's TopK takes no k of 0, and takes one beyond its axis for the axis.
TEST_P(Unwritten, TopKGivesAsManyAsAnInputSays) {
  if (!openvino_runs()) GTEST_SKIP() << "onnxruntime does not tell how many there can be";
  Onnx m;
  m.input("x", {"2", "4"}).input("k", {"1"}, DataType::i64);
  m.node("TopK", {"x", "k"}, {"v", "i"}, "best").node("Neg", {"v"}, {"y"});
  m.output("y").output("i", DataType::i64);
  const auto loaded = load(m, {.batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const std::vector<float> x{3, 1, 4, 2, 5, 8, 6, 7};
  const std::vector<float> best[] = {{4, 3, 2, 1}, {8, 7, 6, 5}};
  const std::vector<std::int64_t> places[] = {{2, 0, 3, 1}, {1, 3, 2, 0}};
  const auto asked = [&](std::int64_t k) {
    Inputs inputs;
    inputs.emplace("x", filled({2, 4}, 0));
    std::ranges::copy(x, inputs.at("x").as<float>().begin());
    Tensor how_many({DataType::i64, {1}});
    how_many.as<std::int64_t>()[0] = k;
    inputs.emplace("k", std::move(how_many));
    return run(inputs);
  };
  for (const std::int64_t k : {2, 0, 4, 1, 0}) {
    const auto got = asked(k);
    ASSERT_TRUE(got) << k << ": " << got.error().message;
    std::vector<std::byte> want;
    const auto put = [&](const auto& value) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      want.insert(want.end(), bytes.begin(), bytes.end());
    };
    for (const auto& row : best)
      for (const float each : std::span(row).first(static_cast<std::size_t>(k))) put(-each);
    for (const auto& row : places)
      for (const std::int64_t each : std::span(row).first(static_cast<std::size_t>(k))) put(each);
    EXPECT_EQ(*got, want) << k;
  }
  for (const std::int64_t k : {-1, 5}) {
    const auto got = asked(k);
    ASSERT_FALSE(got) << k;
    EXPECT_EQ(got.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(got.error().message, HasSubstr("has a k outside of its axis"));
  }
}

// Places that the data find, added to three numbers: they fit where there are three, or one.
TEST_P(Unwritten, WhatARunThatFailsLeavesBehind) {
  Onnx m;
  m.input("x", {"4"}).input("s", {"1"}).f32("three", {1, 3}, {1, 1, 1});
  m.node("NonZero", {"x"}, {"found"}).node("Cast", {"found"}, {"places"}).set("to", 1);
  m.node("Add", {"places", "three"}, {"added"}).node("Mul", {"added", "s"}, {"y"}).output("y");
  auto* shape =
      m.proto.mutable_graph()->mutable_output(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  for (const int extent : {1, 3}) shape->add_dim()->set_dim_value(extent);
  const auto loaded = load(m, {.batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto asked = [&](int found, float value) {
    Inputs inputs;
    Tensor x = filled({4}, 0);
    for (int i = 0; i < found; ++i) x.as<float>()[static_cast<std::size_t>(i)] = 1;
    inputs.emplace("x", std::move(x));
    inputs.emplace("s", filled({1}, value));
    return run(inputs);
  };
  for (int round = 0; round < 3; ++round) {
    const auto theirs = asked(3, secret);
    ASSERT_TRUE(theirs) << theirs.error().message;
    ASSERT_TRUE(has_secret(*theirs));
    const auto mine = asked(2, 1);
    ASSERT_FALSE(mine) << "2 places and 3 numbers do not fit";
    const auto next = asked(1, 1);
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_FALSE(has_secret(*next));
  }
}

// As many columns of x as the data say, times weights for four.
TEST_P(Unwritten, InnerExtentsThatDoNotFitTheWeights) {
  Onnx m;
  m.input("x", {"2", "8"}).input("end", {"1"}, DataType::i64).i64("begin", {1}, {0}).i64("axis", {1}, {1});
  m.f32("w", {4, 3}, std::vector<float>(12, 1));
  m.node("Slice", {"x", "begin", "end", "axis"}, {"some"}).node("MatMul", {"some", "w"}, {"y"}, "product");
  m.output("y");
  auto* shape =
      m.proto.mutable_graph()->mutable_output(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  for (const int extent : {2, 3}) shape->add_dim()->set_dim_value(extent);
  const auto loaded = load(m, {.batched = false});
  if (!openvino_runs() && !loaded) GTEST_SKIP() << loaded.error().message;
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto asked = [&](std::int64_t end, float value) {
    Inputs inputs;
    inputs.emplace("x", filled({2, 8}, value));
    inputs.emplace("end", places({1}, {end}));
    auto answer = run(inputs);
    for (int tries = 0; !answer && answer.error().code == ErrorCode::unavailable && tries < 60'000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});  // it is compiled anew
      answer = run(inputs);
    }
    return answer;
  };
  for (const std::int64_t bad : {1, 2, 3, 5, 8}) {
    const auto theirs = asked(4, secret);
    ASSERT_TRUE(theirs) << theirs.error().message;
    ASSERT_TRUE(has_secret(*theirs));
    const auto mine = asked(bad, 1);
    ASSERT_FALSE(mine) << bad << " columns: it answered " << mine->size() << " bytes";
    EXPECT_EQ(mine.error().code, ErrorCode::invalid_argument) << mine.error().message;
    if (openvino_runs()) {
      EXPECT_THAT(mine.error().message, HasSubstr("'y'"));
    }
  }
}

// OpenVINO would read beyond a volume of one channel that comes to a width of 1.
TEST_P(Unwritten, AVolumeOfOneChannelWithAStrideInItsWidthAlone) {
  const auto strides = [](std::int64_t height) { return std::vector<std::int64_t>{1, height, 2}; };
  for (const std::int64_t height : {1, 2}) {
    Onnx m;
    m.input("x", {"5", "1", "4", "5", "2"}).random("w", {1, 1, 3, 3, 3});
    m.node("Conv", {"x", "w"}, {"y"}, "conv").set("strides", strides(height));
    m.set("pads", std::vector<std::int64_t>{0, 0, 0, 0, 1, 2}).output("y");
    const auto loaded = load(m, {.batched = false});
    if (openvino_runs() && height == 1) {
      ASSERT_FALSE(loaded);
      EXPECT_THAT(loaded.error().message, HasSubstr("convolves volumes of one channel"));
    } else {
      ASSERT_TRUE(loaded) << loaded.error().message;
    }
  }
}

// OpenVINO's nodes take a run's sizes in before they refuse them.
TEST_P(Unwritten, SizesThatAreRefusedSpoilNoOther) {
  Onnx m;
  m.input("x", {"n"}).i64("two", {1}, {2});
  m.node("TopK", {"x", "two"}, {"y", "i"}).set("axis", 0);
  m.output("y").output("i", DataType::i64);
  const auto loaded = load(m, {.open = true, .batched = false});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto asked = [&](std::int64_t n) -> Result<std::vector<std::byte>> {
    auto plans = compiled_->make_plans(std::array{n}, std::array{1}, nullptr);
    if (!plans) return std::unexpected(plans.error());
    Inputs inputs;
    inputs.emplace("x", filled({n}, 5));
    return run(*plans->front(), inputs);
  };
  for (int round = 0; round < 2; ++round) {
    const auto good = asked(3);
    ASSERT_TRUE(good) << good.error().message;
    const auto bad = asked(1);
    ASSERT_FALSE(bad) << "two of one";
    EXPECT_EQ(bad.error().code, ErrorCode::invalid_argument) << bad.error().message;
    auto same = asked(3);
    for (int tries = 0; !same && same.error().code == ErrorCode::unavailable && tries < 60'000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});  // it is compiled anew
      same = asked(3);
    }
    ASSERT_TRUE(same) << same.error().message;
    EXPECT_EQ(*same, *good);
  }
}

// Outputs that are inputs as they are, alone and beside one that is computed: OpenVINO takes out what is
// between.
TEST_P(Unwritten, AnOutputThatIsAnInput) {
  struct Way {
    std::string name;
    std::function<void(Onnx& m)> make;
    bool dropped = false;  // by Dropout
  };
  const Way ways[] = {{"an input", [](Onnx& m) { m.output("x"); }},
                      {"Dropout", [](Onnx& m) { m.node("Dropout", {"x"}, {"y"}).output("y"); }, true},
                      {"Sum of one", [](Onnx& m) { m.node("Sum", {"x"}, {"y"}).output("y"); }},
                      {"Einsum",
                       [](Onnx& m) {
                         m.node("Einsum", {"x"}, {"y"}).set("equation", "ab->ab");
                         m.output("y");
                       }},
                      {"Cast",
                       [](Onnx& m) {
                         m.node("Cast", {"x"}, {"y"}).set("to", 1);
                         m.output("y");
                       }},
                      {"two of them",
                       [](Onnx& m) {
                         m.node("Dropout", {"x"}, {"y"}).node("Dropout", {"x"}, {"w"});
                         m.output("y").output("w");
                       },
                       true},
                      {"two sums", [](Onnx& m) {
                         m.node("Sum", {"x"}, {"y"}).node("Sum", {"x"}, {"w"});
                         m.output("y").output("w");
                       }}};
  for (const Way& way : ways)
    for (const bool open : {false, true})
      for (const bool beside : {false, true}) {
        SCOPED_TRACE(way.name + (open ? ", open" : "") + (beside ? ", beside another" : ""));
        Onnx m;
        m.input("x", {open ? "rows" : "3", "4"});
        way.make(m);
        if (beside) m.node("Neg", {"x"}, {"z"}).output("z");
        const auto loaded = load(m, {.open = open, .batched = false});
        // OpenVINO's reader takes out Dropout and, with it, the input's name.
        if (!loaded && openvino_runs() && way.dropped) {
          EXPECT_THAT(loaded.error().message, HasSubstr("input '"));
          continue;
        }
        ASSERT_TRUE(loaded) << loaded.error().message;
        std::vector<std::pair<Inputs, float>> earlier;  // and what they are full of
        float value = 1;
        for (const std::int64_t rows : {3, 3, 2, 5, 3}) {
          Inputs inputs;
          inputs.emplace("x", filled({open ? rows : 3, 4}, ++value));
          Result<std::vector<std::byte>> answer;
          if (open) {
            auto plans = compiled_->make_plans(std::array{rows}, std::array{1}, nullptr);
            ASSERT_TRUE(plans) << plans.error().message;
            answer = run(*plans->front(), inputs);
          } else {
            answer = run(inputs);
          }
          ASSERT_TRUE(answer) << answer.error().message;
          const auto expected = [&](float each) {
            const Tensor all = filled({open ? rows : 3, 4}, each);
            return std::vector<std::byte>(all.bytes().begin(), all.bytes().end());
          };
          std::vector<std::byte> wanted;
          const auto append = [&](const std::vector<std::byte>& bytes) {
            wanted.insert(wanted.end(), bytes.begin(), bytes.end());
          };
          for (int i = 0; i < (way.name.starts_with("two") ? 2 : 1); ++i) append(expected(value));
          if (beside) append(expected(-value));
          EXPECT_EQ(*answer, wanted);
          earlier.emplace_back(std::move(inputs), value);
          for (const auto& [memory, was] : earlier)
            for (const float is : memory.at("x").as<float>()) ASSERT_EQ(is, was) << "an input was written";
        }
      }
}

}  // namespace
}  // namespace carillon::engine
