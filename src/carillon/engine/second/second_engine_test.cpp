#include "carillon/engine/second/second_engine.h"

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/host/host_memory.h"
#include "carillon/engine/host_stream.h"
#include "carillon/engine/onnxruntime/onnxruntime.h"
#include "carillon/engine/openvino/openvino.h"
#include "carillon/engine/testing/conformance.h"
#include "carillon/graph/testing.h"

namespace carillon::engine {
namespace {

using graph::testing::Folder;
using graph::testing::Onnx;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two layers with a batch in front, and an operator that keeps the second free dimension.
Onnx layers(const graph::testing::Dims& input) {
  Onnx m;
  m.input("x", input).random("w", {40, 40}).random("v", {40, 8});
  m.node("MatMul", {"x", "w"}, {"h"}).node("Tanh", {"h"}, {"t"}).node("MatMul", {"t", "v"}, {"y"});
  return m.output("y");
}

// --- With a runtime of our own: what the engine makes of what it is told.

struct Told {
  std::string read, shapes, compile, request, run, broken;  // errors
  bool bad_data = false;                                    // are why the run failed
  std::vector<second::Port> inputs{{.name = "x", .known = true, .ranked = true, .shape = {-1, 40}}};
  std::vector<second::Port> outputs{{.name = "y", .known = true, .ranked = true, .shape = {-1, 8}}};
  std::vector<graph::Shape> answer;  // of shapes_at(); empty: the first input's batch before {8}
  second::Network::Options compiled;
  int requests = 0;
  bool loading_ended = false;
  std::function<void()> during;  // called inside a run
  int given_up = 0;
};

class ToldRequest final : public second::Request {
 public:
  explicit ToldRequest(Told& told) : told_(told) {}
  second::Ran run(std::span<const std::byte* const>, std::span<const graph::Shape>,
                  std::span<std::byte* const>, std::span<const graph::Shape>) override {
    if (told_.during) told_.during();
    return {.error = told_.run, .bad_data = told_.bad_data};
  }
  void give_up() override { ++told_.given_up; }

 private:
  Told& told_;
};

class ToldCompiled final : public second::Compiled {
 public:
  explicit ToldCompiled(Told& told) : told_(told) {}
  std::string make_request(std::unique_ptr<second::Request>& into) override {
    ++told_.requests;
    if (told_.request.empty()) into = std::make_unique<ToldRequest>(told_);
    return told_.request;
  }
  std::string broken() const override { return told_.broken; }

 private:
  Told& told_;
};

class ToldNetwork final : public second::Network {
 public:
  explicit ToldNetwork(Told& told) : told_(told) {}
  const std::vector<second::Port>& inputs() const override { return told_.inputs; }
  const std::vector<second::Port>& outputs() const override { return told_.outputs; }
  std::string shapes_at(std::span<const graph::Shape> inputs,
                        std::vector<graph::Shape>& outputs) const override {
    outputs = told_.answer;
    if (outputs.empty()) outputs = {{inputs.front().front(), 8}};
    return told_.shapes;
  }
  std::string compile(const Options& options, std::unique_ptr<second::Compiled>& into) const override {
    told_.compiled = options;
    into = std::make_unique<ToldCompiled>(told_);
    return told_.compile;
  }

 private:
  Told& told_;
};

class ToldRuntime final : public second::Runtime {
 public:
  explicit ToldRuntime(Told& told) : told_(told) {}
  std::string version() const override { return "1.2"; }
  std::string read(const std::string&, std::unique_ptr<second::Network>& into) override {
    into = std::make_unique<ToldNetwork>(told_);
    return told_.read;
  }
  void end_loading() override { told_.loading_ended = true; }

