#include "carillon/graph/einsum.h"

#include <random>

#include <gmock/gmock.h>

#include "carillon/graph/plain/plain_test.h"

namespace carillon::graph::plain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Case equation(std::string text) {
  Case made("Einsum");
  made.with("equation", Attribute{std::move(text)});
  return made;
}

TEST(Einsum, MultipliesMatrices) {
  EXPECT_THAT(equation("ij,jk->ik")
                  .f32({2, 2}, {1, 2, 3, 4})
                  .f32({2, 2}, {5, 6, 7, 8})
                  .out(DataType::f32, {2, 2})
                  .floats(),
              ElementsAre(19, 22, 43, 50));
  // Without an arrow the result is what stands once, in the order of the alphabet.
  EXPECT_THAT(equation(" kj , ji ")
                  .i64({1, 2}, {1, 2})
                  .i64({2, 2}, {5, 6, 7, 8})
                  .out(DataType::i64, {2, 1})
                  .integers(),
              ElementsAre(19, 22));
}

TEST(Einsum, OneOperandIsSummedTurnedOrItsDiagonal) {
  EXPECT_THAT(equation("ij->ji").i64({2, 3}, {1, 2, 3, 4, 5, 6}).out(DataType::i64, {3, 2}).integers(),
              ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(equation("ij->i").i64({2, 3}, {1, 2, 3, 4, 5, 6}).out(DataType::i64, {2}).integers(),
              ElementsAre(6, 15));
  EXPECT_THAT(equation("ii->i").i64({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}).out(DataType::i64, {3}).integers(),
              ElementsAre(1, 5, 9));
  EXPECT_THAT(equation("ii").i64({2, 2}, {1, 2, 3, 4}).out(DataType::i64, {}).integers(), ElementsAre(5));
}

TEST(Einsum, AnEllipsisBroadcasts) {
  EXPECT_THAT(equation("...i,...i->...")
                  .i64({2, 2}, {1, 2, 3, 4})
                  .i64({2}, {10, 1})
                  .out(DataType::i64, {2})
                  .integers(),
              ElementsAre(12, 34));
  EXPECT_THAT(equation("a...,...->a...")
                  .i64({2, 1}, {2, 3})
                  .i64({3}, {1, 10, 100})
                  .out(DataType::i64, {2, 3})
                  .integers(),
              ElementsAre(2, 20, 200, 3, 30, 300));
}

TEST(Einsum, AttentionAgreesWithTheDefinition) {
  std::mt19937 random(11);
  constexpr std::int64_t b = 2, q = 3, k = 5, h = 4, d = 6;
  Tensor left({DataType::i64, {b, q, h, d}}), right({DataType::i64, {b, k, h, d}});
  for (Tensor* tensor : {&left, &right})
    for (auto& v : tensor->as<std::int64_t>()) v = static_cast<std::int64_t>(random() % 19) - 9;
  std::vector<std::int64_t> want;
  for (std::int64_t bi = 0; bi < b; ++bi)
    for (std::int64_t hi = 0; hi < h; ++hi)
      for (std::int64_t qi = 0; qi < q; ++qi)
        for (std::int64_t ki = 0; ki < k; ++ki) {
          std::int64_t sum = 0;
          for (std::int64_t di = 0; di < d; ++di)
            sum += left.as<std::int64_t>()[static_cast<std::size_t>(((bi * q + qi) * h + hi) * d + di)] *
                   right.as<std::int64_t>()[static_cast<std::size_t>(((bi * k + ki) * h + hi) * d + di)];
          want.push_back(sum);
        }
  Case test = equation("bqhd,bkhd->bhqk");
  test.inputs.emplace_back(std::move(left));
  test.inputs.emplace_back(std::move(right));
  EXPECT_EQ(test.out(DataType::i64, {b, h, q, k}).integers(), want);
}

TEST(Einsum, RefusesWhatIsNoEquationForItsOperands) {
  const TensorType matrix{DataType::f32, {2, 3}};
  const auto said = [&](std::string text, int operands) {
    Node node;
    node.name = "n";
    node.op = "Einsum";
    node.attributes["equation"] = Attribute{std::move(text)};
    const std::vector<const TensorType*> types(static_cast<std::size_t>(operands), &matrix);
    const auto read = einsum_of(node, types);
    return read ? std::string("read") : read.error().message;
  };
  EXPECT_EQ(said("ij,ij->", 2), "read");
  EXPECT_THAT(said("ij,jk->ik", 2), HasSubstr("gives one label the extents 3 and 2"));
  EXPECT_THAT(said("ij,kj->ik", 1), HasSubstr("is not an equation for its operands"));
  EXPECT_THAT(said("ij->ij", 2), HasSubstr("has fewer operands than the node"));
  EXPECT_THAT(said("ijk->i", 1), HasSubstr("does not fit an operand of shape"));
  EXPECT_THAT(said("ij->ii", 1), HasSubstr("names a label of its result twice"));
  EXPECT_THAT(said("ij->k", 1), HasSubstr("has a label in its result that no operand has"));
  EXPECT_THAT(said("ij->i-", 1), HasSubstr("does not end after its result"));
  EXPECT_THAT(said("", 1), HasSubstr("does not fit"));
  EXPECT_THAT(said("ij,ij,ij->ij", 3), HasSubstr("it has 3 operands; supported are one and two"));
  EXPECT_THAT(said("abcdefghijklmnopq", 1), HasSubstr("more than 16 labels"));
}

}  // namespace
}  // namespace carillon::graph::plain
