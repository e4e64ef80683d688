// Runs that are stopped inside kernels.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/base/processors.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/pacer.h"

namespace carillon::engine {
namespace {

using namespace testing;

// Convolutions, a pool, products of matrices, a softmax, a normalisation, and what only plain kernels do;
// large enough to be divided.
Graph sizeable(std::int64_t batch) {
  GraphMaker m;
  Random random(31);
  const auto conv = [&](ValueId x, std::int64_t channels, std::vector<PostOp> post_ops) {
    const Shape in = m.shape(x);
    const auto w = m.constant(random_tensor({channels, in[1], 3, 3}, random, 0.05F));
    const auto b = m.constant(random_tensor({channels}, random));
    return m.node("Conv", {x, w, b}, {batch, channels, in[2], in[3]}, window(3, 1, 1), std::move(post_ops));
  };
  const PostOp relu{.kind = PostOp::Kind::relu};
  auto x = m.input({batch, 16, 64, 64});
  x = conv(x, 32, {relu});
  auto y = conv(x, 32, {relu});
  y = conv(y, 32, {{.kind = PostOp::Kind::add, .operand = x}, relu});
  y = m.node("Sin", {y}, m.shape(y));
  y = m.node("MaxPool", {y}, {batch, 32, 32, 32}, window(2, 2, 0));
  y = m.node("Reshape", {y}, {batch, 128, 256});
  const auto w = m.constant(random_tensor({256, 256}, random, 0.1F));
  y = m.node("MatMul", {y, w}, {batch, 128, 256});
  const auto t = m.node("Transpose", {y}, {batch, 256, 128}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
  auto s = m.node("MatMul", {y, t}, {batch, 128, 128});
  s = m.node("Softmax", {s}, {batch, 128, 128}, {{"axis", std::int64_t{-1}}});
  m.g.outputs = {m.node("MatMul", {s, y}, {batch, 128, 256})};
  return std::move(m.g);
}

std::uint64_t interruptions(std::uint64_t otherwise) {
  const char* const wanted = std::getenv("CARILLON_INTERRUPTIONS");
  return wanted == nullptr ? otherwise : std::strtoull(wanted, nullptr, 10);
}

// Asks for the stop of a run from a thread of its own.
class Asker {
 public:
  ~Asker() {
    over_ = true;
    thread_.join();
  }
  StopSignal stop;

  // Of run `run`, when it has gone on for so long.
  void ask(std::uint64_t run, Duration after) {
    after_.store(after.count());
    asked_.store(run);
  }

 private:
  void loop() {
    for (std::uint64_t seen = 0; !over_.load();) {
      const std::uint64_t run = asked_.load();
      if (run == seen) {
        std::this_thread::yield();
        continue;
      }
      seen = run;
      const auto at = std::chrono::steady_clock::now() + Duration{after_.load()};
      while (std::chrono::steady_clock::now() < at) {
      }
      stop.request(run);
    }
  }

  std::atomic<std::uint64_t> asked_{0};
  std::atomic<std::int64_t> after_{0};
  std::atomic<bool> over_{false};
  std::thread thread_{[this] { loop(); }};
};

struct Stops {
  std::uint64_t wanted = 0;
  int share = 1;  // of a run's time, within which each stop comes after the one before: one over so much
  int a_run = 5;  // at most so many in one run
  int threads = 1;
};
struct Stopped {
  std::uint64_t stops = 0, inside = 0;  // of these in a kernel that is divided
  int most_parts = 0;
  std::string kernels;
};

// Whatever kernel a run is stopped in, and whatever runs meanwhile in other memory: once it has gone on to
// its end, its outputs are those of a run that nobody disturbed.
Stopped expect_stops_change_nothing(Engine& engine, const CompiledModel& model, const Buffers& inputs,
                                    const Buffers& others, const Stops& stops) {
  const Plan& plan = *model.plan(1);
  Stopped result;
  for (int k = 0; k < plan.kernels(); ++k) {
    result.most_parts = std::max(result.most_parts, plan.kernel_parts(k));
    result.kernels +=
        std::string(plan.kernel_name(k)) + ": " + std::to_string(plan.kernel_parts(k)) + " parts\n";
  }
  const auto team = engine.make_team({.threads = stops.threads});
  EXPECT_TRUE(team) << team.error().message;
  if (!team) return result;
  const Bound one(model, plan, inputs, team->get()), other(model, plan, others, team->get());
  const Bound undisturbed(model, plan, inputs);
  EXPECT_TRUE(plan.run({0, plan.kernels()}, undisturbed.binding(), {}));
  const auto started = std::chrono::steady_clock::now();
  EXPECT_TRUE(plan.run({0, plan.kernels()}, one.binding(), {}));
  const auto whole = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - started);

  Asker asker;
  StopSignal& stop = asker.stop;
  Random random(static_cast<std::uint64_t>(stops.threads) + 40U);
  std::uint64_t run = 0;
  for (std::uint64_t tries = 0; result.stops < stops.wanted && tries < 20 * stops.wanted; ++tries) {
    for (const auto& output : one.outputs()) std::ranges::fill(output->bytes(), std::byte{0xff});
    for (int next = 0, pieces = 0; next < plan.kernels(); ++pieces) {
      stop.run = ++run;
      if (pieces < stops.a_run)
        asker.ask(run, Duration{static_cast<std::int64_t>(
                           random.below(static_cast<std::uint64_t>(whole.count() / stops.share) + 1))});
      const int first = next;
      const auto done = plan.run({first, plan.kernels()}, one.binding(), {}, &stop);
      EXPECT_TRUE(done) << done.error().message;
      if (!done) return result;
      next = stop.next;
      EXPECT_GE(next, first);
      if (next == plan.kernels()) break;
      ++result.stops;
      result.inside += plan.kernel_parts(next) > 1 ? 1U : 0U;
      if (random.below(4) == 0) {
        EXPECT_TRUE(plan.run({0, plan.kernels()}, other.binding(), {}));
      }
    }
    for (std::size_t i = 0; i < one.outputs().size(); ++i) {
      const bool same = std::ranges::equal(one.outputs()[i]->bytes(), undisturbed.outputs()[i]->bytes());
      EXPECT_TRUE(same) << "output " << i << " after " << result.stops << " stops, " << run << " runs, with "
                        << stops.threads << " threads\n"
                        << result.kernels;
      if (!same) return result;
    }
  }
  return result;
}

// A server's runs have a signal that can stop them, and a pacer that lets them rest where they have a share.
TEST(TeamsWidth, WholeRunsWithoutRestsTellWhatTheyTook) {
  const auto processors =
      std::make_shared<UsableProcessors>(ProcessorLimits{.allowed = 2, .quota = {}, .quota_file = {}});
  const auto engine = make_cpu_engine({.threads = 2, .processors = processors});
  const auto model = engine->compile(MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = 0.5});
  ASSERT_TRUE(model) << model.error().message;
  const Plan& plan = *(*model)->plan(1);
  const auto team = engine->make_team({.threads = 2});
  ASSERT_TRUE(team) << team.error().message;
  const auto told = [&] { return static_cast<const cpu::CpuTeam&>(**team).told(); };
  const Bound bound(**model, plan, random_inputs(sizeable(1), 1), team->get());
  StopSignal stop;
  Pacer whole(1), half(0.5);
  const KernelRange all{0, plan.kernels()};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(told(), static_cast<std::uint64_t>(std::max(0, i - 3)))
        << "the first three touch memory and wake threads";
    ASSERT_TRUE(plan.run(all, bound.binding(), {}, &stop, &whole));
  }
  EXPECT_EQ(told(), 3U);
  ASSERT_TRUE(plan.run(all, bound.binding(), {}, &stop, &half));
  ASSERT_TRUE(plan.run({0, plan.kernels() - 1}, bound.binding(), {}, &stop, &whole));
  EXPECT_EQ(told(), 3U);
  processors->set({.allowed = 1, .quota = {}, .quota_file = {}});
  ASSERT_TRUE(plan.run(all, bound.binding(), {}, &stop, &whole));
  EXPECT_EQ((*team)->active(), 1);
}