 private:
  Told& told_;
};

class SecondTold : public ::testing::Test {
 protected:
  Result<std::shared_ptr<const graph::Model>> read(const Onnx& model,
                                                   const graph::ImportOptions& options = {.open = true}) {
    return engine_->read(folder_.write("model.onnx", model.bytes()), options);
  }
  Result<std::shared_ptr<const CompiledModel>> compile(const CompileOptions& options = {
                                                           .batch_sizes = {1, 4}}) {
    const auto model = read(layers({"batch", "40"}));
    if (!model) return std::unexpected(model.error());
    return engine_->compile(**model, options);
  }

  Folder folder_;
  Told told_;
  std::shared_ptr<ReadingEngine> engine_ =
      make_second_engine(openvino, {.threads = 2}, std::make_shared<ToldRuntime>(told_));
};

TEST_F(SecondTold, IsCompiledOnceForAllBatchSizes) {
  const auto model = compile();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(told_.compiled.inputs, (std::vector<graph::Shape>{{-1, 40}}));
  EXPECT_EQ(told_.compiled.threads, 2);
  EXPECT_FALSE(told_.compiled.bf16);
  EXPECT_EQ((*model)->weights().count, 0U);
  EXPECT_EQ((*model)->plan(4)->outputs()[0].shape, (graph::Shape{4, 8}));
  EXPECT_EQ(told_.requests, 1) << "the first is made ahead of any run";
  EXPECT_EQ(engine_->version(), "1.2");
}

TEST_F(SecondTold, OneBatchSizeIsFixed) {
  ASSERT_TRUE(compile({.batch_sizes = {4}, .precision = Precision::bf16, .one_thread = true}));
  EXPECT_EQ(told_.compiled.inputs, (std::vector<graph::Shape>{{4, 40}}));
  EXPECT_EQ(told_.compiled.threads, 1);
  EXPECT_TRUE(told_.compiled.bf16);
}

TEST_F(SecondTold, ErrorsSayWhoseTheyAre) {
  told_.read = "no such\noperator";
  auto error = compile().error();
  EXPECT_THAT(error.message, HasSubstr("OpenVINO: no such operator"));
  EXPECT_THAT(error.message, HasSubstr("model.onnx"));
  told_.read = "";
  told_.compile = std::string(5000, 'x');
  error = compile().error();
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_LT(error.message.size(), 700U);
  told_.compile = "";
  told_.request = "no memory";
  EXPECT_EQ(compile().error().code, ErrorCode::internal);
  told_.request = "";
  told_.shapes = "they do not fit";
  EXPECT_EQ(compile().error().code, ErrorCode::invalid_argument);
}

TEST_F(SecondTold, ARunThatFailsIsNotTheDevices) {
  const auto model = compile();
  ASSERT_TRUE(model) << model.error().message;
  told_.run = "division by zero";
  alignas(64) std::array<std::byte, 2560> bytes{};
  const std::byte* const in[] = {bytes.data()};
  std::byte* const out[] = {bytes.data()};
  const auto ran = (*model)->plan(1)->run({0, 1}, {.inputs = in, .outputs = out}, {});
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::internal);
  EXPECT_THAT(ran.error().message, HasSubstr("division by zero"));
  told_.run = "";
  EXPECT_TRUE((*model)->plan(1)->run({0, 1}, {.inputs = in, .outputs = out}, {}));
  EXPECT_EQ(told_.requests, 2) << "the one that failed may be in any state";
}

TEST_F(SecondTold, BadDataAreTheClientsAndHarmNoOtherRun) {
  const auto model = compile();
  ASSERT_TRUE(model) << model.error().message;
  told_.run = "a length of 0";
  told_.bad_data = true;
  alignas(64) std::array<std::byte, 2560> bytes{};
  const std::byte* const in[] = {bytes.data()};
  std::byte* const out[] = {bytes.data()};
  graph::Faults faults;
  const Binding binding{.inputs = in, .outputs = out, .faults = &faults};
  StopSignal stop{.run = 1};
  const auto ran = (*model)->plan(1)->run({0, 1}, binding, {}, &stop);
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(stop.next, 1) << "it is over: nobody is to run it again";
  faults.results_unwanted = true;  // nothing ran all the same, so there is nothing to be measured
  EXPECT_FALSE((*model)->plan(1)->run({0, 1}, binding, {}, &stop));
  EXPECT_EQ(stop.next, 1);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(told_.requests, 1);
}

TEST_F(SecondTold, OnlyARunThatNobodyWaitsForIsGivenUp) {
  const auto model = compile();
  ASSERT_TRUE(model) << model.error().message;
  alignas(64) std::array<std::byte, 2560> bytes{};
  const std::byte* const in[] = {bytes.data()};
  std::byte* const out[] = {bytes.data()};
  StopSignal stop{.run = 7};
  const auto run = [&](std::function<void()> during) {
    told_.during = std::move(during);
    stop.wanted = 0;
    EXPECT_TRUE((*model)->plan(1)->run({0, 1}, {.inputs = in, .outputs = out}, {}, &stop));
    return told_.given_up;
  };
  EXPECT_EQ(run([&] { stop.request(7); }), 0) << "one that makes way runs to its end";
  EXPECT_EQ(stop.next, 1);
  EXPECT_EQ(run([&] { stop.give_up(6); }), 0) << "another run's";
  EXPECT_EQ(run([&] { stop.give_up(7); }), 1);
  stop.give_up(7);
  EXPECT_EQ(told_.given_up, 1) << "it is over";
}

TEST_F(SecondTold, WhatIsBrokenIsNotUsable) {
  const auto model = compile();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE((*model)->usable());
  told_.broken = "its process is started again";
  const auto usable = (*model)->usable();
  ASSERT_FALSE(usable);
  EXPECT_EQ(usable.error().code, ErrorCode::unavailable);
  EXPECT_THAT(usable.error().message, HasSubstr("OpenVINO: its process is started again"));
}

TEST_F(SecondTold, LoadingIsEndedByTheRuntime) {
  engine_->end_loading();
  EXPECT_TRUE(told_.loading_ended);
}

TEST_F(SecondTold, WhatTheDataDecideIsRefused) {
  told_.answer = {{-1, 8}};
  const auto model = read(layers({"batch", "40"}));
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::unsupported);
  EXPECT_THAT(model.error().message, HasSubstr("output 'y' [-1,8]: how long it is"));
  told_.answer = {};
  told_.outputs[0].known = false;
  EXPECT_THAT(read(layers({"batch", "40"})).error().message, HasSubstr("of a type that is not served"));
}

