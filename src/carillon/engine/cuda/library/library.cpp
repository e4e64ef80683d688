#include "carillon/engine/cuda/library/library.h"

#include <algorithm>

#include <fmt/format.h>

namespace carillon::engine::cuda {

std::string_view name_of(Number number) {
  switch (number) {
    case Number::f32:
      return "f32";
    case Number::tf32:
      return "tf32";
    case Number::f16:
      return "f16";
    case Number::bf16:
      return "bf16";
  }
  return "";
}

std::optional<Number> number_named(std::string_view name) {
  for (const Number each : {Number::f32, Number::tf32, Number::f16, Number::bf16})
    if (name == name_of(each)) return each;
  return std::nullopt;
}

std::string to_text(const Convolution& c) {
  return fmt::format("conv {} {}x{}x{}x{} {}x{}{}{}{} -> {}{}{}{}", name_of(c.number), c.batch, c.channels,
                     c.height, c.width, c.kernel_h, c.kernel_w,
                     c.stride_h * c.stride_w > 1 ? fmt::format("/{}", c.stride_h) : "",
                     c.dilation_h * c.dilation_w > 1 ? fmt::format(" dilated {}", c.dilation_h) : "",
                     c.groups > 1 ? fmt::format(" {} groups", c.groups) : "", c.filters,
                     c.residual_pitch != 0 ? " residual" : "", c.bias ? " bias" : "", c.relu ? " relu" : "");
}

std::string to_text(const Product& p) {
  constexpr std::string_view epilogues[] = {"", " relu", " gelu", " gelu (tanh)"};
  return fmt::format("product {} {}x [{}x{}{}] [{}x{}{}]{}{}{}", name_of(p.number), p.batch, p.rows, p.depth,
                     p.a.turned ? " turned" : "", p.depth, p.columns, p.b.turned ? " turned" : "",
                     p.residual_pitch != 0 ? " residual" : "", p.bias ? " bias" : "",
                     epilogues[static_cast<int>(p.epilogue)]);
}

std::optional<Product> as_product(const Convolution& c) {
  if (c.kernel_h != 1 || c.kernel_w != 1 || c.stride_h != 1 || c.stride_w != 1 || c.groups != 1 ||
      c.pad_top != 0 || c.pad_left != 0 || c.pad_bottom != 0 || c.pad_right != 0 ||
      c.out_height != c.height || c.out_width != c.width)
    return std::nullopt;
  return Product{.number = c.number,
                 .rows = std::int64_t{c.batch} * c.height * c.width,
                 .columns = c.filters,
                 .depth = c.channels,
                 .a = {.pitch = c.in_pitch},
                 .b = {.turned = true, .pitch = c.channels},
                 .out_pitch = c.out_pitch == c.filters ? 0 : c.out_pitch,
                 .residual_pitch = c.residual_pitch,
                 .bias = c.bias,
                 .epilogue = c.relu ? Epilogue::relu : Epilogue::none,
                 .alignment = c.alignment};
}

CallBytes bytes_of(const Convolution& c) {
  const std::uint64_t size = size_of(c.number);
  const auto image = [&](std::int64_t height, std::int64_t width, std::int64_t pitch) {
    return static_cast<std::uint64_t>(c.batch * height * width * pitch) * size;
  };
  return {.a = image(c.height, c.width, c.in_pitch),
          .b = static_cast<std::uint64_t>(std::int64_t{c.filters} * c.kernel_h * c.kernel_w *
                                          (c.channels / c.groups)) *
               size,
          .out = image(c.out_height, c.out_width, c.out_pitch),
          .bias = c.bias ? static_cast<std::uint64_t>(c.filters) * size : 0,
          .residual = image(c.out_height, c.out_width, c.residual_pitch)};
}

CallBytes bytes_of(const Product& p) {
  const std::uint64_t size = size_of(p.number);
  const auto matrix = [&](const Product::Matrix& m, std::int64_t rows, std::int64_t columns) {
    return static_cast<std::uint64_t>((p.batch - 1) * m.step + (m.turned ? columns : rows) * m.pitch) * size;
  };
  return {.a = matrix(p.a, p.rows, p.depth),
          .b = matrix(p.b, p.depth, p.columns),
          .out = static_cast<std::uint64_t>(p.batch * p.rows * std::max(p.out_pitch, p.columns)) * size,
          .bias = p.bias ? static_cast<std::uint64_t>(p.columns) * size : 0,
          .residual = static_cast<std::uint64_t>(p.rows * p.residual_pitch) * size};
}

namespace {
double sum_of(const CallBytes& bytes) {
  return static_cast<double>(bytes.a + bytes.b + bytes.out + bytes.bias + bytes.residual);
}
}  // namespace

CallWork work_of(const Convolution& c) {
  return {.kernel = fmt::format("conv {}", name_of(c.number)),
          .operations = 2.0 * c.batch * c.out_height * c.out_width * c.filters * c.kernel_h * c.kernel_w *
                        (c.channels / c.groups),
          .bytes = sum_of(bytes_of(c))};
}

CallWork work_of(const Product& p) {
  // What lies between the rows of an operand is not read.
  const auto matrix = [&](const Product::Matrix& m, std::int64_t rows, std::int64_t columns) {
    return (m.step == 0 ? 1 : p.batch) * rows * columns;
  };
  const std::int64_t elements = matrix(p.a, p.rows, p.depth) + matrix(p.b, p.depth, p.columns) +
                                p.batch * p.rows * p.columns + (p.bias ? p.columns : 0) +
                                (p.residual_pitch > 0 ? p.rows * p.columns : 0);
  return {.kernel = fmt::format("product {}", name_of(p.number)),
          .operations = 2.0 * static_cast<double>(p.batch * p.rows * p.columns * p.depth),
          .bytes = static_cast<double>(elements) * static_cast<double>(size_of(p.number))};
}

std::string identity(const Convolution& c) {
  return fmt::format(
      "{} out {}x{} strides {}x{} dilations {}x{} pads {} {} {} {} pitches {} {} {} aligned {}", to_text(c),
      c.out_height, c.out_width, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w, c.pad_top, c.pad_left,
      c.pad_bottom, c.pad_right, c.in_pitch, c.out_pitch, c.residual_pitch, c.alignment);
}

std::string identity(const Product& p) {
  const std::string rows = p.out_pitch == 0 && p.residual_pitch == 0
                               ? ""
                               : fmt::format(" rows {} {}", p.out_pitch, p.residual_pitch);
  return fmt::format("{} scale {} pitches {} {} steps {} {} aligned {}{}", to_text(p), p.scale, p.a.pitch,
                     p.b.pitch, p.a.step, p.b.step, p.alignment, rows);
}

}  // namespace carillon::engine::cuda
