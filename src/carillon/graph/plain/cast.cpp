// Cast and CastLike: the output's type says what to make.

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Between f16 and f32, eight at a time where the processor converts them itself (all with AVX2 do): models in
// f16 are computed in f32, so their inputs and outputs are converted on every run. Converts the first
// elements, and says how many.
#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) std::int64_t widen_eights(const Half* x, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  return i;
}
__attribute__((target("avx,f16c"))) std::int64_t narrow_eights(const float* x, Half* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
bool converts_halves() {
  static const bool found = __builtin_cpu_supports("avx") != 0 && __builtin_cpu_supports("f16c") != 0;
  return found;
}
std::int64_t convert_eights(const Half* x, float* y, std::int64_t count) {
  return converts_halves() ? widen_eights(x, y, count) : 0;
}
std::int64_t convert_eights(const float* x, Half* y, std::int64_t count) {
  return converts_halves() ? narrow_eights(x, y, count) : 0;
}
#endif
template <typename From, typename To>
std::int64_t convert_eights(const From*, To*, std::int64_t) {
  return 0;
}

template <typename From, typename To>
Result<> cast_to(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  if (outputs[0].type->elements() != count) return misfit(node, inputs, outputs);
  const From* x = inputs[0].as<From>();
  To* __restrict y = outputs[0].as<To>();
  if constexpr (std::is_same_v<From, To> && !std::is_same_v<From, Boolean>) {
    std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(To));
  } else {
    for (std::int64_t i = convert_eights(x, y, count); i < count; ++i)
      y[i] = store<To>(number_cast<Compute<To>>(load(x[i])));
  }
  return {};
}

template <typename From>
Result<> cast(const Node& node, Inputs inputs, Outputs outputs) {
  const PlainKernel chosen =
      AllTypes::pick(outputs[0].type->type, []<typename To>() -> PlainKernel { return &cast_to<From, To>; });
  if (chosen == nullptr)
    return failed(node, "cannot cast to " + std::string(onnx_name(outputs[0].type->type)));
  return chosen(node, inputs, outputs);
}

PlainKernel find(const Node& node, InputTypes types) {
  constexpr std::int64_t onnx_string = 8;  // TensorProto.DataType
  if (type_at(types, 0) == nullptr || node.integer("to", 0) == onnx_string) return nullptr;
  return AllTypes::pick(types[0]->type, []<typename From>() -> PlainKernel { return &cast<From>; });
}

constexpr Operator operators[] = {{"Cast", &find}, {"CastLike", &find}};

}  // namespace

std::span<const Operator> cast_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