TEST_F(SecondTold, InputsMustBeTheFiles) {
  told_.inputs.push_back({.name = "z", .known = true, .ranked = true, .shape = {1}});
  EXPECT_THAT(read(layers({"batch", "40"})).error().message, HasSubstr("input 'z' is not one of the file's"));
  told_.inputs.clear();
  EXPECT_THAT(read(layers({"batch", "40"})).error().message, HasSubstr("1 of the file's inputs are not"));
  told_.inputs = {{.name = "x", .known = true, .type = graph::DataType::i64, .ranked = true, .shape = {1}}};
  EXPECT_THAT(read(layers({"batch", "40"})).error().message, HasSubstr("another type"));
}

TEST_F(SecondTold, NothingOutsideTheModelsFolderIsRead) {
  Onnx m = layers({"batch", "40"});
  // In a place that only a walk over all of the file finds.
  Onnx branch;
  auto* hidden = branch.tensor("secret", {1}, graph::DataType::f32);
  hidden->set_data_location(onnx::TensorProto::EXTERNAL);
  auto* entry = hidden->add_external_data();
  entry->set_key("location");
  entry->set_value("../../etc/passwd");
  m.node("If", {"x"}, {"z"}).set("then_branch", branch);
  const auto model = read(m);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, HasSubstr("tensor 'secret'"));
  EXPECT_THAT(model.error().message, HasSubstr("must not contain '..'"));
}