class Stop : public ::testing::TestWithParam<int> {};

// CARILLON_INTERRUPTIONS says how many.
TEST_P(Stop, RunsThatAreStoppedInsideKernelsGiveTheSame) {
  const int threads = GetParam();
  const auto engine = make_cpu_engine({.threads = threads});
  const auto model = engine->compile(MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = 0.5});
  ASSERT_TRUE(model) << model.error().message;
  const Graph g = sizeable(1);
  const std::uint64_t wanted = interruptions(300);
  const Stopped stopped = expect_stops_change_nothing(
      *engine, **model, random_inputs(g, 1), random_inputs(g, 2), {.wanted = wanted, .threads = threads});
  EXPECT_GE(stopped.most_parts, 8) << stopped.kernels;
  EXPECT_GE(stopped.stops, wanted);
  EXPECT_GE(stopped.inside, stopped.stops / 2) << stopped.kernels;
}
INSTANTIATE_TEST_SUITE_P(Threads, Stop, ::testing::Values(1, 2));

// The models that CARILLON_STOP_MODELS names, files with colons between: made by the sample models' command.
TEST(StopModels, RunsThatAreStoppedInsideKernelsGiveTheSame) {
  const char* const named = std::getenv("CARILLON_STOP_MODELS");
  if (named == nullptr) GTEST_SKIP() << "CARILLON_STOP_MODELS names no files";
  std::istringstream files(named);
  for (std::string file; std::getline(files, file, ':');) {
    SCOPED_TRACE(file);
    const auto imported = graph::import_onnx(file, {});
    ASSERT_TRUE(imported) << imported.error().message;
    const auto engine = make_cpu_engine({.threads = 1});
    const auto model = engine->compile(**imported, {.batch_sizes = {1}, .stop_cost = 0.05});
    ASSERT_TRUE(model) << model.error().message;
    const auto inputs = [&](std::uint64_t seed) {
      Random random(seed);
      Buffers made;
      for (const auto& spec : (*model)->plan(1)->inputs()) {
        made.push_back(std::make_shared<graph::Tensor>(TensorType{spec.type, spec.shape}));
        const std::size_t size = graph::size_of(spec.type);
        const auto bytes = made.back()->bytes();
        if (spec.type == graph::DataType::f32)
          for (float& x : made.back()->as<float>()) x = static_cast<float>(random.normal());
        else  // numbers of tokens, masks: 0 or 1
          for (std::size_t i = 0; i < bytes.size(); i += size) bytes[i] = std::byte(random.below(2));
      }
      return made;
    };
    const std::uint64_t wanted = interruptions(100);
    const Stopped stopped = expect_stops_change_nothing(*engine, **model, inputs(1), inputs(2),
                                                        {.wanted = wanted, .share = 16, .a_run = 40});
    EXPECT_GE(stopped.stops, wanted);
    std::cout << file << ": " << stopped.stops << " stops, " << stopped.inside << " in divided kernels\n";
  }
}

