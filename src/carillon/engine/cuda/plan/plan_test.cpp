// Plans of the CUDA engine on an emulated device, against plain kernels.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/library/cublaslt.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/plan/cuda_plan.h"
#include "carillon/engine/cuda/stream/lane.h"
#include "carillon/engine/cuda/testing/fake_libraries.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"
#include "carillon/engine/host_stream.h"
#include "carillon/engine/testing/conformance.h"

namespace carillon::engine::cuda {
namespace {

using engine::testing::MadeModel;
using engine::testing::random_inputs;
using engine::testing::reference;
using graph::PostOp;
using graph::ValueId;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Ne;
using testing::OnEmulated;
using namespace testing::networks;
using V = std::vector<std::int64_t>;

// The plan's outputs near those of plain kernels, whole and in pieces; and the device content.
void expect_near(OnEmulated& on, const Make& make, Number number, int batch, int longest) {
  const auto engine = on.engine({.number = number, .longest_segment = longest});
  ASSERT_TRUE(engine) << engine.error().message;
  const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {batch}});
  ASSERT_TRUE(model) << model.error().message;
  const auto graph = make(batch);
  const auto inputs = random_inputs(graph, 11);
  const auto values = reference(graph, inputs);
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& input : inputs) bytes.emplace_back(input->bytes());
  const auto got = on.run(**model, *(*model)->plan(batch), bytes, longest > 0);
  ASSERT_TRUE(got) << got.error().message;
  for (std::size_t i = 0; i < got->size(); ++i)
    EXPECT_LE(apart(*values[i], (*got)[i]), allowed(number)) << "output " << i;
}

TEST(CudaPlan, NetworksGiveWhatPlainKernelsGive) {
  OnEmulated on;
  const std::pair<const char*, Make> networks[] = {{"layers", layers},     {"residual", residual},
                                                   {"dense", dense_block}, {"inverted", inverted},
                                                   {"encoder", encoder},   {"views", views}};
  for (const auto& [name, make] : networks)
    for (const Number number : {Number::f32, Number::tf32, Number::f16, Number::bf16})
      for (const int batch : {1, 3})
        for (const int longest : {0, 1, 3}) {
          SCOPED_TRACE(std::string(name) + " " + std::string(name_of(number)) + " batch " +
                       std::to_string(batch) + " segments of " + std::to_string(longest));
          expect_near(on, make, number, batch, longest);
        }
  EXPECT_EQ(on.device().left_behind(), "");
}

// A network of random layers on images.
engine::testing::Graph random_network(std::uint64_t seed, std::int64_t batch) {
  Net m(seed);
  Random& random = m.random();
  const auto extent = [&] { return static_cast<std::int64_t>(1 + random.below(9)); };
  std::vector<ValueId> values{m.input({batch, 1 + extent(), 2 + extent(), 2 + extent()})};
  const auto any = [&] { return values[random.below(values.size())]; };
  const auto like = [&](ValueId x, std::size_t until) {  // another whose axes from `until` on are the same
    for (int tries = 0; tries < 8; ++tries) {
      const ValueId y = any();
      if (std::equal(m.shape(x).begin() + static_cast<std::ptrdiff_t>(until), m.shape(x).end(),
                     m.shape(y).begin() + static_cast<std::ptrdiff_t>(until)))
        return y;
    }
    return x;
  };
  for (std::uint64_t n = 3 + random.below(9); n > 0; --n) {
    const ValueId x = any();
    const graph::Shape s = m.shape(x);
    switch (random.below(12)) {
      case 0:
        values.push_back(m.conv(x, extent(), random.below(2) == 0 ? 1 : 3,
                                1 + static_cast<std::int64_t>(random.below(2)), 1,
                                random.below(2) == 0 ? std::vector<PostOp>{relu} : std::vector<PostOp>{}));
        break;
      case 1:
        values.push_back(m.conv(x, s[1], 3, 1, s[1]));
        break;
      case 2: {
        const ValueId first = m.conv(x, extent(), 1);
        values.push_back(m.conv(x, m.shape(first)[1], 1, 1, 1, {add(first), relu}));
        break;
      }
      case 3:
        values.push_back(m.concat({x, like(x, 2), x}, 1));
        break;
      case 4:
        values.push_back(m.node("Add", {x, like(x, 1)}, s, {}, {relu}));
        break;
      case 5:
        values.push_back(m.same("Sigmoid", {x}));
        break;
      case 6:
        values.push_back(m.pool(random.below(2) == 0 ? "MaxPool" : "AveragePool", x, 3,
                                1 + static_cast<std::int64_t>(random.below(2)), 1));
        break;
      case 7:
        values.push_back(m.transpose(x, {0, 2, 3, 1}));
        break;
      case 8:
        values.push_back(m.transpose(m.same("Tanh", {m.transpose(x, {0, 3, 1, 2})}), {0, 2, 3, 1}));
        break;
      case 9:
        values.push_back(m.same("Softmax", {x}, {{"axis", static_cast<std::int64_t>(1 + random.below(3))}}));
        break;
      case 10: {
        const auto gate = m.node("GlobalAveragePool", {x}, {s[0], s[1], 1, 1});
        values.push_back(m.node("Mul", {x, gate}, s));
        break;
      }
      default: {
        const auto first = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(s[1])));
        values.push_back(m.node("Slice", {x, m.integers({first}), m.integers({s[1]}), m.integers({1})},
                                {s[0], s[1] - first, s[2], s[3]}));
        break;
      }
    }
  }
  std::vector<ValueId> outputs{values.back()};
  if (values.size() > 2) outputs.push_back(values[values.size() / 2]);
  std::vector<ValueId> made;
  for (const ValueId id : outputs)
    if (id != values.front() && std::ranges::find(made, id) == made.end()) made.push_back(id);
  return m.finish(made);
}