TEST_F(SecondTold, CompilesOnlyWhatItRead) {
  const auto own = layers({"batch", "40"}).import({.batched = true});
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(engine_->compile(**own, {.batch_sizes = {1}}).error().code, ErrorCode::unsupported);
  EXPECT_FALSE(compile({.batch_sizes = {4, 1}}));
}

TEST(SecondEngine, WhereTheProgramIsTheWheelsItsExtraIsNamed) {
  const Folder folder;
  std::filesystem::create_directories(folder.path() / "carillon/_bin");
  const auto program = folder.path() / "carillon/_bin/carillon";
  EXPECT_THAT(std::string(remedy_of(openvino, program)), HasSubstr("tools/setup")) << "any folder's name";
  folder.write("carillon/_launch.py", "");
  EXPECT_THAT(std::string(remedy_of(openvino, program)), HasSubstr("pip install 'carillon[openvino]'"));
  EXPECT_THAT(std::string(remedy_of(onnxruntime, program)), HasSubstr("the wheel has none"));
}

TEST(SecondEngine, WithoutItsModuleTheReasonIsSaid) {
  const auto engine = make_second_engine(openvino, {.threads = 1, .module = "/nowhere/module.so"});
  const auto there = engine->available();
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code, ErrorCode::unavailable);
  EXPECT_THAT(there.error().message, HasSubstr("/nowhere/module.so"));
  EXPECT_THAT(there.error().message, HasSubstr("tools/setup"));
  EXPECT_EQ(engine->version(), "");
  const Folder folder;
  const auto empty = make_second_engine(
      openvino, {.threads = 1, .module = folder.write("module.so", "no module"), .apart = false});
  EXPECT_THAT(empty->available().error().message,
              AllOf(HasSubstr("cannot be loaded"), HasSubstr("tools/setup")));
  EXPECT_THAT(
      make_second_engine(onnxruntime, {.threads = 1, .module = "/nowhere/x.so"})->available().error().message,
      AllOf(HasSubstr("no module for onnxruntime"), HasSubstr("-DCARILLON_ONNXRUNTIME=ON")));
}

// --- With the engines, in processes of their own and in this one.

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

struct Both {
  std::shared_ptr<const CompiledModel> theirs, ours;
};

class SecondModels : public ::testing::TestWithParam<Placed> {
 protected:
  void SetUp() override {
    if (GetParam().module == nullptr)
      GTEST_SKIP() << "this build has no module for " << GetParam().kind->title << GetParam().kind->remedy;
  }
  // One for all tests.
  static std::shared_ptr<ReadingEngine> the_engine() {
    static std::map<std::pair<std::string_view, bool>, std::shared_ptr<ReadingEngine>> engines;
    auto& engine = engines[{GetParam().kind->name, GetParam().apart}];
    if (engine == nullptr)
      engine = make_second_engine(*GetParam().kind,
                                  {.threads = 2, .module = GetParam().module, .apart = GetParam().apart});
    return engine;
  }

