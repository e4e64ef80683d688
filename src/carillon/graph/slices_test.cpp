#include "carillon/graph/slices.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::graph {
namespace {

using Strings = std::vector<std::string>;
using List = std::vector<std::int64_t>;

// A node whose operands hold random numbers.
struct Sample {
  std::string op;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::int64_t count = 0;  // of slices; 0: none
  std::map<std::string, Attribute> attributes{};
  std::vector<PostOp::Kind> post_ops{};
  std::vector<TensorType> post_op_operands{};   // of those, or of no type: none
  std::map<std::size_t, SharedTensor> given{};  // inputs that are constants
};

constexpr auto f32 = DataType::f32;
constexpr auto i64 = DataType::i64;

TensorType real_of(Shape shape) {
  return {f32, std::move(shape)};
}
TensorType indices_of(Shape shape) {
  return {i64, std::move(shape)};
}

Tensor random_tensor(const TensorType& type, Random& random) {
  Tensor tensor(type);
  if (type.type == f32)
    for (float& x : tensor.as<float>()) x = static_cast<float>(random.normal());
  else if (type.type == i64)
    for (std::int64_t& x : tensor.as<std::int64_t>()) x = 1 + static_cast<std::int64_t>(random.below(9));
  else
    for (std::byte& x : tensor.bytes()) x = std::byte(random.below(2));
  return tensor;
}

// Runs the kernel at once, and in so many views of slices; all must give the same bits.
void expect_same(const Sample& sample) {
  SCOPED_TRACE(sample.op + " " + to_text(sample.inputs[0].shape));
  Node node{.name = "n", .op = sample.op, .outputs = std::vector<ValueId>(sample.outputs.size())};
  for (const auto& [name, value] : sample.attributes) node.attributes[name] = value;
  for (const auto kind : sample.post_ops) node.post_ops.push_back({.kind = kind});
  Random random(7);
  std::vector<SharedTensor> inputs;
  std::vector<Tensor> post_op_operands;
  std::vector<const TensorType*> input_types, output_types, post_op_types;
  std::vector<const Tensor*> constants;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    const auto given = sample.given.find(i);
    inputs.push_back(given != sample.given.end()
                         ? given->second
                         : std::make_shared<const Tensor>(random_tensor(sample.inputs[i], random)));
    input_types.push_back(&sample.inputs[i]);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    constants.push_back(sample.given.contains(i) ? inputs[i].get() : nullptr);
  for (const auto& type : sample.outputs) output_types.push_back(&type);
  for (const auto& type : sample.post_op_operands) {
    post_op_operands.push_back(random_tensor(type, random));
    post_op_types.push_back(&type);
  }

  const auto slices = Slices::of(node, input_types, output_types, post_op_types, constants);
  ASSERT_EQ(slices ? slices->count() : 0, sample.count);
  const PlainKernel kernel = find_plain_kernel(node, input_types);
  ASSERT_NE(kernel, nullptr);
  const auto run = [&](std::int64_t views) {
    std::vector<Tensor> outputs;
    for (const auto& type : sample.outputs) {
      outputs.emplace_back(type);
      std::ranges::fill(outputs.back().bytes(), std::byte{0x5a});
    }
    for (std::int64_t view = 0; view < views; ++view) {
      const std::int64_t count = slices ? slices->count() : 1;
      const std::int64_t first = count * view / views, last = count * (view + 1) / views;
      std::vector<TensorType> types;
      const std::size_t operands = inputs.size() + outputs.size() + post_op_operands.size();
      for (std::size_t i = 0; i < operands; ++i) {
        const TensorType& type = i < inputs.size() ? sample.inputs[i]
                                 : i < inputs.size() + outputs.size()
                                     ? sample.outputs[i - inputs.size()]
                                     : sample.post_op_operands[i - inputs.size() - outputs.size()];
        types.push_back(views == 1 ? type : slices->type(i, type, last - first));
      }
      const auto offset = [&](std::size_t operand) {
        return views == 1 ? 0 : slices->operands()[operand].stride * static_cast<std::uint64_t>(first);
      };
      std::vector<ConstView> from, post;
      std::vector<MutableView> to;
      std::size_t operand = 0;
      for (const SharedTensor& tensor : inputs) {
        from.push_back({&types[operand], tensor->bytes().data() + offset(operand)});
        ++operand;
      }
      for (Tensor& tensor : outputs) {
        to.push_back({&types[operand], tensor.bytes().data() + offset(operand)});
        ++operand;
      }
      for (const Tensor& tensor : post_op_operands) {
        post.push_back({&types[operand], tensor.bytes().data() + offset(operand)});
        ++operand;
      }
      const auto done = kernel(node, from, to);
      EXPECT_TRUE(done) << done.error().message;
      if (done) apply_post_ops(node, post, to.front());
    }
    return outputs;
  };
  const auto want = run(1);
  if (!slices) return;
  for (const std::int64_t views : {std::int64_t{2}, std::int64_t{3}, slices->count()}) {
    if (views > slices->count()) continue;
    const auto got = run(views);
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(got[i].bytes(), want[i].bytes())) << "output " << i << ", " << views;
  }
}

