#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/weight_files.h"
#include "carillon/graph/testing.h"

// Open models: plans at extents that nobody knew when the model was compiled.
namespace carillon::engine {
namespace {

using namespace testing;
using graph::Extents;

using Source = std::shared_ptr<const graph::Model>;

Source import(const graph::testing::Onnx& onnx) {
  auto model = onnx.import({.open = true});
  EXPECT_TRUE(model.has_value()) << model.error().message;
  return *model;
}

// Images of any height and width, and constants that depend on these.
Source images() {
  graph::testing::Onnx m;
  m.input("x", {"batch", "3", "height", "width"}).random("w", {16, 3, 3, 3}).random("v", {16, 10});
  m.node("Conv", {"x", "w"}, {"c"}).set("pads", std::vector<std::int64_t>{1, 1, 1, 1});
  m.node("Relu", {"c"}, {"r"}).node("Shape", {"r"}, {"shape"}).node("ConstantOfShape", {"shape"}, {"zeros"});
  m.node("Cos", {"zeros"}, {"ones"}).node("Add", {"r", "ones"}, {"y"});
  m.node("GlobalAveragePool", {"y"}, {"p"}).node("Flatten", {"p"}, {"f"}).node("MatMul", {"f", "v"}, {"z"});
  return import(m.output("y").output("z"));
}

// Two sequences, tall products and flat ones.
Source sequences() {
  graph::testing::Onnx m;
  m.input("a", {"batch", "m", "48"}).input("b", {"batch", "n", "48"}).random("w", {48, 48});
  m.node("MatMul", {"a", "w"}, {"aw"}).node("Transpose", {"b"}, {"bt"});
  m.set("perm", std::vector<std::int64_t>{0, 2, 1});
  m.node("MatMul", {"aw", "bt"}, {"s"}).node("Softmax", {"s"}, {"y"}).set("axis", -1);
  return import(m.output("y"));
}

std::shared_ptr<const CompiledModel> compile_open(const Source& source,
                                                  Precision precision = Precision::f32) {
  const auto compiled =
      make_cpu_engine({.threads = 2})->compile(*source, {.batch_sizes = {1, 4}, .precision = precision});
  EXPECT_TRUE(compiled.has_value()) << compiled.error().message;
  return *compiled;
}

void expect_open_agrees(const CompiledModel& model, const graph::Model& source, const Extents& extents,
                        int batch) {
  SCOPED_TRACE(graph::to_text(extents) + ", batch " + std::to_string(batch));
  const auto plans = model.make_plans(extents, std::array{batch}, nullptr);
  ASSERT_TRUE(plans.has_value()) << plans.error().message;
  const Plan& plan = *plans->front();
  EXPECT_EQ(plan.batch(), batch);
  const auto graph = source.specialize_at(batch, extents);
  ASSERT_TRUE(graph.has_value());
  const Buffers inputs = random_inputs(*graph, 3);
  const Buffers want = reference(*graph, inputs);
  const Bound bound(model, plan, inputs);
  ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(plan.outputs()[i].shape, want[i]->type().shape);
    EXPECT_LE(relative_error(*bound.outputs()[i], *want[i]), 1e-5) << "output " << i;
  }
}

// Its constants are in files, and plans read them there.
TEST(OpenModel, PlansAgreeWithAStore) {
  const carillon::testing::Folder folder;
  const auto files = WeightFiles::open({.directory = folder.path() / "store", .limit = mib(64)});
  ASSERT_TRUE(files.has_value());
  // Large constants: as they are in the file, turned, and multiplied by the extents.
  graph::testing::Onnx m;
  m.input("x", {"batch", "length", "256"})
      .random("w", {256, 512})
      .random("v", {128, 512})
      .random("u", {512, 256});
  m.node("MatMul", {"x", "w"}, {"h"}).node("Relu", {"h"}, {"r"});
  m.node("Transpose", {"v"}, {"vt"}).set("perm", std::vector<std::int64_t>{1, 0});
  m.node("MatMul", {"r", "vt"}, {"y"}).node("MatMul", {"r", "u"}, {"z"});
  const Source source = import(m.output("y").output("z"));
  const auto with =
      make_cpu_engine({.threads = 2, .weights = *files})->compile(*source, {.batch_sizes = {1, 4}});
  ASSERT_TRUE(with.has_value()) << with.error().message;
  for (const std::int64_t length : {1, 3, 40, 3})
    for (const int batch : {1, 4}) expect_open_agrees(**with, *source, {length}, batch);
  const auto without = make_cpu_engine({.threads = 2})->compile(*source, {.batch_sizes = {1, 4}});
  ASSERT_EQ((*with)->weights(), (*without)->weights());
  std::vector<std::byte> a((*with)->weights().count), b(a.size());
  EXPECT_TRUE((*with)->write_weights(0, a).has_value());
  EXPECT_TRUE((*without)->write_weights(0, b).has_value());
  EXPECT_EQ(a, b);
  // A damaged file is told, and what it holds is not run.
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator((*files)->directory())) file = entry.path();
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).put('x');
  EXPECT_FALSE((*with)->write_weights(0, a).has_value());
}