  // The model by that engine and by our own.
  static Both compile_both(const Onnx& onnx, const graph::ImportOptions& import,
                           const CompileOptions& options) {
    Both out;
    const Folder folder;
    const auto file = folder.write("model.onnx", onnx.bytes());
    const auto theirs = the_engine()->read(file, import);
    EXPECT_TRUE(theirs) << theirs.error().message;
    const auto ours = graph::import_onnx(file, import);
    EXPECT_TRUE(ours) << ours.error().message;
    if (!theirs || !ours) return out;
    EXPECT_EQ((*theirs)->inputs(), (*ours)->inputs());
    EXPECT_EQ((*theirs)->outputs(), (*ours)->outputs());
    auto compiled = the_engine()->compile(**theirs, options);
    EXPECT_TRUE(compiled) << compiled.error().message;
    auto own = make_cpu_engine({.threads = 1})->compile(**ours, options);
    EXPECT_TRUE(own) << own.error().message;
    if (compiled && own) out = {.theirs = *compiled, .ours = *own};
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(Placed, SecondModels,
                         ::testing::Values(Placed{&openvino, openvino_module, true},
                                           Placed{&openvino, openvino_module, false},
                                           Placed{&onnxruntime, onnxruntime_module, true},
                                           Placed{&onnxruntime, onnxruntime_module, false}),
                         [](const auto& each) {
                           return std::string(each.param.kind->name) +
                                  (each.param.apart ? "Apart" : "Inside");
                         });

std::unique_ptr<DeviceMemory> memory() {
  std::vector<std::string> notes;
  auto made = HostMemory::make({.pages = 3, .io = mib(1), .workspace = mib(4)}, notes);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

std::vector<float> answer_of(const CompiledModel& model, const Plan& plan) {
  const auto device = memory();
  const testing::InMemory operands(model, plan, *device, nullptr, 9);
  const auto ran = plan.run({0, plan.kernels()}, operands.binding(), {});
  EXPECT_TRUE(ran) << ran.error().message;
  std::vector<float> out;
  for (const auto& bytes : operands.answer()) {
    const std::size_t before = out.size();
    out.resize(before + bytes.size() / sizeof(float));
    std::memcpy(out.data() + before, bytes.data(), bytes.size());
  }
  return out;
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << "at " << i;
}

TEST_P(SecondModels, Conforms) {
  const SteadyClock clock;
  const Folder folder;
  const auto source = the_engine()->read(folder.write("model.onnx", layers({"batch", "40"}).bytes()), {});
  ASSERT_TRUE(source) << source.error().message;
  const auto model = the_engine()->compile(**source, {.batch_sizes = {1, 4}});
  ASSERT_TRUE(model) << model.error().message;
  testing::expect_conforms(
      {.model = *model,
       .stream = [&] { return std::make_unique<HostStream>(clock, HostStreamOptions{.name = "test"}); },
       .team = nullptr,
       .memory = memory()});
}

TEST_P(SecondModels, AnswersAsOurEngineDoes) {
  const Both both = compile_both(layers({"batch", "40"}), {}, {.batch_sizes = {1, 4}});
  ASSERT_NE(both.ours, nullptr);
  for (const int batch : {1, 4})
    expect_close(answer_of(*both.theirs, *both.theirs->plan(batch)),
                 answer_of(*both.ours, *both.ours->plan(batch)));
}

// Of small whole numbers, which are denormals where they are taken for floats: our engine flushes those while
// it runs.
TEST_P(SecondModels, WholeNumbersAreRightAfterOurEngineHasRun) {
  const Both floats = compile_both(layers({"batch", "40"}), {}, {.batch_sizes = {1}});
  ASSERT_NE(floats.ours, nullptr);
  Onnx m;
  m.input("x", {"batch", "40"}).f32("zero", {1}, {0}).i64("one", {1}, {1}).i64("nine", {1}, {9});
  m.node("Greater", {"x", "zero"}, {"above"}).node("Where", {"above", "one", "nine"}, {"which"});
  m.node("Cast", {"which"}, {"y"}).set("to", 1).output("y");
  const Both both = compile_both(m, {}, {.batch_sizes = {1}});
  ASSERT_NE(both.ours, nullptr);
  answer_of(*floats.ours, *floats.ours->plan(1));
  const auto theirs = answer_of(*both.theirs, *both.theirs->plan(1));
  expect_close(theirs, answer_of(*both.ours, *both.ours->plan(1)));
}

// By a file's path OpenVINO would read such an If as the result that its branches take.
TEST_P(SecondModels, AnIfWhoseBranchesTakeAResultOfTheModel) {
  Onnx yes, no, m;
  yes.f32("two", {1}, {2}).node("Add", {"a", "two"}, {"p"}).output("p");
  no.f32("three", {1}, {3}).node("Mul", {"a", "three"}, {"q"}).output("q");
  m.input("x", {"1", "4"}).f32("least", {1}, {-1e9F}).node("Neg", {"x"}, {"a"});
  m.node("ReduceMax", {"x"}, {"most"}).set("keepdims", 0).node("Greater", {"most", "least"}, {"some"});
  m.i64("none", {0}, {}).node("Reshape", {"some", "none"}, {"one"});
  m.node("If", {"one"}, {"i"}).set("then_branch", yes).set("else_branch", no);
  m.node("Neg", {"i"}, {"y"}).output("a").output("y");
  m.node("Max", {"i"}, {"z"}).output("z");  // which has both names, of which its own is to be told
  const Both both = compile_both(m, {.batched = false}, {.batch_sizes = {1}});
  ASSERT_NE(both.ours, nullptr);
  expect_close(answer_of(*both.theirs, *both.theirs->plan(1)), answer_of(*both.ours, *both.ours->plan(1)));
}

TEST_P(SecondModels, OpenModelsRunAtAnySize) {
  const Both both = compile_both(layers({"batch", "rows", "40"}), {.open = true}, {.batch_sizes = {1, 2}});
  ASSERT_NE(both.ours, nullptr);
  ASSERT_TRUE(both.theirs->open());
  for (const std::int64_t rows : {1, 7, 30}) {
    const auto theirs = both.theirs->make_plans(std::array{rows}, std::array{2}, nullptr);
    const auto ours = both.ours->make_plans(std::array{rows}, std::array{2}, nullptr);
    ASSERT_TRUE(theirs && ours);
    EXPECT_EQ(theirs->front()->outputs()[0].shape, (graph::Shape{2, rows, 8}));
    expect_close(answer_of(*both.theirs, *theirs->front()), answer_of(*both.ours, *ours->front()));
  }
}

TEST_P(SecondModels, LengthsAndFixedModels) {
  const Both lengths =
      compile_both(layers({"batch", "rows", "40"}), {.lengths = {4, 16}}, {.batch_sizes = {1, 2}});
  ASSERT_NE(lengths.ours, nullptr);
  for (const std::int64_t length : {4, 16})
    expect_close(answer_of(*lengths.theirs, *lengths.theirs->plan(2, length)),
                 answer_of(*lengths.ours, *lengths.ours->plan(2, length)));
  const Both fixed = compile_both(layers({"3", "40"}), {.batched = false}, {.batch_sizes = {1}});
  ASSERT_NE(fixed.ours, nullptr);
  expect_close(answer_of(*fixed.theirs, *fixed.theirs->plan(1)),
               answer_of(*fixed.ours, *fixed.ours->plan(1)));
}

TEST_P(SecondModels, RunsBesideEachOtherGiveTheSame) {
  const Both both = compile_both(layers({"batch", "40"}), {}, {.batch_sizes = {4}});
  ASSERT_NE(both.ours, nullptr);
  const auto want = answer_of(*both.theirs, *both.theirs->plan(4));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) expect_close(answer_of(*both.theirs, *both.theirs->plan(4)), want);
    });
  for (std::thread& thread : threads) thread.join();
}