TEST(CudaPlan, RandomNetworks) {
  OnEmulated on;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Number number = seed % 3 == 0 ? Number::f16 : Number::f32;
    expect_near(
        on, [&](std::int64_t batch) { return random_network(seed, batch); }, number,
        1 + static_cast<int>(seed % 2), static_cast<int>(seed % 4));
    if (HasFailure()) break;
  }
  EXPECT_EQ(on.device().left_behind(), "");
}

// A library that fuses some things only, and fails where it is asked for others. Bits: bias, residual, ReLU,
// of convolutions; epilogues of products.
class Sparse final : public MathLibrary {
 public:
  Sparse(std::unique_ptr<MathLibrary> of, unsigned knows) : of_(std::move(of)), knows_(knows) {}
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    if (!fuses(spec)) return fail(ErrorCode::unsupported, "it does not fuse " + to_text(spec));
    return of_->convolution(spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    if (!fuses(spec)) return fail(ErrorCode::unsupported, "it does not fuse " + to_text(spec));
    return of_->product(spec);
  }
  bool fuses(const Convolution& spec) override {
    return (!spec.bias || has(1)) && (spec.residual_pitch == 0 || has(2)) && (!spec.relu || has(4));
  }
  bool fuses(const Product& spec) override { return spec.epilogue == Epilogue::none || has(8); }

 private:
  bool has(unsigned bit) const { return (knows_ & bit) != 0; }
  std::unique_ptr<MathLibrary> of_;
  unsigned knows_;
};

TEST(CudaPlan, WhatTheLibraryDoesNotFuseKernelsDo) {
  OnEmulated on;
  for (unsigned knows = 0; knows < 16; ++knows) {
    SCOPED_TRACE(fmt::format("bits {:04b}", knows));
    on.wrap = [knows](std::unique_ptr<MathLibrary> of) {
      return std::make_unique<Sparse>(std::move(of), knows);
    };
    for (const Make& make : {Make(residual), Make(dense_block), Make(inverted), Make(encoder)})
      expect_near(on, make, Number::f32, 2, 0);
    for (std::uint64_t seed = 0; seed < 20; ++seed)
      expect_near(
          on, [&](std::int64_t batch) { return random_network(seed * 16 + knows, batch); }, Number::f32, 1,
          1);
  }
  EXPECT_EQ(on.device().left_behind(), "");
}

