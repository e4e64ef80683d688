#include <array>
#include <optional>
#include <string>
#include <utility>

#include "carillon/engine/cpu/byte_depthwise.h"
#include "carillon/engine/cpu/byte_product.h"
#include "carillon/engine/cpu/convolution.h"
#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {
namespace {

using graph::PostOp;
using graph::SharedTensor;
using graph::ValueId;

// Operands of QLinearMatMul, QLinearConv or MatMulInteger; no_value where there is none.
struct ByteOperands {
  ValueId x = graph::no_value, x_scale = graph::no_value, x_zero = graph::no_value;
  ValueId w = graph::no_value, w_scale = graph::no_value, w_zero = graph::no_value;
  ValueId y_scale = graph::no_value, y_zero = graph::no_value, bias = graph::no_value;

  explicit ByteOperands(const graph::Node& node) {
    const auto input = [&](std::size_t i) {
      return i < node.inputs.size() ? node.inputs[i] : graph::no_value;
    };
    if (node.op == "MatMulInteger") {
      x = input(0), w = input(1), x_zero = input(2), w_zero = input(3);
      return;
    }
    x = input(0), x_scale = input(1), x_zero = input(2);
    w = input(3), w_scale = input(4), w_zero = input(5);
    y_scale = input(6), y_zero = input(7), bias = input(8);
  }
};

std::int32_t byte_of(const graph::Tensor& tensor) {
  return tensor.type().type == graph::DataType::i8 ? std::int32_t{tensor.as<std::int8_t>()[0]}
                                                   : std::int32_t{tensor.as<std::uint8_t>()[0]};
}

class ByteProductLowering {
 public:
  ByteProductLowering(PlanBuilder& builder, const graph::Node& node, ByteProduct::Instructions with)
      : builder_(builder), node_(node), p_(node), output_(node.outputs[0]), with_(with) {}

  bool lower() {
    if (!read()) return false;
    const SharedTensor given = builder_.constant(p_.w),
                       zero = p_.w_zero == graph::no_value ? nullptr : builder_.constant(p_.w_zero);
    if (depthwise_) return lower_depthwise(given, zero);
    shape_.shifted_weights = ByteProduct::shifts(*given, zero.get());
    if (shape_.window && shape_.shifted_weights) return false;
    const SharedTensor w = !shape_.window ? given : builder_.derive("weights by depth", {given}, [&] {
      return ByteProduct::by_depth(*given, *shape_.window);
    });
    std::vector<SharedTensor> from{w};
    if (zero != nullptr) from.push_back(zero);
    const std::string with = " for instructions " + std::to_string(static_cast<int>(with_));
    const SharedTensor packed = builder_.derive("weights of a product of bytes" + with, from,
                                                [&] { return ByteProduct::pack(*w, zero.get(), with_); });
    shape_.sorted = ByteProduct::is_sorted(*packed);
    std::vector<Operand> operands(static_cast<std::size_t>(ByteProduct::operands));
    const auto layout = [&](const Desc& plain) {
      return shape_.window ? channels_last(plain.get_dims(), plain.get_data_type()) : plain;
    };
    operands[ByteProduct::x] = builder_.in_layout(p_.x, layout(builder_.plain_desc(p_.x)));
    operands[ByteProduct::w] = raw(packed);
    if (shape_.window) operands[ByteProduct::steps] = raw(steps(packed));
    if (p_.x_zero != graph::no_value && !builder_.is_constant(p_.x_zero))
      operands[ByteProduct::x_zero] = builder_.row_major(p_.x_zero);
    if (p_.x_scale != graph::no_value && !builder_.is_constant(p_.x_scale))
      operands[ByteProduct::x_scale] = builder_.row_major(p_.x_scale);
    if (shape_.made != ByteProduct::Made::whole) scale(operands);
    std::size_t done = 0;
    std::vector<ByteProduct::After> behind;
    if (shape_.made == ByteProduct::Made::real && !shape_.window) done = read_post_ops(behind, operands);
    if (const std::uint64_t room = ByteProduct::room(shape_); room > 0)
      operands[ByteProduct::room_at] =
          builder_.temporary(row_major(std::array{static_cast<std::int64_t>(room)}, DnnlType::u8));
    const bool whole = done == node_.post_ops.size();
    // Whole sums are of no type that has a layout.
    const Desc y = builder_.is_laid_out(output_) ? layout(builder_.plain_desc(output_)) : Desc();
    const Operand result = whole ? builder_.define(output_, y) : builder_.temporary(y);
    operands[ByteProduct::y] = result;
    builder_.append(node_.name + " bytes", std::make_unique<ByteProduct>(shape_, with_, std::move(behind)),
                    operands);
    if (!whole) apply_separately(builder_, node_, done, result);
    return true;
  }