// An operator that our graph does not have.
TEST_P(SecondModels, KnowsMoreOperators) {
  Onnx m;
  m.input("x", {"batch", "4"}).random("w", {4, 3}).node("Det", {"x"}, {"unused"});
  m.proto.mutable_graph()->clear_node();
  m.node("Einsum", {"x", "w"}, {"y"}).set("equation", "bi,ij->bj").output("y");
  const Folder folder;
  const auto source = the_engine()->read(folder.write("model.onnx", m.bytes()), {});
  ASSERT_TRUE(source) << source.error().message;
  const auto model = the_engine()->compile(**source, {.batch_sizes = {2}});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(answer_of(**model, *(*model)->plan(2)).size(), 6U);
}

TEST_P(SecondModels, DamagedFilesAreErrors) {
  const std::string whole = layers({"batch", "40"}).bytes();
  Random random(11);
  const Folder folder;
  int errors = 0;
  for (int i = 0; i < 60; ++i) {
    std::string damaged = whole;
    if (i % 2 == 0)
      damaged.resize(random.below(damaged.size()));
    else
      for (int k = 0; k < 4; ++k)
        damaged[random.below(std::min<std::size_t>(damaged.size(), 200))] = static_cast<char>(random.bits());
    const auto model = the_engine()->read(folder.write("model.onnx", damaged), {});
    if (model) continue;
    ++errors;
    EXPECT_FALSE(model.error().message.empty());
  }
  EXPECT_GE(errors, 30);
}

