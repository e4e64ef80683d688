#include <array>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/lstm_step.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/graph/recurrence.h"

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
  enum class Lengths { none, full, many, read } lengths = Lengths::none;

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
  if (l.lengths == Layer::Lengths::full || l.lengths == Layer::Lengths::many) {
    auto lengths = std::make_shared<graph::Tensor>(TensorType{graph::DataType::i32, {n}});
    std::int64_t i = 0;
    for (std::int32_t& length : lengths->as<std::int32_t>())
      length = static_cast<std::int32_t>(l.lengths == Layer::Lengths::full ? l.steps
                                                                           : (4 + 3 * i++) % (l.steps + 1));
    in.back() = m.constant(lengths);
  }
  if (l.lengths == Layer::Lengths::read) {
    in.back() = m.input({n});
    m.g.value(in.back()).type.type = graph::DataType::i32;
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
    expect_agrees(model({.op = op, .direction = "reverse", .lengths = Layer::Lengths::full}), By::onednn);
}

// Each row has another length, some 0.
TEST(CpuRecurrent, LengthsEndSequences) {
  using States = Layer::States;
  for (const char* op : operators)
    for (const char* direction : directions)
      for (const States states : {States::none, States::computed})
        for (const bool batch_first : {false, true})
          for (const char* wanted : {"y", "h", "y h", "y h c"}) {
            if (std::string(op) != "LSTM" && std::string(wanted).find('c') != std::string::npos) continue;
            SCOPED_TRACE(std::string(op) + " " + direction + " " + wanted);
            const bool plain =
                std::string(op) == "RNN" ||
                (std::string(op) == "LSTM" && states != States::none && std::string(direction) != "forward");
            for (const auto& attributes : {Attributes(), before_reset}) {
              if (!attributes.empty() && std::string(op) != "GRU") continue;
              expect_agrees(model({.op = op,
                                   .direction = direction,
                                   .batch_first = batch_first,
                                   .states = states,
                                   .wanted = wanted,
                                   .attributes = attributes,
                                   .lengths = Layer::Lengths::many}),
                            plain ? By::plain : By::onednn, {1, 2, 7});
            }
          }
}

// Inputs are 30 times as large as usual, and NaN behind the ends.
TEST(CpuRecurrent, NothingComesFromBehindTheEnds) {
  for (const char* op : {"GRU", "LSTM"}) {
    const Layer l{.op = op, .direction = "bidirectional", .lengths = Layer::Lengths::read};
    const Make make = sharing(model(l));
    const auto engine = make_cpu_engine({.threads = 2});
    const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {5}});
    ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
    const Graph g = make(5);
    const Plan& plan = *(*compiled)->plan(5);
    ASSERT_EQ(kernels_of(plan).find("plain:" + std::string(op)), std::string::npos);
    for (std::int32_t longest = 0; longest <= 9; ++longest) {
      const Buffers inputs = random_inputs(g, 7);
      std::array<std::int32_t, 5> ends{0, 1, 9, 5, 8};
      for (std::int32_t& end : ends) end = std::min(end, longest);
      std::ranges::copy(ends, inputs[1]->as<std::int32_t>().begin());
      for (float& x : inputs[0]->as<float>()) x *= 30;
      const Buffers want = reference(g, inputs);
      for (std::int64_t n = 0; n < 5; ++n)
        for (std::int64_t i = ends[static_cast<std::size_t>(n)] * l.width; i < l.steps * l.width; ++i)
          inputs[0]->as<float>()[static_cast<std::size_t>(n * l.steps * l.width + i)] =
              std::numeric_limits<float>::quiet_NaN();
      const Bound bound(**compiled, plan, inputs);
      ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(*bound.outputs()[i], *want[i]), 1e-5)
            << op << ", output " << i << ", the longest " << longest;
    }
  }
}

