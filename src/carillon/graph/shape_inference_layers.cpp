#include <algorithm>

#include "carillon/graph/einsum.h"
#include "carillon/graph/recurrence.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

// Keeps every product and sum of window parameters well inside 64 bits.
constexpr std::int64_t window_limit = std::int64_t{1} << 24;

struct Window {
  std::vector<std::int64_t> kernel, strides, dilations, pads;  // pads: all begins, then all ends
};

Result<std::vector<std::int64_t>> window_attribute(const Inference& x, std::string_view name,
                                                   std::size_t count, std::int64_t fallback,
                                                   std::int64_t low) {
  const auto given = x.node().integers(name);
  if (given.empty()) return std::vector<std::int64_t>(count, fallback);
  if (given.size() != count)
    return x.error(std::string(name) + " has " + std::to_string(given.size()) + " numbers, but needs " +
                   std::to_string(count));
  for (const std::int64_t v : given)
    if (v < low || v > window_limit)
      return x.error(std::string(name) + " has " + std::to_string(v) + ", outside " + std::to_string(low) +
                     " to " + std::to_string(window_limit));
  return std::vector<std::int64_t>(given.begin(), given.end());
}

// Reads what is there, leaving auto_pad for the caller.
Result<Window> read_window(const Inference& x, std::vector<std::int64_t> kernel) {
  const std::size_t count = kernel.size();
  Window window{.kernel = std::move(kernel)};
  auto strides = window_attribute(x, "strides", count, 1, 1);
  if (!strides) return std::unexpected(strides.error());
  auto dilations = window_attribute(x, "dilations", count, 1, 1);
  if (!dilations) return std::unexpected(dilations.error());
  auto pads = window_attribute(x, "pads", count * 2, 0, 0);
  if (!pads) return std::unexpected(pads.error());
  window.strides = *std::move(strides);
  window.dilations = *std::move(dilations);
  window.pads = *std::move(pads);
  return window;
}

void write_window(Node& node, Window window) {
  node.attributes.insert_or_assign("kernel_shape", std::move(window.kernel));
  node.attributes.insert_or_assign("strides", std::move(window.strides));
  node.attributes.insert_or_assign("dilations", std::move(window.dilations));
  node.attributes.insert_or_assign("pads", std::move(window.pads));
  node.attributes.erase("auto_pad");
}

enum class AutoPad : std::uint8_t { notset, valid, same_upper, same_lower };

Result<AutoPad> read_auto_pad(const Inference& x) {
  const std::string_view text = x.node().text("auto_pad", "NOTSET");
  if (text == "NOTSET" || text.empty()) return AutoPad::notset;
  if (text == "VALID") return AutoPad::valid;
  if (text == "SAME_UPPER") return AutoPad::same_upper;
  if (text == "SAME_LOWER") return AutoPad::same_lower;
  return x.error("auto_pad is '" + std::string(text.substr(0, 40)) +
                 "', but must be NOTSET, VALID, SAME_UPPER or SAME_LOWER");
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

// Resolves auto_pad and gives the extents of the output.
Result<Shape> slide(const Inference& x, std::span<const std::int64_t> spatial, Window& window,
                    bool round_up) {
  auto mode = read_auto_pad(x);
  if (!mode) return std::unexpected(mode.error());
  Shape out;
  const std::size_t count = spatial.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t reach = (window.kernel[i] - 1) * window.dilations[i] + 1;
    const std::int64_t stride = window.strides[i];
    std::int64_t& begin = window.pads[i];
    std::int64_t& end = window.pads[count + i];
    if (*mode != AutoPad::notset) begin = end = 0;
    if (*mode == AutoPad::same_upper || *mode == AutoPad::same_lower) {
      const std::int64_t extent = ceil_div(spatial[i], stride);
      const std::int64_t total = std::max<std::int64_t>((extent - 1) * stride + reach - spatial[i], 0);
      begin = *mode == AutoPad::same_upper ? total / 2 : total - total / 2;
      end = total - begin;
    }
    const std::int64_t room = spatial[i] + begin + end - reach;
    if (room < 0)
      return x.error("its window of " + std::to_string(reach) + " does not fit in the padded extent " +
                     std::to_string(spatial[i] + begin + end) + " of dimension " + std::to_string(i + 2));
    std::int64_t extent = (round_up ? ceil_div(room, stride) : room / stride) + 1;
    // A window that would start in the padding at the end is left out.
    if (round_up && (extent - 1) * stride >= spatial[i] + begin) --extent;
    out.push_back(extent);
  }
  return out;
}