// A graph of the kernels of one lowering, each long enough to be divided.
struct Lowered {
  const char* name;
  std::function<ValueId(GraphMaker& m, ValueId x)> add;  // x: [batch, 32, 48, 48]
  bool nan = false;                                      // in the input
};
std::vector<Lowered> lowered() {
  const auto weights = [](GraphMaker& m, const Shape& shape) {
    Random random(3);
    return m.constant(random_tensor(shape, random, 0.1F));
  };
  const auto like = [](GraphMaker& m, const char* op, std::vector<ValueId> inputs,
                       Attributes attributes = {}) {
    const Shape shape = m.shape(inputs[0]);
    return m.node(op, std::move(inputs), shape, std::move(attributes));
  };
  const auto matrices = [](GraphMaker& m, ValueId x) {
    return m.node("Reshape", {x}, {m.shape(x)[0], 144, 512});
  };
  const auto convolution = [=](GraphMaker& m, ValueId x) {
    const auto w = weights(m, {64, 32, 3, 3});
    const Shape in = m.shape(x);
    return m.node("Conv", {x, w}, {in[0], 64, in[2], in[3]}, window(3, 1, 1), {{.kind = PostOp::Kind::relu}});
  };
  const auto pool = [](GraphMaker& m, ValueId x, const char* op) {
    return m.node(op, {x}, {m.shape(x)[0], 32, 24, 24}, window(2, 2, 0));
  };
  return {
      {"convolution", convolution},
      {"convolution with NaN", convolution, true},
      {"deconvolution",
       [=](GraphMaker& m, ValueId x) {
         const auto w = weights(m, {32, 16, 3, 3});
         return m.node("ConvTranspose", {x, w}, {m.shape(x)[0], 16, 48, 48}, window(3, 1, 1));
       }},
      {"product with weights",
       [=](GraphMaker& m, ValueId x) {
         const auto w = weights(m, {512, 384});
         return m.node("MatMul", {matrices(m, x), w}, {m.shape(x)[0], 144, 384}, {},
                       {{.kind = PostOp::Kind::relu}});
       }},
      {"product with weights and NaN",
       [=](GraphMaker& m, ValueId x) {
         const auto w = weights(m, {512, 384});
         return m.node("MatMul", {matrices(m, x), w}, {m.shape(x)[0], 144, 384}, {},
                       {{.kind = PostOp::Kind::relu}});
       },
       true},
      {"product of few rows with weights",
       [=](GraphMaker& m, ValueId x) {
         const auto w = weights(m, {8192, 128});
         const auto rows = m.node("Reshape", {x}, {m.shape(x)[0], 9, 8192});
         return m.node("MatMul", {rows, w}, {m.shape(x)[0], 9, 128}, {}, {{.kind = PostOp::Kind::relu}});
       }},
      {"product of two",
       [=](GraphMaker& m, ValueId x) {
         const auto a = matrices(m, x);
         const auto b = m.node("Transpose", {a}, {m.shape(x)[0], 512, 144},
                               {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
         return m.node("MatMul", {a, b}, {m.shape(x)[0], 144, 144});
       }},
      {"largest of windows", [=](GraphMaker& m, ValueId x) { return pool(m, x, "MaxPool"); }},
      {"largest of windows with NaN", [=](GraphMaker& m, ValueId x) { return pool(m, x, "MaxPool"); }, true},
      {"mean of windows", [=](GraphMaker& m, ValueId x) { return pool(m, x, "AveragePool"); }},
      {"mean of all",
       [](GraphMaker& m, ValueId x) {
         return m.node("GlobalAveragePool", {x}, {m.shape(x)[0], 32, 1, 1});
       }},
      {"function", [=](GraphMaker& m, ValueId x) { return like(m, "Gelu", {x}); }},
      {"function with NaN", [=](GraphMaker& m, ValueId x) { return like(m, "Relu", {x}); }, true},
      {"sum",
       [=](GraphMaker& m, ValueId x) {
         return like(m, "Add", {x, like(m, "Neg", {x})});
       }},
      {"batch normalisation",
       [=](GraphMaker& m, ValueId x) {
         Random random(4);
         const auto scale = m.constant(random_tensor({32}, random)),
                    shift = m.constant(random_tensor({32}, random));
         const auto mean = m.constant(random_tensor({32}, random));
         const auto variance = random_tensor({32}, random);
         auto positive = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {32}});
         for (std::size_t i = 0; i < 32; ++i)
           positive->as<float>()[i] = 1 + std::abs(variance->as<float>()[i]);
         return like(m, "BatchNormalization", {x, scale, shift, mean, m.constant(positive)});
       }},
      {"layer normalisation",
       [=](GraphMaker& m, ValueId x) {
         Random random(5);
         const auto scale = m.constant(random_tensor({512}, random));
         return like(m, "LayerNormalization", {matrices(m, x), scale});
       }},
      {"local response normalisation",
       [=](GraphMaker& m, ValueId x) {
         return like(m, "LRN", {x}, {{"size", std::int64_t{5}}});
       }},
      {"softmax",
       [=](GraphMaker& m, ValueId x) {
         return like(m, "Softmax", {matrices(m, x)}, {{"axis", std::int64_t{-1}}});
       }},
      {"softmax with NaN",
       [=](GraphMaker& m, ValueId x) {
         return like(m, "Softmax", {matrices(m, x)}, {{"axis", std::int64_t{-1}}});
       },
       true},
      {"concatenation",
       [=](GraphMaker& m, ValueId x) {
         return m.node("Concat", {x, like(m, "Neg", {x})}, {m.shape(x)[0], 64, 48, 48},
                       {{"axis", std::int64_t{1}}});
       }},
      {"another order",
       [](GraphMaker& m, ValueId x) {
         return m.node("Transpose", {x}, {m.shape(x)[0], 48, 48, 32},
                       {{"perm", std::vector<std::int64_t>{0, 2, 3, 1}}});
       }},
      {"plain", [=](GraphMaker& m, ValueId x) { return like(m, "Sin", {x}); }},
  };
}

