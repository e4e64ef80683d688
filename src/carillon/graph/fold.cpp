#include "carillon/graph/fold.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/kernel.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/recurrence.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

constexpr std::size_t small_bytes = 64U << 10;

template <typename T>
void append_raw(std::string& text, const T& value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  text.append(bytes.data(), bytes.size());
}

void append_type(std::string& text, const TensorType& type) {
  text += static_cast<char>(type.type);
  append_raw(text, type.shape.size());
  for (const std::int64_t extent : type.shape) append_raw(text, extent);
}

template <typename T>
void append_list(std::string& text, const std::vector<T>& values) {
  append_raw(text, values.size());
  for (const T& v : values) append_raw(text, v);
}

void append_text(std::string& text, const std::string& value) {
  append_raw(text, value.size());
  text += value;
}

void append_attribute(std::string& text, const Attribute& attribute) {
  append_raw(text, attribute.index());
  struct Append {
    std::string& text;
    void operator()(std::int64_t v) const { append_raw(text, v); }
    void operator()(float v) const { append_raw(text, v); }
    void operator()(const std::string& v) const { append_text(text, v); }
    void operator()(const std::vector<std::int64_t>& v) const { append_list(text, v); }
    void operator()(const std::vector<float>& v) const { append_list(text, v); }
    void operator()(const std::vector<std::string>& v) const {
      append_raw(text, v.size());
      for (const std::string& s : v) append_text(text, s);
    }
    // A tensor in an attribute lives as long as the imported model: its address names it.
    void operator()(const SharedTensor& v) const { append_raw(text, std::bit_cast<std::uintptr_t>(v.get())); }
  };
  std::visit(Append{text}, attribute);
}

double multiplications(const Graph& graph, const Node& node) {
  const auto elements = [&](ValueId id) {
    return id == no_value ? 0.0 : static_cast<double>(graph.value(id).type.elements());
  };
  const double out = elements(node.outputs[0]);
  if (node.op == "MatMul" || node.op == "Gemm" || node.op == "MatMulInteger" || node.op == "QLinearMatMul") {
    const Shape& a = graph.value(node.inputs[0]).type.shape;
    const bool turned = node.op == "Gemm" && node.integer("transA", 0) != 0;
    return out * static_cast<double>(turned ? a.front() : a.back());
  }
  if (node.op == "Conv" || node.op == "ConvTranspose" || node.op == "ConvInteger" || node.op == "QLinearConv")
    return std::max(out, elements(node.inputs[0])) * elements(node.inputs[node.op == "QLinearConv" ? 3 : 1]);
  if (node.op == "Einsum")
    return std::max(out, elements(node.inputs[0])) * (node.inputs.size() > 1 ? elements(node.inputs[1]) : 1);
  if (is_recurrent(node.op)) {
    const Shape& x = graph.value(node.inputs[0]).type.shape;
    return static_cast<double>(x[0]) * static_cast<double>(x[1]) *
           (elements(node.inputs[1]) + elements(node.inputs[2]));
  }
  if (node.op == "DFT" || node.op == "STFT") return out * elements(node.inputs[0]);
  if (node.op == "Det")
    return elements(node.inputs[0]) * static_cast<double>(graph.value(node.inputs[0]).type.shape.back());
  if (node.op == "RoiAlign") return out * elements(node.inputs[0]);
  double window = 1;
  if (node.op.ends_with("Pool"))
    for (const std::int64_t k : node.integers("kernel_shape")) window *= static_cast<double>(k);
  if (node.op == "LRN") window = static_cast<double>(node.integer("size", 1));
  double all = out;
  for (const ValueId id : node.inputs) all += elements(id);
  return all * window;
}

// Operators whose result depends on types alone, or whose result decides a shape: always folded, here.
using Fill = Result<> (*)(const Graph& graph, const Node& node, std::span<Tensor> out);

Result<> fill_shape(const Graph& graph, const Node& node, std::span<Tensor> out) {
  const Shape& shape = graph.value(node.inputs[0]).type.shape;
  const auto to = out[0].as<std::int64_t>();
  const auto start = static_cast<std::size_t>(node.integer("start", 0));
  CARILLON_ASSERT(start + to.size() <= shape.size());
  std::copy_n(shape.begin() + static_cast<std::ptrdiff_t>(start), to.size(), to.begin());
  return {};
}

Result<> fill_size(const Graph& graph, const Node& node, std::span<Tensor> out) {
  out[0].as<std::int64_t>()[0] = graph.value(node.inputs[0]).type.elements();
  return {};
}

void repeat(std::span<const std::byte> element, std::span<std::byte> to) {
  for (std::size_t i = 0; i + element.size() <= to.size(); i += element.size())
    std::memcpy(to.data() + i, element.data(), element.size());
}