 private:
  bool lower_depthwise(const SharedTensor& given, const SharedTensor& zero) {
    const bool is_constant = p_.x_zero == graph::no_value || builder_.is_constant(p_.x_zero);
    if (!is_constant || shape_.made == ByteProduct::Made::real || !ByteDepthwise::takes(*shape_.window))
      return false;
    const ByteDepthwise::Shape shape{.window = *shape_.window,
                                     .signed_source = shape_.signed_source,
                                     .signed_result = shape_.made == ByteProduct::Made::signed_bytes,
                                     .x_zero = shape_.x_zero,
                                     .y_zero = shape_.y_zero};
    std::vector<SharedTensor> from{given};
    if (zero != nullptr) from.push_back(zero);
    const SharedTensor packed =
        builder_.derive("weights by channel over " + std::to_string(shape.x_zero), from,
                        [&] { return ByteDepthwise::pack(*given, zero.get(), shape); });
    std::vector<Operand> scaled(static_cast<std::size_t>(ByteProduct::operands));
    scale(scaled);
    const auto layout = [&](ValueId id) {
      const Desc plain = builder_.plain_desc(id);
      return channels_last(plain.get_dims(), plain.get_data_type());
    };
    std::vector<Operand> operands(static_cast<std::size_t>(ByteDepthwise::operands));
    operands[ByteDepthwise::x] = builder_.in_layout(p_.x, layout(p_.x));
    operands[ByteDepthwise::w] = raw(packed);
    operands[ByteDepthwise::factors] = scaled[ByteProduct::factors];
    operands[ByteDepthwise::biases] = scaled[ByteProduct::biases];
    operands[ByteDepthwise::room_at] = builder_.temporary(
        row_major(std::array{static_cast<std::int64_t>(ByteDepthwise::room(shape))}, DnnlType::u8));
    operands[ByteDepthwise::y] = builder_.define(output_, layout(output_));
    builder_.append(node_.name + " bytes by channel", std::make_unique<ByteDepthwise>(shape), operands);
    return true;
  }

  // What the kernel does not do is false.
  bool read() {
    if (!builder_.is_byte(p_.x) || builder_.is_constant(p_.x) || !builder_.is_byte(p_.w) ||
        !builder_.is_constant(p_.w))
      return false;
    if (builder_.type(output_).elements() == 0 ||
        !(node_.op == "QLinearConv" ? read_window() : read_matrices()))
      return false;
    shape_.signed_source = builder_.type(p_.x).type == graph::DataType::i8;
    switch (builder_.type(output_).type) {
      case graph::DataType::i32:
        shape_.made = ByteProduct::Made::whole;
        break;
      case graph::DataType::f32:
        shape_.made = ByteProduct::Made::real;
        break;
      case graph::DataType::u8:
        shape_.made = ByteProduct::Made::bytes;
        break;
      case graph::DataType::i8:
        shape_.made = ByteProduct::Made::signed_bytes;
        break;
      default:
        return false;
    }
    const bool whole = shape_.made == ByteProduct::Made::whole;
    if (!whole && !builder_.is_laid_out(output_)) return false;
    if (whole != (node_.op == "MatMulInteger")) return false;
    const auto fits = [&](ValueId id, std::int64_t most, bool constant, graph::DataType type) {
      if (id == graph::no_value) return true;
      const std::int64_t count = builder_.type(id).elements();
      return (count == 1 || count == most) && (!constant || builder_.is_constant(id)) &&
             builder_.type(id).type == type;
    };
    using graph::DataType;
    const bool rounded =
        shape_.made == ByteProduct::Made::bytes || shape_.made == ByteProduct::Made::signed_bytes;
    if (!fits(p_.x_zero, 1, false, builder_.type(p_.x).type) ||
        !fits(p_.w_zero, shape_.columns, true, builder_.type(p_.w).type) ||
        !fits(p_.x_scale, 1, false, DataType::f32) ||
        !fits(p_.w_scale, shape_.columns, true, DataType::f32) || !fits(p_.y_scale, 1, true, DataType::f32) ||
        !fits(p_.y_zero, 1, true, builder_.type(output_).type) ||
        !fits(p_.bias, shape_.columns, true, DataType::i32))
      return false;
    if (rounded && (p_.y_scale == graph::no_value || p_.y_zero == graph::no_value)) return false;
    if ((rounded || whole) && !node_.post_ops.empty()) return false;
    const bool dynamic = p_.x_scale != graph::no_value && !builder_.is_constant(p_.x_scale);
    // A bias is in units of the scales, which must be known.
    if (dynamic && (rounded || p_.bias != graph::no_value)) return false;
    if (p_.x_zero != graph::no_value && builder_.is_constant(p_.x_zero))
      shape_.x_zero = byte_of(*builder_.constant(p_.x_zero));
    if (rounded) shape_.y_zero = byte_of(*builder_.constant(p_.y_zero));
    return true;
  }