TEST(CpuRecurrent, ALengthThatIsNoneIsItsRowsFault) {
  const Make make = sharing(model({.op = "GRU", .lengths = Layer::Lengths::read}));
  const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {3}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const Graph g = make(3);
  const Plan& plan = *(*compiled)->plan(3);
  const Buffers inputs = random_inputs(g, 7);
  const std::int32_t right[] = {4, 9, 9}, wrong[] = {4, 10, 9};
  std::ranges::copy(right, inputs[1]->as<std::int32_t>().begin());
  const Buffers want = reference(g, inputs);
  std::ranges::copy(wrong, inputs[1]->as<std::int32_t>().begin());
  const Bound bound(**compiled, plan, inputs);
  graph::Faults faults;
  Binding binding = bound.binding();
  binding.faults = &faults;
  ASSERT_TRUE(plan.run({0, plan.kernels()}, binding, {}).has_value());
  ASSERT_EQ(faults.all().size(), 1U);
  EXPECT_EQ(faults.all()[0].row, 1);
  EXPECT_NE(faults.all()[0].error.message.find("is outside a sequence of 9 steps"), std::string::npos)
      << faults.all()[0].error.message;
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(relative_error(*bound.outputs()[i], *want[i]), 1e-5) << "output " << i;
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
  // Weights that are no constants, peepholes.
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

// An LSTM as DynamicQuantizeLSTM becomes one: W and R are whole numbers times scales.
struct InBytes {
  std::int64_t width = 20, hidden = 24;
  std::string direction = "forward";
  bool batch_first = true;
  enum class Scales { one, by_direction, by_column } scales = Scales::one;
  std::int64_t most = 64;  // of the whole numbers
  bool exact = true;       // else one weight is no multiple of its scale
};
Make model(const InBytes& of) {
  return [of](std::int64_t n) {
    Random random(5);
    GraphMaker m;
    Layer l{.direction = of.direction, .width = of.width, .hidden = of.hidden, .batch_first = of.batch_first};
    const auto x = m.input({n, l.steps, l.width});
    m.g.outputs = add(m, l, x, random);
    const auto lstm = std::ranges::find(m.g.nodes, "LSTM", &graph::Node::op);
    const std::int64_t both = l.directions(), columns = 4 * l.hidden;
    for (const std::size_t i : {1, 2}) {
      const std::size_t count = of.scales == InBytes::Scales::one            ? 1
                                : of.scales == InBytes::Scales::by_direction ? both
                                                                             : both * columns;
      std::vector<float> scales(count);
      for (float& scale : scales) scale = static_cast<float>(0.002 * (1 + random.uniform()));
      const auto made = std::make_shared<graph::Tensor>(m.g.value(lstm->inputs[i]).type);
      const auto values = made->as<float>();
      const auto depth = values.size() / static_cast<std::size_t>(both * columns);
      for (std::size_t e = 0; e < values.size(); ++e) {
        const std::size_t column = e / depth, direction = column / static_cast<std::size_t>(columns);
        const bool by_column = of.scales == InBytes::Scales::by_column;
        const float scale = scales[count == 1 ? 0 : by_column ? column : direction];
        const auto range = static_cast<double>(2 * of.most);
        values[e] = static_cast<float>(std::nearbyint(random.uniform() * range - range / 2)) * scale;
      }
      if (!of.exact) values[7] += 0.3F * scales[0];
      m.g.value(lstm->inputs[i]).constant = made;
      const auto name = i == 1 ? graph::input_weight_scales : graph::state_weight_scales;
      lstm->attributes[std::string(name)] = scales;
    }
    return std::move(m.g);
  };
}

// A row of floats in bytes and back, as DynamicQuantizeLinear and DequantizeLinear have it.
void round_row(std::vector<float>& row) {
  const float low = std::min(0.0F, std::ranges::min(row)), high = std::max(0.0F, std::ranges::max(row));
  const float scale = high == low ? 1 : (high - low) / 255;
  const float zero = std::clamp(std::nearbyint(-low / scale), 0.0F, 255.0F);
  for (float& value : row)
    value = (std::clamp(std::nearbyint(value / scale) + zero, 0.0F, 255.0F) - zero) * scale;
}

// What the definition makes of row n: Y [steps, directions, hidden], Y_h and Y_c [directions, hidden].
std::vector<std::vector<float>> by_definition(const Graph& g, const Buffers& inputs, std::int64_t n) {
  const auto lstm = std::ranges::find(g.nodes, "LSTM", &graph::Node::op);
  const auto constant = [&](std::size_t i) { return g.value(lstm->inputs[i]).constant->as<float>(); };
  const Shape& x_shape = g.value(g.inputs[0]).type.shape;
  const auto steps = static_cast<std::size_t>(x_shape[1]), width = static_cast<std::size_t>(x_shape[2]);
  const Shape& r_shape = g.value(lstm->inputs[2]).type.shape;
  const auto ways = static_cast<std::size_t>(r_shape[0]), hidden = static_cast<std::size_t>(r_shape[2]);
  const auto given = inputs[0]->as<float>().begin() + n * x_shape[1] * x_shape[2];
  std::vector<float> x(given, given + x_shape[1] * x_shape[2]);
  round_row(x);
  std::vector<float> y(steps * ways * hidden), y_h, y_c;
  for (std::size_t d = 0; d < ways; ++d) {
    std::vector<float> h(hidden), c(hidden);
    for (std::size_t k = 0; k < steps; ++k) {
      const bool back = lstm->text("direction", "forward") == "reverse" || d == 1;
      const std::size_t t = back ? steps - 1 - k : k;
      std::vector<float> rounded = h;
      round_row(rounded);
      const auto sum = [&](std::size_t gate, std::size_t unit) {
        const std::size_t column = d * 4 * hidden + gate * hidden + unit;
        const std::size_t b = d * 8 * hidden + gate * hidden + unit;
        double all = constant(3)[b] + constant(3)[b + 4 * hidden];
        for (std::size_t i = 0; i < width; ++i) all += x[t * width + i] * constant(1)[column * width + i];
        for (std::size_t i = 0; i < hidden; ++i) all += rounded[i] * constant(2)[column * hidden + i];
        return all;
      };
      const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
      for (std::size_t unit = 0; unit < hidden; ++unit) {
        c[unit] = static_cast<float>(sigmoid(sum(2, unit)) * c[unit] +
                                     sigmoid(sum(0, unit)) * std::tanh(sum(3, unit)));
        h[unit] = static_cast<float>(sigmoid(sum(1, unit)) * std::tanh(c[unit]));
      }
      std::ranges::copy(h, y.begin() + static_cast<std::ptrdiff_t>((t * ways + d) * hidden));
    }
    y_h.insert(y_h.end(), h.begin(), h.end());
    y_c.insert(y_c.end(), c.begin(), c.end());
  }
  return {y, y_h, y_c};
}

// Sums in another order may round a state to the byte beside.
constexpr float a_step_now_and_then = 1e-3F;

void expect_is_by_definition(const InBytes& of) {
  const auto engine = make_cpu_engine({.threads = 2});
  const Make make = sharing(model(of));
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {1, 2, 5}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  for (const int batch : {1, 2, 5}) {
    const Graph g = make(batch);
    const Plan& plan = *(*compiled)->plan(batch);
    SCOPED_TRACE("batch " + std::to_string(batch) + "\n" + kernels_of(plan));
    ASSERT_NE(kernels_of(plan).find("lstm:bytes"), std::string::npos);
    const Buffers inputs = random_inputs(g, 7);
    const Bound bound(**compiled, plan, inputs);
    ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
    for (int n = 0; n < batch; ++n) {
      const auto want = by_definition(g, inputs, n);
      for (std::size_t i = 0; i < want.size(); ++i) {
        const std::size_t size = want[i].size();
        const auto got = bound.outputs()[i]->as<float>().subspan(static_cast<std::size_t>(n) * size, size);
        float most = 0;
        for (std::size_t e = 0; e < size; ++e) most = std::max(most, std::abs(got[e] - want[i][e]));
        EXPECT_LE(most, a_step_now_and_then) << "row " << n << ", output " << i;
      }
    }
  }
}

TEST(CpuLstmInBytes, IsWhatTheDefinitionSays) {
  if (!cpu::LstmStep::runs_on_this_processor(cpu::LstmStep::Numbers::bytes)) GTEST_SKIP() << "no VNNI";
  for (const char* direction : directions)
    for (const bool batch_first : {false, true})
      expect_is_by_definition({.direction = direction, .batch_first = batch_first});
  for (const auto scales : {InBytes::Scales::by_direction, InBytes::Scales::by_column})
    expect_is_by_definition({.direction = "bidirectional", .scales = scales});
  for (const std::int64_t size : {1, 3, 17, 100})
    expect_is_by_definition({.width = size + 2, .hidden = size});
}

TEST(CpuLstmInBytes, ARowsAnswerIsItsOwn) {
  if (!cpu::LstmStep::runs_on_this_processor(cpu::LstmStep::Numbers::bytes)) GTEST_SKIP() << "no VNNI";
  const auto engine = make_cpu_engine({.threads = 2});
  const Make make = sharing(model(InBytes{.direction = "bidirectional"}));
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {1, 7}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const Buffers all = random_inputs(make(7), 7);
  for (float& x : all[0]->as<float>().first(180)) x *= 100;  // a range that others would notice
  const Plan &many = *(*compiled)->plan(7), &one = *(*compiled)->plan(1);
  const Bound together(**compiled, many, all);
  ASSERT_TRUE(many.run({0, many.kernels()}, together.binding(), {}).has_value());
  for (std::size_t n = 0; n < 7; ++n) {
    const Buffers row = random_inputs(make(1), 7);
    const auto from = all[0]->as<float>().subspan(n * 180, 180);
    std::ranges::copy(from, row[0]->as<float>().begin());
    const Bound alone(**compiled, one, row);
    ASSERT_TRUE(one.run({0, one.kernels()}, alone.binding(), {}).has_value());
    for (std::size_t i = 0; i < alone.outputs().size(); ++i) {
      const auto want = alone.outputs()[i]->bytes();
      const auto got = together.outputs()[i]->bytes().subspan(n * want.size(), want.size());
      EXPECT_TRUE(std::ranges::equal(got, want)) << "row " << n << ", output " << i;
    }
  }
}

TEST(CpuLstmInBytes, WhatDoesNotFitBytesStaysFloats) {
  expect_agrees(model(InBytes{.exact = false}), By::onednn, {1, 3});
  expect_agrees(model(InBytes{.most = 256}), By::onednn, {1, 3});
}

// Wide enough for the units of one sequence to be divided.
TEST(CpuRecurrent, AWideStateIsTheSameOnAnyNumberOfThreads) {
  const Layer wide{.steps = 3, .width = 40, .hidden = 330, .batch_first = true};
  expect_agrees(model(wide), By::onednn, {1, 4});
}

}  // namespace
}  // namespace carillon::engine