Result<> fill_constant_of_shape(const Graph&, const Node& node, std::span<Tensor> out) {
  const auto value = node.attributes.find("value");
  if (value == node.attributes.end()) return {};  // zeros of type float
  repeat(std::get<SharedTensor>(value->second)->bytes(), out[0].bytes());
  return {};
}

Result<> fill_eye(const Graph&, const Node& node, std::span<Tensor> out) {
  const TensorType& type = out[0].type();
  const Tensor one = scalar_of(type.type, 1);
  const std::int64_t k = node.integer("k", 0);
  for (std::int64_t row = 0; row < type.shape[0]; ++row) {
    if (k < -row || k >= type.shape[1] - row) continue;
    const auto at = static_cast<std::size_t>(row * type.shape[1] + row + k) * one.bytes().size();
    std::memcpy(out[0].bytes().data() + at, one.bytes().data(), one.bytes().size());
  }
  return {};
}

Result<> fill_range(const Graph& graph, const Node& node, std::span<Tensor> out) {
  const auto fill = [&]<typename T>(T) {
    const T start = graph.value(node.inputs[0]).constant->as<T>()[0];
    const T delta = graph.value(node.inputs[2]).constant->as<T>()[0];
    const auto to = out[0].as<T>();
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = plain::add(start, plain::multiply(static_cast<T>(i), delta));
  };
  switch (out[0].type().type) {
    case DataType::i64:
      fill(std::int64_t{});
      break;
    case DataType::i32:
      fill(std::int32_t{});
      break;
    case DataType::i16:
      fill(std::int16_t{});
      break;
    case DataType::f32:
      fill(float{});
      break;
    case DataType::f64:
      fill(double{});
      break;
    case DataType::f16:
    case DataType::bf16:
    case DataType::i8:
    case DataType::u8:
    case DataType::u16:
    case DataType::u32:
    case DataType::u64:
    case DataType::boolean:
    case DataType::string:
      return invalid(describe(node) + ": its type is not one that Range takes");
  }
  return {};
}

Result<> fill_reshape(const Graph& graph, const Node& node, std::span<Tensor> out) {
  const auto from = graph.value(node.inputs[0]).constant->bytes();
  CARILLON_ASSERT(from.size() == out[0].bytes().size());
  std::memcpy(out[0].bytes().data(), from.data(), from.size());
  return {};
}

Fill built_in(const Node& node) {
  if (node.op == "Shape") return fill_shape;
  if (node.op == "Size") return fill_size;
  if (node.op == "ConstantOfShape") return fill_constant_of_shape;
  if (node.op == "EyeLike") return fill_eye;
  if (node.op == "Range") return fill_range;
  if (node.op == "Reshape" && node.inputs.size() == 1) return fill_reshape;
  return nullptr;
}

bool depends_on_types_alone(const Node& node) {
  return node.op == "Shape" || node.op == "Size" || node.op == "EyeLike";
}

}  // namespace

std::uint64_t folding_budget(std::uint64_t bytes_on_disk) {
  constexpr std::uint64_t floor = std::uint64_t{64} << 20, factor = 16;
  return floor + std::min(bytes_on_disk, std::uint64_t{1} << 50) * factor;
}

std::string signature(const Node& node) {
  std::string text;
  append_text(text, node.op);
  for (const auto& [name, attribute] : node.attributes) {
    append_text(text, name);
    append_attribute(text, attribute);
  }
  for (const PostOp& post : node.post_ops) {
    append_raw(text, post.kind);
    append_raw(text, post.alpha);
    append_raw(text, post.beta);
    append_raw(text, post.operand.value);
  }
  return text;
}

SharedTensor ConstantStore::intern(SharedTensor tensor) {
  if (tensor->bytes().size() > small_bytes) return tensor;
  std::string key;
  append_type(key, tensor->type());
  const auto bytes = tensor->bytes();
  if (!bytes.empty()) key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (below_ != nullptr)
    if (SharedTensor found = below_->find_small(key)) return found;
  const std::scoped_lock lock(mutex_);
  return small_.try_emplace(std::move(key), std::move(tensor)).first->second;
}

SharedTensor ConstantStore::find_small(const std::string& key) const {
  if (below_ != nullptr)
    if (SharedTensor found = below_->find_small(key)) return found;
  const std::scoped_lock lock(mutex_);
  const auto found = small_.find(key);
  return found == small_.end() ? nullptr : found->second;
}