TEST(Slices, OfElementwiseOperatorsAreElements) {
  const auto x = real_of({2, 3, 4, 5});
  for (const Sample& sample : {
           Sample{.op = "Sin", .inputs = {x}, .outputs = {x}, .count = 120},
           Sample{.op = "Cast",
           .inputs = {x},
           .outputs = {indices_of(x.shape)},
           .count = 120,
           .attributes = {{"to", std::int64_t{7}}}},
           Sample{.op = "Add", .inputs = {x, x}, .outputs = {x}, .count = 120},
           Sample{.op = "Add", .inputs = {x, real_of({})}, .outputs = {x}, .count = 120},
           Sample{.op = "Mul", .inputs = {x, real_of({1, 1, 1, 1})}, .outputs = {x}, .count = 120},
           Sample{.op = "Clip", .inputs = {x, real_of({}), real_of({})}, .outputs = {x}, .count = 120},
           Sample{.op = "Where",
           .inputs = {{DataType::boolean, {2, 1, 4, 5}}, x, x},
           .outputs = {x},
           .count = 2},
           Sample{.op = "Min", .inputs = {x, x, x}, .outputs = {x}, .count = 120},
           Sample{.op = "Div", .inputs = {x, x}, .outputs = {x}, .count = 120},
       })
    expect_same(sample);
}

TEST(Slices, OfWhatBroadcastsAreAlongWhatOperandsShare) {
  for (const Sample& sample : {
           Sample{.op = "Add",
          .inputs = {real_of({6, 5}), real_of({5})},
          .outputs = {real_of({6, 5})},
          .count = 6},
           Sample{.op = "Add",
           .inputs = {real_of({5}), real_of({6, 5})},
           .outputs = {real_of({6, 5})},
           .count = 6},
           Sample{.op = "Mul",
           .inputs = {real_of({1, 7, 3, 2}), real_of({7, 1, 1})},
           .outputs = {real_of({1, 7, 3, 2})},
           .count = 7},
           Sample{.op = "Mul",
           .inputs = {real_of({2, 7, 3}), real_of({7, 1})},
           .outputs = {real_of({2, 7, 3})},
           .count = 2},
           Sample{.op = "Sub",
           .inputs = {real_of({4, 1}), real_of({1, 5})},
           .outputs = {real_of({4, 5})},
           .count = 4},
           Sample{.op = "Sub",
           .inputs = {real_of({1, 5}), real_of({1, 5})},
           .outputs = {real_of({1, 5})},
           .count = 5},
           Sample{.op = "PRelu",
           .inputs = {real_of({3, 4, 5}), real_of({4, 1})},
           .outputs = {real_of({3, 4, 5})},
           .count = 3},
           Sample{.op = "Less",
           .inputs = {real_of({1, 1, 8}), real_of({8})},
           .outputs = {{DataType::boolean, {1, 1, 8}}},
           .count = 8},
           Sample{.op = "Add",
           .inputs = {real_of({1, 5}), real_of({1, 1})},
           .outputs = {real_of({1, 5})},
           .count = 5},
       })
    expect_same(sample);
}