// The kernel's extents: those of the weights, with which kernel_shape must agree.
Result<std::vector<std::int64_t>> weight_kernel(const Inference& x, std::size_t weights = 1) {
  const Shape& weight = x.shape(weights);
  std::vector<std::int64_t> kernel(weight.begin() + 2, weight.end());
  for (const std::int64_t k : kernel)
    if (k < 1 || k > window_limit) return x.error("its weights have shape " + to_text(weight));
  const auto given = x.node().integers("kernel_shape");
  if (!given.empty() && !std::equal(given.begin(), given.end(), kernel.begin(), kernel.end()))
    return x.error("kernel_shape " + to_text(given) + " does not agree with weights of shape " +
                   to_text(weight));
  return kernel;
}

Result<> check_convolution(const Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_same(0, 1); !ok) return ok;
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 5); !ok) return ok;
  return x.require_rank(1, x.rank(0), x.rank(0));
}

Result<> check_channels(const Inference& x, std::size_t i, std::int64_t channels) {
  if (!x.present(i) || x.shape(i) == Shape{channels}) return {};
  return x.error("input " + std::to_string(i) + " has shape " + to_text(x.shape(i)) + ", but must have [" +
                 std::to_string(channels) + "]");
}

}  // namespace

Result<> conv(Inference& x) {
  if (auto ok = check_convolution(x); !ok) return ok;
  auto shape = conv_shape(x, 0, 1);
  if (!shape) return std::unexpected(shape.error());
  if (auto ok = check_channels(x, 2, x.shape(1)[0]); !ok) return ok;
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<Shape> conv_shape(Inference& x, std::size_t x_in, std::size_t weights) {
  if (auto ok = x.require_rank(x_in, 3, 5); !ok) return std::unexpected(ok.error());
  if (auto ok = x.require_rank(weights, x.rank(x_in), x.rank(x_in)); !ok) return std::unexpected(ok.error());
  const Shape& weight = x.shape(weights);
  const std::int64_t group = x.node().integer("group", 1);
  const std::int64_t channels = x.shape(x_in)[1];
  if (group < 1 || channels % group != 0 || channels / group != weight[1] || weight[0] % group != 0 ||
      weight[0] < 1)
    return x.error("input " + to_text(x.shape(x_in)) + ", weights " + to_text(weight) + " and group " +
                   std::to_string(group) + " do not fit together");
  auto kernel = weight_kernel(x, weights);
  if (!kernel) return std::unexpected(kernel.error());
  auto window = read_window(x, *std::move(kernel));
  if (!window) return std::unexpected(window.error());
  auto spatial = slide(x, std::span(x.shape(x_in)).subspan(2), *window, false);
  if (!spatial) return std::unexpected(spatial.error());
  Shape shape{x.shape(x_in)[0], weight[0]};
  shape.insert(shape.end(), spatial->begin(), spatial->end());
  write_window(x.node(), *std::move(window));
  x.node().attributes.insert_or_assign("group", Attribute{group});
  return shape;
}

Result<> conv_transpose(Inference& x) {
  if (auto ok = check_convolution(x); !ok) return ok;
  const Shape& weight = x.shape(1);
  const std::int64_t group = x.node().integer("group", 1);
  if (group < 1 || group > window_limit || x.shape(0)[1] != weight[0] || weight[0] % group != 0 ||
      weight[1] < 1 || weight[1] > window_limit)
    return x.error("input " + to_text(x.shape(0)) + ", weights " + to_text(weight) + " and group " +
                   std::to_string(group) + " do not fit together");
  const std::int64_t channels = weight[1] * group;
  if (auto ok = check_channels(x, 2, channels); !ok) return ok;
  auto kernel = weight_kernel(x);
  if (!kernel) return std::unexpected(kernel.error());
  const std::size_t count = kernel->size();
  auto window = read_window(x, *std::move(kernel));
  if (!window) return std::unexpected(window.error());
  auto more = window_attribute(x, "output_padding", count, 0, 0);
  if (!more) return std::unexpected(more.error());
  auto mode = read_auto_pad(x);
  if (!mode) return std::unexpected(mode.error());
  const auto wanted = x.node().integers("output_shape");
  if (!wanted.empty() && wanted.size() != count && wanted.size() != count + 2)
    return x.error("output_shape must have " + std::to_string(count) + " numbers");
  const bool same = *mode == AutoPad::same_upper || *mode == AutoPad::same_lower;

  Shape shape{x.shape(0)[0], channels};
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t stride = window->strides[i];
    const std::int64_t in = x.shape(0)[i + 2];
    if (in > (std::int64_t{1} << 32)) return x.error("input " + to_text(x.shape(0)) + " is too large");
    const std::int64_t reach = (window->kernel[i] - 1) * window->dilations[i] + 1;
    const std::int64_t full = stride * (in - 1) + (*more)[i] + reach;  // before pads are cut off
    std::int64_t& begin = window->pads[i];
    std::int64_t& end = window->pads[count + i];
    if (*mode == AutoPad::valid) begin = end = 0;
    if (same || !wanted.empty()) {
      const std::int64_t extent = wanted.empty() ? in * stride : wanted[wanted.size() - count + i];
      if (extent < 1 || extent > (std::int64_t{1} << 40)) return x.error("output_shape is out of range");
      const std::int64_t total = full - extent;
      if (total < 0) (*more)[i] -= total;
      const std::int64_t cut = std::max<std::int64_t>(total, 0);
      begin = *mode == AutoPad::same_upper ? cut / 2 : cut - cut / 2;
      end = cut - begin;
      shape.push_back(extent);
    } else {
      const std::int64_t extent = full - begin - end;
      if (in < 1 || extent < 1)
        return x.error("dimension " + std::to_string(i + 2) + " of the output would be " +
                       std::to_string(extent));
      shape.push_back(extent);
    }
  }
  x.set(0, x.input(0).type, std::move(shape));
  write_window(x.node(), *std::move(window));
  x.node().attributes.insert_or_assign("output_padding", *std::move(more));
  x.node().attributes.insert_or_assign("group", Attribute{group});
  x.node().attributes.erase("output_shape");
  return {};
}