TEST(OpenModel, PlansAtAnyExtentsAgree) {
  const Source source = images();
  const auto model = compile_open(source);
  EXPECT_TRUE(model->open() && model->time_varies());
  EXPECT_EQ(Extents(model->reference().begin(), model->reference().end()), (Extents{224, 224}));
  ASSERT_NE(model->plan(4), nullptr);
  EXPECT_EQ(model->plan(4)->outputs()[0].shape, (graph::Shape{4, 16, 224, 224}));
  for (const Extents& extents : {Extents{1, 1}, Extents{7, 30}, Extents{64, 64}, Extents{224, 224}})
    for (const int batch : {1, 4}) expect_open_agrees(*model, *source, extents, batch);
}

TEST(OpenModel, ManySequencesAgree) {
  const Source source = sequences();
  const auto model = compile_open(source);
  for (const Extents& extents : {Extents{1, 1}, Extents{1, 300}, Extents{300, 1}, Extents{33, 64}})
    for (const int batch : {1, 4}) expect_open_agrees(*model, *source, extents, batch);
}

TEST(OpenModel, TheReferenceIsAPlanAsAnyOther) {
  const Source source = sequences();
  const auto model = compile_open(source);
  const auto graph = source->specialize(4);
  ASSERT_TRUE(graph.has_value());
  const Buffers inputs = random_inputs(*graph, 5);
  const Bound first(*model, *model->plan(4), inputs);
  ASSERT_TRUE(model->plan(4)->run({0, model->plan(4)->kernels()}, first.binding(), {}).has_value());
  EXPECT_LE(relative_error(*first.outputs()[0], *reference(*graph, inputs)[0]), 1e-5);
  const auto made = model->make_plans(model->reference(), std::array{4}, nullptr);
  ASSERT_TRUE(made.has_value());
  const Bound second(*model, *made->front(), inputs);
  ASSERT_TRUE(made->front()->run({0, made->front()->kernels()}, second.binding(), {}).has_value());
  EXPECT_LE(relative_error(*second.outputs()[0], *first.outputs()[0]), 1e-6);
}

// Where larger batches may come later, there is one plan at first. The weights are packed for all the same.
TEST(OpenModel, MayComeWithOnePlan) {
  const Source source = sequences();
  const auto whole = compile_open(source);
  const auto compiled =
      make_cpu_engine({.threads = 2})
          ->compile(*source, {.batch_sizes = {1, 4}, .reread = [&]() -> Result<Source> { return source; }});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const CompiledModel& model = **compiled;
  EXPECT_TRUE(model.has_one_plan());
  EXPECT_FALSE(model.makes_later()) << "its sizes are made as they come";
  EXPECT_FALSE(whole->has_one_plan());
  EXPECT_EQ(whole->spare(), nullptr);
  ASSERT_NE(model.spare(), nullptr);
  EXPECT_EQ(model.spare()->batch(), 4);
  model.let_go_spare();
  EXPECT_EQ(model.spare(), nullptr);
  ASSERT_NE(model.plan(1), nullptr);
  EXPECT_EQ(model.plan(4), nullptr);
  EXPECT_LT(model.memory().plans, whole->memory().plans);
  ASSERT_EQ(model.weights(), whole->weights());
  for (const Extents& extents : {Extents(model.reference().begin(), model.reference().end()), Extents{3, 5}})
    for (const int batch : {1, 4}) expect_open_agrees(model, *source, extents, batch);
}

// What a plan needs beside the model's weights it holds itself, so these stay as they were loaded.
TEST(OpenModel, WeightsStayAsTheyAre) {
  const auto model = compile_open(images());
  const std::uint64_t before = model->weights().count;
  std::vector<std::byte> bytes(before), after(before);
  EXPECT_TRUE(model->write_weights(0, bytes).has_value());
  ASSERT_TRUE(model->make_plans(Extents{31, 17}, std::array{1, 4}, nullptr).has_value());
  EXPECT_EQ(model->weights().count, before);
  EXPECT_TRUE(model->write_weights(0, after).has_value());
  EXPECT_EQ(bytes, after);
}

