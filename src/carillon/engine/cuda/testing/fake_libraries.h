#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/library/cublaslt_api.h"
#include "carillon/engine/cuda/library/cudnn_api.h"
#include "carillon/engine/cuda/library/library.h"

// Stand-ins for cuBLASLt and cuDNN behind their tables: they keep what descriptors are told, read it by what
// the libraries' documentation says of it, and refuse what makes no sense. For tests, from one thread.
namespace carillon::engine::cuda::testing {

// --- cuBLASLt: matrices by columns

struct FakeLayout {
  std::uint64_t rows = 0, columns = 0;
  std::int64_t pitch = 0, step = 0;
  std::int32_t batch = 1;
  int type = 0;
};
struct FakeOperation {
  std::int32_t turns_a = 0, turns_b = 0;
  std::uint32_t epilogue = 1;
  const float* bias = nullptr;
  int compute = 0;
  std::int32_t processors = 0;
};
inline std::set<void*>& alive() {
  static std::set<void*> made;
  return made;
}
template <typename T>
blas::Status make(void** out, T made) {
  *out = new T(std::move(made));
  alive().insert(*out);
  return 0;
}
template <typename T>
blas::Status drop(void* made) {
  if (alive().erase(made) == 0) return 7;
  delete static_cast<T*>(made);
  return 0;
}

inline float element(const float* matrix, const FakeLayout& layout, bool turned, std::int64_t i,
                     std::int64_t row, std::int64_t column) {
  if (turned) std::swap(row, column);
  // What is no element makes the result nothing.
  if (row >= static_cast<std::int64_t>(layout.rows) || column >= static_cast<std::int64_t>(layout.columns))
    return NAN;
  return matrix[i * layout.step + column * layout.pitch + row];
}

// Where it is set, products are put into streams by this library; else they are computed at once, in f32.
inline MathLibrary*& computing() {
  static MathLibrary* library = nullptr;
  return library;
}

// Where it is set, to a device's processors, kernels are persistent: they need as many processors as they
// were sized for, or all of these.
inline unsigned& persistent() {
  static unsigned processors = 0;
  return processors;
}
// For so many processors, 0 where nobody said, calls were put into streams.
inline std::set<unsigned>& sized_for() {
  static std::set<unsigned> seen;
  return seen;
}
inline void size_next(std::int64_t processors) {
  sized_for().insert(static_cast<unsigned>(processors));
  if (persistent() != 0)
    Emulated::next_needs(processors != 0 ? static_cast<unsigned>(processors) : persistent());
}

inline Number number_of(int type, bool rounds, int f16, int bf16) {
  return type == f16 ? Number::f16 : type == bf16 ? Number::bf16 : rounds ? Number::tf32 : Number::f32;
}

inline blas::Status multiply(blas::Handle, blas::Operation operation, const void* alpha, const void* a,
                             blas::Layout a_layout, const void* b, blas::Layout b_layout, const void* beta,
                             const void* c, blas::Layout c_layout, void* d, blas::Layout d_layout,
                             const blas::Algorithm* algorithm, void*, std::size_t, Stream stream) {
  const auto& op = *static_cast<const FakeOperation*>(operation);
  const auto &la = *static_cast<const FakeLayout*>(a_layout), &lb = *static_cast<const FakeLayout*>(b_layout),
             &ld = *static_cast<const FakeLayout*>(d_layout);
  const float with_c = *static_cast<const float*>(beta);
  const auto& lc = *static_cast<const FakeLayout*>(c_layout);
  if (algorithm->data[0] != 42 || (with_c != 0 && with_c != 1) || lc.rows != ld.rows ||
      lc.columns != ld.columns)
    return 7;
  const auto m = static_cast<std::int64_t>(ld.rows), n = static_cast<std::int64_t>(ld.columns),
             k = static_cast<std::int64_t>(op.turns_a != 0 ? la.rows : la.columns);
  if (computing() != nullptr) {
    // As it lies by rows: out = b a.
    const Product product{
        .number = number_of(ld.type, op.compute == blas::compute_tf32, blas::type_f16, blas::type_bf16),
        .batch = ld.batch,
        .rows = n,
        .columns = m,
        .depth = k,
        .a = {.turned = op.turns_b != 0, .pitch = lb.pitch, .step = lb.step},
        .b = {.turned = op.turns_a != 0, .pitch = la.pitch, .step = la.step},
        .scale = *static_cast<const float*>(alpha),
        .out_pitch = ld.pitch == m ? 0 : ld.pitch,
        .residual_pitch = with_c == 1 ? lc.pitch : 0,
        .bias = (op.epilogue & 4U) != 0,
        .epilogue = (op.epilogue & 2U) != 0    ? Epilogue::relu
                    : (op.epilogue & 32U) != 0 ? Epilogue::gelu_tanh
                                               : Epilogue::none};
    if (ld.batch > 1 && (ld.pitch != m || ld.step != m * n || with_c == 1)) return 7;
    const auto at = [](const void* address) { return reinterpret_cast<Address>(address); };
    const auto call = computing()->product(product);
    size_next(op.processors);
    return call && (*call)->enqueue(stream, {.a = at(b),
                                             .b = at(a),
                                             .out = at(d),
                                             .bias = at(op.bias),
                                             .residual = with_c == 1 ? at(c) : 0})
               ? 0
               : 7;
  }
  for (std::int64_t i = 0; i < ld.batch; ++i)
    for (std::int64_t column = 0; column < n; ++column)
      for (std::int64_t row = 0; row < m; ++row) {
        float sum = 0;
        for (std::int64_t s = 0; s < k; ++s)
          sum += element(static_cast<const float*>(a), la, op.turns_a != 0, i, row, s) *
                 element(static_cast<const float*>(b), lb, op.turns_b != 0, i, s, column);
        sum *= *static_cast<const float*>(alpha);
        if (with_c == 1) sum += static_cast<const float*>(c)[column * lc.pitch + row];
        if ((op.epilogue & 4U) != 0) sum += op.bias[row];
        if ((op.epilogue & 2U) != 0) sum = std::max(sum, 0.0F);
        if ((op.epilogue & 32U) != 0)
          sum = 0.5F * sum * (1 + std::tanh(0.7978845608F * (sum + 0.044715F * sum * sum * sum)));
        static_cast<float*>(d)[i * ld.step + column * ld.pitch + row] = sum;
      }
  return 0;
}

inline std::map<int, std::uint32_t>& preferred() {
  static std::map<int, std::uint32_t> values;
  return values;
}

inline blas::Api fake_blas() {
  blas::Api api;
  api.version = []() -> std::size_t { return 130100; };
  api.status_name = [](blas::Status status) {
    return status == 1 ? "CUBLAS_STATUS_NOT_INITIALIZED" : "CUBLAS_STATUS_INVALID_VALUE";
  };
  api.create = [](blas::Handle* out) { return make(out, 0); };
  api.destroy = drop<int>;
  api.operation_create = [](blas::Operation* out, int compute, int) {
    return make(out, FakeOperation{.compute = compute});
  };
  api.operation_destroy = drop<FakeOperation>;
  api.operation_set = [](blas::Operation operation, int attribute, const void* value,
                         std::size_t bytes) -> blas::Status {
    auto& op = *static_cast<FakeOperation*>(operation);
    const auto put = [&](auto& to) { return bytes == sizeof to ? (std::memcpy(&to, value, bytes), 0) : 7; };
    return attribute == 3    ? put(op.turns_a)
           : attribute == 4  ? put(op.turns_b)
           : attribute == 7  ? put(op.epilogue)
           : attribute == 8  ? put(op.bias)
           : attribute == 15 ? put(op.processors)
                             : 7;
  };
  api.layout_create = [](blas::Layout* out, int type, std::uint64_t rows, std::uint64_t columns,
                         std::int64_t pitch) {
    if (pitch < static_cast<std::int64_t>(rows)) return 7;
    return make(out, FakeLayout{.rows = rows, .columns = columns, .pitch = pitch, .type = type});
  };
  api.layout_destroy = drop<FakeLayout>;
  api.layout_set = [](blas::Layout layout, int attribute, const void* value,
                      std::size_t bytes) -> blas::Status {
    auto& to = *static_cast<FakeLayout*>(layout);
    const auto put = [&](auto& field) {
      return bytes == sizeof field ? (std::memcpy(&field, value, bytes), 0) : 7;
    };
    return attribute == 5 ? put(to.batch) : attribute == 6 ? put(to.step) : 7;
  };
  api.preference_create = [](blas::Preference* out) { return make(out, char{}); };
  api.preference_destroy = drop<char>;
  api.preference_set = [](blas::Preference, int attribute, const void* value, std::size_t) {
    std::memcpy(&preferred()[attribute], value, sizeof(std::uint32_t));
    return 0;
  };
  api.heuristic = [](blas::Handle, blas::Operation, blas::Layout, blas::Layout, blas::Layout, blas::Layout,
                     blas::Preference, int, blas::Found* found, int* count) {
    found[0].state = 7;  // one that is none
    found[1].algorithm.data[0] = 42;
    found[2].algorithm.data[0] = 43;
    *count = 3;
    return 0;
  };
  api.multiply = multiply;
  return api;
}

// --- cuDNN: descriptors that hold what they were given

struct FakePart {
  int kind = 0;
  bool finished = false;
  std::map<int, std::vector<std::byte>> values;