// What keeps NaN in a pool looks through the source, in parts, and the result is a quarter of that. Were it
// taken for one that does not divide, a stop could cut it and nobody would run it again.
TEST(StopKernels, WhatDividesItsSourceIsKnownToDivide) {
  const auto kinds = lowered();
  const auto pool = std::ranges::find(kinds, std::string_view("largest of windows with NaN"), &Lowered::name);
  ASSERT_NE(pool, kinds.end());
  const auto make = [&](std::int64_t batch) {
    GraphMaker m;
    m.g.outputs = {pool->add(m, m.input({batch, 32, 48, 48}))};
    return std::move(m.g);
  };
  const auto engine = make_cpu_engine({.threads = 1});
  const auto model =
      engine->compile(MadeModel(make), {.batch_sizes = {1}, .stop_cost = 1, .least_part = 2us});
  ASSERT_TRUE(model) << model.error().message;
  const Plan& plan = *(*model)->plan(1);
  int keep_nan = 0;
  for (int k = 0; k < plan.kernels(); ++k) {
    if (plan.kernel_name(k).find("keeping NaN") == std::string_view::npos) continue;
    ++keep_nan;
    EXPECT_GT(plan.kernel_parts(k), 1) << plan.kernel_name(k);
  }
  EXPECT_EQ(keep_nan, 1);
}

