#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

// LSTM, GRU and RNN as models have them, against the plain kernels.
namespace carillon::engine {
namespace {

using namespace testing;
using Make = std::function<Graph(std::int64_t)>;
using Perm = std::vector<std::int64_t>;

std::string kernels_of(const Plan& plan) {
  std::string text;
  for (int k = 0; k < plan.kernels(); ++k) text += std::string(plan.kernel_name(k)) + "\n";
  return text;
}

struct Layer {
  std::string op = "LSTM", direction = "forward";
  std::int64_t steps = 9, width = 24, hidden = 32;
  bool batch_first = false;  // by layout 1, else by a transposition in front and one behind
  bool bias = true;
  enum class States { none, zero, constant, computed } states = States::none;
  bool only_h = false;  // an LSTM's first cell state is absent
  std::string wanted = "y h c";
  Attributes attributes;
  bool lengths = false;  // all of them full

  std::int64_t directions() const { return direction == "bidirectional" ? 2 : 1; }
  std::int64_t gates() const { return op == "LSTM" ? 4 : op == "GRU" ? 3 : 1; }
  bool wants(char output) const { return wanted.find(output) != std::string::npos; }
};

// Constants come from `random` whatever the batch size, those that depend on it last.
std::vector<ValueId> add(GraphMaker& m, const Layer& l, ValueId x, Random& random) {
  const std::int64_t n = m.shape(x)[0], d = l.directions(), rows = l.gates() * l.hidden;
  const float scale = 1 / std::sqrt(static_cast<float>(l.hidden));
  std::vector<ValueId> in{x};
  if (!l.batch_first) in[0] = m.node("Transpose", {x}, {l.steps, n, l.width}, {{"perm", Perm{1, 0, 2}}});
  in.push_back(m.constant(random_tensor({d, rows, l.width}, random, scale)));
  in.push_back(m.constant(random_tensor({d, rows, l.hidden}, random, scale)));
  in.push_back(l.bias ? m.constant(random_tensor({d, 2 * rows}, random, 0.3F)) : graph::no_value);
  in.push_back(graph::no_value);
  if (l.lengths) {
    auto lengths = std::make_shared<graph::Tensor>(TensorType{graph::DataType::i32, {n}});
    std::ranges::fill(lengths->as<std::int32_t>(), static_cast<std::int32_t>(l.steps));
    in.back() = m.constant(lengths);
  }
  const Shape state = l.batch_first ? Shape{n, d, l.hidden} : Shape{d, n, l.hidden};
  for (int i = 0; i < (l.op == "LSTM" ? 2 : 1); ++i) {
    ValueId id = graph::no_value;
    if (l.states == Layer::States::zero || l.states == Layer::States::constant)
      id = m.constant(random_tensor(state, random, l.states == Layer::States::zero ? 0 : 1));
    if (l.states == Layer::States::computed) {
      id = m.node("Tanh", {m.input({n, d, l.hidden})}, {n, d, l.hidden});
      if (!l.batch_first) id = m.node("Transpose", {id}, state, {{"perm", Perm{1, 0, 2}}});
    }
    in.push_back(i == 1 && l.only_h ? graph::no_value : id);
  }
  Attributes attributes = l.attributes;
  attributes["direction"] = l.direction;
  attributes["hidden_size"] = l.hidden;
  if (l.batch_first) attributes["layout"] = std::int64_t{1};
  const Shape sequence = l.batch_first ? Shape{n, l.steps, d, l.hidden} : Shape{l.steps, d, n, l.hidden};
  std::vector<ValueId> out{m.node(l.op, in, sequence, attributes)};
  for (int i = 0; i < (l.op == "LSTM" ? 2 : 1); ++i) out.push_back(m.value(state));
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!l.wants("yhc"[i])) out[i] = graph::no_value;
  m.g.nodes.back().outputs = out;
  std::vector<ValueId> results;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] == graph::no_value) continue;
    ValueId id = out[i];
    if (!l.batch_first && i == 0)
      id = m.node("Transpose", {id}, {n, l.steps, d, l.hidden}, {{"perm", Perm{2, 0, 1, 3}}});
    if (!l.batch_first && i > 0) id = m.node("Transpose", {id}, {n, d, l.hidden}, {{"perm", Perm{1, 0, 2}}});
    results.push_back(id);
  }
  return results;
}
Make model(const Layer& l) {
  return [l](std::int64_t n) {
    Random random(3);
    GraphMaker m;
    const auto x = m.input({n, l.steps, l.width});
    m.g.outputs = add(m, l, x, random);
    return std::move(m.g);
  };
}
// Weights must be the same objects at every batch size, as Model::specialize promises.
Make sharing(const Make& make) {
  const auto first = std::make_shared<Graph>(make(1));
  return [make, first](std::int64_t batch) {
    Graph g = make(batch);
    for (std::size_t i = 0; i < g.values.size(); ++i)
      if (g.values[i].constant && g.values[i].type == first->values[i].type)
        g.values[i].constant = first->values[i].constant;
    return g;
  };
}