// As on a GPU, but for who computes: ways of cuDNN and cuBLASLt, measured on the device. Stand-ins read what
// they are told and give it to the plain library.
class ByStandIns final : public MathLibrary {
 public:
  // `timer`: in place of the device's.
  ByStandIns(std::unique_ptr<MathLibrary> plain, const std::shared_ptr<const Driver>& driver,
             std::shared_ptr<KernelChoices> kept, const CallTimer& timer = {})
      : plain_(std::move(plain)) {
    testing::computing() = plain_.get();
    auto cudnn = make_cudnn(testing::fake_dnn());
    auto cublaslt = make_cublaslt(testing::fake_blas());
    measured_ = make_measured_library(std::move(*cudnn), std::move(*cublaslt), std::move(kept),
                                      {.timer = timer ? timer : time_on(driver, 0),
                                       .copy_timer = time_copies_on(driver, 0),
                                       .first_launch = first_launch_on(driver, 0)});
  }
  ~ByStandIns() override { testing::computing() = nullptr; }
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return measured_->convolution(spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return measured_->product(spec);
  }
  bool fuses(const Convolution& spec) override { return measured_->fuses(spec); }
  bool fuses(const Product& spec) override { return measured_->fuses(spec); }
  std::int32_t channels_for(const Convolution& spec) override { return measured_->channels_for(spec); }
  void size_for(unsigned processors) override { measured_->size_for(processors); }

 private:
  std::unique_ptr<MathLibrary> plain_, measured_;
};

TEST(CudaPlan, WhatLibrariesAreToldGivesTheSame) {
  OnEmulated on;
  const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &on.driver());
  auto kept = std::make_shared<KernelChoices>();
  on.wrap = [&](std::unique_ptr<MathLibrary> plain) {
    return std::make_unique<ByStandIns>(std::move(plain), driver, kept);
  };
  for (const Number number : {Number::f32, Number::tf32, Number::f16, Number::bf16}) {
    SCOPED_TRACE(name_of(number));
    for (const Make& make : {Make(residual), Make(dense_block), Make(inverted), Make(encoder)})
      expect_near(on, make, number, 2, 2);
    for (std::uint64_t seed = 0; seed < 60; ++seed)
      expect_near(
          on, [&](std::int64_t batch) { return random_network(seed, batch); }, number, 1, 1);
  }
  EXPECT_GT(kept->measured(), 20U);
  EXPECT_TRUE(testing::alive().empty()) << "descriptors are left";
  EXPECT_EQ(on.device().left_behind(), "");
}

// As products where that can be, whichever is faster.
TEST(CudaPlan, ConvolutionsOfOnePixelAsProductsGiveTheSame) {
  OnEmulated on;
  const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &on.driver());
  auto kept = std::make_shared<KernelChoices>();
  int products = 0;
  const CallTimer timer = [&](const Call& call, const CallBytes&) -> Result<Duration> {
    const bool is = call.name().starts_with("conv") && call.name().find("cuBLASLt") != std::string_view::npos;
    products += is ? 1 : 0;
    return std::chrono::microseconds{is ? 1 : 2};
  };
  on.wrap = [&](std::unique_ptr<MathLibrary> plain) {
    return std::make_unique<ByStandIns>(std::move(plain), driver, kept, timer);
  };
  for (const Number number : {Number::f32, Number::f16}) {
    SCOPED_TRACE(name_of(number));
    for (const Make& make : {Make(residual), Make(dense_block), Make(inverted)})
      expect_near(on, make, number, 2, 2);
    for (std::uint64_t seed = 0; seed < 60; ++seed)
      expect_near(
          on, [&](std::int64_t batch) { return random_network(seed, batch); }, number, 1, 1);
  }
  EXPECT_GT(products, 20);
  EXPECT_TRUE(testing::alive().empty()) << "descriptors are left";
  EXPECT_EQ(on.device().left_behind(), "");
}

