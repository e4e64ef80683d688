// Which steps become chains, and that nothing else changes by it.
#include "carillon/engine/cuda/plan/chains.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"

namespace carillon::engine::cuda {
namespace {

using engine::testing::MadeModel;
using engine::testing::random_inputs;
using graph::PostOp;
using graph::ValueId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::OnEmulated;
using namespace testing::networks;

PostOp post(PostOp::Kind kind, float alpha = 0, float beta = 0) {
  return {.kind = kind, .alpha = alpha, .beta = beta};
}

// Of how many steps each chain is; 1 for each other elementwise kernel.
std::vector<int> lengths(const Make& make, Number number = Number::f32) {
  OnEmulated on;
  std::vector<int> out;
  const auto steps = on.step_names(MadeModel(make), number);
  EXPECT_TRUE(steps) << steps.error().message;
  for (const std::string& step : steps.value_or(std::vector<std::string>())) {
    if (const std::size_t at = step.find("carillon_chain of "); at != std::string::npos)
      out.push_back(std::stoi(step.substr(at + 18)));
    else if (step.find("_elementwise_") != std::string::npos || step.find("_cast_") != std::string::npos ||
             step.find("_compare_") != std::string::npos || step.find("_select_") != std::string::npos)
      out.push_back(1);
  }
  return out;
}

TEST(CudaPlanChains, WhatNobodyElseUsesIsInside) {
  struct Row {
    const char* what;
    Make make;
    std::vector<int> want;
  };
  const auto one = [](std::function<ValueId(Net&, ValueId)> body) {
    return [body = std::move(body)](std::int64_t batch) {
      Net m(1);
      const ValueId x = m.input({batch, 4, 6, 8});
      return m.finish({body(m, x)});
    };
  };
  const Row rows[] = {
      {"one kernel stays what it is", one([](Net& m, ValueId x) { return m.same("Exp", {x}); }), {1}},
      {"two become one", one([](Net& m, ValueId x) { return m.same("Exp", {m.same("Tanh", {x})}); }), {2}},
      {"both branches of one value, and where they meet",
       one([](Net& m, ValueId x) {
         const ValueId y = m.same("Abs", {x});
         return m.same("Mul", {m.same("Sigmoid", {y}), m.same("Exp", {y})});
       }),
       {4}},
      {"an operand that is repeated is read by the chain",
       one([](Net& m, ValueId x) {
         return m.same("Relu", {m.same("Add", {m.same("Neg", {x}), m.random_constant({4, 1, 1})})});
       }),
       {3}},
      {"what is computed once for many elements is not computed for each",
       one([](Net& m, ValueId x) {
         const ValueId gate = m.node("GlobalAveragePool", {x}, {m.shape(x)[0], 4, 1, 1});
         return m.same("Mul", {m.same("Neg", {x}), m.same("Sigmoid", {gate})});
       }),
       {1, 2}},
      {"a value that another kernel reads ends its chain",
       one([](Net& m, ValueId x) {
         const ValueId y = m.same("Exp", {m.same("Neg", {x})});
         const ValueId pooled = m.node("GlobalAveragePool", {y}, {m.shape(x)[0], 4, 1, 1});
         return m.same("Mul", {m.same("Sqrt", {y}), pooled});
       }),
       {2, 2}},
      {"read in another order it is of another chain",
       one([](Net& m, ValueId x) {
         const ValueId y = m.same("Exp", {m.same("Neg", {x})});
         const ValueId other = m.node("Reshape", {x}, {m.shape(x)[0], 4, 8, 6});
         const ValueId turned = m.transpose(m.same("Tanh", {other}), {0, 1, 3, 2});
         return m.same("Add", {y, turned});
       }),
       {1, 3}},
      {"views that turn and turn back are of one order",
       one([](Net& m, ValueId x) {
         const ValueId y = m.same("Exp", {m.same("Neg", {x})});
         return m.same("Add", {y, m.transpose(m.same("Abs", {m.transpose(x, {0, 1, 3, 2})}), {0, 1, 3, 2})});
       }),
       {4}},
      {"a reshape between changes nothing",
       one([](Net& m, ValueId x) {
         const ValueId flat = m.node("Reshape", {m.same("Neg", {x})}, {m.shape(x)[0], 192});
         return m.node("Reshape", {m.node("Exp", {flat}, {m.shape(x)[0], 192})}, m.shape(x));
       }),
       {2}},
      {"hard swish, leaky ReLU and ELU are one each",
       one([](Net& m, ValueId x) {
         const ValueId a = m.same("HardSwish", {x});
         const ValueId b = m.transpose(m.same("LeakyRelu", {a}), {0, 2, 3, 1});
         const ValueId c = m.node("ReduceMax", {b, m.integers({1})}, {m.shape(x)[0], 1, 8, 4});
         return m.same("Elu", {c});
       }),
       {6, 5}},
      {"too long a chain is two",
       one([](Net& m, ValueId x) {
         for (int i = 0; i < 20; ++i) x = m.same("Tanh", {x});
         return x;
       }),
       {4, 16}},
      {"too many operands are two",
       one([](Net& m, ValueId x) {
         for (int i = 0; i < 10; ++i) x = m.same("Add", {x, m.random_constant({4, 6, 8})});
         return x;
       }),
       {3, 7}},
  };
  for (const Row& row : rows) EXPECT_EQ(lengths(row.make), row.want) << row.what;
}

TEST(CudaPlanChains, AnOutputIsStoredWhoeverElseUsesIt) {
  const auto make = [](std::int64_t batch) {
    Net m(1);
    const ValueId y = m.same("Neg", {m.same("Tanh", {m.input({batch, 40})})});
    return m.finish({y, m.same("Sqrt", {m.same("Exp", {y})})});
  };
  EXPECT_THAT(lengths(make), ElementsAre(2, 2));
}

TEST(CudaPlanChains, ConversionsAtTheEdgesAreInside) {
  const auto make = [](std::int64_t batch) {
    Net m(1);
    return m.finish({m.same("Exp", {m.same("Tanh", {m.input({batch, 40})})})});
  };
  EXPECT_THAT(lengths(make, Number::f16), ElementsAre(4));
}

// A network of random elementwise layers, and some of others.
engine::testing::Graph random_elementwise(std::uint64_t seed, std::int64_t batch) {
  Net m(seed);
  Random& random = m.random();
  const auto pick = [&](std::initializer_list<std::int64_t> of) {
    return of.begin()[random.below(of.size())];
  };
  const graph::Shape shape{batch, pick({1, 3, 4, 8}), pick({1, 2, 5}), pick({1, 7, 8, 16, 24})};
  std::vector<ValueId> values{m.input(shape), m.input(shape)};
  const auto any = [&] {
    return values[values.size() - 1 - random.below(std::min<std::size_t>(4, values.size()))];
  };
  const auto part = [&] {  // something that is broadcast
    graph::Shape of = shape;
    for (std::int64_t& each : of)
      if (random.below(2) == 0) each = 1;
    of[0] = 1;
    return m.random_constant(of);
  };
  const auto condition = [&] {
    const char* const op = random.below(2) == 0 ? "Less" : "GreaterOrEqual";
    const ValueId out = m.node(op, {any(), random.below(2) == 0 ? any() : part()}, shape);
    m.g.values[out.index()].type.type = graph::DataType::boolean;
    return out;
  };
  for (std::uint64_t n = 4 + random.below(14); n > 0; --n) {
    const ValueId x = any();
    ValueId y = x;
    switch (random.below(9)) {
      case 0:
      case 1: {
        const char* const ops[] = {"Tanh",      "Sigmoid", "Neg",       "Abs", "Relu",
                                   "HardSwish", "Elu",     "LeakyRelu", "Erf", "Floor"};
        y = m.same(ops[random.below(std::size(ops))], {x});
        break;
      }
      case 2:
      case 3: {
        const char* const ops[] = {"Add", "Sub", "Mul", "Max", "Min"};
        y = m.node(ops[random.below(std::size(ops))], {x, random.below(2) == 0 ? any() : part()}, shape, {},
                   random.below(3) == 0 ? std::vector<PostOp>{relu, post(PostOp::Kind::linear, 0.5F, 0.25F)}
                                        : std::vector<PostOp>{});
        break;
      }
      case 4:
        y = m.node("Where", {condition(), x, random.below(2) == 0 ? any() : part()}, shape);
        break;
      case 5:
        y = m.transpose(m.same("Tanh", {m.transpose(x, {0, 2, 3, 1})}), {0, 3, 1, 2});
        break;
      case 6:
        if (random.below(2) == 0) y = m.same("Softmax", {x}, {{"axis", std::int64_t{1}}});
        break;
      case 7:
        y = m.node("Gelu", {x}, shape, {}, {post(PostOp::Kind::clip, -1, 2), post(PostOp::Kind::hard_swish)});
        break;
      default:
        y = m.node("Mul", {x, m.node("GlobalAveragePool", {x}, {batch, shape[1], 1, 1})}, shape);
    }
    if (y != x) values.push_back(y);
  }
  std::vector<ValueId> outputs{values.back()};
  if (values.size() > 4) outputs.push_back(values[values.size() - 2]);
  return m.finish(outputs);
}

// Steps with chains, and without.
std::pair<int, int> expect_same_bytes(OnEmulated& on, const Make& make, Number number, int batch,
                                      int longest) {
  const auto interpreted = on.make_chains;
  const auto inputs = random_inputs(make(batch), 11);
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& input : inputs) bytes.emplace_back(input->bytes());
  std::vector<std::vector<std::byte>> answers[2];
  int steps[2] = {0, 0};
  for (const int chains : {0, 1}) {
    on.make_chains = chains == 1 ? interpreted : nullptr;
    const auto engine = on.engine({.number = number, .longest_segment = longest});
    const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {batch}});
    EXPECT_TRUE(model) << model.error().message;
    if (!model) break;
    const auto got = on.run(**model, *(*model)->plan(batch), bytes, longest != 0);
    EXPECT_TRUE(got) << got.error().message;
    if (got) answers[chains] = *got;
    steps[chains] = (*model)->plan(batch)->kernels();
  }
  on.make_chains = interpreted;
  EXPECT_EQ(answers[0], answers[1]);
  return {steps[1], steps[0]};
}

