#include <string>

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

bool is_byte(DataType type) {
  return type == DataType::u8 || type == DataType::i8;
}
bool is_quantised(DataType type) {
  return is_byte(type) || type == DataType::u16 || type == DataType::i16;
}
bool is_real(DataType type) {
  return type == DataType::f32 || type == DataType::f16 || type == DataType::bf16;
}

std::unexpected<Error> bad_type(const Inference& x, std::size_t i, std::string_view wanted) {
  return fail(ErrorCode::unsupported, describe(x.node()) + ": input " + std::to_string(i) + " has type " +
                                          std::string(onnx_name(x.input(i).type)) + "; supported are " +
                                          std::string(wanted));
}

std::int64_t elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

// Scale and zero point are of one for all of x, of one for each index of `axis`, or of one for each block
// along it.
Result<> check_scales(Inference& x) {
  const Shape& scale = x.shape(1);
  if (x.present(2) && x.shape(2) != scale && elements(x.shape(2)) * elements(scale) != 1)
    return x.error("its scale has shape " + to_text(scale) + " and its zero point " + to_text(x.shape(2)));
  const std::int64_t block = x.node().integer("block_size", 0);
  if (block < 0) return x.error("block_size is " + std::to_string(block) + ", but must be 0 or more");
  if (elements(scale) == 1) return {};
  auto axis = x.axis(x.node().integer("axis", 1), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  const std::int64_t extent = x.shape(0)[static_cast<std::size_t>(*axis)];
  Shape wanted{extent};
  if (block > 0) {
    wanted = x.shape(0);
    wanted[static_cast<std::size_t>(*axis)] = extent / block + (extent % block != 0 ? 1 : 0);
  }
  if (scale == wanted) return {};
  return x.error("its scale has shape " + to_text(scale) + ", but must be a scalar or " + to_text(wanted));
}

// Scale `scale` is a float; zero point `zero`, where it is there, is of the type of input `of`. Either is one
// for all or `count` of them, in whatever shape.
Result<> check_parameters(const Inference& x, std::size_t of, std::size_t scale, std::size_t zero,
                          std::int64_t count, std::string_view each) {
  const auto fits = [&](std::size_t i) -> Result<> {
    const std::int64_t there = elements(x.shape(i));
    if (there == 1 || there == count) return {};
    return x.error("input " + std::to_string(i) + " has shape " + to_text(x.shape(i)) +
                   ", but must be a scalar or have one number for each of the " + std::to_string(count) +
                   " " + std::string(each));
  };
  if (scale != 0) {
    if (x.input(scale).type != DataType::f32) return bad_type(x, scale, "float");
    if (auto ok = fits(scale); !ok) return ok;
  }
  if (!x.present(zero)) return {};
  if (x.input(zero).type != x.input(of).type) return x.require_same(of, zero);
  return fits(zero);
}

// The scale and the zero point of what a node makes, which says its type.
Result<DataType> result_type(const Inference& x, std::size_t scale, std::size_t zero) {
  if (x.input(scale).type != DataType::f32) return bad_type(x, scale, "float");
  if (!is_byte(x.input(zero).type)) return bad_type(x, zero, "uint8 and int8");
  for (const std::size_t i : {scale, zero})
    if (elements(x.shape(i)) != 1)
      return x.error("input " + std::to_string(i) + " has shape " + to_text(x.shape(i)) +
                     ", but must be a scalar");
  return x.input(zero).type;
}

Result<> bytes_alone(const Inference& x, std::size_t a, std::size_t b) {
  for (const std::size_t i : {a, b})
    if (!is_byte(x.input(i).type)) return bad_type(x, i, "uint8 and int8");
  return {};
}

std::int64_t rows_of(const Shape& a) {
  return a.size() < 2 ? 1 : a[a.size() - 2];
}
std::int64_t columns_of(const Shape& b) {
  return b.size() < 2 ? 1 : b.back();
}

}  // namespace