TEST(OpenModel, SaysWhatDoesNotFitTogether) {
  graph::testing::Onnx m;
  m.input("x", {"batch", "n"}).i64("shape", {3}, {0, -1, 8}).node("Reshape", {"x", "shape"}, {"y"}, "halve");
  const auto model = compile_open(import(m.output("y")));
  EXPECT_TRUE(model->make_plans(Extents{40}, std::array{1}, nullptr).has_value());
  const auto wrong = model->make_plans(Extents{41}, std::array{1}, nullptr);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("'halve'"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(model->make_plans(Extents{40, 1}, std::array{1}, nullptr).has_value());
  EXPECT_FALSE(model->make_plans(Extents{-1}, std::array{1}, nullptr).has_value());
}

// A cache that is empty at first, as of decoders: what comes is all there is.
TEST(OpenModel, RunsWithNothingOfADimension) {
  graph::testing::Onnx m;
  m.input("past", {"batch", "past", "4"}).input("x", {"batch", "now", "4"});
  m.node("Concat", {"past", "x"}, {"all"}).set("axis", 1);
  m.node("Relu", {"all"}, {"y"}).node("Relu", {"past"}, {"z"}, "nothing");
  const Source source = import(m.output("y").output("z"));
  const auto model = compile_open(source);
  ASSERT_EQ(model->reference().size(), 2U);
  Extents extents(2);
  for (const std::int64_t now : {2, 5}) {
    extents[graph::free_number(model->inputs()[0].shape[1])] = 0;
    extents[graph::free_number(model->inputs()[1].shape[1])] = now;
    expect_open_agrees(*model, *source, extents, 1);
    expect_open_agrees(*model, *source, extents, 4);
  }
  EXPECT_EQ(model->make_plans(extents, std::array{4}, nullptr).value().front()->outputs()[1].shape,
            (graph::Shape{4, 0, 4}));
}

TEST(OpenModel, SaysWhatThereIsNotOfNothing) {
  graph::testing::Onnx m;
  m.input("x", {"batch", "n"}).node("ArgMax", {"x"}, {"y"}, "largest").set("axis", 1);
  const auto model = compile_open(import(m.output("y", graph::DataType::i64)));
  const auto wrong = model->make_plans(Extents{0}, std::array{1}, nullptr);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("'largest' (ArgMax)"), std::string::npos) << wrong.error().message;
}

// What a plan costs follows the extents.
TEST(OpenModel, PlansTellTheirEffort) {
  graph::testing::Onnx m;
  m.input("x", {"batch", "n", "16"}).random("w", {16, 8}).node("MatMul", {"x", "w"}, {"y"});
  const auto model = compile_open(import(m.output("y")));
  const auto effort = [&](std::int64_t n, int batch) {
    return model->make_plans(Extents{n}, std::array{batch}, nullptr).value().front()->effort();
  };
  EXPECT_EQ(effort(10, 1), (Effort{.operations = std::uint64_t{2} * 10 * 16 * 8,
                                   .bytes = std::uint64_t{4} * 10 * (16 + 8)}));
  EXPECT_EQ(effort(20, 4).operations, 8 * effort(10, 1).operations);
  EXPECT_GT(model->make_plans(Extents{10}, std::array{1}, nullptr).value().front()->memory().count, 0U);
}

TEST(OpenModel, APlanThatNobodyWantsEndsEarly) {
  graph::testing::Onnx m;
  m.input("x", {"batch", "n"}).node("Relu", {"x"}, {"y"});
  const auto model = compile_open(import(m.output("y")));
  const std::atomic<bool> ended{true};
  EXPECT_EQ(model->make_plans(Extents{10}, std::array{1}, &ended).error().code, ErrorCode::cancelled);
}

TEST(OpenModel, ThreadsMakePlansBesideEachOther) {
  const Source source = sequences();
  const auto model = compile_open(source);
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 1; i < 6; ++i) expect_open_agrees(*model, *source, {7 * i + t, 5 * i}, 1);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(OpenModel, OtherModelsHaveNoMorePlans) {
  const auto model = make_cpu_engine({})->compile(MadeModel([](std::int64_t n) {
                                                    GraphMaker m;
                                                    m.g.outputs = {m.node("Relu", {m.input({n, 4})}, {n, 4})};
                                                    return std::move(m.g);
                                                  }),
                                                  {.batch_sizes = {1}});
  ASSERT_TRUE(model.has_value());
  EXPECT_FALSE((*model)->open());
  EXPECT_EQ((*model)->make_plans(Extents{}, std::array{1}, nullptr).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace carillon::engine
