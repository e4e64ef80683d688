#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "carillon/graph/testing.h"

// Random models with branches and loops, for tests of this layer and of engines.
namespace carillon::graph::testing {

inline const Shape control_flow_shape{4, 8};

// Makes nodes over values of control_flow_shape. Names are dealt out over all graphs of a model.
class ControlFlowMaker {
 public:
  explicit ControlFlowMaker(std::uint64_t seed) : random_(seed) {}

  Onnx whole() {
    Onnx m(17);
    m.input("x", {"4", "8"});
    std::vector<std::string> seen{"x"};
    fill(m, seen, 0, 6);
    for (std::size_t i = seen.size() - 1, count = 0; i > 0 && count < 3; --i, ++count) m.output(seen[i]);
    return m;
  }

 private:
  std::string name() { return "v" + std::to_string(next_++); }
  const std::string& any(const std::vector<std::string>& seen) {
    // Mostly what is new: then graphs are deep, and values die early.
    const std::size_t from = random_.below(3) == 0 ? 0 : seen.size() - std::min<std::size_t>(seen.size(), 3);
    return seen[from + random_.below(seen.size() - from)];
  }

  // Adds nodes to `m`, which sees the values `seen`.
  void fill(Onnx& m, std::vector<std::string>& seen, int depth, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string a = any(seen), b = any(seen);
      const std::string y = name();
      switch (random_.below(depth < 3 ? 11 : 8)) {
        case 0:
        case 1: {
          const std::string w = name();
          weights(m, w);
          m.node("MatMul", {a, w}, {y});
          break;
        }
        case 2:
          m.node("Relu", {a}, {y});
          break;
        case 3:
          m.node("Tanh", {a}, {y});
          break;
        case 4:
          m.node("Add", {a, b}, {y});
          break;
        case 5: {
          const std::string s = name();
          m.node("Sigmoid", {a}, {s}).node("Mul", {a, s}, {y});
          break;
        }
        case 6: {  // through another layout
          const std::string t = name(), u = name();
          const std::vector<std::int64_t> perm{1, 0};
          m.node("Transpose", {a}, {t}).set("perm", perm).node("Neg", {t}, {u});
          m.node("Transpose", {u}, {y}).set("perm", perm);
          break;
        }
        case 7: {
          const std::string c = name();
          m.f32(c, {}, {0.5F}).node("Mul", {a, c}, {y});
          break;
        }
        case 8:
        case 9:
          branch(m, seen, y, depth);
          break;
        case 10:
          loop(m, seen, y, depth);
          break;
      }
      seen.push_back(y);
    }
  }

  void weights(Onnx& m, const std::string& w) {
    std::vector<float> values(64);
    for (float& v : values) v = static_cast<float>(random_.normal()) / 2;
    m.f32(w, {8, 8}, values);
  }

  // Whether the mean of a value is above a bound.
  std::string condition(Onnx& m, const std::string& of) {
    const std::string mean = name(), bound = name(), c = name();
    m.f32(bound, {}, {static_cast<float>(random_.normal()) / 8});
    m.node("ReduceMean", {of}, {mean}).set("keepdims", 0).node("Greater", {mean, bound}, {c});
    return c;
  }

  void branch(Onnx& m, std::vector<std::string>& seen, const std::string& y, int depth) {
    const std::string c = condition(m, any(seen));
    const std::string second = name();
    Onnx graphs[2];
    for (Onnx& g : graphs) {
      std::vector<std::string> own = seen;
      fill(g, own, depth + 1, static_cast<int>(random_.below(4)));
      g.output(own.back()).output(any(own));
    }
    m.node("If", {c}, {y, second}).set("then_branch", graphs[0]).set("else_branch", graphs[1]);
    if (random_.below(2) == 0) seen.push_back(second);
  }

  void loop(Onnx& m, std::vector<std::string>& seen, const std::string& y, int depth) {
    const std::string trips = name(), i = name(), on = name(), s = name(), t = name(), second = name();
    m.i64(trips, {}, {static_cast<std::int64_t>(random_.below(5))});
    Onnx body;
    body.input(i, {}, DataType::i64)
        .input(on, {}, DataType::boolean)
        .input(s, {"4", "8"})
        .input(t, {"4", "8"});
    std::vector<std::string> own = seen;
    own.insert(own.end(), {s, t});
    fill(body, own, depth + 1, 1 + static_cast<int>(random_.below(3)));
    const bool by_data = random_.below(3) != 0;
    body.output(by_data ? condition(body, any(own)) : on, DataType::boolean);
    body.output(own.back()).output(any(own));
    const std::string first = random_.below(2) == 0 ? condition(m, any(seen)) : "";
    m.node("Loop", {trips, first, any(seen), any(seen)}, {y, second}).set("body", body);
    if (random_.below(2) == 0) seen.push_back(second);
  }

  Random random_;
  int next_ = 0;
};

// Models in which branches by data give unlike shapes, and loops by data carry them.
class UnlikeBranchesMaker {
 public:
  explicit UnlikeBranchesMaker(std::uint64_t seed) : random_(seed) {}