// A library that is best given so many channels.
class Padding final : public MathLibrary {
 public:
  Padding(std::unique_ptr<MathLibrary> of, std::int32_t channels) : of_(std::move(of)), channels_(channels) {}
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return of_->convolution(spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override { return of_->product(spec); }
  std::int32_t channels_for(const Convolution& spec) override { return std::max(channels_, spec.channels); }

 private:
  std::unique_ptr<MathLibrary> of_;
  std::int32_t channels_;
};

TEST(CudaPlan, PaddedChannelsGiveTheSameBytes) {
  OnEmulated on;
  const auto got = [&](const Make& make, std::int32_t channels, const CudaOptions& options) {
    on.wrap = [channels](std::unique_ptr<MathLibrary> of) {
      return std::make_unique<Padding>(std::move(of), channels);
    };
    const auto engine = on.engine(options);
    const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {2}});
    EXPECT_TRUE(model) << model.error().message;
    const auto inputs = random_inputs(make(2), 11);
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& input : inputs) bytes.emplace_back(input->bytes());
    const auto out = on.run(**model, *(*model)->plan(2), bytes, options.longest_segment > 0);
    EXPECT_TRUE(out) << out.error().message;
    return out ? *out : std::vector<std::vector<std::byte>>{};
  };
  for (const Number number : {Number::f32, Number::f16, Number::bf16})
    for (const int longest : {0, 1})
      for (const Make& make : {Make(residual), Make(dense_block), Make(inverted)}) {
        const CudaOptions options{.number = number, .longest_segment = longest};
        const auto plain = got(make, 0, options);
        EXPECT_EQ(got(make, 4, options), plain);
        EXPECT_EQ(got(make, 8, options), plain);
      }
  const auto names = on.step_names(MadeModel(residual), Number::f16);
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, ::testing::Contains(HasSubstr("conv f16 1x8x13x9 3x3/2 -> 16"))) << "the input's alone";
  EXPECT_THAT(*names, ::testing::Contains(HasSubstr("conv f16 1x16x4x3")));
  EXPECT_EQ(on.device().left_behind(), "");
}

// Kernels of the stand-ins that need as many processors as they were sized for, all at once.
struct PersistentKernels : ::testing::Test {
  OnEmulated on;
  const std::shared_ptr<const Driver> driver{std::shared_ptr<void>(), &on.driver()};
  void SetUp() override {
    testing::persistent() = 132;
    testing::sized_for().clear();
    on.wrap = [&](std::unique_ptr<MathLibrary> plain) {
      return std::make_unique<ByStandIns>(std::move(plain), driver, std::make_shared<KernelChoices>());
    };
  }
  void TearDown() override {
    testing::persistent() = 0;
    testing::sized_for().clear();
  }
};

TEST_F(PersistentKernels, AreSizedForThePartThatAPlanIsMeasuredAndRunIn) {
  for (const Make& make : {Make(residual), Make(encoder)}) {
    testing::sized_for().clear();
    const auto engine = on.engine({.number = Number::f16, .longest_wait = std::chrono::milliseconds{200}});
    ASSERT_TRUE(engine) << engine.error().message;
    const auto compiled = (*engine)->compile(MadeModel(make), {.batch_sizes = {1}, .room_cost = 0.02});
    ASSERT_TRUE(compiled) << compiled.error().message;
    const Plan& plan = *(*compiled)->plan(1);
    const int pair = static_cast<const CudaPlan&>(plan).parts().pair;
    ASSERT_GT(pair, 0);
    EXPECT_TRUE(testing::sized_for().contains(8U * static_cast<unsigned>(pair)));
    const auto inputs = random_inputs(make(1), 11);
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& input : inputs) bytes.emplace_back(input->bytes());
    const auto got = on.run(**compiled, plan, bytes, false);
    ASSERT_TRUE(got) << got.error().message;
  }
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST_F(PersistentKernels, AreSizedForTheRestThatBestEffortIsIn) {
  const auto engine = on.engine({.number = Number::f16, .longest_wait = std::chrono::milliseconds{200}});
  ASSERT_TRUE(engine) << engine.error().message;
  const auto best = (*engine)->compile(MadeModel(dense_block), {.batch_sizes = {1}, .stop_cost = 0.02});
  ASSERT_TRUE(best) << best.error().message;
  const auto real = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}, .room_cost = 0.02});
  ASSERT_TRUE(real) << real.error().message;
  const Part rest{.pair = static_cast<const CudaPlan&>(*(*real)->plan(1)).parts().pair, .rest = true};
  ASSERT_GT(rest.pair, 0);
  const auto& plan = static_cast<const CudaPlan&>(*(*best)->plan(1));
  auto loaded = LoadedPlan::make(driver, 0, **best, plan);
  ASSERT_TRUE(loaded) << loaded.error().message;
  {
    auto team = (*engine)->make_team({.cls = Class::best_effort});
    ASSERT_TRUE(team) << team.error().message;
    const auto state = plan.make_state(team->get());
    const auto inputs = random_inputs(dense_block(1), 11);
    for (std::size_t i = 0; i < inputs.size(); ++i) (*loaded)->set_input(i, inputs[i]->bytes());
    const Binding binding = (*loaded)->binding(state.get());
    auto& mine = static_cast<CudaState&>(*state);
    const InPrimaryContext current(on.driver(), 0);
    testing::sized_for().clear();
    ASSERT_TRUE(mine.prepare(address(binding.workspace), address(binding.weights), rest));
    for (int segment = 0; segment < plan.kernels(); ++segment)
      ASSERT_TRUE(plan.enqueue(segment, binding, mine));
    EXPECT_EQ(on.driver().stream_synchronize(mine.stream()), done) << "it ends";
    EXPECT_EQ(testing::sized_for(), std::set<unsigned>{132U - 8U * static_cast<unsigned>(rest.pair)});
  }
  EXPECT_TRUE(on.device().violations().empty()) << on.device().violations().front();
}