Result<> pool(Inference& x) {
  if (auto ok = x.require(0, x.node().op == "MaxPool" ? TypeClass::number : TypeClass::floating); !ok)
    return ok;
  if (auto ok = x.require_rank(0, 3, 5); !ok) return ok;
  const std::size_t count = x.shape(0).size() - 2;
  if (x.node().integers("kernel_shape").empty()) return x.error("kernel_shape is missing");
  auto kernel = window_attribute(x, "kernel_shape", count, 1, 1);
  if (!kernel) return std::unexpected(kernel.error());
  auto window = read_window(x, *std::move(kernel));
  if (!window) return std::unexpected(window.error());
  auto spatial = slide(x, std::span(x.shape(0)).subspan(2), *window, x.node().integer("ceil_mode", 0) != 0);
  if (!spatial) return std::unexpected(spatial.error());
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t reach = (window->kernel[i] - 1) * window->dilations[i] + 1;
    if (window->pads[i] >= reach || window->pads[count + i] >= reach)
      return x.error("pads " + to_text(window->pads) + " are not smaller than the window " +
                     to_text(window->kernel));
  }
  Shape shape{x.shape(0)[0], x.shape(0)[1]};
  shape.insert(shape.end(), spatial->begin(), spatial->end());
  x.set(0, x.input(0).type, shape);
  x.set(1, DataType::i64, std::move(shape));
  write_window(x.node(), *std::move(window));
  return {};
}

