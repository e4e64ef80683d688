#include <array>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

// Products of matrices as models have them: batches that broadcast, operands and results that are views, a
// factor in front, sums behind; against the plain kernels.
namespace carillon::engine {
namespace {

using namespace testing;
using Make = std::function<Graph(std::int64_t)>;

std::string kernels_of(const Plan& plan) {
  std::string text;
  for (int k = 0; k < plan.kernels(); ++k) text += std::string(plan.kernel_name(k)) + "\n";
  return text;
}

// Runs at each batch size and compares; no kernel may be one of oneDNN's last resorts, nor, with `fast`, a
// plain product.
void expect_agrees(const Make& make, const std::vector<int>& batches, bool fast) {
  static const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = batches});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  for (const int batch : batches) {
    const Graph g = make(batch);
    SCOPED_TRACE("batch " + std::to_string(batch) + "\n" + graph::to_text(g));
    const Plan& plan = *(*compiled)->plan(batch);
    const std::string kernels = kernels_of(plan);
    SCOPED_TRACE(kernels);
    EXPECT_EQ(kernels.find(" ref"), std::string::npos);
    EXPECT_TRUE(!fast || kernels.find("plain:MatMul") == std::string::npos);
    const Buffers inputs = random_inputs(g, 7);
    const Buffers want = reference(g, inputs);
    const Bound bound(**compiled, plan, inputs);
    const auto done = plan.run({0, plan.kernels()}, bound.binding(), {});
    ASSERT_TRUE(done.has_value()) << done.error().message;
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(*bound.outputs()[i], *want[i]), 1e-5) << "output " << i;
  }
}

// Random products [batch, ..., rows, inner] x [..., inner, columns]. The same is drawn at every batch size:
// in shapes the batch is -1.
struct Draw {
  Draw(std::uint64_t seed, std::int64_t batch_size) : choice(seed), batch(batch_size) {}
  Random choice;
  std::int64_t batch;
  GraphMaker m;

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(choice.below(static_cast<std::uint64_t>(n)));
  }
  std::int64_t extent(std::int64_t most) { return below(4) == 0 ? 1 : 1 + below(most); }
  Shape sized(Shape shape) const {
    if (shape.front() == -1) shape.front() = batch;
    return shape;
  }
  // `shape` with some of its dimensions [first, last) as 1.
  Shape narrowed(Shape shape, std::size_t first, std::size_t last) {
    for (std::size_t d = first; d < last; ++d)
      if (below(3) == 0) shape[d] = 1;
    return shape;
  }
  // A value of this shape: an input, a view of one with its dimensions in another order, or a constant.
  ValueId operand(const Shape& shape) {
    if (shape.front() != -1) return m.constant(random_tensor(shape, choice));
    std::vector<std::int64_t> perm(shape.size());
    for (std::size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<std::int64_t>(d);
    for (std::size_t d = 2; d < perm.size(); ++d)
      if (below(2) == 0)
        std::swap(perm[d], perm[1 + static_cast<std::size_t>(below(static_cast<std::int64_t>(d) - 1))]);
    Shape from(shape.size());  // dimension d of the view is perm[d] of the input
    for (std::size_t d = 0; d < perm.size(); ++d) from[static_cast<std::size_t>(perm[d])] = shape[d];
    const auto x = m.input(sized(from));
    return from == shape ? x : m.node("Transpose", {x}, sized(shape), {{"perm", perm}});
  }
  ValueId product(std::size_t rank) {
    Shape y{-1};
    while (y.size() < rank) y.push_back(extent(y.size() + 2 < rank ? 4 : 24));
    const std::int64_t inner = extent(24);
    Shape a = narrowed(y, 1, std::max<std::size_t>(rank - 2, 1)), b = narrowed(y, 0, rank - 2);
    const bool flat = rank == 2 || (b[0] == 1 && below(2) == 0);
    for (std::size_t d = 1; d + 2 < rank; ++d)
      if (a[d] == 1 && (flat || b[d] == 1)) a[d] = y[d];
    a[rank - 1] = b[rank - 2] = inner;
    if (flat) b.erase(b.begin(), b.end() - 2);
    auto left = operand(a);
    const auto right = operand(b);
    if (below(3) == 0) {
      const auto by = std::vector<float>{2.5F};
      const auto scalar = m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, by)));
      left = m.node("Div", {left, scalar}, sized(a));
    }
    std::vector<PostOp> post_ops;
    for (std::int64_t sums = below(3); sums > 0; --sums) {
      Shape to = narrowed(y, 0, rank);
      if (to[0] == 1)
        to.erase(to.begin(),
                 to.begin() + static_cast<std::ptrdiff_t>(below(static_cast<std::int64_t>(rank))));
      post_ops.push_back({.kind = PostOp::Kind::add, .operand = operand(to)});
    }
    if (below(3) == 0) post_ops.push_back({.kind = PostOp::Kind::tanh});
    const auto result = m.node("MatMul", {left, right}, sized(y), {}, post_ops);
    if (rank < 4 || below(2) == 0) return result;
    std::vector<std::int64_t> perm(rank);
    for (std::size_t d = 0; d < rank; ++d) perm[d] = static_cast<std::int64_t>(d);
    std::swap(perm[1], perm[2]);
    std::swap(y[1], y[2]);
    return m.node("Tanh", {m.node("Transpose", {result}, sized(y), {{"perm", perm}})}, sized(y));
  }
};

