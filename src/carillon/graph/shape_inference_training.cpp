#include <algorithm>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

// Scores [N, C, d...] and classes [N, d...], with a weight a class where there is an input 2.
Result<Shape> loss_shape(const Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return std::unexpected(ok.error());
  if (auto ok = x.require_rank(0, 2, 64); !ok) return std::unexpected(ok.error());
  const DataType classes = x.input(1).type;
  if (classes != DataType::i64 && classes != DataType::i32)
    return x.error("its classes (input 1) must be int64 or int32");
  Shape each = x.shape(0);
  each.erase(each.begin() + 1);
  if (x.shape(1) != each)
    return x.error("classes " + to_text(x.shape(1)) + " do not fit scores " + to_text(x.shape(0)));
  if (x.present(2)) {
    if (auto ok = x.require_same(0, 2); !ok) return std::unexpected(ok.error());
    if (x.shape(2) != Shape{x.shape(0)[1]})
      return x.error("its weights (input 2) must be one a class: " + std::to_string(x.shape(0)[1]));
  }
  const std::string_view reduction = x.node().text("reduction", "mean");
  if (reduction != "none" && reduction != "mean" && reduction != "sum")
    return x.error("reduction must be none, mean or sum");
  return reduction == "none" ? each : Shape{};
}

// One step of training: rate, count, and then for each of the tensors that are trained one input of every
// kind, kind by kind. Outputs are the new tensors, and the new ones of the kinds behind the gradients.
Result<> optimizer(Inference& x, std::size_t kinds) {
  const std::size_t given = x.inputs() - 2;
  if (x.input(0).type != DataType::f32 || x.input(0).elements() != 1)
    return x.error("its rate (input 0) must be one float");
  if (x.input(1).type != DataType::i64 || x.input(1).elements() != 1)
    return x.error("its count (input 1) must be one int64");
  if (given == 0 || given % kinds != 0 || x.outputs() != given / kinds * (kinds - 1))
    return x.error("it takes " + std::to_string(kinds) + " inputs, and makes " + std::to_string(kinds - 1) +
                   " outputs, for each tensor");
  const std::size_t tensors = given / kinds;
  for (std::size_t i = 2; i < x.inputs(); ++i) {
    const TensorType& trained = x.input(2 + (i - 2) % tensors);
    if (x.input(i).type != DataType::f32) return x.error("its tensors must be float");
    if (x.shape(i) != trained.shape)
      return x.error("input " + std::to_string(i) + " must have shape " + to_text(trained.shape));
  }
  for (std::size_t i = 0; i < x.outputs(); ++i) x.set(i, DataType::f32, x.shape(2 + i % tensors));
  return {};
}

}  // namespace

Result<> negative_log_likelihood(Inference& x) {
  auto shape = loss_shape(x);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<> softmax_cross_entropy(Inference& x) {
  auto shape = loss_shape(x);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, x.input(0).type, *std::move(shape));
  x.set(1, x.input(0).type, x.shape(0));
  return {};
}

Result<> adagrad(Inference& x) {
  return optimizer(x, 3);
}

Result<> adam(Inference& x) {
  return optimizer(x, 4);
}

Result<> momentum(Inference& x) {
  const std::string_view mode = x.node().text("mode", "");
  if (mode != "standard" && mode != "nesterov") return x.error("mode must be standard or nesterov");
  return optimizer(x, 3);
}

// y, and running mean and variance.
Result<> training_batch_normalization(Inference& x) {
  for (std::size_t i = 0; i < 5; ++i)
    if (auto ok = x.require(i, TypeClass::floating); !ok) return ok;
  for (const std::size_t i : {2U, 3U, 4U})
    if (auto ok = x.require_same(1, i); !ok) return ok;
  if (auto ok = x.require_rank(0, 2, 64); !ok) return ok;
  for (std::size_t i = 1; i < 5; ++i)
    if (x.shape(i) != Shape{x.shape(0)[1]})
      return x.error("input " + std::to_string(i) +
                     " must have one element a channel: " + std::to_string(x.shape(0)[1]));
  x.set(0, x.input(0).type, x.shape(0));
  for (const std::size_t i : {1U, 2U}) x.set(i, x.input(3).type, x.shape(3));
  return {};
}

}  // namespace carillon::graph::infer