TEST_F(PersistentKernels, AreSizedForAnEnginesShare) {
  const auto engine = on.engine({.number = Number::f16, .share = {.from = 0, .to = 0.4}});
  ASSERT_TRUE(engine) << engine.error().message;
  const auto compiled = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}});
  ASSERT_TRUE(compiled) << compiled.error().message;
  testing::sized_for().clear();
  const auto inputs = random_inputs(residual(1), 11);
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& input : inputs) bytes.emplace_back(input->bytes());
  const auto got = on.run(**compiled, *(*compiled)->plan(1), bytes, false);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(testing::sized_for(), std::set<unsigned>{48});
}

// The stand-in's engine for exact f32 cannot be sized: in a part it never ends.
TEST_F(PersistentKernels, OneThatSpinsIsNamedWithinTheBound) {
  const auto engine = on.engine({.longest_wait = std::chrono::milliseconds{50}});
  ASSERT_TRUE(engine) << engine.error().message;
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}, .room_cost = 0.02});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  for (const char* const part :
       {"conv f32", "by engine 3", "has not ended within 0.05 s in a part of ", "--no-cuda-parts"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  EXPECT_TRUE(on.device().violations().empty()) << on.device().violations().front();
  // Who needs no part goes on.
  const auto whole = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}});
  EXPECT_TRUE(whole) << whole.error().message;
}

// Tells in which streams calls are put.
class Watched final : public MathLibrary {
 public:
  Watched(std::unique_ptr<MathLibrary> of, std::vector<Stream>& seen) : of_(std::move(of)), seen_(seen) {}
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return watched(of_->convolution(spec));
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return watched(of_->product(spec));
  }

 private:
  struct WatchedCall final : Call {
    WatchedCall(std::shared_ptr<const Call> call, std::vector<Stream>& streams)
        : of(std::move(call)), seen(streams) {}
    std::string_view name() const override { return of->name(); }
    std::uint64_t workspace() const override { return of->workspace(); }
    Result<> enqueue(Stream stream, const CallPlaces& places) const override {
      seen.push_back(stream);
      return of->enqueue(stream, places);
    }
    std::shared_ptr<const Call> of;
    std::vector<Stream>& seen;
  };
  Result<std::shared_ptr<const Call>> watched(Result<std::shared_ptr<const Call>> call) {
    if (!call) return call;
    return std::make_shared<WatchedCall>(std::move(*call), seen_);
  }
  std::unique_ptr<MathLibrary> of_;
  std::vector<Stream>& seen_;
};