TEST(Slices, OfOperatorsAlongAnAxisLieBeforeIt) {
  const auto x = real_of({2, 3, 4, 5});
  for (const Sample& sample : {
           Sample{.op = "Softmax", .inputs = {x}, .outputs = {x}, .count = 24},
           Sample{.op = "Softmax",
           .inputs = {x},
           .outputs = {x},
           .count = 6,
           .attributes = {{"axis", std::int64_t{2}}}},
           Sample{.op = "LogSoftmax",
           .inputs = {x},
           .outputs = {x},
           .count = 0,
           .attributes = {{"axis", std::int64_t{0}}}},
           Sample{.op = "ArgMax",
           .inputs = {x},
           .outputs = {indices_of({2, 3, 1, 5})},
           .count = 6,
           .attributes = {{"axis", std::int64_t{-2}}}},
           Sample{.op = "ArgMin",
           .inputs = {x},
           .outputs = {indices_of({2, 3, 5})},
           .count = 6,
           .attributes = {{"axis", std::int64_t{2}}, {"keepdims", std::int64_t{0}}}},
           Sample{.op = "TopK",
           .inputs = {x, indices_of({1})},
           .outputs = {real_of({2, 3, 4, 2}), indices_of({2, 3, 4, 2})},
           .count = 24,
           .given = {{1, std::make_shared<const Tensor>(Tensor::of_i64({1}, List{2}))}}},
           Sample{.op = "LayerNormalization", .inputs = {x, real_of({5})}, .outputs = {x}, .count = 24},
           Sample{.op = "LpNormalization", .inputs = {x}, .outputs = {x}, .count = 24},
       })
    expect_same(sample);
}

TEST(Slices, OfReductionsAreWhatIsKept) {
  const auto x = real_of({2, 3, 1, 5});
  const auto axes = [](List list) {
    const auto count = static_cast<std::int64_t>(list.size());
    return std::map<std::size_t, SharedTensor>{
        {1, std::make_shared<const Tensor>(Tensor::of_i64({count}, list))}};
  };
  for (const Sample& sample : {
           Sample{.op = "ReduceMean",
          .inputs = {x, indices_of({1})},
          .outputs = {real_of({2, 3, 1, 1})},
          .count = 6,
          .given = axes({3})},
           Sample{.op = "ReduceSum",
           .inputs = {x, indices_of({2})},
           .outputs = {real_of({2, 3, 1, 1})},
           .count = 6,
           .given = axes({2, 3})},
           Sample{.op = "ReduceMax",
           .inputs = {x, indices_of({1})},
           .outputs = {real_of({2, 3, 1, 5})},
           .count = 30,
           .given = axes({2})},
           Sample{.op = "ReduceL2",
           .inputs = {x, indices_of({1})},
           .outputs = {real_of({1, 3, 1, 5})},
           .count = 0,
           .given = axes({0})},
           Sample{.op = "ReduceSum",
           .inputs = {x, indices_of({1})},
           .outputs = {real_of({2, 3, 1})},
           .count = 0,
           .attributes = {{"keepdims", std::int64_t{0}}},
           .given = axes({3})},
           Sample{.op = "ReduceSum",
           .inputs = {real_of({1, 4, 6}), indices_of({2})},
           .outputs = {real_of({1, 4, 1})},
           .count = 4,
           .given = axes({0, 2})},
       })
    expect_same(sample);
}

