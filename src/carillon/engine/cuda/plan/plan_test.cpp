// Plans of the CUDA engine on an emulated device, against the CPU's.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/kernels/number.h"
#include "carillon/engine/cuda/testing/on_emulated.h"
#include "carillon/engine/host_stream.h"
#include "carillon/engine/testing/conformance.h"

namespace carillon::engine::cuda {
namespace {

using engine::testing::GraphMaker;
using engine::testing::MadeModel;
using engine::testing::random_tensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OnEmulated;

engine::testing::Graph layers(std::int64_t batch) {
  GraphMaker m;
  Random random(5);
  auto x = m.input({batch, 40});
  for (int layer = 0; layer < 6; ++layer) {
    x = m.node("MatMul", {x, m.constant(random_tensor({40, 40}, random, 0.2F))}, {batch, 40});
    x = m.node("Tanh", {x}, {batch, 40});
  }
  m.g.outputs = {x};
  return std::move(m.g);
}

TEST(CudaPlan, Conforms) {
  OnEmulated on;
  {
    const auto engine = on.engine({.longest_segment = 3});
    ASSERT_TRUE(engine) << engine.error().message;
    const auto model = (*engine)->compile(MadeModel(layers), {.batch_sizes = {1, 4}});
    ASSERT_TRUE(model) << model.error().message;
    auto memory = CudaMemory::make(on.driver(), 0, {.pages = 3, .io = mib(1), .workspace = mib(1)});
    ASSERT_TRUE(memory) << memory.error().message;
    const SteadyClock clock;
    engine::testing::expect_conforms(
        {.model = *model,
         .stream = [&] { return std::make_unique<HostStream>(clock, HostStreamOptions{.name = "test"}); },
         .team = nullptr,
         .memory = std::move(*memory)});
  }
  EXPECT_THAT(on.device().violations(), IsEmpty());
  EXPECT_EQ(on.device().left_behind(), "");
}

}  // namespace
}  // namespace carillon::engine::cuda