  bool read_matrices() {
    const graph::Shape &x = builder_.shape(p_.x), &w = builder_.shape(p_.w);
    if (w.size() != 2 || x.size() < 2) return false;
    shape_.depth = w[0];
    shape_.columns = w[1];
    shape_.rows = builder_.type(p_.x).elements() / w[0];
    return true;
  }
  // Of images, or of lines, which are images of one line; without groups, or with one for each channel.
  bool read_window() {
    const auto c = read_convolution(builder_, node_, p_.x, p_.w);
    const graph::Shape &x = builder_.shape(p_.x), &w = builder_.shape(p_.w);
    if (!c || c->transpose || x.size() < 3 || x.size() > 4) return false;
    if (c->weight_dims.size() != x.size()) {
      if (w[0] != x[1] || w[1] != 1 || c->weight_dims[0] != x[1]) return false;
      depthwise_ = true;
    }
    ByteProduct::Window window{.images = x[0], .width = x.back(), .channels = x[1]};
    if (x.size() == 4) window.height = x[2];
    for (std::size_t i = 0; i + 2 < x.size(); ++i) {
      const std::size_t axis = i + 4 - x.size();
      window.kernel[axis] = w[i + 2];
      window.strides[axis] = c->strides[i];
      window.dilations[axis] = c->dilations[i] + 1;  // oneDNN counts from 0
      window.before[axis] = c->pads_begin[i];
      window.behind[axis] = c->pads_end[i];
      if (c->pads_begin[i] < 0 || c->pads_end[i] < 0) return false;
    }
    const graph::Shape& y = builder_.shape(output_);
    if (y.back() != window.places(1) || (x.size() == 4 && y[2] != window.places(0))) return false;
    shape_.depth = window.depth();
    shape_.columns = w[0];
    shape_.rows = builder_.type(output_).elements() / w[0];
    // Steps are told where they begin in 32 bits.
    if (window.padded_height() * window.padded_width() * window.filled() >= std::int64_t{1} << 30)
      return false;
    shape_.window = window;
    return true;
  }
  SharedTensor steps(const SharedTensor& packed) {
    const ByteProduct::Window& w = *shape_.window;
    std::string what = "steps";
    for (const std::int64_t number : {w.padded_width(), w.filled(), w.kernel[1], w.dilations[0],
                                      w.dilations[1], static_cast<std::int64_t>(with_)})
      what += " " + std::to_string(number);
    return builder_.derive(what, {packed},
                           [&] { return ByteProduct::offsets(*packed, w, shape_.columns, with_); });
  }

  Operand raw(const SharedTensor& tensor) {
    return builder_.raw(
        tensor, row_major(std::array{static_cast<std::int64_t>(tensor->bytes().size())}, DnnlType::u8));
  }