class RandomProducts : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RandomProducts, AgreeWithPlainOnes) {
  const std::size_t rank = GetParam();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Make make = [&](std::int64_t batch) {
      Draw draw(seed * 100 + rank, batch);
      draw.m.g.outputs = {draw.product(rank)};
      return std::move(draw.m.g);
    };
    expect_agrees(make, {1, 3}, rank <= 6);
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, RandomProducts, ::testing::Values(2, 3, 4, 5, 6, 7),
                         [](const auto& rank) { return std::to_string(rank.param); });

// Swin's: a scaled product, to which a constant of one batch is added, and which is then seen by windows.
TEST(Products, OfWindowAttention) {
  expect_agrees(
      [](std::int64_t n) {
        Random random(3);
        GraphMaker m;
        const auto q = m.input({n, 4, 2, 16, 8}), k = m.input({n, 4, 2, 16, 8});
        const auto windows = [&](ValueId x) { return m.node("Reshape", {x}, {4 * n, 2, 16, 8}); };
        const auto scale = std::vector<float>{0.25F};
        const auto scalar = m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, scale)));
        const auto scaled = m.node("Mul", {windows(q), scalar}, {4 * n, 2, 16, 8});
        const auto turned = m.node("Transpose", {windows(k)}, {4 * n, 2, 8, 16},
                                   {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}});
        const auto bias = m.constant(random_tensor({1, 2, 16, 16}, random));
        const auto scores = m.node("MatMul", {scaled, turned}, {4 * n, 2, 16, 16}, {},
                                   {{.kind = PostOp::Kind::add, .operand = bias}});
        m.g.outputs = {m.node("Reshape", {scores}, {n, 4, 2, 16, 16})};
        return std::move(m.g);
      },
      {1, 2, 16}, true);
}

// DeBERTa's: to a scaled product of three dimensions two terms are added, one of them transposed.
TEST(Products, OfDisentangledAttention) {
  expect_agrees(
      [](std::int64_t n) {
        GraphMaker m;
        const auto flat = [&](Shape shape) {
          const auto x = m.input({n, 4, shape[1], shape[2]});
          return m.node("Reshape", {x}, {4 * n, shape[1], shape[2]});
        };
        const auto scale = std::vector<float>{4.9F};
        const auto scalar = m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, scale)));
        const auto turn = [&](ValueId x, const Shape& shape) {
          return m.node("Transpose", {x}, shape, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
        };
        const auto q = flat({0, 10, 8}), k = flat({0, 10, 8});
        const auto keys = m.node("Div", {turn(k, {4 * n, 8, 10}), scalar}, {4 * n, 8, 10});
        const auto c2p = flat({0, 10, 10}), p2c = turn(flat({0, 10, 10}), {4 * n, 10, 10});
        const auto scores = m.node(
            "MatMul", {q, keys}, {4 * n, 10, 10}, {},
            {{.kind = PostOp::Kind::add, .operand = c2p}, {.kind = PostOp::Kind::add, .operand = p2c}});
        m.g.outputs = {m.node("Reshape", {scores}, {n, 4, 10, 10})};
        return std::move(m.g);
      },
      {1, 2, 16}, true);
}