enum class By { onednn, plain };

void expect_agrees(const Make& make, By by, const std::vector<int>& batches = {1, 2, 7, 16}) {
  static const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(MadeModel(sharing(make)), {.batch_sizes = batches});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  for (const int batch : batches) {
    const Graph g = sharing(make)(batch);
    const Plan& plan = *(*compiled)->plan(batch);
    const std::string kernels = kernels_of(plan);
    SCOPED_TRACE("batch " + std::to_string(batch) + "\n" + graph::to_text(g) + kernels);
    const bool plain = kernels.find("plain:LSTM") != std::string::npos ||
                       kernels.find("plain:GRU") != std::string::npos ||
                       kernels.find("plain:RNN") != std::string::npos;
    EXPECT_EQ(plain, by == By::plain);
    const Buffers inputs = random_inputs(g, 7);
    const Buffers want = reference(g, inputs);
    const Bound whole(**compiled, plan, inputs);
    const auto done = plan.run({0, plan.kernels()}, whole.binding(), {});
    ASSERT_TRUE(done.has_value()) << done.error().message;
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(*whole.outputs()[i], *want[i]), 1e-5) << "output " << i;
    const auto team = engine->make_team({.threads = 2});
    ASSERT_TRUE(team.has_value()) << team.error().message;
    const Bound parts(**compiled, plan, inputs, team->get());
    for (int k = 0; k < plan.kernels(); ++k)
      for (int again = 0; again < 2; ++again)
        ASSERT_TRUE(plan.run({k, k + 1}, parts.binding(), {}).has_value());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(parts.outputs()[i]->bytes(), whole.outputs()[i]->bytes()))
          << "output " << i << ", kernel by kernel and each twice, by two threads";
  }
}

constexpr const char* operators[] = {"LSTM", "GRU", "RNN"};
constexpr const char* directions[] = {"forward", "reverse", "bidirectional"};
const Attributes before_reset{{"linear_before_reset", std::int64_t{1}}};

TEST(CpuRecurrent, AgreesInAllDirectionsAndLayouts) {
  for (const char* op : operators)
    for (const char* direction : directions)
      for (const bool batch_first : {false, true})
        for (const auto& attributes : {Attributes(), before_reset}) {
          if (!attributes.empty() && std::string(op) != "GRU") continue;
          SCOPED_TRACE(std::string(op) + " " + direction +
                       (attributes.empty() ? "" : ", linear before reset"));
          expect_agrees(
              model({.op = op, .direction = direction, .batch_first = batch_first, .attributes = attributes}),
              By::onednn);
        }
}

TEST(CpuRecurrent, AgreesWithAndWithoutBiasesAndStates) {
  using States = Layer::States;
  for (const char* op : operators)
    for (const bool bias : {false, true})
      for (const States states : {States::none, States::zero, States::constant, States::computed})
        for (const bool batch_first : {false, true})
          for (const bool only_h : {false, true}) {
            if (only_h && std::string(op) != "LSTM") continue;
            SCOPED_TRACE(std::string(op) + " states " + std::to_string(static_cast<int>(states)));
            const Layer layer{.op = op,
                              .direction = "bidirectional",
                              .batch_first = batch_first,
                              .bias = bias,
                              .states = states,
                              .only_h = only_h,
                              .attributes = std::string(op) == "GRU" ? before_reset : Attributes()};
            expect_agrees(model(layer), By::onednn, {1, 3});
          }
}

TEST(CpuRecurrent, AgreesWhicheverOutputsAreWanted) {
  for (const char* op : operators)
    for (const char* wanted : {"y", "h", "y h", "c", "y c", "h c"}) {
      if (std::string(op) != "LSTM" && std::string(wanted).find('c') != std::string::npos) continue;
      for (const char* direction : directions) {
        SCOPED_TRACE(std::string(op) + " " + wanted);
        expect_agrees(model({.op = op, .direction = direction, .wanted = wanted}), By::onednn, {1, 4});
      }
    }
}

