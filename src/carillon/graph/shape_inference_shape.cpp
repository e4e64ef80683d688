#include <algorithm>
#include <cmath>
#include <numeric>

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

constexpr std::int64_t extent_limit = std::int64_t{1} << 40;

// All ways to name a new shape for the same elements become one operator with one input.
Result<> become_reshape(Inference& x, Shape shape) {
  auto count = element_count(shape);
  if (!count) return x.error(count.error().message);
  if (*count != x.input(0).elements())
    return x.error("input " + to_text(x.shape(0)) + " cannot take the shape " + to_text(shape));
  x.set(0, x.input(0).type, std::move(shape));
  x.node().op = "Reshape";
  x.node().inputs.resize(1);
  x.node().attributes.clear();
  return {};
}

Result<std::int64_t> product(const Inference& x, std::span<const std::int64_t> extents) {
  auto count = element_count(extents);
  if (!count) return x.error(count.error().message);
  return *count;
}

}  // namespace

Result<> reshape(Inference& x) {
  auto wanted = x.integers(1, "shape");
  if (!wanted) return std::unexpected(wanted.error());
  const bool keep_zero = x.node().integer("allowzero", 0) != 0;
  Shape shape = *std::move(wanted);
  std::int64_t* unknown = nullptr;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      if (unknown != nullptr) return x.error("shape " + to_text(shape) + " has more than one -1");
      unknown = &shape[i];
    } else if (shape[i] == 0 && !keep_zero) {
      if (i >= x.shape(0).size())
        return x.error("shape " + to_text(shape) + " copies dimension " + std::to_string(i) +
                       ", which input " + to_text(x.shape(0)) + " does not have");
      shape[i] = x.shape(0)[i];
    } else if (shape[i] < 0) {
      return x.error("shape " + to_text(shape) + " has a negative extent");
    }
  }
  if (unknown != nullptr) {
    *unknown = 1;
    auto rest = product(x, shape);
    if (!rest) return std::unexpected(rest.error());
    const std::int64_t all = x.input(0).elements();
    if (*rest == 0 ? all != 0 : all % *rest != 0)
      return x.error("input " + to_text(x.shape(0)) + " cannot take the shape " + to_text(shape) +
                     " (its 1 stands for -1)");
    *unknown = *rest == 0 ? 0 : all / *rest;
  }
  return become_reshape(x, std::move(shape));
}

Result<> flatten(Inference& x) {
  const std::int64_t rank = x.rank(0);
  std::int64_t axis = x.node().integer("axis", 1);
  if (axis < -rank || axis > rank)
    return x.error("axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) +
                   " dimensions");
  if (axis < 0) axis += rank;
  const auto split = static_cast<std::size_t>(axis);
  auto rows = product(x, std::span(x.shape(0)).first(split));
  if (!rows) return std::unexpected(rows.error());
  auto columns = product(x, std::span(x.shape(0)).subspan(split));
  if (!columns) return std::unexpected(columns.error());
  return become_reshape(x, {*rows, *columns});
}

Result<> squeeze(Inference& x) {
  std::vector<bool> drop(x.shape(0).size(), false);
  if (x.present(1)) {
    auto given = x.integers(1, "axes");
    if (!given) return std::unexpected(given.error());
    auto axes = x.axes(*given, x.rank(0));
    if (!axes) return std::unexpected(axes.error());
    for (const std::int64_t a : *axes) {
      const auto at = static_cast<std::size_t>(a);
      if (x.shape(0)[at] != 1)
        return x.error("dimension " + std::to_string(a) + " of input " + to_text(x.shape(0)) + " is not 1");
      drop[at] = true;
    }
  } else {
    for (std::size_t i = 0; i < drop.size(); ++i) drop[i] = x.shape(0)[i] == 1;
  }
  Shape shape;
  for (std::size_t i = 0; i < drop.size(); ++i)
    if (!drop[i]) shape.push_back(x.shape(0)[i]);
  return become_reshape(x, std::move(shape));
}