  // Factors and biases of the sums.
  void scale(std::vector<Operand>& operands) {
    std::vector<SharedTensor> from{builder_.constant(p_.w_scale)};
    if (builder_.is_constant(p_.x_scale)) from.push_back(builder_.constant(p_.x_scale));
    const std::size_t over = from.size();
    if (p_.y_scale != graph::no_value) from.push_back(builder_.constant(p_.y_scale));
    const auto by_column = [&](std::span<const float> values) {
      return ByteProduct::by_column(values, shape_.columns, with_);
    };
    const std::string with = " of " + std::to_string(shape_.columns) + " columns for instructions " +
                             std::to_string(static_cast<int>(with_));
    const SharedTensor factors = builder_.derive(std::to_string(over) + " factors" + with, from, [&] {
      const auto w = from[0]->as<float>();
      std::vector<float> values(w.begin(), w.end());
      for (float& value : values) {
        if (over == 2) value *= from[1]->as<float>()[0];
        if (from.size() > over) value /= from[over]->as<float>()[0];
      }
      return by_column(values);
    });
    operands[ByteProduct::factors] = raw(factors);
    if (p_.bias == graph::no_value) return;
    const SharedTensor whole = builder_.constant(p_.bias);
    const SharedTensor biases = builder_.derive("biases" + with, {whole, factors}, [&] {
      std::vector<float> values(static_cast<std::size_t>(shape_.columns));
      const auto unit = factors->as<float>();
      const auto each = whole->as<std::int32_t>();
      for (std::size_t c = 0; c < values.size(); ++c)
        values[c] = static_cast<float>(each[each.size() == 1 ? 0 : c]) * unit[c];
      return by_column(values);
    });
    operands[ByteProduct::biases] = raw(biases);
  }

  static std::optional<ByteProduct::After::Kind> with_operand(PostOp::Kind kind) {
    using Kind = ByteProduct::After::Kind;
    return kind == PostOp::Kind::add        ? std::optional(Kind::add)
           : kind == PostOp::Kind::mul      ? std::optional(Kind::mul)
           : kind == PostOp::Kind::at_most  ? std::optional(Kind::at_most)
           : kind == PostOp::Kind::at_least ? std::optional(Kind::at_least)
                                            : std::nullopt;
  }
  // How many of the node's post-ops the kernel does.
  std::size_t read_post_ops(std::vector<ByteProduct::After>& behind, std::vector<Operand>& operands) {
    using Kind = ByteProduct::After::Kind;
    const Dims dims{shape_.rows, shape_.columns};
    for (std::size_t i = 0; i < node_.post_ops.size(); ++i) {
      const PostOp& op = node_.post_ops[i];
      if (i == ByteProduct::most_after) return i;
      if (op.kind == PostOp::Kind::relu) {
        behind.push_back({.kind = Kind::relu});
      } else if (op.kind == PostOp::Kind::clip) {
        behind.push_back({.kind = Kind::clip, .low = op.alpha, .high = op.beta});
      } else if (const auto kind = with_operand(op.kind)) {
        FusedPostOps seen;
        if (!append_post_ops(builder_, node_, i, i + 1, dims, seen)) return i;
        const Operand& operand = seen.arguments.front().second;
        if (!is_row_major(operand.desc) || operand.desc.get_data_type() != DnnlType::f32 ||
            operand.factor != 1)
          return i;
        const Dims has = operand.desc.get_dims();
        const std::int64_t column_step = has[1] == 1 ? 0 : 1, row_step = has[0] == 1 ? 0 : has[1];
        operands[ByteProduct::after + behind.size()] = operand;
        behind.push_back(
            {.kind = *kind, .row_step = row_step, .column_step = shape_.columns == 1 ? 0 : column_step});
      } else {
        return i;
      }
    }
    return node_.post_ops.size();
  }

  PlanBuilder& builder_;
  const graph::Node& node_;
  ByteOperands p_;
  ValueId output_;
  ByteProduct::Instructions with_;
  ByteProduct::Shape shape_;
  bool depthwise_ = false;  // each channel has a kernel of its own
};

}  // namespace

bool lower_byte_product(PlanBuilder& builder, const graph::Node& node) {
  const auto with = ByteProduct::of_this_processor();
  return with != ByteProduct::Instructions::none && ByteProductLowering(builder, node, with).lower();
}

}  // namespace carillon::engine::cpu