  template <typename T>
  std::vector<T> all(int attribute) const {
    const auto found = values.find(attribute);
    if (found == values.end()) return {};
    std::vector<T> out(found->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), found->second.data(), out.size() * sizeof(T));
    return out;
  }
  template <typename T>
  T one(int attribute) const {
    const auto found = all<T>(attribute);
    return found.empty() ? T{} : found[0];
  }
  const FakePart* part(int attribute) const { return one<const FakePart*>(attribute); }
  template <typename T>
  void put(int attribute, const T& value) {
    values[attribute].resize(sizeof value);  // NOLINT(bugprone-sizeof-expression): a pointer is a value here
    std::memcpy(values[attribute].data(), &value, sizeof value);  // NOLINT(bugprone-sizeof-expression)
  }
};

// What happens when the engine that compiles does: a test's.
inline std::function<void()>& on_compile() {
  static std::function<void()> does;
  return does;
}
inline int& times_compiled() {
  static int count = 0;
  return count;
}

inline Stream& stream_of_dnn() {
  thread_local Stream stream = nullptr;
  return stream;
}

inline std::size_t width_of(int type) {
  switch (type) {
    case dnn::type::boolean:
    case dnn::type::character:
      return 1;
    case dnn::type::handle:
    case dnn::type::int64:
    case dnn::type::pointer:
    case dnn::type::descriptor:
      return 8;
    default:
      return 4;
  }
}