Result<> unsqueeze(Inference& x) {
  auto given = x.integers(1, "axes");
  if (!given) return std::unexpected(given.error());
  const std::int64_t rank = x.rank(0) + static_cast<std::int64_t>(given->size());
  auto axes = x.axes(*given, rank);
  if (!axes) return std::unexpected(axes.error());
  Shape shape(static_cast<std::size_t>(rank), -1);
  for (const std::int64_t a : *axes) shape[static_cast<std::size_t>(a)] = 1;
  auto from = x.shape(0).begin();
  for (std::int64_t& extent : shape)
    if (extent == -1) extent = *from++;
  return become_reshape(x, std::move(shape));
}

Result<> shape_of(Inference& x) {
  const std::int64_t rank = x.rank(0);
  const auto place = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const std::int64_t start = place(x.node().integer("start", 0));
  const std::int64_t end = place(x.node().integer("end", rank));
  x.node().attributes.insert_or_assign("start", Attribute{start});
  x.node().attributes.insert_or_assign("end", Attribute{std::max(start, end)});
  x.set(0, DataType::i64, {std::max(start, end) - start});
  return {};
}

Result<> size_of_tensor(Inference& x) {
  x.set(0, DataType::i64, {});
  return {};
}

Result<> constant_of_shape(Inference& x) {
  auto shape = x.integers(0, "shape");
  if (!shape) return std::unexpected(shape.error());
  DataType type = DataType::f32;
  const auto value = x.node().attributes.find("value");
  if (value != x.node().attributes.end()) {
    const SharedTensor& tensor = std::get<SharedTensor>(value->second);
    if (tensor->type().elements() != 1) return x.error("value must have one element");
    type = tensor->type().type;
  }
  x.set(0, type, *std::move(shape));
  return {};
}

Result<> eye_like(Inference& x) {
  if (auto ok = x.require_rank(0, 2, 2); !ok) return ok;
  DataType type = x.input(0).type;
  if (x.node().has("dtype")) {
    auto given = from_onnx_type(x.node().integer("dtype", 0));
    if (!given) return in_context(describe(x.node()), given.error());
    type = *given;
  }
  if (!belongs(type, TypeClass::number) && type != DataType::boolean)
    return x.error("its type is not numeric");
  x.set(0, type, x.shape(0));
  return {};
}

Result<> range(Inference& x) {
  const DataType type = x.input(0).type;
  for (std::size_t i = 0; i < 3; ++i) {
    if (auto ok = x.require_same(0, i); !ok) return ok;
    if (x.constant(i) == nullptr)
      return x.error("its shape depends on input " + std::to_string(i) + ", which is not a constant");
    if (x.input(i).elements() != 1) return x.error("start, limit and delta must be scalars");
  }
  double count = 0;
  const auto scalar = [&]<typename T>(std::size_t i, T) { return x.constant(i)->as<T>()[0]; };
  const auto steps = [&]<typename T>(T zero) -> Result<> {
    const T delta = scalar(2, zero);
    if (delta == zero) return x.error("delta is 0");
    count = std::ceil((static_cast<double>(scalar(1, zero)) - static_cast<double>(scalar(0, zero))) /
                      static_cast<double>(delta));
    return {};
  };
  Result<> ok;
  if (type == DataType::i64)
    ok = steps(std::int64_t{0});
  else if (type == DataType::i32)
    ok = steps(std::int32_t{0});
  else if (type == DataType::i16)
    ok = steps(std::int16_t{0});
  else if (type == DataType::f32)
    ok = steps(0.0F);
  else if (type == DataType::f64)
    ok = steps(0.0);
  else
    return x.error("type " + std::string(onnx_name(type)) + " is not one that Range takes");
  if (!ok) return ok;
  if (!(count < static_cast<double>(extent_limit))) return x.error("it has too many elements");
  x.set(0, type, {count > 0 ? static_cast<std::int64_t>(count) : 0});
  return {};
}

Result<> expand(Inference& x) {
  auto wanted = x.integers(1, "shape");
  if (!wanted) return std::unexpected(wanted.error());
  for (const std::int64_t extent : *wanted)
    if (extent < 0) return x.error("shape " + to_text(*wanted) + " has a negative extent");
  auto shape = broadcast(x.shape(0), *wanted);
  if (!shape) return x.error(shape.error().message);
  x.set(0, x.input(0).type, *std::move(shape));
  return {};
}