Result<> quantize_linear(Inference& x) {
  if (!is_real(x.input(0).type) && x.input(0).type != DataType::i32)
    return bad_type(x, 0, "float, float16, bfloat16 and int32");
  if (!is_real(x.input(1).type)) return bad_type(x, 1, "float, float16 and bfloat16");
  if (auto ok = check_scales(x); !ok) return ok;
  DataType to = DataType::u8;
  if (x.present(2)) {
    to = x.input(2).type;
  } else if (const std::int64_t wanted = x.node().integer("output_dtype", 0); wanted != 0) {
    const auto type = from_onnx_type(wanted);
    if (!type) return in_context(describe(x.node()), type.error());
    to = *type;
  }
  if (!is_quantised(to))
    return fail(ErrorCode::unsupported, describe(x.node()) + ": it makes " + std::string(onnx_name(to)) +
                                            "; supported are uint8, int8, uint16 and int16");
  x.set(0, to, x.shape(0));
  return {};
}

Result<> dequantize_linear(Inference& x) {
  if (!is_quantised(x.input(0).type) && x.input(0).type != DataType::i32)
    return bad_type(x, 0, "uint8, int8, uint16, int16 and int32");
  if (!is_real(x.input(1).type)) return bad_type(x, 1, "float, float16 and bfloat16");
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  if (auto ok = check_scales(x); !ok) return ok;
  if (const std::int64_t wanted = x.node().integer("output_dtype", 0);
      wanted != 0 && wanted != to_onnx_type(x.input(1).type))
    return fail(
        ErrorCode::unsupported,
        describe(x.node()) + ": output_dtype is another type than its scale's, which is not supported");
  x.set(0, x.input(1).type, x.shape(0));
  return {};
}

Result<> dynamic_quantize_linear(Inference& x) {
  if (x.input(0).type != DataType::f32) return bad_type(x, 0, "float");
  x.set(0, DataType::u8, x.shape(0));
  x.set(1, DataType::f32, {});
  x.set(2, DataType::u8, {});
  return {};
}

Result<> matmul_integer(Inference& x) {
  if (auto ok = bytes_alone(x, 0, 1); !ok) return ok;
  auto shape = matmul_shape(x, 0, 1);
  if (!shape) return std::unexpected(shape.error());
  if (auto ok = check_parameters(x, 0, 0, 2, rows_of(x.shape(0)), "rows"); !ok) return ok;
  if (auto ok = check_parameters(x, 1, 0, 3, columns_of(x.shape(1)), "columns"); !ok) return ok;
  x.set(0, DataType::i32, *std::move(shape));
  return {};
}

Result<> qlinear_matmul(Inference& x) {
  if (auto ok = bytes_alone(x, 0, 3); !ok) return ok;
  auto shape = matmul_shape(x, 0, 3);
  if (!shape) return std::unexpected(shape.error());
  if (auto ok = check_parameters(x, 0, 1, 2, rows_of(x.shape(0)), "rows"); !ok) return ok;
  if (auto ok = check_parameters(x, 3, 4, 5, columns_of(x.shape(3)), "columns"); !ok) return ok;
  auto type = result_type(x, 6, 7);
  if (!type) return std::unexpected(type.error());
  x.set(0, *type, *std::move(shape));
  return {};
}

Result<> conv_integer(Inference& x) {
  if (auto ok = bytes_alone(x, 0, 1); !ok) return ok;
  auto shape = conv_shape(x, 0, 1);
  if (!shape) return std::unexpected(shape.error());
  if (auto ok = check_parameters(x, 0, 0, 2, 1, "input"); !ok) return ok;
  if (auto ok = check_parameters(x, 1, 0, 3, x.shape(1)[0], "channels"); !ok) return ok;
  x.set(0, DataType::i32, *std::move(shape));
  return {};
}

Result<> qlinear_conv(Inference& x) {
  if (auto ok = bytes_alone(x, 0, 3); !ok) return ok;
  auto shape = conv_shape(x, 0, 3);
  if (!shape) return std::unexpected(shape.error());
  const std::int64_t channels = x.shape(3)[0];
  if (auto ok = check_parameters(x, 0, 1, 2, 1, "input"); !ok) return ok;
  if (auto ok = check_parameters(x, 3, 4, 5, channels, "channels"); !ok) return ok;
  if (x.present(8) && (x.input(8).type != DataType::i32 || x.shape(8) != Shape{channels}))
    return x.error("its bias must be int32 of shape " + to_text(Shape{channels}));
  auto type = result_type(x, 6, 7);
  if (!type) return std::unexpected(type.error());
  x.set(0, *type, *std::move(shape));
  return {};
}

}  // namespace carillon::graph::infer