// The graph of a configuration's heuristic, or of its engine where there is no heuristic.
inline const FakePart* graph_of(const FakePart& config) {
  if (const FakePart* const found = config.part(dnn::attribute::heuristics_graph)) return found;
  const FakePart* const engine = config.part(dnn::attribute::config_engine);
  return engine == nullptr ? nullptr : engine->part(dnn::attribute::engine_graph);
}

inline std::int64_t index_of(const FakePart& config) {
  const FakePart* const engine = config.part(dnn::attribute::config_engine);
  return (engine == nullptr ? config : *engine).one<std::int64_t>(dnn::attribute::engine_index);
}
inline std::int64_t processors_of(const FakePart& config) {
  const FakePart* const engine = config.part(dnn::attribute::config_engine);
  return engine == nullptr ? 0 : engine->one<std::int32_t>(dnn::attribute::engine_processors);
}

// A convolution, and what is done to it, as its operations tell; false where they make no sense.
inline bool read(const FakePart& graph, Convolution& c, std::map<char, std::int64_t>& ids) {
  namespace at = dnn::attribute;
  const auto operations = graph.all<const FakePart*>(at::graph_operations);
  if (operations.empty() || operations[0]->kind != dnn::kind::convolve) return false;
  const FakePart &first = *operations[0], &how = *first.part(at::convolve_how);
  const auto shape = [](const FakePart& t) { return t.all<std::int64_t>(at::tensor_dimensions); };
  // Elements from a pixel to the next, where it lies channels last.
  const auto pitch = [&](const FakePart& t) -> std::int64_t {
    const auto d = shape(t), s = t.all<std::int64_t>(at::tensor_strides);
    return d.size() == 4 && s.size() == 4 && s[1] == 1 && s[2] == d[3] * s[3] && s[0] == d[2] * s[2] ? s[3]
                                                                                                     : -1;
  };
  const FakePart &x = *first.part(at::convolve_x), &w = *first.part(at::convolve_w);
  const FakePart* y = first.part(at::convolve_y);
  const auto xs = shape(x), ws = shape(w), ys = shape(*y);
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const auto strides = how.all<std::int64_t>(at::convolution_strides),
             dilations = how.all<std::int64_t>(at::convolution_dilations),
             before = how.all<std::int64_t>(at::convolution_pre),
             after = how.all<std::int64_t>(at::convolution_post);
  if (ws[1] == 0 || xs[1] % ws[1] != 0 || pitch(w) != ws[1]) return false;
  c = {.number = number_of(x.one<int>(at::tensor_type), false, dnn::value::data_f16, dnn::value::data_bf16),
       .batch = narrow(xs[0]),
       .channels = narrow(xs[1]),
       .height = narrow(xs[2]),
       .width = narrow(xs[3]),
       .filters = narrow(ws[0]),
       .kernel_h = narrow(ws[2]),
       .kernel_w = narrow(ws[3]),
       .out_height = narrow(ys[2]),
       .out_width = narrow(ys[3]),
       .stride_h = narrow(strides[0]),
       .stride_w = narrow(strides[1]),
       .dilation_h = narrow(dilations[0]),
       .dilation_w = narrow(dilations[1]),
       .groups = narrow(xs[1] / ws[1]),
       .pad_top = narrow(before[0]),
       .pad_left = narrow(before[1]),
       .pad_bottom = narrow(after[0]),
       .pad_right = narrow(after[1]),
       .in_pitch = pitch(x)};
  ids = {{'x', x.one<std::int64_t>(at::tensor_id)}, {'w', w.one<std::int64_t>(at::tensor_id)}};
  for (std::size_t i = 1; i < operations.size(); ++i) {
    const FakePart& operation = *operations[i];
    if (operation.kind != dnn::kind::apply || operation.part(at::apply_x) != y ||
        !(y->one<char>(at::tensor_virtual) != 0))
      return false;
    const int mode = operation.part(at::apply_how)->one<int>(at::pointwise_mode);
    const FakePart* b = operation.part(at::apply_b);
    if (mode == dnn::value::pointwise_relu) {
      c.relu = true;
    } else if (mode == dnn::value::pointwise_add && shape(*b) == std::vector<std::int64_t>{1, ws[0], 1, 1}) {
      c.bias = true;
      ids['b'] = b->one<std::int64_t>(at::tensor_id);
    } else if (mode == dnn::value::pointwise_add && shape(*b) == ys) {
      c.residual_pitch = pitch(*b);
      ids['r'] = b->one<std::int64_t>(at::tensor_id);
    } else {
      return false;
    }
    y = operation.part(at::apply_y);
  }
  ids['y'] = y->one<std::int64_t>(at::tensor_id);
  c.out_pitch = pitch(*y);
  std::set<std::int64_t> apart;
  for (const auto& [what, id] : ids) apart.insert(id);
  return apart.size() == ids.size() && !(y->one<char>(at::tensor_virtual) != 0) && c.in_pitch >= c.channels &&
         c.out_pitch >= c.filters;
}

