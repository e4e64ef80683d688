// Runs that are stopped inside kernels.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/remake.h"
#include "carillon/engine/cpu/test_support.h"

namespace carillon::engine {
namespace {

using namespace testing;

// Convolutions, a pool, products of matrices, a softmax, a normalisation, and what only plain kernels do; large
// enough to be divided.
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

static_assert(cpu::Remakeable<dnnl::convolution_forward::primitive_desc>);
static_assert(cpu::Remakeable<dnnl::deconvolution_forward::primitive_desc>);
static_assert(cpu::Remakeable<dnnl::matmul::primitive_desc>);
static_assert(cpu::Remakeable<dnnl::batch_normalization_forward::primitive_desc>);
static_assert(cpu::Remakeable<dnnl::layer_normalization_forward::primitive_desc>);

std::uint64_t interruptions() {
  const char* const wanted = std::getenv("CARILLON_INTERRUPTIONS");
  return wanted == nullptr ? 300 : std::strtoull(wanted, nullptr, 10);
}

class Stop : public ::testing::TestWithParam<int> {};

// Whatever kernel a run is stopped in, and whatever runs meanwhile in other memory: once it has gone on to its
// end, its outputs are those of a run that nobody disturbed. CARILLON_INTERRUPTIONS says how many.
TEST_P(Stop, RunsThatAreStoppedInsideKernelsGiveTheSame) {
  const int threads = GetParam();
  const auto engine = make_cpu_engine({.threads = threads});
  const auto model = engine->compile(MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = 0.5});
  ASSERT_TRUE(model) << model.error().message;
  const Plan& plan = *(*model)->plan(1);
  int most = 0;
  std::string kernels;
  for (int k = 0; k < plan.kernels(); ++k) {
    most = std::max(most, plan.kernel_parts(k));
    kernels += std::string(plan.kernel_name(k)) + ": " + std::to_string(plan.kernel_parts(k)) + " parts\n";
  }
  EXPECT_GE(most, 8) << kernels;
  const auto team = engine->make_team({.threads = threads});
  ASSERT_TRUE(team) << team.error().message;
  const Graph g = sizeable(1);
  const Bound one(**model, plan, random_inputs(g, 1), team->get());
  const Bound other(**model, plan, random_inputs(g, 2), team->get());
  const Bound undisturbed(**model, plan, random_inputs(g, 1));
  ASSERT_TRUE(plan.run({0, plan.kernels()}, undisturbed.binding(), {}));
  const auto started = std::chrono::steady_clock::now();
  ASSERT_TRUE(plan.run({0, plan.kernels()}, one.binding(), {}));
  const auto whole = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - started);

  // Asks for a stop of the run `asked`, `after` so long.
  StopSignal stop;
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::int64_t> after{0};
  std::atomic<bool> over{false};
  std::thread asker([&] {
    for (std::uint64_t seen = 0; !over.load();) {
      const std::uint64_t run = asked.load();
      if (run == seen) {
        std::this_thread::yield();
        continue;
      }
      seen = run;
      const auto at = std::chrono::steady_clock::now() + Duration{after.load()};
      while (std::chrono::steady_clock::now() < at) {
      }
      stop.request(run);
    }
  });
  Random random(GetParam() + 40U);
  std::uint64_t run = 0, stopped = 0, inside = 0;
  const std::uint64_t wanted = interruptions();
  for (std::uint64_t tries = 0; stopped < wanted && tries < 20 * wanted; ++tries) {
    for (const auto& output : one.outputs()) std::ranges::fill(output->bytes(), std::byte{0xff});
    for (int next = 0, pieces = 0; next < plan.kernels(); ++pieces) {
      stop.run = ++run;
      after.store(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(whole.count()) + 1)));
      if (pieces < 5) asked.store(run);
      const int first = next;
      const auto done = plan.run({first, plan.kernels()}, one.binding(), {}, &stop);
      ASSERT_TRUE(done) << done.error().message;
      next = stop.next;
      ASSERT_GE(next, first);
      if (next == plan.kernels()) break;
      ++stopped;
      inside += plan.kernel_parts(next) > 1 ? 1U : 0U;
      if (random.below(4) == 0) {
        ASSERT_TRUE(plan.run({0, plan.kernels()}, other.binding(), {}));
      }
    }
    for (std::size_t i = 0; i < one.outputs().size(); ++i)
      ASSERT_TRUE(std::ranges::equal(one.outputs()[i]->bytes(), undisturbed.outputs()[i]->bytes()))
          << "after " << stopped << " stops, " << run << " runs, with " << threads << " threads";
  }
  over = true;
  asker.join();
  EXPECT_GE(stopped, wanted);
  EXPECT_GE(inside, stopped / 2) << kernels;
}
INSTANTIATE_TEST_SUITE_P(Threads, Stop, ::testing::Values(1, 2));

TEST(StopCost, OutOfRangeIsRefused) {
  for (const double cost : {-0.01, 1.01, std::nan("")}) {
    const auto compiled = make_cpu_engine({})->compile(MadeModel(sizeable), {.batch_sizes = {1}, .stop_cost = cost});
    ASSERT_FALSE(compiled.has_value());
    EXPECT_EQ(compiled.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(compiled.error().message.find("stop_cost"), std::string::npos) << compiled.error().message;
  }
}

}  // namespace
}  // namespace carillon::engine