TEST(CudaPlanChains, GiveTheSameBytes) {
  OnEmulated on;
  int with = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 240 && !HasFailure(); ++seed) {
    const Number number = seed % 3 == 0 ? Number::f32 : seed % 3 == 1 ? Number::f16 : Number::bf16;
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(name_of(number)));
    const int longest = static_cast<int>(seed % 4);
    const auto steps = expect_same_bytes(
        on, [&](std::int64_t of) { return random_elementwise(seed, of); }, number,
        1 + static_cast<int>(seed % 2), longest);
    if (longest == 1) {
      with += steps.first;
      without += steps.second;
    }
  }
  EXPECT_LT(with * 2, without) << "steps in chains, and without";
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST(CudaPlanChains, OneTensorInTwoViewsIsTwoOperands) {
  OnEmulated on;
  const auto steps = expect_same_bytes(
      on,
      [](std::int64_t batch) {
        Net m(1);
        const ValueId x = m.input({batch, 8, 8});
        return m.finish({m.same("Tanh", {m.same("Sub", {x, m.transpose(x, {0, 2, 1})})})});
      },
      Number::f32, 2, 1);
  EXPECT_EQ(steps.first, 1);
  EXPECT_EQ(steps.second, 2);
}

// Where a chain cannot be compiled its steps are kernels; where the device is lost, that is told.
class Unwilling final : public ChainLibrary {
 public:
  Unwilling(std::unique_ptr<ChainLibrary> of, ErrorCode code) : of_(std::move(of)), code_(code) {}
  Result<std::shared_ptr<const ChainKernel>> kernel(const kernels::Chain& chain) override {
    if (chain.step_count % 2 == 0) return fail(code_, "this one not");
    return of_->kernel(chain);
  }