// What a plan's JSON has in place of code: the convolution, and where its operands are in a variant pack.
inline std::string json_of(const Convolution& c, const std::map<char, std::int64_t>& ids,
                           std::int64_t processors) {
  std::string out = R"({"plan":")";
  std::array<unsigned char, sizeof(Convolution)> bytes{};
  std::memcpy(bytes.data(), &c, sizeof c);
  for (const unsigned char byte : bytes)
    for (const int digit : {byte >> 4, byte & 15}) out += "0123456789abcdef"[digit];
  out += R"(","processors":)" + std::to_string(processors) + R"(,"ids":)";
  for (const auto& [what, id] : ids) out += std::string(1, what) + std::to_string(id) + ";";
  return out + "}";
}
inline bool read_json(const std::string& text, Convolution& c, std::map<char, std::int64_t>& ids,
                      std::int64_t& processors) {
  constexpr std::string_view head = R"({"plan":")", middle = R"(","processors":)", tail = R"(,"ids":)";
  const std::size_t first = head.size(), last = first + 2 * sizeof(Convolution);
  if (!text.starts_with(head) || text.size() < last + middle.size() || !text.ends_with("}") ||
      text.compare(last, middle.size(), middle) != 0)
    return false;
  std::array<unsigned char, sizeof(Convolution)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(first + 2 * i, 2), nullptr, 16));
  std::memcpy(&c, bytes.data(), sizeof c);
  processors = std::stoll(text.substr(last + middle.size()));
  std::size_t at = text.find(tail, last) + tail.size();
  for (std::size_t end = 0; (end = text.find(';', at)) != std::string::npos; at = end + 1)
    ids[text[at]] = std::stoll(text.substr(at + 1));
  return true;
}