// A plan that is made ready while others run captures beside them, for lanes of its class, and once.
TEST(CudaPlan, PreparingCapturesBesideTheLane) {
  OnEmulated on;
  std::vector<Stream> seen;
  on.wrap = [&](std::unique_ptr<MathLibrary> of) { return std::make_unique<Watched>(std::move(of), seen); };
  {
    const auto engine = on.engine({});
    ASSERT_TRUE(engine) << engine.error().message;
    const MadeModel model(residual);
    const auto compiled = (*engine)->compile(model, {.batch_sizes = {1}, .room_cost = 0.02});
    ASSERT_TRUE(compiled) << compiled.error().message;
    const Plan& plan = *(*compiled)->plan(1);
    auto loaded = LoadedPlan::make(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &on.driver()), 0,
                                   **compiled, plan);
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (std::size_t i = 0; i < plan.inputs().size(); ++i)
      (*loaded)->set_input(
          i, std::vector<std::byte>(graph::memory_of(plan.inputs()[i].type, plan.inputs()[i].shape).count));
    for (const Class cls : {Class::real_time, Class::best_effort}) {
      const auto team = (*engine)->make_team({.cls = cls});
      ASSERT_TRUE(team) << team.error().message;
      const auto state = plan.make_state(team->get());
      const Binding binding = (*loaded)->binding(state.get());
      seen.clear();
      ASSERT_TRUE(plan.prepare(*state, binding.workspace, binding.weights));
      EXPECT_EQ(seen.empty(), cls == Class::best_effort) << "it was made for real-time runs";
      const std::size_t captured = seen.size();
      ASSERT_TRUE(plan.run({0, plan.kernels()}, binding, {}));
      const auto lane =
          static_cast<Lane*>(team->get())->stream({.pair = static_cast<const CudaPlan&>(plan).parts().pair});
      ASSERT_TRUE(lane);
      if (cls == Class::real_time) {
        EXPECT_EQ(seen.size(), captured) << "captured twice";
        EXPECT_THAT(seen, Each(Ne(*lane)));
      }
    }
  }
  EXPECT_THAT(on.device().violations(), IsEmpty());
  EXPECT_EQ(on.device().left_behind(), "");
}

std::vector<std::string> steps_of(const OnEmulated& on, const Make& make) {
  auto names = on.step_names(MadeModel(make));
  EXPECT_TRUE(names) << names.error().message;
  return names.value_or(std::vector<std::string>());
}

// Kernels of the emulated device take 3 us each.
TEST(CudaPlan, WhatIsToBeStoppedSoonFallsIntoSegmentsOfTheBound) {
  for (const int kernels_in_bound : {1, 2, 5}) {
    SCOPED_TRACE(kernels_in_bound);
    OnEmulated on({.bytes_per_second = 1e18,
                   .copy = Duration{0},
                   .kernel = std::chrono::microseconds{3},
                   .enqueue = Duration{0}});
    // Two segments fit the bound.
    const auto engine = on.engine({.bound = 2 * std::chrono::microseconds{3 * kernels_in_bound + 1}});
    for (const Make& make : {Make(residual), Make(dense_block), Make(encoder)}) {
      const auto whole = (*engine)->compile(MadeModel(make), {.batch_sizes = {1, 2}});
      const auto divided = (*engine)->compile(MadeModel(make), {.batch_sizes = {1, 2}, .stop_cost = 0.02});
      ASSERT_TRUE(whole && divided);
      const int steps = static_cast<int>(steps_of(on, make).size());
      EXPECT_EQ((*whole)->plan(2)->kernels(), 1);
      EXPECT_EQ((*divided)->plan(1)->kernels(), (steps + kernels_in_bound - 1) / kernels_in_bound);
      const auto graph = make(2);
      const auto inputs = random_inputs(graph, 11);
      const auto values = reference(graph, inputs);
      std::vector<std::span<const std::byte>> bytes;
      for (const auto& input : inputs) bytes.emplace_back(input->bytes());
      const auto got = on.run(**divided, *(*divided)->plan(2), bytes, true);
      ASSERT_TRUE(got) << got.error().message;
      for (std::size_t i = 0; i < got->size(); ++i) EXPECT_LE(apart(*values[i], (*got)[i]), 1e-4);
    }
    EXPECT_THAT(on.device().violations(), IsEmpty());
  }
}

// A step takes 30 us a row.
class TimesByRows final : public StepTimes {
 public:
  Result<std::vector<Duration>> of(const PlanName& plan, std::span<const Step> steps) const override {
    return std::vector(steps.size(), plan.batch * std::chrono::microseconds{30} + Duration{0});
  }
  void announce(Duration takes) const override { Emulated::next_takes(takes); }
};