TEST(Slices, OfLayersAreImagesChannelsOrRows) {
  const auto x = real_of({2, 3, 6, 6});
  const List two{2, 2};
  for (const Sample& sample : {
           Sample{.op = "LpPool",
          .inputs = {x},
          .outputs = {real_of({2, 3, 5, 5})},
          .count = 6,
          .attributes = {{"kernel_shape", two}}},
           Sample{.op = "MaxPool",
           .inputs = {x},
           .outputs = {real_of({2, 3, 5, 5})},
           .count = 6,
           .attributes = {{"kernel_shape", two}}},
           Sample{.op = "MaxPool",
           .inputs = {x},
           .outputs = {real_of({2, 3, 5, 5}), indices_of({2, 3, 5, 5})},
           .count = 0,
           .attributes = {{"kernel_shape", two}}},
           Sample{.op = "GlobalAveragePool", .inputs = {x}, .outputs = {real_of({2, 3, 1, 1})}, .count = 6},
           Sample{.op = "Conv",
           .inputs = {x, real_of({4, 3, 2, 2}), real_of({4})},
           .outputs = {real_of({2, 4, 5, 5})},
           .count = 2,
           .attributes = {{"kernel_shape", two}}},
           Sample{.op = "InstanceNormalization",
           .inputs = {x, real_of({3}), real_of({3})},
           .outputs = {x},
           .count = 2},
           Sample{.op = "LRN",
           .inputs = {x},
           .outputs = {x},
           .count = 2,
           .attributes = {{"size", std::int64_t{3}}}},
           Sample{.op = "MatMul",
           .inputs = {real_of({2, 5, 4}), real_of({4, 3})},
           .outputs = {real_of({2, 5, 3})},
           .count = 10},
           Sample{.op = "MatMul",
           .inputs = {real_of({2, 5, 4}), real_of({2, 4, 3})},
           .outputs = {real_of({2, 5, 3})},
           .count = 0},
       })
    expect_same(sample);
}

TEST(Slices, OfAResizeAreTheDimensionsThatItLeavesAlone) {
  const auto x = real_of({2, 3, 4, 4}), y = real_of({2, 3, 8, 8});
  const auto scales = [](std::vector<float> values) {
    return std::map<std::size_t, SharedTensor>{
        {2, std::make_shared<const Tensor>(Tensor::of_f32({4}, values))}};
  };
  const std::map<std::string, Attribute> linear{{"mode", std::string("linear")}};
  for (const Sample& sample : {
           Sample{.op = "Resize",
          .inputs = {x, real_of({0}), real_of({4})},
          .outputs = {y},
          .count = 6,
          .attributes = linear,
          .given = scales({1, 1, 2, 2})},
           Sample{.op = "Resize",
           .inputs = {x, real_of({0}), real_of({4})},
           .outputs = {y},
           .count = 2,
           .attributes = linear,
           .given = scales({1, 1.1F, 2, 2})},
       }) {
    expect_same(sample);
  }
}

TEST(Slices, FollowPostOps) {
  const auto x = real_of({2, 3, 4});
  const auto with = [&](TensorType operand, std::int64_t count) {
    expect_same({.op = "Sin",
                 .inputs = {x},
                 .outputs = {x},
                 .count = count,
                 .post_ops = {PostOp::Kind::relu, PostOp::Kind::add},
                 .post_op_operands = {real_of({}), std::move(operand)}});
  };
  with(x, 24);
  with(real_of({3, 4}), 2);
  with(real_of({2, 1, 1}), 2);
  with(real_of({1}), 24);
}

TEST(Slices, AreNotOfWhatTakesNotesOrIsUnknown) {
  const auto x = indices_of({64});
  expect_same({.op = "Div", .inputs = {x, x}, .outputs = {x}, .count = 0});
  expect_same({.op = "Mod", .inputs = {x, x}, .outputs = {x}, .count = 0});
  expect_same({.op = "Transpose", .inputs = {real_of({4, 5})}, .outputs = {real_of({5, 4})}, .count = 0});
  expect_same({.op = "Sin", .inputs = {real_of({1, 1})}, .outputs = {real_of({1, 1})}, .count = 0});
  expect_same({.op = "Sin", .inputs = {real_of({0, 4})}, .outputs = {real_of({0, 4})}, .count = 0});
}

}  // namespace
}  // namespace carillon::graph