TEST(CpuRecurrent, SizesThatFitNoVectors) {
  for (const char* op : operators)
    for (const std::int64_t size : {1, 3, 17, 100}) {
      SCOPED_TRACE(std::string(op) + " " + std::to_string(size));
      expect_agrees(
          model({.op = op, .direction = "bidirectional", .steps = 4, .width = size + 2, .hidden = size}),
          By::onednn, {1, 2, 5});
    }
}

TEST(CpuRecurrent, LayersOnLayersAgree) {
  for (const char* op : operators) {
    const Make make = [op](std::int64_t n) {
      Random random(3);
      GraphMaker m;
      Layer l{.op = op, .direction = "bidirectional", .wanted = "y"};
      auto x = m.input({n, l.steps, l.width});
      for (int layer = 0; layer < 3; ++layer) {
        x = m.node("Reshape", {add(m, l, x, random)[0]}, {n, l.steps, 2 * l.hidden});
        l.width = 2 * l.hidden;
      }
      const auto w = m.constant(random_tensor({l.width, 10}, random, 0.2F));
      m.g.outputs = {m.node("MatMul", {x, w}, {n, l.steps, 10})};
      return std::move(m.g);
    };
    expect_agrees(make, By::onednn);
  }
}

TEST(CpuRecurrent, LengthsThatAreFullAreNone) {
  for (const char* op : operators)
    expect_agrees(model({.op = op, .direction = "reverse", .lengths = true}), By::onednn);
}

TEST(CpuRecurrent, AnRnnMayHaveOtherActivations) {
  for (const char* name : {"Relu", "Sigmoid", "Tanh"}) {
    Layer l{.op = "RNN", .direction = "bidirectional"};
    l.attributes["activations"] = std::vector<std::string>{name, name};
    expect_agrees(model(l), std::string(name) == "Relu" ? By::plain : By::onednn);
    l.attributes["activations"] = std::vector<std::string>{name, "Softsign"};
    expect_agrees(model(l), By::plain);
  }
}

TEST(CpuRecurrent, WhatOnednnLacksIsPlain) {
  for (const auto& attributes :
       {Attributes{{"clip", 0.5F}}, Attributes{{"input_forget", std::int64_t{1}}},
        Attributes{{"activations", std::vector<std::string>{"HardSigmoid", "Tanh", "Tanh"}}}})
    for (const bool batch_first : {false, true})
      expect_agrees(model({.batch_first = batch_first, .attributes = attributes}), By::plain);
  // Weights that are no constants, peepholes, lengths.
  const Make computed = [](std::int64_t n) {
    Random random(3);
    GraphMaker m;
    add(m, {.batch_first = true, .wanted = "y"}, m.input({n, 9, 24}), random);
    graph::Node node = m.g.nodes.back();
    m.g.nodes.pop_back();
    node.inputs[1] = m.node("Tanh", {node.inputs[1]}, m.shape(node.inputs[1]));
    m.g.nodes.push_back(node);
    m.g.outputs = {node.outputs[0]};
    return std::move(m.g);
  };
  expect_agrees(computed, By::plain, {1, 3});
  const Make peepholes = [](std::int64_t n) {
    Random random(3);
    GraphMaker m;
    m.g.outputs = add(m, {.batch_first = true}, m.input({n, 9, 24}), random);
    m.g.nodes.back().inputs.push_back(m.constant(random_tensor({1, 96}, random)));
    return std::move(m.g);
  };
  expect_agrees(peepholes, By::plain, {1, 3});
  const Make lengths = [](std::int64_t n) {
    Random random(3);
    GraphMaker m;
    m.g.outputs = add(m, {.batch_first = true}, m.input({n, 9, 24}), random);
    auto values = std::make_shared<graph::Tensor>(TensorType{graph::DataType::i32, {n}});
    for (std::int64_t i = 0; i < n; ++i)
      values->as<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(1 + i % 9);
    m.g.nodes.back().inputs[4] = m.constant(values);
    return std::move(m.g);
  };
  expect_agrees(lengths, By::plain, {1, 3});
}

TEST(CpuRecurrent, BatchSizesShareTheirWeights) {
  for (const char* op : operators) {
    const Make make = sharing(model({.op = op, .direction = "bidirectional", .width = 64, .hidden = 64}));
    const auto engine = make_cpu_engine({.threads = 2});
    const auto one = engine->compile(MadeModel(make), {.batch_sizes = {16}});
    const auto many = engine->compile(MadeModel(make), {.batch_sizes = {1, 2, 4, 16}});
    ASSERT_TRUE(one.has_value() && many.has_value());
    EXPECT_EQ((*one)->weights(), (*many)->weights()) << op;
  }
}

}  // namespace
}  // namespace carillon::engine