Result<> transpose(Inference& x) {
  const std::int64_t rank = x.rank(0);
  std::vector<std::int64_t> order;
  if (x.node().has("perm")) {
    const auto given = x.node().integers("perm");
    if (static_cast<std::int64_t>(given.size()) != rank)
      return x.error("perm " + to_text(given) + " does not fit " + std::to_string(rank) + " dimensions");
    auto axes = x.axes(given, rank);
    if (!axes) return std::unexpected(axes.error());
    order = *std::move(axes);
  } else {
    for (std::int64_t i = rank; i-- > 0;) order.push_back(i);
  }
  Shape shape;
  for (const std::int64_t a : order) shape.push_back(x.shape(0)[static_cast<std::size_t>(a)]);
  x.node().attributes.insert_or_assign("perm", std::move(order));
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> concat(Inference& x) {
  if (!x.node().has("axis")) return x.error("axis is missing");
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  Shape shape = x.shape(0);
  for (std::size_t i = 1; i < x.inputs(); ++i) {
    if (auto ok = x.require_same(0, i); !ok) return ok;
    Shape other = x.shape(i);
    if (other.size() != shape.size()) return x.error("its inputs have different ranks");
    std::swap(other[static_cast<std::size_t>(*axis)], shape[static_cast<std::size_t>(*axis)]);
    const std::int64_t sum = other[static_cast<std::size_t>(*axis)] + shape[static_cast<std::size_t>(*axis)];
    if (sum > extent_limit) return x.error("its output is too large");
    other[static_cast<std::size_t>(*axis)] = shape[static_cast<std::size_t>(*axis)];
    if (other != shape)
      return x.error("input " + std::to_string(i) + " of shape " + to_text(x.shape(i)) +
                     " does not fit the others (first: " + to_text(x.shape(0)) + ") along axis " +
                     std::to_string(*axis));
    shape[static_cast<std::size_t>(*axis)] = sum;
  }
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> split(Inference& x) {
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  const std::int64_t extent = x.shape(0)[static_cast<std::size_t>(*axis)];
  const auto parts = static_cast<std::int64_t>(x.outputs());
  std::vector<std::int64_t> sizes;
  if (x.present(1)) {
    auto given = x.integers(1, "split");
    if (!given) return std::unexpected(given.error());
    sizes = *std::move(given);
  } else {
    const std::int64_t count = x.node().integer("num_outputs", parts);
    if (count != parts)
      return x.error("num_outputs is " + std::to_string(count) + ", but it has " + std::to_string(parts) +
                     " outputs");
    const std::int64_t each = (extent + parts - 1) / parts;
    if (!x.node().has("num_outputs") && extent % parts != 0)
      return x.error("dimension of " + std::to_string(extent) + " does not split into " +
                     std::to_string(parts) + " equal parts");
    std::int64_t left = extent;
    for (std::int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::min(each, left));
      left -= sizes.back();
    }
  }
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > extent) return x.error("split " + to_text(sizes) + " is out of range");
    sum += size;
    if (sum > extent) break;
  }
  if (static_cast<std::int64_t>(sizes.size()) != parts || sum != extent)
    return x.error("split " + to_text(sizes) + " must have one number for each of " + std::to_string(parts) +
                   " outputs, with the sum " + std::to_string(extent));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Shape shape = x.shape(0);
    shape[static_cast<std::size_t>(*axis)] = sizes[i];
    x.set(i, x.input(0).type, std::move(shape));
  }
  if (!x.present(1)) {
    const auto count = static_cast<std::int64_t>(sizes.size());
    x.node().inputs.resize(2, no_value);
    x.node().inputs[1] = x.add_constant("split", Tensor::of_i64({count}, sizes));
    x.node().attributes.erase("num_outputs");
  }
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  return {};
}