bool divided(const Plan& plan) {
  for (int k = 0; k < plan.kernels(); ++k)
    if (plan.kernel_parts(k) > 1) return true;
  return false;
}

TEST(StopKernels, OfAllKindsGiveTheSameWhenTheyAreStoppedAndRunAgain) {
  for (const Lowered& kind : lowered()) {
    SCOPED_TRACE(kind.name);
    const auto make = [&](std::int64_t batch) {
      GraphMaker m;
      m.g.outputs = {kind.add(m, m.input({batch, 32, 48, 48}))};
      return std::move(m.g);
    };
    const auto engine = make_cpu_engine({.threads = 1});
    const auto compile = [&] {
      return engine->compile(MadeModel(make), {.batch_sizes = {1}, .stop_cost = 1, .least_part = 2us});
    };
    // Whether parts cost too much is measured: beside other work they may seem to.
    auto model = compile();
    for (int again = 0; again < 20 && model && !divided(*(*model)->plan(1)); ++again) model = compile();
    ASSERT_TRUE(model) << model.error().message;
    const Graph g = make(1);
    Buffers inputs = random_inputs(g, 1);
    if (kind.nan) inputs[0]->as<float>()[1234] = std::nanf("");
    const Stopped stopped = expect_stops_change_nothing(*engine, **model, inputs, random_inputs(g, 2),
                                                        {.wanted = interruptions(20)});
    EXPECT_GT(stopped.most_parts, 1) << stopped.kernels;

    // Each kernel twice.
    const Plan& plan = *(*model)->plan(1);
    const Bound once(**model, plan, inputs), twice(**model, plan, inputs);
    ASSERT_TRUE(plan.run({0, plan.kernels()}, once.binding(), {}));
    for (int k = 0; k < plan.kernels(); ++k)
      for (int time = 0; time < 2; ++time) ASSERT_TRUE(plan.run({k, k + 1}, twice.binding(), {}));
    EXPECT_TRUE(std::ranges::equal(once.outputs()[0]->bytes(), twice.outputs()[0]->bytes()));
    const Buffers want = reference(g, inputs);
    if (!kind.nan) {
      EXPECT_LE(relative_error(*once.outputs()[0], *want[0]), 1e-4);
    }
  }
}