Result<> global_pool(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 5); !ok) return ok;
  Shape shape = x.shape(0);
  for (std::size_t i = 2; i < shape.size(); ++i) {
    if (shape[i] == 0) return x.error("input " + to_text(x.shape(0)) + " has nothing to pool");
    shape[i] = 1;
  }
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> gemm(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (auto ok = x.require_same(0, i); !ok) return ok;
    if (auto ok = x.require_rank(i, 2, 2); !ok) return ok;
  }
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  const bool turn_a = x.node().integer("transA", 0) != 0;
  const bool turn_b = x.node().integer("transB", 0) != 0;
  const Shape& a = x.shape(0);
  const Shape& b = x.shape(1);
  const Shape shape{a[turn_a ? 1 : 0], b[turn_b ? 0 : 1]};
  if (a[turn_a ? 0 : 1] != b[turn_b ? 1 : 0])
    return x.error("matrices " + to_text(a) + (turn_a ? "^T" : "") + " and " + to_text(b) +
                   (turn_b ? "^T" : "") + " do not fit together");
  if (x.present(2)) {
    auto both = broadcast(shape, x.shape(2));
    if (!both || *both != shape)
      return x.error("C of shape " + to_text(x.shape(2)) + " does not broadcast to " + to_text(shape));
  }
  x.set(0, x.input(0).type, shape);
  return {};
}

Result<> matmul(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  if (auto ok = x.require_same(0, 1); !ok) return ok;
  auto shape = matmul_shape(x, 0, 1);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<Shape> matmul_shape(const Inference& x, std::size_t left, std::size_t right) {
  Shape a = x.shape(left);
  Shape b = x.shape(right);
  if (a.empty() || b.empty()) return x.error("its operands must have at least one dimension");
  const bool row = a.size() == 1;
  const bool column = b.size() == 1;
  if (row) a.insert(a.begin(), 1);
  if (column) b.push_back(1);
  const std::int64_t inner = a.back();
  if (inner != b[b.size() - 2])
    return x.error("matrices " + to_text(x.shape(left)) + " and " + to_text(x.shape(right)) +
                   " do not fit together");
  auto shape = broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!shape) return x.error(shape.error().message);
  if (!row) shape->push_back(a[a.size() - 2]);
  if (!column) shape->push_back(b.back());
  return shape;
}

Result<> batch_normalization(Inference& x) {
  if (x.node().integer("spatial", 1) != 1)
    return fail(ErrorCode::unsupported, describe(x.node()) + ": spatial = 0 is not supported");
  for (std::size_t i = 0; i < 5; ++i)
    if (auto ok = x.require(i, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 1, 64); !ok) return ok;
  const std::int64_t channels = x.rank(0) == 1 ? 1 : x.shape(0)[1];
  for (std::size_t i = 1; i < 5; ++i)
    if (auto ok = check_channels(x, i, channels); !ok) return ok;
  x.set(0, x.input(0).type, x.shape(0));
  for (std::size_t i = 1; i < x.outputs(); ++i)
    if (x.node().outputs[i] != no_value)
      return fail(ErrorCode::unsupported, describe(x.node()) + ": its outputs 1 to 4 exist only in training");
  return {};
}

Result<> layer_normalization(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", -1), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  const Shape& shape = x.shape(0);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!x.present(i)) continue;
    if (auto ok = x.require_same(0, i); !ok) return ok;
    // Scale and bias broadcast to the input; they may not reach beyond the normalised dimensions.
    auto both = broadcast(shape, x.shape(i));
    if (!both || *both != shape)
      return x.error("input " + std::to_string(i) + " of shape " + to_text(x.shape(i)) +
                     " does not broadcast to " + to_text(shape));
  }
  Shape reduced = shape;
  for (std::size_t i = static_cast<std::size_t>(*axis); i < reduced.size(); ++i) reduced[i] = 1;
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  x.set(0, x.input(0).type, shape);
  const DataType statistics = x.input(0).type == DataType::f64 ? DataType::f64 : DataType::f32;
  x.set(1, statistics, reduced);
  x.set(2, statistics, std::move(reduced));
  return {};
}