 private:
  std::unique_ptr<ChainLibrary> of_;
  ErrorCode code_;
};

TEST(CudaPlanChains, WithoutACompilerStepsAreKernels) {
  const Make make = [](std::int64_t batch) {
    Net m(1);
    const ValueId x = m.input({batch, 40});
    const ValueId even = m.same("Neg", {m.same("Tanh", {x})});
    const ValueId odd = m.same("Exp", {m.same("Neg", {m.same("Tanh", {x})})});
    return m.finish({even, odd});
  };
  OnEmulated on;
  for (const ErrorCode code : {ErrorCode::internal, ErrorCode::unavailable}) {
    on.make_chains = [code](std::shared_ptr<const Driver> driver,
                            DeviceNumber) -> Result<std::unique_ptr<ChainLibrary>> {
      return std::make_unique<Unwilling>(*make_interpreted_chains(std::move(driver), 0), code);
    };
    const auto engine = on.engine({.longest_segment = 1});
    const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {1}});
    if (code == ErrorCode::unavailable) {
      ASSERT_FALSE(model);
      EXPECT_EQ(model.error().code, ErrorCode::unavailable);
    } else {
      ASSERT_TRUE(model) << model.error().message;
      EXPECT_EQ((*model)->plan(1)->kernels(), 3) << "two kernels, and a chain of three steps";
    }
  }
  EXPECT_THAT(on.device().violations(), IsEmpty());
}

}  // namespace
}  // namespace carillon::engine::cuda
