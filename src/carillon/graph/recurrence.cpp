#include "carillon/graph/recurrence.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

using Activation = Recurrence::Activation;
using Cell = Recurrence::Cell;
using Direction = Recurrence::Direction;
using Function = Recurrence::Function;

// Activations by name; `alpha` and `beta` are their defaults, which are those of the operators of that name.
struct Named {
  std::string_view name;  // in small letters
  Function function;
  bool takes_alpha = false, takes_beta = false;
  float alpha = 0, beta = 0;
};
constexpr std::array activation_names{
    Named{"affine", Function::affine, true, true, 1, 0},
    Named{"elu", Function::elu, true, false, 1},
    Named{"hardsigmoid", Function::hard_sigmoid, true, true, 0.2F, 0.5F},
    Named{"leakyrelu", Function::leaky_relu, true, false, 0.01F},
    Named{"relu", Function::relu},
    Named{"scaledtanh", Function::scaled_tanh, true, true, 1, 1},
    Named{"sigmoid", Function::sigmoid},
    Named{"softplus", Function::softplus},
    Named{"softsign", Function::softsign},
    Named{"tanh", Function::tanh},
    Named{"thresholdedrelu", Function::thresholded_relu, true, false, 1},
};

// ONNX's capital letters are not everybody's: exporters write "sigmoid" and "LeakyReLU".
const Named* find_activation(std::string_view name) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  const auto found = std::ranges::find_if(
      activation_names, [&](const Named& each) { return std::ranges::equal(name, each.name, {}, small); });
  return found == activation_names.end() ? nullptr : &*found;
}

std::array<Activation, 6> usual(const Recurrence& of) {
  const Activation sigmoid{.function = Function::sigmoid}, tanh{.function = Function::tanh};
  std::array<Activation, 6> all{};
  const auto count = static_cast<std::size_t>(of.functions());
  for (std::size_t i = 0; i < count * static_cast<std::size_t>(of.directions()); ++i)
    all[i] = count > 1 && i % count == 0 ? sigmoid : tanh;
  return all;
}

class Reader {
 public:
  Reader(const Node& node, std::span<const TensorType* const> inputs) : node_(node), inputs_(inputs) {}

  Result<Recurrence> read() {
    found_.cell = node_.op == "LSTM" ? Cell::lstm : node_.op == "GRU" ? Cell::gru : Cell::rnn;
    if (auto ok = read_attributes(); !ok) return std::unexpected(ok.error());
    if (auto ok = read_activations(); !ok) return std::unexpected(ok.error());
    if (auto ok = read_shapes(); !ok) return std::unexpected(ok.error());
    return found_;
  }

 private:
  std::unexpected<Error> error(const std::string& text) const {
    return invalid(describe(node_) + ": " + text);
  }
  const TensorType* type(std::size_t i) const { return i < inputs_.size() ? inputs_[i] : nullptr; }

  Result<> read_attributes() {
    const std::string_view direction = node_.text("direction", "forward");
    if (direction == "forward")
      found_.direction = Direction::forward;
    else if (direction == "reverse")
      found_.direction = Direction::reverse;
    else if (direction == "bidirectional")
      found_.direction = Direction::bidirectional;
    else
      return error("direction is '" + std::string(direction.substr(0, 40)) +
                   "', but must be forward, reverse or bidirectional");
    const std::int64_t layout = node_.integer("layout", 0);
    if (layout != 0 && layout != 1)
      return error("layout is " + std::to_string(layout) + ", but must be 0 or 1");
    found_.batch_first = layout == 1;
    found_.input_forget = node_.integer("input_forget", 0) != 0;
    found_.linear_before_reset = node_.integer("linear_before_reset", 0) != 0;
    if (node_.has("clip")) {
      found_.clip = node_.real("clip", 0);
      if (!(found_.clip >= 0))
        return error("clip is " + std::to_string(found_.clip) + ", but must be at least 0");
    }
    return {};
  }

  // Alphas and betas are given to those functions that take one, in their order.
  Result<> read_activations() {
    found_.activations = usual(found_);
    const auto found = node_.attributes.find("activations");
    if (found == node_.attributes.end()) return {};
    const auto& given = std::get<std::vector<std::string>>(found->second);
    const auto count = static_cast<std::size_t>(found_.functions() * found_.directions());
    if (given.size() != count)
      return error("activations has " + std::to_string(given.size()) + " names, but needs " +
                   std::to_string(count));
    auto alphas = node_.reals("activation_alpha"), betas = node_.reals("activation_beta");
    const auto next = [](std::span<const float>& values, float fallback) {
      if (values.empty()) return fallback;
      const float value = values.front();
      values = values.subspan(1);
      return value;
    };
    for (std::size_t i = 0; i < count; ++i) {
      const Named* const named = find_activation(given[i]);
      if (named == nullptr)
        return fail(ErrorCode::unsupported,
                    describe(node_) + ": activation '" + given[i].substr(0, 40) + "' is not supported");
      found_.activations[i] = {.function = named->function, .alpha = named->alpha, .beta = named->beta};
      if (named->takes_alpha) found_.activations[i].alpha = next(alphas, named->alpha);
      if (named->takes_beta) found_.activations[i].beta = next(betas, named->beta);
    }
    return {};
  }