Result<> instance_normalization(Inference& x) {
  for (std::size_t i = 0; i < 3; ++i)
    if (auto ok = x.require(i, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 64); !ok) return ok;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (auto ok = x.require_same(0, i); !ok) return ok;
    if (auto ok = check_channels(x, i, x.shape(0)[1]); !ok) return ok;
  }
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> group_normalization(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 64); !ok) return ok;
  const std::int64_t groups = x.node().integer("num_groups", 0);
  const std::int64_t channels = x.shape(0)[1];
  if (groups < 1 || channels % groups != 0)
    return x.error("num_groups is " + std::to_string(groups) + ", but must divide the " +
                   std::to_string(channels) + " channels");
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (auto ok = x.require_same(0, i); !ok) return ok;
    if (x.shape(i) == Shape{channels}) continue;
    // Before opset 21 scale and bias were given by group.
    const Tensor* by_group = x.constant(i);
    if (by_group == nullptr || x.shape(i) != Shape{groups})
      return x.error("input " + std::to_string(i) + " must have shape [" + std::to_string(channels) +
                     "], or be a constant of shape [" + std::to_string(groups) + "]");
    Tensor spread(TensorType{by_group->type().type, {channels}});
    const std::size_t size = size_of(by_group->type().type);
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto from =
          by_group->bytes().subspan(static_cast<std::size_t>(c / (channels / groups)) * size, size);
      std::copy(from.begin(), from.end(), spread.bytes().begin() + c * static_cast<std::int64_t>(size));
    }
    x.node().inputs[i] = x.add_constant(i == 1 ? "scale" : "bias", std::move(spread));
  }
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> lrn(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 2, 64); !ok) return ok;
  const std::int64_t size = x.node().integer("size", 0);
  if (size < 1 || size > window_limit)
    return x.error("size is " + std::to_string(size) + ", but must be at least 1");
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> lp_normalization(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", -1), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  const std::int64_t p = x.node().integer("p", 2);
  if (p != 1 && p != 2) return x.error("p is " + std::to_string(p) + ", but must be 1 or 2");
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> mean_variance_normalization(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  std::vector<std::int64_t> axes{0, 2, 3};
  if (x.node().has("axes")) {
    const auto given = x.node().integers("axes");
    axes.assign(given.begin(), given.end());
  }
  auto resolved = x.axes(axes, x.rank(0));
  if (!resolved) return std::unexpected(resolved.error());
  x.node().attributes.insert_or_assign("axes", *std::move(resolved));
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> recurrent(Inference& x) {
  std::vector<const TensorType*> types;
  for (std::size_t i = 0; i < x.inputs(); ++i) types.push_back(x.present(i) ? &x.input(i) : nullptr);
  const auto shape = recurrence_of(x.node(), types);
  if (!shape) return std::unexpected(shape.error());
  x.set(0, x.input(0).type, shape->sequence_shape());
  x.set(1, x.input(0).type, shape->state_shape());
  x.set(2, x.input(0).type, shape->state_shape());
  return {};
}

Result<> einsum(Inference& x) {
  std::vector<const TensorType*> types;
  for (std::size_t i = 0; i < x.inputs(); ++i) {
    if (auto ok = x.require(i, TypeClass::number); !ok) return ok;
    if (auto ok = x.require_same(0, i); !ok) return ok;
    types.push_back(&x.input(i));
  }
  const auto asked = einsum_of(x.node(), types);
  if (!asked) return std::unexpected(asked.error());
  x.set(0, x.input(0).type, asked->result());
  return {};
}

}  // namespace carillon::graph::infer