Result<> tile(Inference& x) {
  auto repeats = x.integers(1, "repeats");
  if (!repeats) return std::unexpected(repeats.error());
  if (static_cast<std::int64_t>(repeats->size()) != x.rank(0))
    return x.error("repeats " + to_text(*repeats) + " does not fit input " + to_text(x.shape(0)));
  Shape shape = x.shape(0);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if ((*repeats)[i] < 0 || (shape[i] > 0 && (*repeats)[i] > extent_limit / shape[i]))
      return x.error("repeats " + to_text(*repeats) + " is out of range");
    shape[i] *= (*repeats)[i];
  }
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> pad(Inference& x) {
  const std::int64_t rank = x.rank(0);
  const std::string mode(x.node().text("mode", "constant"));
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    return x.error("mode is '" + mode.substr(0, 40) + "', but must be constant, reflect, edge or wrap");
  auto pads = x.integers(1, "pads");
  if (!pads) return std::unexpected(pads.error());
  std::vector<std::int64_t> axes(static_cast<std::size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (x.present(3)) {
    auto given = x.integers(3, "axes");
    if (!given) return std::unexpected(given.error());
    auto resolved = x.axes(*given, rank);
    if (!resolved) return std::unexpected(resolved.error());
    axes = *std::move(resolved);
  }
  if (x.node().has("value")) {  // an attribute before opset 11; only here is its type known
    x.node().inputs.resize(std::max<std::size_t>(x.inputs(), 3), no_value);
    if (x.input(0).type != DataType::string)
      x.node().inputs[2] = x.add_constant("value", scalar_of(x.input(0).type, x.node().real("value", 0)));
    x.node().attributes.erase("value");
  }
  if (x.present(2)) {
    if (auto ok = x.require_same(0, 2); !ok) return ok;
    if (x.input(2).elements() != 1) return x.error("its value must be a scalar");
  }
  if (pads->size() != axes.size() * 2)
    return x.error("pads has " + std::to_string(pads->size()) + " numbers, but needs " +
                   std::to_string(axes.size() * 2));
  Shape shape = x.shape(0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    std::int64_t& extent = shape[static_cast<std::size_t>(axes[i])];
    const std::int64_t begin = (*pads)[i];
    const std::int64_t end = (*pads)[axes.size() + i];
    for (const std::int64_t p : {begin, end}) {
      if (p < -extent_limit || p > extent_limit)
        return x.error("pads " + to_text(*pads) + " is out of range");
      if ((mode == "reflect" && p > 0 && p >= extent) || (mode != "constant" && p > 0 && extent == 0))
        return x.error("pads " + to_text(*pads) + " reach beyond input " + to_text(x.shape(0)) + " in mode " +
                       mode);
    }
    if (extent + begin + end < 0 || extent + begin < 0 || extent + end < 0)
      return x.error("pads " + to_text(*pads) + " cut more than there is in " + to_text(x.shape(0)));
    extent += begin + end;
  }
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

// Leaves behind: X, roi?, and scales or sizes for every dimension; no axes, no policy.
Result<> resize(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  const std::int64_t rank = x.rank(0);
  const auto full = static_cast<std::size_t>(rank);
  std::vector<std::int64_t> axes(full);
  std::iota(axes.begin(), axes.end(), 0);
  if (x.node().has("axes")) {
    auto resolved = x.axes(x.node().integers("axes"), rank);
    if (!resolved) return std::unexpected(resolved.error());
    axes = *std::move(resolved);
  }
  const auto empty = [&](std::size_t i) {
    return !x.present(i) || (x.constant(i) != nullptr && x.input(i).elements() == 0);
  };
  // Exporters leave an empty tensor for the one that is not used.
  const bool by_size = !empty(3);
  if (by_size == !empty(2)) return x.error("it needs either scales or sizes");

  const bool crop = x.node().text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize";
  std::vector<float> roi(full * 2, 0.0F);
  std::fill(roi.begin() + rank, roi.end(), 1.0F);
  if (crop) {
    auto given = x.reals(1, "roi");
    if (!given) return std::unexpected(given.error());
    if (given->size() != axes.size() * 2) return x.error("roi does not have two numbers for each axis");
    for (std::size_t i = 0; i < axes.size(); ++i) {
      roi[static_cast<std::size_t>(axes[i])] = (*given)[i];
      roi[full + static_cast<std::size_t>(axes[i])] = (*given)[axes.size() + i];
    }
  }

  Shape shape = x.shape(0);
  std::vector<float> scales(full, 1.0F);
  bool scales_decide = !by_size;
  if (by_size) {
    auto sizes = x.integers(3, "sizes");
    if (!sizes) return std::unexpected(sizes.error());
    if (sizes->size() != axes.size())
      return x.error("sizes " + to_text(*sizes) + " does not fit input " + to_text(x.shape(0)));
    const std::string_view policy = x.node().text("keep_aspect_ratio_policy", "stretch");
    double common = policy == "not_smaller" ? 0.0 : 1e30;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::int64_t in = x.shape(0)[static_cast<std::size_t>(axes[i])];
      if ((*sizes)[i] < 0 || (*sizes)[i] > extent_limit)
        return x.error("sizes " + to_text(*sizes) + " is out of range");
      if (in == 0 && (*sizes)[i] != 0)
        return x.error("sizes " + to_text(*sizes) + " makes " + std::to_string((*sizes)[i]) +
                       " of an axis without elements");
      if (in == 0) continue;
      const double ratio = static_cast<double>((*sizes)[i]) / static_cast<double>(in);
      common = policy == "not_smaller" ? std::max(common, ratio) : std::min(common, ratio);
    }
    if (policy != "stretch" && policy != "not_larger" && policy != "not_smaller")
      return x.error("keep_aspect_ratio_policy must be stretch, not_larger or not_smaller");
    for (std::size_t i = 0; i < axes.size(); ++i) {
      std::int64_t& extent = shape[static_cast<std::size_t>(axes[i])];
      if (policy == "stretch") {
        extent = (*sizes)[i];
        continue;
      }
      scales_decide = true;
      const double size = std::floor(static_cast<double>(extent) * common + 0.5);
      if (!(size <= static_cast<double>(extent_limit))) return x.error("its output is too large");
      extent = static_cast<std::int64_t>(size);
      scales[static_cast<std::size_t>(axes[i])] = static_cast<float>(common);
    }
  } else {
    auto given = x.reals(2, "scales");
    if (!given) return std::unexpected(given.error());
    if (given->size() != axes.size()) return x.error("scales does not have one number for each axis");
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const auto at = static_cast<std::size_t>(axes[i]);
      const float scale = (*given)[i];
      const float part = crop ? roi[full + at] - roi[at] : 1.0F;
      const double size =
          std::floor(static_cast<double>(shape[at]) * static_cast<double>(part) * static_cast<double>(scale));
      if (!(scale > 0) || !(size >= 0 && size <= static_cast<double>(extent_limit)))
        return x.error("a scale or roi is out of range");
      shape[at] = static_cast<std::int64_t>(size);
      scales[at] = scale;
    }
  }
  x.node().inputs.resize(4, no_value);
  x.node().inputs[1] = no_value;
  x.node().inputs[2] = no_value;
  x.node().inputs[3] = no_value;
  if (crop) x.node().inputs[1] = x.add_constant("roi", Tensor::of_f32({rank * 2}, roi));
  if (scales_decide)
    x.node().inputs[2] = x.add_constant("scales", Tensor::of_f32({rank}, scales));
  else
    x.node().inputs[3] = x.add_constant("sizes", Tensor::of_i64({rank}, shape));
  x.node().attributes.erase("axes");
  x.node().attributes.erase("keep_aspect_ratio_policy");
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> depth_to_space(Inference& x) {
  if (auto ok = x.require_rank(0, 4, 4); !ok) return ok;
  const std::int64_t block = x.node().integer("blocksize", 0);
  const Shape& in = x.shape(0);
  if (block < 1 || block > (1 << 15) || in[1] % (block * block) != 0)
    return x.error("blocksize " + std::to_string(block) + " does not fit input " + to_text(in));
  x.set(0, x.input(0).type, {in[0], in[1] / (block * block), in[2] * block, in[3] * block});
  return {};
}

Result<> space_to_depth(Inference& x) {
  if (auto ok = x.require_rank(0, 4, 4); !ok) return ok;
  const std::int64_t block = x.node().integer("blocksize", 0);
  const Shape& in = x.shape(0);
  if (block < 1 || block > (1 << 10) || in[2] % block != 0 || in[3] % block != 0)
    return x.error("blocksize " + std::to_string(block) + " does not fit input " + to_text(in));
  x.set(0, x.input(0).type, {in[0], in[1] * block * block, in[2] / block, in[3] / block});
  return {};
}

Result<> trilu(Inference& x) {
  if (auto ok = x.require_rank(0, 2, 64); !ok) return ok;
  if (x.present(1) && (x.input(1).type != DataType::i64 || x.input(1).elements() != 1))
    return x.error("k must be one int64");
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

}  // namespace carillon::graph::infer
