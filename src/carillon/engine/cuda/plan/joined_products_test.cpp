// Products of one input as one: found where they are, and the same as one by one.
#include "carillon/engine/cuda/plan/joined_products.h"

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
using graph::ValueId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::OnEmulated;
using namespace testing::networks;

// Queries, keys and values of one input, and what makes them products that are not joined.
struct Projections {
  std::int64_t heads = 2, shared = 2, size = 8;  // heads of queries, and of keys and values
  bool bias = true;
  enum class Fault { none, other_input, one_bias, used_plainly, is_output, odd_columns, data_decide } fault{};
};

engine::testing::Graph projections(const Projections& f, std::int64_t batch) {
  Net m(9);
  const std::int64_t length = 5, depth = 24;
  const auto x = m.input({batch, length, depth});
  std::vector<ValueId> outputs;
  const std::int64_t size = f.fault == Projections::Fault::odd_columns ? f.size + 1 : f.size;
  const auto project = [&](ValueId of, std::int64_t heads, bool bias, V order) {
    const ValueId matrix = f.fault == Projections::Fault::data_decide
                               ? m.input({batch, depth, heads * size})
                               : m.random_constant({depth, heads * size}, 0.2F);
    std::vector<graph::PostOp> post;
    if (bias) post.push_back(add(m.random_constant({heads * size})));
    const auto out = m.node("MatMul", {of, matrix}, {batch, length, heads * size}, {}, post);
    if (f.fault == Projections::Fault::is_output) outputs.push_back(out);
    if (f.fault == Projections::Fault::used_plainly) outputs.push_back(m.same("Tanh", {out}));
    return m.transpose(m.node("Reshape", {out}, {batch, length, heads, size}), std::move(order));
  };
  const auto other = f.fault == Projections::Fault::other_input ? m.same("Tanh", {x}) : x;
  const auto third = f.fault == Projections::Fault::other_input ? m.same("Sigmoid", {x}) : x;
  const auto q = project(x, f.heads, f.bias, {0, 2, 1, 3});
  const auto k = project(other, f.shared, f.bias != (f.fault == Projections::Fault::one_bias), {0, 2, 3, 1});
  const auto v = project(third, f.shared, f.bias, {0, 2, 1, 3});
  const auto weights = m.same("Softmax", {m.node("MatMul", {q, k}, {batch, f.heads, length, length})},
                              {{"axis", std::int64_t{-1}}});
  outputs.push_back(m.node("MatMul", {weights, v}, {batch, f.heads, length, size}));
  return m.finish(outputs);
}

Result<std::vector<std::vector<std::byte>>> outputs_of(const Make& make, const CudaOptions& options,
                                                       int batch) {
  OnEmulated on;
  const auto engine = on.engine(options);
  if (!engine) return std::unexpected(engine.error());
  const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {batch}});
  if (!model) return std::unexpected(model.error());
  const auto graph = make(batch);
  const auto inputs = random_inputs(graph, 11);
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& input : inputs) bytes.emplace_back(input->bytes());
  return on.run(**model, *(*model)->plan(batch), bytes, options.longest_segment > 0);
}

std::ptrdiff_t products_of(const Make& make) {
  OnEmulated on;
  const auto names = on.step_names(MadeModel(make));
  EXPECT_TRUE(names) << names.error().message;
  return std::ranges::count_if(
      *names, [](const std::string& name) { return name.find(" product ") != std::string::npos; });
}

TEST(JoinedProducts, GiveTheSameBytesAsOneByOne) {
  std::vector<std::pair<std::string, Make>> networks{{"encoder", encoder}};
  for (const Projections& form :
       {Projections{}, Projections{.bias = false}, Projections{.heads = 4, .shared = 1, .size = 16},
        Projections{.heads = 1, .shared = 1, .size = 64}, Projections{.fault = Projections::Fault::one_bias}})
    networks.emplace_back("form " + std::to_string(networks.size()),
                          [form](std::int64_t batch) { return projections(form, batch); });
  for (const auto& [name, make] : networks)
    for (const Number number : {Number::f32, Number::tf32, Number::f16, Number::bf16})
      for (const auto way : {AttentionWay::calls, AttentionWay::kernel})
        for (const int longest : {0, 1})
          for (const int batch : {1, 3}) {
            SCOPED_TRACE(name + " " + std::string(name_of(number)) + " batch " + std::to_string(batch));
            CudaOptions options{.number = number, .longest_segment = longest, .attention = way};
            const auto joined = outputs_of(make, options, batch);
            options.join_products = false;
            const auto apart = outputs_of(make, options, batch);
            ASSERT_TRUE(joined) << joined.error().message;
            ASSERT_TRUE(apart) << apart.error().message;
            EXPECT_EQ(*joined, *apart);
          }
}

TEST(JoinedProducts, AreFoundWhereTheyPay) {
  const auto found = [](Projections form) { return find_joined_products(projections(form, 2)); };
  EXPECT_THAT(found({}), ElementsAre(ElementsAre(0, 3, 6)));
  EXPECT_THAT(found({.bias = false}), ElementsAre(ElementsAre(0, 3, 6)));
  EXPECT_THAT(found({.heads = 4, .shared = 1}), ElementsAre(ElementsAre(0, 3, 6)));
  EXPECT_THAT(found({.fault = Projections::Fault::one_bias}), ElementsAre(ElementsAre(0, 6)));
  for (const auto fault :
       {Projections::Fault::other_input, Projections::Fault::used_plainly, Projections::Fault::is_output,
        Projections::Fault::odd_columns, Projections::Fault::data_decide})
    EXPECT_THAT(found({.fault = fault}), IsEmpty()) << static_cast<int>(fault);
  EXPECT_THAT(find_joined_products(layers(1)), IsEmpty());
}

TEST(JoinedProducts, AreOneStepOfAPlan) {
  const auto made = [](std::int64_t batch) { return projections({}, batch); };
  const auto apart = [](std::int64_t batch) {
    return projections({.fault = Projections::Fault::other_input}, batch);
  };
  EXPECT_EQ(products_of(apart) - products_of(made), 2);
  // Weights are there once, and no copy of a slice is made.
  OnEmulated on;
  const auto names = on.step_names(MadeModel(made));
  ASSERT_TRUE(names);
  EXPECT_TRUE(std::ranges::none_of(*names, [](const std::string& name) {
    return name.find("carillon_move") != std::string::npos;
  })) << ::testing::PrintToString(*names);
  const auto bytes = [&](bool join) {
    const auto engine = on.engine({.number = Number::f16, .join_products = join});
    return (*(*engine)->compile(MadeModel(made), {.batch_sizes = {1, 2, 4}}))->weights();
  };
  EXPECT_LE(bytes(true), bytes(false));
}

}  // namespace
}  // namespace carillon::engine::cuda