TEST_P(SecondModels, WhatTheDataDecideIsToldOrRefused) {
  // An output that is as long as the data say, and nobody knows the most: OpenVINO does.
  Onnx m;
  m.input("x", {"batch", "4"}).node("NonZero", {"x"}, {"y"});
  m.output("y", graph::DataType::i64);
  const Folder folder;
  const auto model =
      the_engine()->read(folder.write("model.onnx", m.bytes()), {.open = true, .batched = false});
  if (GetParam().kind == &openvino) {
    ASSERT_TRUE(model) << model.error().message;
    const auto compiled = the_engine()->compile(**model, {.batch_sizes = {1}});
    ASSERT_TRUE(compiled) << compiled.error().message;
    const auto plans = (*compiled)->make_plans(std::array<std::int64_t, 1>{3}, std::array{1}, nullptr);
    ASSERT_TRUE(plans) << plans.error().message;
    // x[3,4] of f32, and the most that the output can be.
    EXPECT_GT(plans->front()->effort().bytes, 12U * 4);
    return;
  }
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::unsupported);
  EXPECT_THAT(model.error().message, HasSubstr("depends on the data"));
}

TEST_P(SecondModels, SizesThatFollowFromInputsAreFound) {
  Onnx m;
  m.input("x", {"batch", "rows", "4"});
  m.i64("first", {1}, {0}).i64("open", {1}, {-1}).node("Shape", {"x"}, {"s"});
  m.node("Gather", {"s", "first"}, {"b"}).node("Concat", {"b", "open"}, {"to"}).set("axis", 0);
  m.node("Reshape", {"x", "to"}, {"y"}).output("y");
  const Both both = compile_both(m, {.open = true}, {.batch_sizes = {2}});
  ASSERT_NE(both.theirs, nullptr);
  const auto plans = both.theirs->make_plans(std::array<std::int64_t, 1>{3}, std::array{2}, nullptr);
  ASSERT_TRUE(plans) << plans.error().message;
  EXPECT_EQ(plans->front()->outputs()[0].shape, (graph::Shape{2, 12}));
}

// Of all processes that this one has started.
std::size_t threads_of_children() {
  namespace fs = std::filesystem;
  std::size_t out = 0;
  for (const auto& each : fs::directory_iterator("/proc")) {
    // "17 (name) S 4 ...": its parent is 4.
    std::ifstream file(each.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    char state = 0;
    pid_t parent = 0;
    std::istringstream(line.substr(line.rfind(')') + 1)) >> state >> parent;
    std::error_code gone;
    if (parent == ::getpid())
      for ([[maybe_unused]] const auto& thread : fs::directory_iterator(each.path() / "task", gone)) ++out;
  }
  return out;
}

TEST_P(SecondModels, ThreadsAreHeldToTheDevices) {
  if (!GetParam().apart) GTEST_SKIP() << "this process has threads of all tests";
  if (GetParam().kind == &openvino) GTEST_SKIP() << "its threads are TBB's, one a core, whatever it uses";
  const Folder folder;
  const auto source = the_engine()->read(folder.write("model.onnx", layers({"batch", "40"}).bytes()), {});
  ASSERT_TRUE(source) << source.error().message;
  const auto before = threads_of_children();
  const auto model = the_engine()->compile(**source, {.batch_sizes = {4}});
  ASSERT_TRUE(model) << model.error().message;
  // One that runs it, and one that helps.
  EXPECT_EQ(threads_of_children(), before + 2);
}

}  // namespace
}  // namespace carillon::engine
