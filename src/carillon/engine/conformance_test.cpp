// Each engine against the conformance suite.
#include "carillon/engine/testing/conformance.h"

#include <memory>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/emulated/emulated_engine.h"
#include "carillon/engine/host/host_memory.h"
#include "carillon/engine/host_stream.h"

namespace carillon::engine {
namespace {

testing::Graph layers(std::int64_t batch) {
  testing::GraphMaker m;
  Random random(5);
  auto x = m.input({batch, 40});
  for (int layer = 0; layer < 6; ++layer) {
    x = m.node("MatMul", {x, m.constant(testing::random_tensor({40, 40}, random, 0.2F))}, {batch, 40});
    x = m.node("Tanh", {x}, {batch, 40});
  }
  m.g.outputs = {x};
  return std::move(m.g);
}

const SteadyClock the_clock;

testing::UnderTest on_the_host(std::shared_ptr<const CompiledModel> model,
                               std::shared_ptr<Team> team = nullptr) {
  std::vector<std::string> notes;
  auto memory = HostMemory::make({.pages = 3, .io = mib(1), .workspace = mib(1)}, notes);
  EXPECT_TRUE(memory) << memory.error().message;
  return {.model = std::move(model),
          .stream = [] { return std::make_unique<HostStream>(the_clock, HostStreamOptions{.name = "test"}); },
          .team = std::move(team),
          .memory = std::move(*memory)};
}

TEST(Conformance, Cpu) {
  const auto engine = make_cpu_engine({.threads = 1});
  const auto model = engine->compile(testing::MadeModel(layers), {.batch_sizes = {1, 4}});
  ASSERT_TRUE(model) << model.error().message;
  testing::expect_conforms(on_the_host(*model));
}

TEST(Conformance, CpuWithATeam) {
  const auto engine = make_cpu_engine({.threads = 2});
  const auto model = engine->compile(testing::MadeModel(layers), {.batch_sizes = {1, 4}});
  ASSERT_TRUE(model) << model.error().message;
  auto team = engine->make_team({.threads = 2});
  ASSERT_TRUE(team) << team.error().message;
  testing::expect_conforms(on_the_host(*model, std::move(*team)));
}

TEST(Conformance, Emulated) {
  const auto engine = make_emulated_engine(
      {.models = {{"made", {.weights = kib(3), .execution = {{1, 200us}, {4, 400us}}}}}, .kernels = 8},
      the_clock);
  const auto model = engine->compile(testing::MadeModel(layers), {.batch_sizes = {1, 4}});
  ASSERT_TRUE(model) << model.error().message;
  testing::expect_conforms(on_the_host(*model));
}

}  // namespace
}  // namespace carillon::engine