// Convolutions are put into streams by computing(). Of each heuristic mode A has four ways: one with tensor
// cores that compiles, one that is not deterministic, one with tensor cores, and one without; mode B has one
// more without.
inline dnn::Api fake_dnn() {
  namespace at = dnn::attribute;
  dnn::Api api;
  api.version = []() -> std::size_t { return 91900; };
  api.error_text = [](dnn::Status) { return "CUDNN_STATUS_BAD_PARAM"; };
  api.last_error = [](char* text, std::size_t) { text[0] = 0; };
  api.create = [](dnn::Handle* out) { return make(out, 0); };
  api.destroy = drop<int>;
  api.set_stream = [](dnn::Handle, Stream stream) { return stream_of_dnn() = stream, 0; };
  api.create_descriptor = [](int kind, dnn::Descriptor* out) { return make(out, FakePart{.kind = kind}); };
  api.destroy_descriptor = drop<FakePart>;
  api.finalize = [](dnn::Descriptor descriptor) -> dnn::Status {
    auto& part = *static_cast<FakePart*>(descriptor);
    Convolution c;
    std::map<char, std::int64_t> ids;
    if (part.kind == dnn::kind::graph && !read(part, c, ids)) return 3;
    // Sizes by hand: the engine that has no tensor cores cannot.
    if (part.kind == dnn::kind::engine &&
        (part.part(at::engine_graph) == nullptr || part.one<std::int64_t>(at::engine_index) % 2 != 0 ||
         part.one<std::int64_t>(at::engine_index) > 2))
      return 3;
    if (part.kind == dnn::kind::engine_config) {
      const FakePart* const knob = part.part(at::config_knobs);
      if (part.part(at::config_engine)->one<std::int64_t>(at::engine_index) != 2) {
        // It has no knobs.
      } else if (knob == nullptr || knob->one<int>(at::knob_type) != 7 ||
                 knob->one<std::int64_t>(at::knob_value) != 5)
        return 3;
    }
    if (part.kind == dnn::kind::plan && part.values.contains(at::plan_json)) {
      const auto json = part.all<char>(at::plan_json);
      std::int64_t processors = 0;
      if (!read_json({json.begin(), json.end()}, c, ids, processors)) return 3;
    } else if (part.kind == dnn::kind::plan && index_of(*part.part(at::plan_config)) == 0) {
      ++times_compiled();
      if (on_compile()) on_compile()();
    }
    part.finished = true;
    return 0;
  };
  api.set = [](dnn::Descriptor descriptor, int attribute, int type, std::int64_t count,
               const void* values) -> dnn::Status {
    auto& part = *static_cast<FakePart*>(descriptor);
    if (part.finished || count < 0 || (count > 0 && values == nullptr)) return 3;
    if (type == dnn::type::descriptor)
      for (std::int64_t i = 0; i < count; ++i)
        if (!static_cast<FakePart* const*>(values)[i]->finished) return 3;
    auto& into = part.values[attribute];
    into.resize(static_cast<std::size_t>(count) * width_of(type));
    if (count > 0) std::memcpy(into.data(), values, into.size());
    return 0;
  };
  api.get = [](dnn::Descriptor descriptor, int attribute, int type, std::int64_t wanted, std::int64_t* count,
               void* values) -> dnn::Status {
    const auto& part = *static_cast<const FakePart*>(descriptor);
    if (attribute == at::heuristics_results) {
      const bool by_b = part.one<int>(at::heuristics_mode) == dnn::value::by_b;
      *count = std::min<std::int64_t>(by_b ? 1 : 4, wanted);
      for (std::int64_t i = 0; i < *count; ++i) {
        auto& config = *static_cast<FakePart**>(values)[i];
        config.put(at::heuristics_graph, part.part(at::heuristics_graph));
        config.put(at::engine_index, by_b ? 4 : i);
        config.finished = true;
      }
      return 0;
    }
    if (attribute == at::config_engine) {
      *count = 1;
      static_cast<FakePart**>(values)[0]->put(at::engine_index, part.one<std::int64_t>(at::engine_index));
      return 0;
    }
    const auto index = part.one<std::int64_t>(at::engine_index);
    if (attribute == at::config_knobs && index == 2) {
      *count = 1;
      static_cast<FakePart**>(values)[0]->put(at::knob_type, 7);
      static_cast<FakePart**>(values)[0]->put(at::knob_value, std::int64_t{5});
      return 0;
    }
    const auto note = [&](bool has, int value) {
      *count = has && wanted > 0 ? 1 : 0;
      if (*count == 1) *static_cast<int*>(values) = value;
      return 0;
    };
    if (attribute == at::engine_behavior) return note(index == 0, dnn::value::compiles);
    if (attribute == at::engine_numerical && index == 1) return note(true, dnn::value::nondeterministic);
    if (attribute == at::engine_numerical) return note(index == 0 || index == 2, dnn::value::tensor_core);
    if (attribute == at::plan_json) {
      const FakePart& config = *part.part(at::plan_config);
      Convolution c;
      std::map<char, std::int64_t> ids;
      if (!read(*graph_of(config), c, ids)) return 3;
      const std::string json = json_of(c, ids, processors_of(config));
      *count = static_cast<std::int64_t>(json.size());
      if (values != nullptr)
        std::memcpy(values, json.data(), static_cast<std::size_t>(std::min(*count, wanted)));
      return 0;
    }
    if (attribute == at::plan_workspace) {
      *count = 1;
      *static_cast<std::int64_t*>(values) = 512;
      return 0;
    }
    *count = 0;
    const auto found = part.values.find(attribute);
    if (found == part.values.end()) return 3;
    *count = static_cast<std::int64_t>(found->second.size() / width_of(type));
    if (*count > wanted) return 3;
    std::memcpy(values, found->second.data(), found->second.size());
    return 0;
  };
  api.execute = [](dnn::Handle, dnn::Descriptor plan, dnn::Descriptor pack) -> dnn::Status {
    const auto& of = *static_cast<const FakePart*>(plan);
    const auto& given = *static_cast<const FakePart*>(pack);
    Convolution c;
    std::map<char, std::int64_t> ids;
    std::int64_t processors = 0;
    if (const auto json = of.all<char>(at::plan_json); !json.empty()) {
      if (!read_json({json.begin(), json.end()}, c, ids, processors)) return 3;
    } else {
      const FakePart& config = *of.part(at::plan_config);
      if (!read(*graph_of(config), c, ids)) return 3;
      processors = processors_of(config);
    }
    if (!given.finished) return 3;
    const auto names = given.all<std::int64_t>(at::pack_ids);
    const auto pointers = given.all<Address>(at::pack_pointers);
    if (names.size() != pointers.size() || names.size() != ids.size() ||
        given.one<Address>(at::pack_workspace) == 0)
      return 3;
    const auto place = [&](char what) -> Address {
      const auto id = ids.find(what);
      if (id == ids.end()) return 0;
      const auto found = std::ranges::find(names, id->second);
      return found == names.end() ? 0 : pointers[static_cast<std::size_t>(found - names.begin())];
    };
    const auto call = computing()->convolution(c);
    size_next(processors);
    return call && (*call)->enqueue(stream_of_dnn(), {.a = place('x'),
                                                      .b = place('w'),
                                                      .out = place('y'),
                                                      .bias = place('b'),
                                                      .residual = place('r')})
               ? 0
               : 3;
  };
  return api;
}

}  // namespace carillon::engine::cuda::testing
