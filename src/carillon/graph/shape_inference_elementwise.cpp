#include <algorithm>
#include <utility>

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

Result<> unary(Inference& x, TypeClass wanted) {
  if (auto ok = x.require(0, wanted); !ok) return ok;
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

// All inputs from `first` on have one type and broadcast together.
Result<Shape> broadcast_all(const Inference& x, std::size_t first, TypeClass wanted) {
  Shape shape = x.shape(first);
  for (std::size_t i = first; i < x.inputs(); ++i) {
    if (auto ok = x.require(i, wanted); !ok) return std::unexpected(ok.error());
    if (auto ok = x.require_same(first, i); !ok) return std::unexpected(ok.error());
    auto both = broadcast(shape, x.shape(i));
    if (!both) return x.error(both.error().message);
    shape = *std::move(both);
  }
  return shape;
}

Result<> binary(Inference& x, TypeClass wanted) {
  auto shape = broadcast_all(x, 0, wanted);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<> compare(Inference& x, TypeClass wanted) {
  auto shape = broadcast_all(x, 0, wanted);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, DataType::boolean, *std::move(shape));
  return {};
}

}  // namespace

Result<> unfit(Inference& x) {
  const auto shape = x.node().integers("shape");
  x.set(0, static_cast<DataType>(x.node().integer("type", 0)), Shape(shape.begin(), shape.end()));
  return {};
}

Result<> same_as_input(Inference& x) {
  return unary(x, TypeClass::any);
}
Result<> unary_float(Inference& x) {
  return unary(x, TypeClass::floating);
}
Result<> unary_number(Inference& x) {
  return unary(x, TypeClass::number);
}
Result<> logical_not(Inference& x) {
  return unary(x, TypeClass::boolean);
}
Result<> bitwise_not(Inference& x) {
  return unary(x, TypeClass::integer);
}

Result<> float_test(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  x.set(0, DataType::boolean, x.shape(0));
  return {};
}

Result<> binary_number(Inference& x) {
  return binary(x, TypeClass::number);
}
Result<> binary_integer(Inference& x) {
  return binary(x, TypeClass::integer);
}
Result<> binary_boolean(Inference& x) {
  return binary(x, TypeClass::boolean);
}
Result<> variadic_number(Inference& x) {
  return binary(x, TypeClass::number);
}
Result<> comparison(Inference& x) {
  return compare(x, TypeClass::number);
}
Result<> equality(Inference& x) {
  return compare(x, TypeClass::any);
}

Result<> power(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  if (auto ok = x.require(1, TypeClass::number); !ok) return ok;
  auto shape = broadcast(x.shape(0), x.shape(1));
  if (!shape) return x.error(shape.error().message);
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<> prelu(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  if (auto ok = x.require_same(0, 1); !ok) return ok;
  auto shape = broadcast(x.shape(0), x.shape(1));
  if (!shape || *shape != x.shape(0))
    return x.error("the slope's shape " + to_text(x.shape(1)) + " does not broadcast to " +
                   to_text(x.shape(0)));
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<> clip(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  // Before opset 11 the bounds were attributes; only here is their type known.
  for (const auto& [i, name] : {std::pair<std::size_t, std::string_view>{1, "min"}, {2, "max"}}) {
    if (!x.node().has(name)) continue;
    x.node().inputs.resize(std::max(x.inputs(), i + 1), no_value);
    x.node().inputs[i] = x.add_constant(name, scalar_of(x.input(0).type, x.node().real(name, 0)));
  }
  x.node().attributes.clear();
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!x.present(i)) continue;
    if (auto ok = x.require_same(0, i); !ok) return ok;
    const Shape& shape = x.shape(i);
    if (!shape.empty() && !(shape.size() == 1 && shape[0] == 1))
      return x.error("its bounds must be scalars, not " + to_text(shape));
  }
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> where(Inference& x) {
  if (auto ok = x.require(0, TypeClass::boolean); !ok) return ok;
  auto shape = broadcast_all(x, 1, TypeClass::any);
  if (!shape) return std::unexpected(shape.error());
  auto both = broadcast(x.shape(0), *shape);
  if (!both) return x.error(both.error().message);
  x.set(0, x.input(1).type, *std::move(both));
  return {};
}

Result<> cast(Inference& x) {
  const auto to = from_onnx_type(x.node().integer("to", 0));
  if (!to) return in_context(describe(x.node()), to.error());
  if (*to == DataType::string || x.input(0).type == DataType::string)
    return fail(ErrorCode::unsupported, describe(x.node()) + ": casts from or to string are not supported");
  x.set(0, *to, x.shape(0));
  return {};
}

Result<> cast_like(Inference& x) {
  const DataType to = x.input(1).type;
  x.node().op = "Cast";
  x.node().inputs.resize(1);
  x.node().attributes.insert_or_assign("to", Attribute{to_onnx_type(to)});
  return cast(x);
}

Result<> softmax(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", -1), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> dropout(Inference& x) {
  if (x.present(2)) {
    const Tensor* training = x.constant(2);
    if (training == nullptr || training->type().type != DataType::boolean || training->type().elements() != 1)
      return fail(ErrorCode::unsupported, describe(x.node()) + ": training_mode must be a constant");
    const Tensor* ratio = x.constant(1);
    const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
    const bool drops = training->bytes()[0] != std::byte{0} &&
                       (ratio == nullptr || !std::ranges::all_of(ratio->bytes(), is_zero));
    if (drops && (!x.node().has("seed") || (x.present(1) && x.input(1).elements() != 1)))
      return fail(
          ErrorCode::unsupported,
          describe(x.node()) + ": training_mode is set, and it has no seed: what it drops nobody could tell");
    if (drops) {
      x.node().op = "TrainingDropout";
      x.node().inputs.resize(2);
    }
  }
  x.set(0, x.input(0).type, x.shape(0));
  x.set(1, DataType::boolean, x.shape(0));
  return {};
}

}  // namespace carillon::graph::infer