  Result<> require_shape(std::size_t i, const char* name, std::initializer_list<std::int64_t> wanted) const {
    if (type(i) == nullptr || std::ranges::equal(type(i)->shape, wanted)) return {};
    return error(std::string(name) + " (input " + std::to_string(i) + ") has shape " +
                 to_text(type(i)->shape) + ", but must have " + to_text(Shape(wanted)));
  }
  Result<> require_state(std::size_t i, const char* name) const {
    const std::int64_t n = found_.batch, d = found_.directions(), h = found_.hidden;
    return found_.batch_first ? require_shape(i, name, {n, d, h}) : require_shape(i, name, {d, n, h});
  }

  Result<> read_shapes() {
    for (const std::size_t i : {Recurrence::x, Recurrence::w, Recurrence::r}) {
      if (type(i) == nullptr || type(i)->shape.size() != 3)
        return error("input " + std::to_string(i) + " has shape " +
                     (type(i) == nullptr ? std::string("(absent)") : to_text(type(i)->shape)) +
                     ", but must have 3 dimensions");
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (type(i) == nullptr) continue;
      const DataType wanted = i == Recurrence::sequence_lens ? DataType::i32 : type(Recurrence::x)->type;
      if (type(i)->type != wanted ||
          !(i == Recurrence::sequence_lens || belongs(wanted, TypeClass::floating)))
        return error("input " + std::to_string(i) + " has type " + std::string(onnx_name(type(i)->type)) +
                     (i == Recurrence::sequence_lens ? ", but must be int32"
                                                     : ", but all must be of one floating-point type"));
    }
    const Shape &x = type(Recurrence::x)->shape, &r = type(Recurrence::r)->shape;
    found_.steps = x[found_.batch_first ? 1 : 0];
    found_.batch = x[found_.batch_first ? 0 : 1];
    found_.width = x[2];
    found_.hidden = r[2];
    const std::int64_t directions = found_.directions(), gates = found_.gates();
    if (found_.width < 1) return error("X (input 0) has shape " + to_text(x) + ": it is of no width");
    if (found_.hidden < 1 || r[1] % gates != 0 || r[1] / gates != found_.hidden)
      return error("R (input 2) has shape " + to_text(r) + ", but must have [" + std::to_string(directions) +
                   ", " + std::to_string(gates) + " * hidden, hidden]");
    if (node_.integer("hidden_size", found_.hidden) != found_.hidden)
      return error("hidden_size is " + std::to_string(node_.integer("hidden_size", 0)) +
                   ", but R (input 2) has shape " + to_text(r));
    if (auto ok = require_shape(Recurrence::r, "R", {directions, r[1], r[2]}); !ok) return ok;
    if (auto ok = require_shape(Recurrence::w, "W", {directions, r[1], x[2]}); !ok) return ok;
    if (auto ok = require_shape(Recurrence::b, "B", {directions, 2 * r[1]}); !ok) return ok;
    if (auto ok = require_shape(Recurrence::sequence_lens, "sequence_lens", {found_.batch}); !ok) return ok;
    if (auto ok = require_state(Recurrence::initial_h, "initial_h"); !ok) return ok;
    if (auto ok = require_state(Recurrence::initial_c, "initial_c"); !ok) return ok;
    if (auto ok = require_shape(Recurrence::p, "P", {directions, 3 * found_.hidden}); !ok) return ok;
    // All gates at all steps, and a few states: what kernels make room for.
    const std::array<std::int64_t, 3> all{found_.steps + 3, found_.batch, directions * r[1]};
    if (auto count = element_count(all); !count) return in_context(describe(node_), count.error());
    return {};
  }

  const Node& node_;
  std::span<const TensorType* const> inputs_;
  Recurrence found_;
};

}  // namespace

bool Recurrence::usual_activations() const {
  return activations == usual(*this);
}

Shape Recurrence::sequence_shape() const {
  if (batch_first) return {batch, steps, directions(), hidden};
  return {steps, directions(), batch, hidden};
}

Shape Recurrence::state_shape() const {
  if (batch_first) return {batch, directions(), hidden};
  return {directions(), batch, hidden};
}

bool is_recurrent(std::string_view op) {
  return op == "LSTM" || op == "GRU" || op == "RNN";
}

Result<Recurrence> recurrence_of(const Node& node, std::span<const TensorType* const> inputs) {
  return Reader(node, inputs).read();
}

}  // namespace carillon::graph
