#pragma once

#include <initializer_list>
#include <optional>

#include <gtest/gtest.h>

#include "carillon/graph/kernel.h"

namespace carillon::graph::plain {

// A node under test with its operands: inputs are given, the output's type is told.
class Case {
 public:
  explicit Case(std::string op) {
    node.name = "n";
    node.op = std::move(op);
  }

  Case& f32(Shape shape, std::initializer_list<float> values) {
    return add(Tensor::of_f32(std::move(shape), std::span(values.begin(), values.size())));
  }
  Case& i64(Shape shape, std::initializer_list<std::int64_t> values) {
    return add(Tensor::of_i64(std::move(shape), std::span(values.begin(), values.size())));
  }
  template <typename T>
  Case& of(DataType type, Shape shape, std::initializer_list<T> values) {
    Tensor tensor({type, std::move(shape)});
    std::copy(values.begin(), values.end(), tensor.as<T>().begin());
    return add(std::move(tensor));
  }
  Case& absent() {
    inputs.push_back(std::nullopt);
    return *this;
  }
  Case& with(std::string name, Attribute value) {
    node.attributes[std::move(name)] = std::move(value);
    return *this;
  }
  Case& out(DataType type, Shape shape) {
    outputs.push_back(Tensor({type, std::move(shape)}));
    return *this;
  }

  PlainKernel find() {
    node.outputs.assign(std::max<std::size_t>(outputs.size(), 1), ValueId{0});
    std::vector<const TensorType*> types;
    for (const auto& tensor : inputs) types.push_back(tensor ? &tensor->type() : nullptr);
    return find_plain_kernel(node, types);
  }
  Result<> run() {
    const PlainKernel kernel = find();
    if (kernel == nullptr) return fail(ErrorCode::unsupported, "no kernel for " + node.op);
    std::vector<ConstView> from;
    for (const auto& tensor : inputs) {
      from.push_back(tensor ? ConstView{&tensor->type(), tensor->bytes().data()} : ConstView{});
    }
    if (noted && origin) from[1].origin = &*origin;
    std::vector<MutableView> to;
    for (Tensor& tensor : outputs) to.push_back({&tensor.type(), tensor.bytes().data()});
    if (noted) to[0].faults = &*noted;
    return kernel(node, from, to);
  }
  // The faults of a run in which input 1 is of so many rows, and comes from input 'ids'; it does not fail.
  Faults faults(int rows) {
    noted.emplace();
    origin = Origin{.rows = rows, .input = "ids"};
    const auto ran = run();
    EXPECT_TRUE(ran.has_value()) << (ran ? "" : ran.error().message);
    return *noted;
  }
  // Runs and gives output `index`; what failed fails the test.
  template <typename T>
  std::vector<T> result(std::size_t index = 0) {
    const auto ran = run();
    EXPECT_TRUE(ran.has_value()) << (ran ? "" : ran.error().message);
    const auto values = outputs[index].as<T>();
    return {values.begin(), values.end()};
  }
  std::vector<float> floats() { return result<float>(); }
  std::vector<std::int64_t> integers(std::size_t index = 0) { return result<std::int64_t>(index); }

  Node node;
  std::vector<std::optional<Tensor>> inputs;
  std::vector<Tensor> outputs;
  std::optional<Faults> noted;
  std::optional<Origin> origin;

 private:
  Case& add(Tensor tensor) {
    inputs.push_back(std::move(tensor));
    return *this;
  }
};

}  // namespace carillon::graph::plain