// Entries are never changed and never go.
const ConstantStore::Entry* ConstantStore::find(const std::string& key) const {
  if (below_ != nullptr)
    if (const Entry* found = below_->find(key)) return found;
  const std::scoped_lock lock(mutex_);
  const auto found = derived_.find(key);
  return found == derived_.end() ? nullptr : &found->second;
}

Result<ConstantStore::Tensors> ConstantStore::derive(std::string key, const Tensors& inputs,
                                                     const std::function<Result<Tensors>()>& make) {
  append_raw(key, inputs.size());
  for (const SharedTensor& input : inputs) append_raw(key, std::bit_cast<std::uintptr_t>(input.get()));
  if (const Entry* found = find(key)) return found->outputs;
  auto made = make();
  if (!made) return made;
  for (SharedTensor& tensor : *made) tensor = intern(std::move(tensor));
  const std::scoped_lock lock(mutex_);
  return derived_.try_emplace(std::move(key), Entry{inputs, *std::move(made)}).first->second.outputs;
}

void ConstantStore::visit(const std::function<void(const SharedTensor&)>& visit) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, entry] : derived_) {
    for (const Tensors* tensors : {&entry.inputs, &entry.outputs})
      for (const SharedTensor& tensor : *tensors) visit(tensor);
  }
}

Result<> Folder::take(std::uint64_t bytes) {
  if (bytes > budget_)
    return fail(ErrorCode::resource_exhausted,
                "its result is a constant of " + to_text(Bytes{bytes}) +
                    ", more than constants computed from a file of this size may take");
  budget_ -= bytes;
  return {};
}

Result<ConstantStore::Tensors> Folder::derive(const std::string& what, const ConstantStore::Tensors& inputs,
                                              const std::vector<TensorType>& types,
                                              const std::function<Result<>(std::span<Tensor>)>& make) {
  std::string key = what;
  for (const TensorType& type : types) {
    append_type(key, type);
    if (auto ok = take(type.bytes().count); !ok) return std::unexpected(ok.error());
  }
  return store_.derive(std::move(key), inputs, [&]() -> Result<ConstantStore::Tensors> {
    std::vector<Tensor> tensors;
    for (const TensorType& type : types) tensors.emplace_back(type);
    if (auto ok = make(tensors); !ok) return std::unexpected(ok.error());
    ConstantStore::Tensors shared;
    for (Tensor& tensor : tensors) shared.push_back(std::make_shared<const Tensor>(std::move(tensor)));
    return shared;
  });
}

Result<bool> Folder::fold(Graph& graph, const Node& node) {
  const bool all_constant = std::all_of(node.inputs.begin(), node.inputs.end(),
                                        [&](ValueId id) { return id == no_value || graph.is_constant(id); });
  const bool types_alone = depends_on_types_alone(node);
  if (!all_constant && !types_alone) return false;

  ConstantStore::Tensors operands;
  std::vector<const TensorType*> operand_types;
  std::vector<ConstView> views;
  for (const ValueId id : node.inputs) {
    const SharedTensor tensor = id == no_value || types_alone ? nullptr : graph.value(id).constant;
    operands.push_back(tensor);
    operand_types.push_back(tensor == nullptr ? nullptr : &tensor->type());
    views.push_back(tensor == nullptr ? ConstView{} : ConstView{&tensor->type(), tensor->bytes().data()});
  }
  std::vector<TensorType> types;
  std::vector<std::size_t> places;  // of types in node.outputs
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == no_value) continue;
    types.push_back(graph.value(node.outputs[i]).type);
    places.push_back(i);
    bytes += types.back().bytes().count;
  }
  const Fill fill = built_in(node);
  PlainKernel kernel = nullptr;
  if (fill == nullptr) {
    kernel = find_plain_kernel(node, operand_types);
    // What would take long or much memory is left to run time, where an engine plans for it.
    if (kernel == nullptr || bytes > budget_ || node.outputs[0] == no_value) return false;
    const double work = multiplications(graph, node);
    if (work > work_) return false;
    work_ -= work;
  }
  std::string key = signature(node);
  if (types_alone) append_type(key, graph.value(node.inputs[0]).type);
  auto made = derive(key, operands, types, [&](std::span<Tensor> out) -> Result<> {
    if (fill != nullptr) return fill(graph, node, out);
    std::vector<MutableView> to(node.outputs.size());
    for (std::size_t i = 0; i < out.size(); ++i) to[places[i]] = {&out[i].type(), out[i].bytes().data()};
    return kernel(node, views, to);
  });
  if (!made) {
    if (fill != nullptr) return in_context(describe(node), made.error());
    return std::unexpected(made.error());
  }
  for (std::size_t i = 0; i < places.size(); ++i) graph.value(node.outputs[places[i]]).constant = (*made)[i];
  return true;
}

}  // namespace carillon::graph
