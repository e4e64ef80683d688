// LSTM, GRU and RNN beside ONNX's formulas written down one unit at a time.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/graph/plain/plain_test.h"
#include "carillon/graph/recurrence.h"
#include "carillon/graph/testing.h"

namespace carillon::graph::plain {
namespace {

using ::testing::HasSubstr;

struct Function {
  const char* name;
  float alpha, beta;  // given where the function takes them
  std::function<double(double)> at;
};
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double hyperbolic(double x) {
  return std::tanh(x);
}

// A node, and what it is given beside X, W and R.
struct Wanted {
  std::string op = "LSTM", direction = "forward";
  std::int64_t steps = 5, batch = 3, width = 4, hidden = 6;
  bool batch_first = false, bias = true, states = false, peepholes = false;
  bool input_forget = false, linear_before_reset = false;
  double clip = 0;                    // 0: none
  std::vector<std::int32_t> lengths;  // empty: none
  std::vector<Function> functions;    // of all directions; empty: the usual ones
  std::vector<bool> outputs{true, true, true};

  std::int64_t directions() const { return direction == "bidirectional" ? 2 : 1; }
  std::int64_t gates() const { return op == "LSTM" ? 4 : op == "GRU" ? 3 : 1; }
  std::size_t count() const { return op == "LSTM" ? 3 : op == "GRU" ? 2 : 1; }
};

using Numbers = std::vector<double>;

// The node's operands, as they are and by index.
struct Drawn {
  Numbers x, w, r, b, h, c, p;
};
Drawn draw(const Wanted& n, std::uint64_t seed) {
  Random random(seed);
  const auto numbers = [&](std::int64_t count, double scale) {
    Numbers made(static_cast<std::size_t>(count));
    for (double& v : made) v = static_cast<float>(random.normal() * scale);
    return made;
  };
  const std::int64_t d = n.directions(), rows = n.gates() * n.hidden;
  const std::int64_t state = d * n.batch * n.hidden;
  return {.x = numbers(n.steps * n.batch * n.width, 1),
          .w = numbers(d * rows * n.width, 0.6),
          .r = numbers(d * rows * n.hidden, 0.5),
          .b = numbers(d * 2 * rows, 0.3),
          .h = numbers(state, 0.7),
          .c = numbers(state, 0.7),
          .p = numbers(d * 3 * n.hidden, 0.5)};
}

struct Results {
  Numbers y, y_h, y_c;
};

// ONNX's formulas.
Results expected(const Wanted& n, const Drawn& in) {
  const std::int64_t d_count = n.directions(), size = n.hidden, rows = n.gates() * size;
  Results out{.y = Numbers(static_cast<std::size_t>(n.steps * d_count * n.batch * size)),
              .y_h = Numbers(static_cast<std::size_t>(d_count * n.batch * size)),
              .y_c = {}};
  out.y_c = out.y_h;
  const auto state_at = [&](std::int64_t d, std::int64_t b, std::int64_t u) {
    return static_cast<std::size_t>((n.batch_first ? b * d_count + d : d * n.batch + b) * size + u);
  };
  for (std::int64_t d = 0; d < d_count; ++d) {
    const bool backward = n.direction == "reverse" || d == 1;
    const auto f = [&](std::size_t k, double value) {
      if (n.clip > 0 && k < 2) value = std::clamp(value, -n.clip, n.clip);
      if (!n.functions.empty()) return n.functions[static_cast<std::size_t>(d) * n.count() + k].at(value);
      return n.count() > 1 && k == 0 ? sigmoid(value) : hyperbolic(value);
    };
    for (std::int64_t b = 0; b < n.batch; ++b) {
      Numbers h(static_cast<std::size_t>(size)), c = h;
      for (std::int64_t u = 0; u < size && n.states; ++u) {
        h[static_cast<std::size_t>(u)] = in.h[state_at(d, b, u)];
        c[static_cast<std::size_t>(u)] = in.c[state_at(d, b, u)];
      }
      const std::int64_t length = n.lengths.empty() ? n.steps : n.lengths[static_cast<std::size_t>(b)];
      for (std::int64_t k = 0; k < length; ++k) {
        const std::int64_t t = backward ? length - 1 - k : k;
        const auto of_x = [&](std::int64_t gate, std::int64_t u) {
          double sum = n.bias ? in.b[static_cast<std::size_t>(d * 2 * rows + gate * size + u)] : 0;
          for (std::int64_t i = 0; i < n.width; ++i)
            sum += in.x[static_cast<std::size_t>(
                       (n.batch_first ? b * n.steps + t : t * n.batch + b) * n.width + i)] *
                   in.w[static_cast<std::size_t>((d * rows + gate * size + u) * n.width + i)];
          return sum;
        };
        const auto of_state = [&](const Numbers& from, std::int64_t gate, std::int64_t u) {
          double sum = n.bias ? in.b[static_cast<std::size_t>(d * 2 * rows + rows + gate * size + u)] : 0;
          for (std::int64_t i = 0; i < size; ++i)
            sum += from[static_cast<std::size_t>(i)] *
                   in.r[static_cast<std::size_t>((d * rows + gate * size + u) * size + i)];
          return sum;
        };
        const auto both = [&](std::int64_t gate, std::int64_t u) {
          return of_x(gate, u) + of_state(h, gate, u);
        };
        const auto peephole = [&](std::int64_t gate, std::int64_t u) {
          return n.peepholes ? in.p[static_cast<std::size_t>((d * 3 + gate) * size + u)] : 0;
        };
        Numbers next_h = h, next_c = c, reset = h;
        if (n.op == "GRU")
          for (std::int64_t u = 0; u < size; ++u) reset[static_cast<std::size_t>(u)] *= f(0, both(1, u));
        for (std::int64_t u = 0; u < size; ++u) {
          const auto at = static_cast<std::size_t>(u);
          if (n.op == "RNN") {
            next_h[at] = f(0, both(0, u));
          } else if (n.op == "GRU") {
            const double z = f(0, both(0, u)), r = f(0, both(1, u));
            const double g = n.linear_before_reset ? f(1, of_x(2, u) + r * of_state(h, 2, u))
                                                   : f(1, of_x(2, u) + of_state(reset, 2, u));
            next_h[at] = (1 - z) * g + z * h[at];
          } else {
            const double i = f(0, both(0, u) + peephole(0, u) * c[at]);
            const double forget = n.input_forget ? 1 - i : f(0, both(2, u) + peephole(2, u) * c[at]);
            next_c[at] = forget * c[at] + i * f(1, both(3, u));
            const double o = f(0, both(1, u) + peephole(1, u) * next_c[at]);
            next_h[at] = o * f(2, next_c[at]);
          }
        }
        h = next_h;
        c = next_c;
        for (std::int64_t u = 0; u < size; ++u)
          out.y[static_cast<std::size_t>(
              (n.batch_first ? (b * n.steps + t) * d_count + d : (t * d_count + d) * n.batch + b) * size +
              u)] = h[static_cast<std::size_t>(u)];
      }
      for (std::int64_t u = 0; u < size; ++u) {
        const bool none = !n.lengths.empty() && length == 0;
        out.y_h[state_at(d, b, u)] = none ? 0 : h[static_cast<std::size_t>(u)];
        out.y_c[state_at(d, b, u)] = none ? 0 : c[static_cast<std::size_t>(u)];
      }
    }
  }
  return out;
}

// The node with its operands, in the element type T.
template <typename T>
Case make(const Wanted& n, const Drawn& in) {
  constexpr DataType type = std::is_same_v<T, float> ? DataType::f32 : DataType::f64;
  Case made(n.op);
  const auto add = [&](bool there, Shape shape, const Numbers& values) {
    if (!there) {
      made.absent();
      return;
    }
    Tensor tensor({type, std::move(shape)});
    for (std::size_t i = 0; i < values.size(); ++i) tensor.as<T>()[i] = static_cast<T>(values[i]);
    made.inputs.emplace_back(std::move(tensor));
  };
  const std::int64_t d = n.directions(), rows = n.gates() * n.hidden;
  const Shape state = n.batch_first ? Shape{n.batch, d, n.hidden} : Shape{d, n.batch, n.hidden};
  const bool is_lstm = n.op == "LSTM";
  add(true, n.batch_first ? Shape{n.batch, n.steps, n.width} : Shape{n.steps, n.batch, n.width}, in.x);
  add(true, {d, rows, n.width}, in.w);
  add(true, {d, rows, n.hidden}, in.r);
  add(n.bias, {d, 2 * rows}, in.b);
  if (n.lengths.empty()) {
    made.absent();
  } else {
    Tensor lengths({DataType::i32, {n.batch}});
    std::ranges::copy(n.lengths, lengths.as<std::int32_t>().begin());
    made.inputs.emplace_back(std::move(lengths));
  }
  add(n.states, state, in.h);
  if (is_lstm) {
    add(n.states, state, in.c);
    add(n.peepholes, {d, 3 * n.hidden}, in.p);
  }
  made.with("direction", n.direction).with("hidden_size", n.hidden);
  if (n.batch_first) made.with("layout", std::int64_t{1});
  if (n.input_forget) made.with("input_forget", std::int64_t{1});
  if (n.linear_before_reset) made.with("linear_before_reset", std::int64_t{1});
  if (n.clip > 0) made.with("clip", static_cast<float>(n.clip));
  if (!n.functions.empty()) {
    std::vector<std::string> names;
    std::vector<float> alphas, betas;
    for (const Function& function : n.functions) {
      names.emplace_back(function.name);
      if (!std::isnan(function.alpha)) alphas.push_back(function.alpha);
      if (!std::isnan(function.beta)) betas.push_back(function.beta);
    }
    made.with("activations", names);
    if (!alphas.empty()) made.with("activation_alpha", alphas);
    if (!betas.empty()) made.with("activation_beta", betas);
  }
  made.out(type, n.batch_first ? Shape{n.batch, n.steps, d, n.hidden} : Shape{n.steps, d, n.batch, n.hidden});
  made.out(type, state);
  if (is_lstm) made.out(type, state);
  return made;
}

// Runs with those outputs that are wanted; the others are absent.
template <typename T>
void expect_agrees(const Wanted& n, double tolerance) {
  const Drawn in = draw(n, 11);
  const Results want = expected(n, in);
  Case made = make<T>(n, in);
  ASSERT_NE(made.find(), nullptr);
  std::vector<ConstView> from;
  for (const auto& tensor : made.inputs)
    from.push_back(tensor ? ConstView{&tensor->type(), tensor->bytes().data()} : ConstView{});
  for (const bool room_given : {false, true}) {
    std::vector<MutableView> to;
    for (std::size_t i = 0; i < made.outputs.size(); ++i) {
      Tensor& tensor = made.outputs[i];
      std::ranges::fill(tensor.bytes(), std::byte{0xff});
      made.node.outputs[i] = n.outputs[i] ? ValueId{0} : no_value;
      to.push_back(n.outputs[i] ? MutableView{&tensor.type(), tensor.bytes().data()} : MutableView{});
    }
    std::vector<const TensorType*> types;
    for (const auto& tensor : made.inputs) types.push_back(tensor ? &tensor->type() : nullptr);
    const auto room = plain_workspace(made.node, types);
    ASSERT_TRUE(room.has_value());
    Tensor memory(*room);
    std::ranges::fill(memory.bytes(), std::byte{0xff});
    if (room_given) to.push_back({&*room, memory.bytes().data()});
    const PlainKernel kernel = find_plain_kernel(made.node, types);
    ASSERT_NE(kernel, nullptr);
    const auto ran = kernel(made.node, from, to);
    ASSERT_TRUE(ran.has_value()) << ran.error().message;
    const Numbers* all[] = {&want.y, &want.y_h, &want.y_c};
    for (std::size_t i = 0; i < made.outputs.size(); ++i) {
      if (!n.outputs[i]) continue;
      for (std::size_t k = 0; k < all[i]->size(); ++k)
        ASSERT_NEAR(made.outputs[i].as<T>()[k], (*all[i])[k], tolerance)
            << "output " << i << ", element " << k;
    }
  }
}
void expect_agrees(const Wanted& n) {
  expect_agrees<float>(n, 2e-6);
  expect_agrees<double>(n, 1e-13);
}

constexpr const char* directions[] = {"forward", "reverse", "bidirectional"};

TEST(Recurrent, EveryAttributeAndOperandWithTheOthers) {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (const char* direction : directions)
      for (unsigned bits = 0; bits < 64; ++bits) {
        SCOPED_TRACE(std::string(op) + " " + direction + " " + std::to_string(bits));
        Wanted n{.op = op, .direction = direction};
        n.batch_first = (bits & 1U) != 0;
        n.bias = (bits & 2U) != 0;
        n.states = (bits & 4U) != 0;
        if ((bits & 8U) != 0) n.lengths = {5, 2, 4};
        if ((bits & 16U) != 0) n.clip = 0.375;
        n.linear_before_reset = n.peepholes = (bits & 32U) != 0;
        expect_agrees(n);
        if (HasFatalFailure()) return;
      }
}

TEST(Recurrent, CoupledInputAndForgetGates) {
  for (const bool peepholes : {false, true})
    expect_agrees({.direction = "bidirectional", .peepholes = peepholes, .input_forget = true});
}

TEST(Recurrent, SizesThatFitNoLanes) {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (const std::int64_t size : {1, 2, 3, 5, 16, 33})
      for (const std::int64_t batch : {1, 2, 5}) {
        SCOPED_TRACE(std::string(op) + " " + std::to_string(size) + " at batch " + std::to_string(batch));
        expect_agrees(
            {.op = op, .steps = 3, .batch = batch, .width = size + 1, .hidden = size, .states = true});
        if (HasFatalFailure()) return;
      }
}

TEST(Recurrent, OneStepOrNone) {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (const std::int64_t steps : {0, 1})
      expect_agrees({.op = op, .direction = "bidirectional", .steps = steps, .states = true});
}

TEST(Recurrent, SequencesOfLength0AnswerZeros) {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (const char* direction : directions) {
      Wanted n{.op = op, .direction = direction, .states = true};
      n.lengths = {0, 5, 1};
      expect_agrees(n);
      n.lengths = {0, 0, 0};
      expect_agrees(n);
    }
}

TEST(Recurrent, OutputsThatNobodyWants) {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (unsigned bits = 1; bits < 8; ++bits) {
      Wanted n{.op = op, .direction = "bidirectional"};
      n.lengths = {3, 5, 2};
      n.outputs = {(bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0};
      expect_agrees(n);
    }
}

TEST(Recurrent, EveryActivation) {
  constexpr float no = NAN;
  const std::vector<Function> all{
      {"Relu", no, no, [](double x) { return std::max(x, 0.0); }},
      {"Tanh", no, no, hyperbolic},
      {"Sigmoid", no, no, sigmoid},
      {"Affine", 0.5F, 0.25F, [](double x) { return 0.5 * x + 0.25; }},
      {"LeakyRelu", 0.25F, no, [](double x) { return x < 0 ? 0.25 * x : x; }},
      {"ThresholdedRelu", 0.5F, no, [](double x) { return x > 0.5 ? x : 0; }},
      {"ScaledTanh", 0.75F, 1.5F, [](double x) { return 0.75 * std::tanh(1.5 * x); }},
      {"HardSigmoid", 0.25F, 0.5F, [](double x) { return std::clamp(0.25 * x + 0.5, 0.0, 1.0); }},
      {"Elu", 0.5F, no, [](double x) { return x < 0 ? 0.5 * (std::exp(x) - 1) : x; }},
      {"Softsign", no, no, [](double x) { return x / (1 + std::abs(x)); }},
      {"Softplus", no, no, [](double x) { return std::log(1 + std::exp(x)); }},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    expect_agrees<double>({.op = "RNN", .functions = {all[i]}}, 1e-12);
    expect_agrees<float>({.op = "RNN", .functions = {all[i]}}, 2e-5);
    // Each beside others, so that alphas and betas must find theirs.
    Wanted lstm{.direction = "bidirectional"};
    for (std::size_t k = 0; k < 6; ++k) lstm.functions.push_back(all[(i + 3 * k) % all.size()]);
    lstm.clip = 1;
    expect_agrees<double>(lstm, 1e-10);
    Wanted gru{.op = "GRU", .direction = "bidirectional", .clip = 1};
    for (std::size_t k = 0; k < 4; ++k) gru.functions.push_back(all[(2 * i + k) % all.size()]);
    expect_agrees<double>(gru, 1e-10);
  }
}

TEST(Recurrent, ActivationsHaveTheDefaultsOfTheOperators) {
  constexpr float no = NAN;
  const std::vector<Function> all{
      {"affine", no, no, [](double x) { return x; }},
      {"LEAKYRELU", no, no, [](double x) { return x < 0 ? 0.01F * x : x; }},
      {"ThresholdedRelu", no, no, [](double x) { return x > 1 ? x : 0; }},
      {"ScaledTanh", no, no, hyperbolic},
      {"HardSigmoid", no, no, [](double x) { return std::clamp(0.2F * x + 0.5, 0.0, 1.0); }},
      {"Elu", no, no, [](double x) { return x < 0 ? std::exp(x) - 1 : x; }},
  };
  for (const Function& function : all) expect_agrees<double>({.op = "RNN", .functions = {function}}, 1e-12);
}

TEST(Recurrent, LengthsOutOfRangeAreTheirRowsFault) {
  for (const std::int32_t bad : {-1, 6, 1 << 30}) {
    Wanted n;
    n.lengths = {5, bad, 2};
    const Drawn in = draw(n, 3);
    Case made = make<float>(n, in);
    EXPECT_FALSE(made.run().has_value());
    // The lengths' rows are told; Case can tell those of input 1 only.
    std::vector<ConstView> from;
    for (const auto& tensor : made.inputs)
      from.push_back(tensor ? ConstView{&tensor->type(), tensor->bytes().data()} : ConstView{});
    const Origin origin{.rows = 3, .input = "lengths"};
    from[Recurrence::sequence_lens].origin = &origin;
    Faults faults;
    std::vector<MutableView> to;
    for (Tensor& tensor : made.outputs) to.push_back({&tensor.type(), tensor.bytes().data()});
    to[0].faults = &faults;
    ASSERT_TRUE(made.find()(made.node, from, to).has_value());
    ASSERT_EQ(faults.all().size(), 1U);
    EXPECT_EQ(faults.all()[0].row, 1);
    EXPECT_THAT(faults.all()[0].error.message, HasSubstr("length " + std::to_string(bad) +
                                                         ", which comes from input 'lengths', is outside"));
    n.lengths = {5, bad < 0 ? 0 : 5, 2};
    Case good = make<float>(n, in);
    ASSERT_TRUE(good.run().has_value());
    EXPECT_TRUE(std::ranges::equal(made.outputs[0].bytes(), good.outputs[0].bytes()));
  }
}

TEST(Recurrent, NodesThatDoNotFitAreRefused) {
  const auto says = [](const std::function<void(Node&, std::vector<TensorType>&)>& change) {
    Node node{.name = "n", .op = "LSTM"};
    std::vector<TensorType> types{
        {DataType::f32, {5, 3, 4}}, {DataType::f32, {1, 24, 4}}, {DataType::f32, {1, 24, 6}}};
    change(node, types);
    std::vector<const TensorType*> at;
    for (const TensorType& type : types) at.push_back(&type);
    const auto read = recurrence_of(node, at);
    return read ? std::string() : read.error().message;
  };
  using Types = std::vector<TensorType>;
  EXPECT_EQ(says([](Node&, Types&) {}), "");
  const struct {
    std::function<void(Node&, Types&)> change;
    const char* wanted;
  } rows[] = {
      {[](Node& n, Types&) { n.attributes["direction"] = std::string("up"); }, "direction is 'up'"},
      {[](Node& n, Types&) { n.attributes["layout"] = std::int64_t{2}; }, "layout is 2"},
      {[](Node& n, Types&) { n.attributes["hidden_size"] = std::int64_t{7}; }, "hidden_size is 7"},
      {[](Node& n, Types&) { n.attributes["clip"] = -1.0F; }, "clip is -1"},
      {[](Node& n, Types&) { n.attributes["clip"] = NAN; }, "clip is nan"},
      {[](Node& n, Types&) { n.attributes["activations"] = std::vector<std::string>{"Tanh"}; }, "needs 3"},
      {[](Node& n, Types&) { n.attributes["activations"] = std::vector<std::string>(3, "Sine"); },
       "activation 'Sine' is not supported"},
      {[](Node& n, Types&) { n.attributes["direction"] = std::string("bidirectional"); }, "R (input 2)"},
      {[](Node&, Types& t) {
         t[0].shape = {5, 3};
       },
       "3 dimensions"},
      {[](Node&, Types& t) {
         t[0].shape = {5, 3, 5};
       },
       "W (input 1)"},
      {[](Node&, Types& t) {
         t[0].shape = {5, 3, 0};
       },
       "of no width"},
      {[](Node&, Types& t) {
         t[0].shape = {1LL << 20, 1LL << 19, 4};
       },
       "2^40"},
      {[](Node&, Types& t) {
         t[1].shape = {1, 20, 4};
       },
       "W (input 1)"},
      {[](Node&, Types& t) {
         t[2].shape = {1, 23, 6};
       },
       "R (input 2)"},
      {[](Node&, Types& t) {
         t[2].shape = {1, 0, 0};
       },
       "R (input 2)"},
      {[](Node&, Types& t) { t[2].type = DataType::f64; }, "of one floating-point type"},
      {[](Node&, Types& t) { t[0].type = t[1].type = t[2].type = DataType::i32; }, "floating-point"},
      {[](Node&, Types& t) {
         t.push_back({DataType::f32, {1, 24}});
       },
       "B (input 3)"},
      {[](Node&, Types& t) {
         t.insert(t.end(), {{DataType::f32, {1, 48}}, {DataType::i64, {3}}});
       },
       "must be int32"},
      {[](Node&, Types& t) {
         t.insert(t.end(), {{DataType::f32, {1, 48}}, {DataType::i32, {5}}});
       },
       "sequence_lens (input 4)"},
      {[](Node&, Types& t) {
         t.insert(t.end(), {{DataType::f32, {1, 48}}, {DataType::i32, {3}}, {DataType::f32, {3, 1, 6}}});
       },
       "initial_h (input 5)"},
  };
  for (const auto& [change, wanted] : rows) EXPECT_THAT(says(change), HasSubstr(wanted));
}

// A model as exporters write it: requests are [time, channels], the recurrence goes over the first dimension,
// and its first state is made as large as the batch.
TEST(Recurrent, AModelWithTheBatchInFrontAnswersEveryRowAsAlone) {
  for (const std::string op : {"LSTM", "GRU", "RNN"}) {
    SCOPED_TRACE(op);
    const std::int64_t gates = op == "LSTM" ? 4 : op == "GRU" ? 3 : 1;
    testing::Onnx m(14);
    m.input("x", {"n", "6", "4"}).random("w", {2, gates * 5, 4}).random("r", {2, gates * 5, 5});
    m.random("b", {2, gates * 10}).i64("batch_axis", {1}, {0}).i64("d", {1}, {2}).i64("h", {1}, {5});
    m.f32("zero", {1, 1, 1}, {0}).i64("to", {3}, {0, 0, -1});
    m.node("Shape", {"x"}, {"shape"}).node("Gather", {"shape", "batch_axis"}, {"n"});
    m.node("Concat", {"d", "n", "h"}, {"states"}).set("axis", 0).node("Expand", {"zero", "states"}, {"h0"});
    m.node("Transpose", {"x"}, {"t"}).set("perm", std::vector<std::int64_t>{1, 0, 2});
    std::vector<std::string> operands{"t", "w", "r", "b", "", "h0"};
    if (op == "LSTM") operands.emplace_back("h0");
    m.node(op, operands, {"y", "y_h"}).set("direction", "bidirectional").set("hidden_size", 5);
    m.node("Transpose", {"y"}, {"z"}).set("perm", std::vector<std::int64_t>{2, 0, 1, 3});
    m.node("Reshape", {"z", "to"}, {"out"});
    m.node("Transpose", {"y_h"}, {"last"}).set("perm", std::vector<std::int64_t>{1, 0, 2});
    m.output("out").output("last");
    const auto model = m.import({.batched = true});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_EQ((*model)->outputs()[1].shape, (Shape{batch_dimension, 2, 5}));
    const auto alone = (*model)->specialize(1);
    ASSERT_TRUE(alone.has_value()) << alone.error().message;
    for (const std::int64_t batch : {1, 2, 7}) {
      const auto graph = (*model)->specialize(batch);
      ASSERT_TRUE(graph.has_value()) << graph.error().message;
      Random random(5);
      const auto x = testing::random_tensor({DataType::f32, {batch, 6, 4}}, random);
      const auto all = testing::run_plainly(*graph, {x});
      ASSERT_TRUE(all.has_value()) << all.error().message;
      for (std::int64_t n = 0; n < batch; ++n) {
        const auto one = testing::run_plainly(
            *alone, {std::make_shared<const Tensor>(Tensor::of_f32(
                        {1, 6, 4}, x->as<float>().subspan(static_cast<std::size_t>(n * 24), 24)))});
        ASSERT_TRUE(one.has_value());
        for (std::size_t o = 0; o < 2; ++o) {
          const auto want = (*one)[o]->as<float>();
          const auto got =
              (*all)[o]->as<float>().subspan(static_cast<std::size_t>(n) * want.size(), want.size());
          EXPECT_TRUE(std::ranges::equal(got, want)) << "output " << o << ", row " << n << " of " << batch;
        }
      }
    }
  }
}

}  // namespace
}  // namespace carillon::graph::plain