// Recurrences are not made for more parts than there are threads, as steps wait for each other, but two
// threads may be stopped inside one; and our own LSTM looks for a stop between steps.
TEST(StopKernels, OfRecurrencesGiveTheSameToo) {
  for (const std::string op : {"LSTM", "GRU", "RNN"}) {
    SCOPED_TRACE(op);
    const auto make = [&](std::int64_t batch) {
      const std::int64_t gates = op == "LSTM" ? 4 : op == "GRU" ? 3 : 1, steps = 192 / gates;
      GraphMaker m;
      Random random(3);
      const auto x = m.input({batch, steps, 128});
      const auto w = m.constant(random_tensor({2, gates * 128, 128}, random, 0.1F));
      const auto r = m.constant(random_tensor({2, gates * 128, 128}, random, 0.1F));
      m.g.outputs = {m.node(op, {x, w, r}, {batch, steps, 2, 128},
                            {{"direction", std::string("bidirectional")}, {"layout", std::int64_t{1}}})};
      return std::move(m.g);
    };
    const auto engine = make_cpu_engine({.threads = 2});
    const auto model = engine->compile(MadeModel(make), {.batch_sizes = {1}, .stop_cost = 0.5});
    ASSERT_TRUE(model) << model.error().message;
    const Graph g = make(1);
    const std::uint64_t wanted = interruptions(100);
    // Beside other work few stops come while a kernel runs.
    std::uint64_t inside = 0;
    for (int again = 0; again < 10 && inside < wanted / 4; ++again)
      inside += expect_stops_change_nothing(*engine, **model, random_inputs(g, 1), random_inputs(g, 2),
                                            {.wanted = wanted, .threads = 2})
                    .inside;
    EXPECT_GE(inside, wanted / 4);
  }
}

TEST(StopCost, OutOfRangeIsRefused) {
  for (const double cost : {-0.01, 1.01, std::nan("")}) {
    const auto compiled =
        make_cpu_engine({})->compile(MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = cost});
    ASSERT_FALSE(compiled.has_value());
    EXPECT_EQ(compiled.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(compiled.error().message.find("stop_cost"), std::string::npos) << compiled.error().message;
  }
  const auto compiled = make_cpu_engine({})->compile(
      MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = 0.1, .least_part = Duration{0}});
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(compiled.error().message.find("least_part"), std::string::npos) << compiled.error().message;
}

}  // namespace
}  // namespace carillon::engine