TEST(CudaPlan, BatchSizesWithKernelsThatAreTooLongAreLeftOutAndNamed) {
  OnEmulated on({.computes = false});
  const auto engine = on.engine({.times = std::make_shared<TimesByRows>()});
  const auto compile = [&](std::vector<int> sizes, std::optional<double> stop_cost) {
    return (*engine)->compile(MadeModel(residual), {.batch_sizes = std::move(sizes), .stop_cost = stop_cost});
  };
  const auto some = compile({1, 2, 4, 8}, 0.02);
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_THAT((*some)->batch_sizes(), ElementsAre(1, 2));
  // The start of a launch is in it.
  const auto left_out = [](int batch) {
    return AllOf(HasSubstr(fmt::format("batches of {} are left out: ", batch)),
                 HasSubstr(fmt::format("takes {} us", 30 * batch)),
                 HasSubstr("more than 100 (--cuda-longest-kernel)"));
  };
  EXPECT_THAT((*some)->notes(), ElementsAre(left_out(4), left_out(8)));
  const auto all = compile({1, 2, 4, 8}, std::nullopt);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_THAT((*all)->batch_sizes(), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT((*all)->notes(), IsEmpty());
  const auto none = compile({4, 8}, 0.02);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::unsupported);
  EXPECT_THAT(none.error().message, AllOf(HasSubstr("model \""), left_out(4)));
}

// What lies between two events around a graph of one kernel is more than the kernel.
TEST(CudaPlan, WhatALaunchAddsIsMeasuredAndNoneOfAKernelsTime) {
  using std::chrono::nanoseconds;
  OnEmulated on({.kernel = nanoseconds{3000}, .enqueue = nanoseconds{1500}});
  Device device(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &on.driver()), 0);
  ASSERT_TRUE(device.prepare("emulated", false));
  const Device::Current current(device);
  const auto launch = device.launch_time();
  ASSERT_TRUE(launch) << launch.error().message;
  EXPECT_NEAR(to_us(*launch), 1.5, 0.05);
  EXPECT_EQ(device.launch_time(), launch) << "measured once";
  EXPECT_EQ(Device::without_launch(nanoseconds{12'000}, nanoseconds{1500}), nanoseconds{10'500});
  // Nothing takes less than a kernel that does nothing, but what was measured so.
  EXPECT_EQ(Device::without_launch(nanoseconds{1600}, nanoseconds{1500}), nanoseconds{900});
  EXPECT_EQ(Device::without_launch(nanoseconds{400}, nanoseconds{1500}), nanoseconds{400});
}

TEST(CudaPlan, AModelsPrecisionStandsAboveTheDevices) {
  OnEmulated on;
  const auto engine = on.engine({.longest_segment = 1});
  for (const auto& [precision, says] :
       {std::pair(Precision::f16, "_f16"), std::pair(Precision::bf16, "_bf16")}) {
    const auto model = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}, .precision = precision});
    ASSERT_TRUE(model) << model.error().message;
    int steps = 0;
    for (int i = 0; i < (*model)->plan(1)->kernels(); ++i)
      steps += (*model)->plan(1)->kernel_name(i).find(says) != std::string_view::npos ? 1 : 0;
    EXPECT_GT(steps, 1) << says;
  }
  const auto cpu = make_cpu_engine({.threads = 1});
  const auto none = cpu->compile(MadeModel(residual), {.batch_sizes = {1}, .precision = Precision::f16});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::unsupported);
  EXPECT_THAT(none.error().message, HasSubstr("precision f16 is to be had on GPUs alone"));
}

TEST(CudaPlan, WeightsLieInPinnedMemory) {
  OnEmulated on;
  {
    const auto engine = on.engine({});
    const auto model = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1, 2}});
    ASSERT_TRUE(model);
    std::vector<std::byte> written((*model)->weights().count);
    ASSERT_TRUE((*model)->write_weights(0, written).has_value());
    EXPECT_TRUE(std::ranges::equal((*model)->packed(), written));
    Address there = 0;
    EXPECT_EQ(on.driver().host_address(&there, const_cast<std::byte*>((*model)->packed().data()), 0), done);
  }
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST(CudaPlan, WithoutMemoryToMeasureInEachKernelIsASegment) {
  OnEmulated on({.fail_create = 2});  // the first is the trial's of parts
  const auto engine = on.engine({});
  const auto divided = (*engine)->compile(MadeModel(residual), {.batch_sizes = {1}, .stop_cost = 0.02});
  ASSERT_TRUE(divided) << divided.error().message;
  EXPECT_EQ((*divided)->plan(1)->kernels(), static_cast<int>(steps_of(on, residual).size()));
}

