#include "carillon/engine/cuda/kernels/chain_source.h"

#include <bit>
#include <cstdint>
#include <iterator>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/kernels/header_texts.h"

namespace carillon::engine::cuda::kernels {

namespace {

std::string_view type_name(Type type) {
  switch (type) {
    case Type::f32:
      return "float";
    case Type::f16:
      return "Half";
    case Type::bf16:
      return "Bfloat";
    case Type::i32:
      return "std::int32_t";
    case Type::i64:
      return "std::int64_t";
    case Type::boolean:
      return "Bool";
  }
  return {};
}

// The names of the enumerators, in their order.
constexpr std::string_view op_names[] = {"copy",    "neg", "abs",   "sqrt", "rsqrt",      "exp",   "log",
                                         "sigmoid", "erf", "floor", "ceil", "reciprocal", "add",   "sub",
                                         "mul",     "div", "min",   "max",  "pow",        "where", "fma"};
static_assert(std::size(op_names) == static_cast<std::size_t>(Op::fma) + 1);
constexpr std::string_view activation_names[] = {"none",      "relu",  "relu6", "gelu_erf",
                                                 "gelu_tanh", "swish", "tanh",  "clip"};
static_assert(std::size(activation_names) == static_cast<std::size_t>(Activation::clip) + 1);
constexpr std::string_view comparison_names[] = {"equal",         "less",        "less_equal", "greater",
                                                 "greater_equal", "logical_and", "logical_or", "logical_xor"};
static_assert(std::size(comparison_names) == static_cast<std::size_t>(Comparison::logical_xor) + 1);
constexpr std::string_view reading_names[] = {"dense", "single", "run", "repeated", "apart"};
static_assert(std::size(reading_names) == static_cast<std::size_t>(Chain::Reading::apart) + 1);

template <typename Enum, std::size_t N>
std::string_view named(const std::string_view (&names)[N], Enum which) {
  CARILLON_ASSERT(static_cast<std::size_t>(which) < N);
  return names[static_cast<std::size_t>(which)];
}

// Text that grows by what is put into it.
class Text {
 public:
  template <typename... Parts>
  Text& operator()(const Parts&... parts) {
    (put(parts), ...);
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  void put(std::string_view part) { text_ += part; }
  void put(int number) { text_ += std::to_string(number); }
  std::string text_;
};

std::string bits(float value) {
  return "number::of_bits(" + std::to_string(std::bit_cast<std::uint32_t>(value)) + "U)";
}

void put_step(Text& text, const Chain::Step& step, int into) {
  const std::string_view type = type_name(step.type);
  text("      const ", type_name(step.result), " v", into, " = ");
  switch (step.kind) {
    case Chain::Step::Kind::arithmetic:
      text("arithmetic(Op::", named(op_names, step.op));
      for (int k = 0; k < 3; ++k)
        if (k < operands_of(step))
          text(", v", step.of[k]);
        else
          text(", ", type, "{}");
      text(", Activation::", named(activation_names, step.activation));
      if (step.activation == Activation::clip)
        text(", ", bits(step.low), ", ", bits(step.high), ");\n");
      else
        text(", 0.0F, 0.0F);\n");
      return;
    case Chain::Step::Kind::compare:
      text("compared(Comparison::", named(comparison_names, step.comparison), ", v", step.of[0], ", v",
           step.of[1], ");\n");
      return;
    case Chain::Step::Kind::select:
      text("chosen(v", step.of[0], ", v", step.of[1], ", v", step.of[2], ");\n");
      return;
    case Chain::Step::Kind::cast:
      text("convert<", type_name(step.result), ">(v", step.of[0], ");\n");
      return;
  }
}

}  // namespace

std::string chain_source(const Chain& chain, std::string_view symbol) {
  Text text;
  const std::string_view out = type_name(chain.steps[chain.step_count - 1].result);
  text(
      "#include \"carillon/engine/cuda/kernels/chain_body.h\"\n\nnamespace carillon::engine::cuda::kernels "
      "{\n\n"
      "struct ",
      symbol, "_body {\n  using Out = ", out, ";\n  static constexpr int pack = ", chain.pack,
      ";\n  static CARILLON_DEVICE bool packs([[maybe_unused]] const ChainParams& p) {\n    return true");
  for (int i = 0; i < chain.operand_count; ++i)
    if (chain.operands[i].reading == Chain::Reading::dense ||
        chain.operands[i].reading == Chain::Reading::run)
      text(" && aligned(p.operands[", i, "].at)");
  text(";\n  }\n  template <int N>\n  static CARILLON_DEVICE Pack<", out,
       ", N> at(const ChainParams& p, std::uint32_t index) {\n");
  for (int i = 0; i < chain.operand_count; ++i) {
    const Chain::Operand& operand = chain.operands[i];
    text("    const auto in", i, " = read_", named(reading_names, operand.reading), "<",
         type_name(operand.type), ", N");
    if (operand.reading != Chain::Reading::dense && operand.reading != Chain::Reading::single)
      text(", ", operand.rank);
    text(">(p.operands[", i, "], index);\n");
  }
  text("    Pack<", out, ", N> out;\n    CARILLON_UNROLL\n    for (int j = 0; j < N; ++j) {\n");
  for (int i = 0; i < chain.operand_count; ++i)
    text("      const ", type_name(chain.operands[i].type), " v", i, " = in", i, ".at[j];\n");
  for (int i = 0; i < chain.step_count; ++i) put_step(text, chain.steps[i], chain.operand_count + i);
  text("      out.at[j] = v", chain.operand_count + chain.step_count - 1,
       ";\n    }\n    return out;\n  }\n};\n\n}  // namespace carillon::engine::cuda::kernels\n\n"
       "CARILLON_CHAIN(",
       symbol, ", carillon::engine::cuda::kernels::", symbol, "_body)\n");
  return text.take();
}

std::span<const SourceHeader> chain_headers() {
  static constexpr SourceHeader headers[] = {
      {"carillon/engine/cuda/kernels/number.h", header_texts::number},
      {"carillon/engine/cuda/kernels/params.h", header_texts::params},
      {"carillon/engine/cuda/kernels/kernel.h", header_texts::kernel},
      {"carillon/engine/cuda/kernels/elements.h", header_texts::elements},
      {"carillon/engine/cuda/kernels/chain_body.h", header_texts::chain_body},
  };
  return headers;
}

std::span<const SourceHeader> standard_headers() {
  static constexpr SourceHeader headers[] = {
      {"cstdint", R"(#pragma once
namespace std {
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
}
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
)"},
      {"cstring", "#pragma once\n"},
      {"cmath", "#pragma once\n#define INFINITY __int_as_float(0x7f800000)\n"},
  };
  return headers;
}

}  // namespace carillon::engine::cuda::kernels