  Onnx whole() {
    Onnx m(17);
    m.input("x", {"4", "8"});
    m.i64("none", {1}, {0}).i64("two", {1}, {2}).i64("last", {1}, {-1});
    std::vector<std::string> seen{"x"};
    branch(m, seen, 0);
    fill(m, seen, 0, 5);
    for (std::size_t i = seen.size() - 1, count = 0; i > 0 && count < 3; --i, ++count) m.output(seen[i]);
    return m;
  }

 private:
  std::string name() { return "v" + std::to_string(next_++); }
  const std::string& any(const std::vector<std::string>& seen) {
    const std::size_t from = seen.size() - std::min<std::size_t>(seen.size(), 3);
    return seen[from + random_.below(seen.size() - from)];
  }

  void fill(Onnx& m, std::vector<std::string>& seen, int depth, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string a = any(seen), y = name();
      switch (random_.below(depth < 2 ? 13 : 10)) {
        case 0:
          m.node("Relu", {a}, {y});
          break;
        case 1:
          m.node("Tanh", {a}, {y});
          break;
        case 2:
          m.node("Transpose", {a}, {y});
          break;
        case 3:
          m.node("Flatten", {a}, {y}).set("axis", 1);
          break;
        case 4:
          m.node("Slice", {a, "none", "two", "none"}, {y});
          break;
        case 5:
          m.node("Concat", {a, a}, {y}).set("axis", 0);
          break;
        case 6:
          m.node("ReduceSum", {a, "last"}, {y}).set("keepdims", 1);
          break;
        case 7:
          m.node("Unsqueeze", {a, "none"}, {y});
          break;
        case 8: {  // its own shape, by way of numbers
          const std::string s = name(), t = name();
          m.node("Shape", {a}, {s}).node("Relu", {a}, {t}).node("Reshape", {t, s}, {y});
          break;
        }
        case 9:  // may not fit
          m.node("Add", {a, any(seen)}, {y});
          break;
        case 10:
        case 11:
          branch(m, seen, depth);
          continue;
        case 12:
          loop(m, seen, depth);
          continue;
      }
      seen.push_back(y);
    }
  }

  std::string condition(Onnx& m, const std::string& of) {
    const std::string mean = name(), bound = name(), c = name();
    m.f32(bound, {}, {static_cast<float>(random_.normal()) / 4});
    m.node("ReduceMean", {of}, {mean}).set("keepdims", 0).node("Greater", {mean, bound}, {c});
    return c;
  }

  void branch(Onnx& m, std::vector<std::string>& seen, int depth) {
    const std::string c = condition(m, any(seen)), y = name();
    Onnx graphs[2];
    for (Onnx& g : graphs) {
      std::vector<std::string> own = seen;
      fill(g, own, depth + 1, 1 + static_cast<int>(random_.below(3)));
      g.output(own.back());
    }
    m.node("If", {c}, {y}).set("then_branch", graphs[0]).set("else_branch", graphs[1]);
    seen.push_back(y);
  }

  void loop(Onnx& m, std::vector<std::string>& seen, int depth) {
    const std::string trips = name(), i = name(), on = name(), s = name(), y = name();
    m.i64(trips, {}, {static_cast<std::int64_t>(random_.below(4))});
    Onnx body;
    body.input(i, {}, DataType::i64).input(on, {}, DataType::boolean).input(s, {});
    std::vector<std::string> own = seen;
    own.push_back(s);
    fill(body, own, depth + 1, 1 + static_cast<int>(random_.below(2)));
    body.output(random_.below(2) == 0 ? condition(body, any(own)) : on, DataType::boolean);
    body.output(own.back());
    m.node("Loop", {trips, random_.below(2) == 0 ? condition(m, any(seen)) : "", any(seen)}, {y})
        .set("body", body);
    seen.push_back(y);
  }

  Random random_;
  int next_ = 0;
};

inline Onnx random_unlike_branches(std::uint64_t seed) {
  return UnlikeBranchesMaker(seed).whole();
}

inline Onnx random_control_flow(std::uint64_t seed) {
  return ControlFlowMaker(seed).whole();
}

inline SharedTensor control_flow_input(float scale, Random& random) {
  Tensor tensor(TensorType{DataType::f32, control_flow_shape});
  for (float& v : tensor.as<float>()) v = (static_cast<float>(random.normal()) + 0.2F) * scale;
  return std::make_shared<const Tensor>(std::move(tensor));
}

// The model with its only input fixed.
inline Onnx with_constant_input(Onnx m, const Tensor& x) {
  auto& graph = *m.proto.mutable_graph();
  const std::string name = graph.input(0).name();
  graph.clear_input();
  const auto values = x.as<float>();
  return m.f32(name, x.type().shape, {values.begin(), values.end()});
}

// The largest difference, relative for numbers above 1; infinite where types differ or a number is none.
inline double furthest(const SharedTensor& a, const SharedTensor& b) {
  if (a->type() != b->type()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < a->as<float>().size(); ++i) {
    const double x = static_cast<double>(a->as<float>()[i]), y = static_cast<double>(b->as<float>()[i]);
    const double difference = std::abs(x - y) / std::max(1.0, std::abs(y));
    most = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(most, difference);
  }
  return most;
}

}  // namespace carillon::graph::testing