TEST(CudaPlan, ConvolutionsWriteIntoTheirSlices) {
  OnEmulated on;
  int moves = 0;
  for (const std::string& step : steps_of(on, dense_block))
    moves += step.find("carillon_move") != std::string::npos;
  EXPECT_EQ(moves, 1) << "the input's, and none of a concatenation";
}

TEST(CudaPlan, WhatFollowsAConvolutionIsInIt) {
  OnEmulated on;
  for (const std::string& step : steps_of(on, residual))
    EXPECT_EQ(step.find("elementwise"), std::string::npos) << step;
}

TEST(CudaPlan, WhatNoKernelCoversIsNamed) {
  OnEmulated on;
  const auto refused = [&](const Make& make) {
    const auto engine = on.engine({});
    const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {1}});
    EXPECT_FALSE(model);
    if (model) return std::string();
    EXPECT_EQ(model.error().code, ErrorCode::unsupported);
    return model.error().message;
  };
  EXPECT_THAT(refused([](std::int64_t batch) {
                Net m(1);
                return m.finish({m.same("Hardmax", {m.input({batch, 4})})});
              }),
              AllOf(HasSubstr("Hardmax_0"), HasSubstr("float[1,4]"), HasSubstr("no CUDA kernel"),
                    HasSubstr("batch 1")));
  // Their rarer forms (even windows, nearest of opset 10) have no kernel that could read them otherwise.
  for (const char* const op : {"LRN", "Resize"})
    EXPECT_THAT(refused([&](std::int64_t batch) {
                  Net m(1);
                  return m.finish({m.same(op, {m.input({batch, 4, 3, 3})})});
                }),
                AllOf(HasSubstr(std::string(op) + "_0"), HasSubstr("no CUDA kernel")));
  EXPECT_THAT(
      refused([](std::int64_t batch) {
        Net m(1);
        const auto x = m.input({batch, 4});
        return m.finish({m.node(
            "Slice", {x, m.integers({3}), m.integers({-5}), m.integers({1}), m.integers({-1})}, {batch, 4})});
      }),
      HasSubstr("a step below 0"));
}

TEST(CudaPlan, RunsMapAndAllocateNothing) {
  OnEmulated on;
  const auto engine = on.engine({.longest_segment = 2});
  const auto model = *(*engine)->compile(MadeModel(layers), {.batch_sizes = {2}});
  auto memory = *CudaMemory::make(on.driver(), 0, {.pages = 3, .io = mib(1), .workspace = mib(1)});
  const engine::testing::InMemory in(*model, *model->plan(2), *memory, nullptr, 1);
  ASSERT_TRUE(model->plan(2)->run({0, model->plan(2)->kernels()}, in.binding(), {}));
  const std::uint64_t calls = on.device().memory_calls(), used = on.device().memory_used();
  for (int run = 0; run < 20; ++run)
    ASSERT_TRUE(model->plan(2)->run({0, model->plan(2)->kernels()}, in.binding(), {}));
  EXPECT_EQ(on.device().memory_calls(), calls);
  EXPECT_EQ(on.device().memory_used(), used);
}

TEST(CudaPlan, ALostDeviceIsNamed) {
  for (const std::uint64_t after : {5U, 6U, 9U, 13U, 20U}) {
    SCOPED_TRACE(after);
    OnEmulated on({.lose_after = after});
    const auto engine = on.engine({.longest_segment = 1});
    ASSERT_TRUE(engine);
    const auto model = *(*engine)->compile(MadeModel(layers), {.batch_sizes = {1}});
    auto memory = *CudaMemory::make(on.driver(), 0, {.pages = 3, .io = mib(1), .workspace = mib(1)});
    const engine::testing::InMemory in(*model, *model->plan(1), *memory, nullptr, 1);
    Result<> ran;
    for (int run = 0; ran && run < 5; ++run)
      ran = model->plan(1)->run({0, model->plan(1)->kernels()}, in.binding(), {});
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().code, ErrorCode::unavailable);
    EXPECT_THAT(ran.error().message, HasSubstr("the device is lost"));
    EXPECT_FALSE((*engine)->probe());
  }
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