// As transformers have them: rows of tokens by weights, with what may stand behind; each as it is and behind
// a factor.
TEST(Products, OfManyRowsWithWeights) {
  using Kind = PostOp::Kind;
  for (const std::int64_t rows : {1, 31, 32, 61, 128})
    for (const std::int64_t columns : {1, 48, 96, 100})
      for (const bool scaled : {false, true}) {
        SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(columns) + " columns, factor " +
                     std::to_string(scaled));
        expect_agrees(
            [&](std::int64_t n) {
              Random random(5);
              GraphMaker m;
              auto x = m.input({n, rows, 40});
              const auto weights = m.constant(random_tensor({40, columns}, random));
              const auto bias = m.constant(random_tensor({columns}, random));
              if (scaled) {
                const auto by = std::vector<float>{2.5F};
                const auto scalar =
                    m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, by)));
                x = m.node("Div", {x, scalar}, {n, rows, 40});
              }
              const std::vector<std::vector<PostOp>> behind{
                  {},
                  {{.kind = Kind::add, .operand = bias}},
                  {{.kind = Kind::add, .operand = bias}, {.kind = Kind::gelu_erf}},
                  {{.kind = Kind::add, .operand = bias},
                   {.kind = Kind::add, .operand = m.input({n, rows, columns})},
                   {.kind = Kind::relu}},
                  {{.kind = Kind::mul, .operand = m.input({n, rows, 1})}},
                  {{.kind = Kind::tanh}, {.kind = Kind::mul, .operand = bias}}};
              for (const auto& post_ops : behind)
                m.g.outputs.push_back(m.node("MatMul", {x, weights}, {n, rows, columns}, {}, post_ops));
              return std::move(m.g);
            },
            {1, 3}, true);
      }
}

// What is added lies otherwise than the rows: it is a Transpose's result, which is only seen so.
TEST(Products, OfManyRowsWithWeightsPlusATranspose) {
  for (const std::int64_t columns : {48, 96, 100}) {
    SCOPED_TRACE(columns);
    expect_agrees(
        [&](std::int64_t n) {
          constexpr std::int64_t rows = 61;
          Random random(5);
          GraphMaker m;
          const auto x = m.input({n, rows, 40}), z = m.input({n, columns, rows});
          const auto weights = m.constant(random_tensor({40, columns}, random));
          const auto turned =
              m.node("Transpose", {z}, {n, rows, columns}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
          const std::vector<PostOp> behind{{.kind = PostOp::Kind::add, .operand = turned},
                                           {.kind = PostOp::Kind::relu}};
          m.g.outputs = {m.node("MatMul", {x, weights}, {n, rows, columns}, {}, behind)};
          return std::move(m.g);
        },
        {1, 3}, true);
  }
}

// All sizes want the weights in one layout.
TEST(Products, OfManyRowsPackTheirWeightsOnce) {
  const auto weights_at = [](std::int64_t columns, const std::vector<int>& batches,
                             std::optional<double> stop_cost) {
    Random random(5);
    const auto tensor = random_tensor({256, columns}, random);
    const Make make = [&](std::int64_t n) {
      GraphMaker m;
      const auto weights = m.constant(tensor);
      m.g.outputs = {m.node("MatMul", {m.input({n, 64, 256}), weights}, {n, 64, columns})};
      return std::move(m.g);
    };
    const auto compiled = make_cpu_engine({.threads = 1})
                              ->compile(MadeModel(make), {.batch_sizes = batches, .stop_cost = stop_cost});
    EXPECT_TRUE(compiled.has_value()) << compiled.error().message;
    return compiled ? (*compiled)->weights().count : 0;
  };
  for (const std::int64_t columns : {240, 256, 480, 512, 1000}) {
    SCOPED_TRACE(std::to_string(columns) + " columns");
    const auto alone = weights_at(columns, {8}, std::nullopt);
    EXPECT_LE(weights_at(columns, {1, 2, 8}, std::nullopt), alone);
    EXPECT_LE(weights_at(columns, {1, 2, 8}, 0.5), alone);
  }
}

}  // namespace
}  // namespace carillon::engine
