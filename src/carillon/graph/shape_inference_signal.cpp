#include <algorithm>
#include <cmath>

#include "carillon/graph/known_texts.h"
#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

// The one whole number that input `i` is.
Result<std::int64_t> number(const Inference& x, std::size_t i, std::string_view what) {
  auto values = x.integers(i, what);
  if (!values) return std::unexpected(values.error());
  if (values->size() != 1) return x.error(std::string(what) + " must be one number");
  return values->front();
}

constexpr std::int64_t longest = std::int64_t{1} << 24;

Result<std::int64_t> length(const Inference& x, std::size_t i, std::string_view what) {
  auto value = number(x, i, what);
  if (value && (*value < 1 || *value > longest))
    return x.error(std::string(what) + " is " + std::to_string(*value) + ": it must be 1 to " +
                   std::to_string(longest));
  return value;
}

// The floating-point type that an attribute names.
Result<DataType> output_type(const Inference& x) {
  const auto type = from_onnx_type(static_cast<int>(x.node().integer("output_datatype", 1)));
  if (!type || !belongs(*type, TypeClass::floating))
    return x.error("output_datatype must be a floating-point type");
  return *type;
}

// Of a signal, whose last dimension is real, or real and imaginary.
Result<> require_signal(const Inference& x, std::int64_t least_rank) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, least_rank, 64); !ok) return ok;
  const std::int64_t parts = x.shape(0).back();
  if (parts != 1 && parts != 2)
    return x.error("the last dimension of " + to_text(x.shape(0)) +
                   " must be 1 (real) or 2 (real and imaginary)");
  return {};
}

}  // namespace

Result<> dft(Inference& x) {
  if (auto ok = require_signal(x, 2); !ok) return ok;
  std::int64_t wanted = x.node().integer("axis", -2);
  if (x.present(2)) {
    auto told = number(x, 2, "axis");
    if (!told) return std::unexpected(told.error());
    wanted = *told;
  }
  auto axis = x.axis(wanted, x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  if (*axis == x.rank(0) - 1) return x.error("axis must not be the last");
  const bool inverse = x.node().integer("inverse", 0) != 0, half = x.node().integer("onesided", 0) != 0;
  if (half && (inverse || x.shape(0).back() != 1))
    return fail(ErrorCode::unsupported,
                describe(x.node()) + ": onesided is supported for transforms of real signals only");
  Shape shape = x.shape(0);
  std::int64_t& extent = shape[static_cast<std::size_t>(*axis)];
  if (x.present(1)) {
    auto told = length(x, 1, "dft_length");
    if (!told) return std::unexpected(told.error());
    extent = *told;
  }
  if (extent < 1) return x.error("the axis has no elements");
  x.node().attributes.insert_or_assign("axis", Attribute{*axis});
  x.node().attributes.insert_or_assign("length", Attribute{extent});
  if (half) extent = extent / 2 + 1;
  shape.back() = 2;
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> stft(Inference& x) {
  if (auto ok = require_signal(x, 3); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 3); !ok) return ok;
  auto step = length(x, 1, "frame_step");
  if (!step) return std::unexpected(step.error());
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  if (x.present(2) && x.rank(2) != 1) return x.error("window must have one dimension");
  if (!x.present(2) && !x.present(3)) return x.error("it needs window or frame_length");
  std::int64_t frame = x.present(2) ? x.shape(2)[0] : 0;
  if (x.present(3)) {
    auto told = length(x, 3, "frame_length");
    if (!told) return std::unexpected(told.error());
    if (x.present(2) && frame != *told)
      return x.error("window has " + std::to_string(frame) + " elements, and frame_length is " +
                     std::to_string(*told));
    frame = *told;
  }
  const std::int64_t all = x.shape(0)[1];
  if (frame < 1 || frame > all)
    return x.error("a frame of " + std::to_string(frame) + " does not fit a signal of " +
                   std::to_string(all));
  const bool half = x.node().integer("onesided", 1) != 0;
  if (half && x.shape(0)[2] != 1) return x.error("onesided must be 0 where the signal has imaginary parts");
  x.set(0, x.input(0).type, {x.shape(0)[0], (all - frame) / *step + 1, half ? frame / 2 + 1 : frame, 2});
  return {};
}

Result<> window(Inference& x) {
  auto size = length(x, 0, "size");
  if (!size) return std::unexpected(size.error());
  auto type = output_type(x);
  if (!type) return std::unexpected(type.error());
  x.set(0, *type, {*size});
  return {};
}

Result<> mel_weights(Inference& x) {
  std::int64_t told[3];
  for (std::size_t i = 0; i < 3; ++i) {
    auto value = length(x, i, i == 0 ? "num_mel_bins" : i == 1 ? "dft_length" : "sample_rate");
    if (!value) return std::unexpected(value.error());
    told[i] = *value;
  }
  double edges[2];
  for (const std::size_t i : {3U, 4U}) {
    auto value = x.reals(i, i == 3 ? "lower_edge_hertz" : "upper_edge_hertz");
    if (!value) return std::unexpected(value.error());
    if (value->size() != 1) return x.error("its edges must be one number each");
    edges[i - 3] = static_cast<double>(value->front());
  }
  if (!(edges[0] >= 0 && edges[0] <= edges[1] && edges[1] * 2 <= static_cast<double>(told[2])))
    return x.error(
        "lower_edge_hertz and upper_edge_hertz must be in order, and from 0 to half of sample_rate");
  auto type = output_type(x);
  if (!type) return std::unexpected(type.error());
  x.set(0, *type, {told[1] / 2 + 1, told[0]});
  return {};
}

Result<> determinant(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 2, 64); !ok) return ok;
  Shape shape = x.shape(0);
  if (shape[shape.size() - 1] != shape[shape.size() - 2])
    return x.error("matrices " + to_text(shape) + " are not square");
  shape.resize(shape.size() - 2);
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> grid_sample(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require(1, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 4, 4); !ok) return ok;
  const Shape &image = x.shape(0), &grid = x.shape(1);
  if (grid.size() != 4 || grid[0] != image[0] || grid[3] != 2)
    return x.error("grid " + to_text(grid) + " must be [" + std::to_string(image[0]) + ", height, width, 2]");
  if (image[2] == 0 || image[3] == 0) return x.error("image " + to_text(image) + " has no pixels");
  std::string mode(x.node().text("mode", "bilinear"));
  if (mode == "linear") mode = "bilinear";
  if (mode == "cubic") mode = "bicubic";
  if (mode != "bilinear" && mode != "nearest" && mode != "bicubic")
    return x.error("mode must be bilinear, nearest or bicubic");
  const std::string_view padding = x.node().text("padding_mode", "zeros");
  if (padding != "zeros" && padding != "border" && padding != "reflection")
    return x.error("padding_mode must be zeros, border or reflection");
  x.node().attributes.insert_or_assign("mode", Attribute{std::move(mode)});
  x.set(0, x.input(0).type, {image[0], image[1], grid[1], grid[2]});
  return {};
}

Result<> roi_align(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_same(0, 1); !ok) return ok;
  if (auto ok = x.require_rank(0, 4, 4); !ok) return ok;
  if (x.rank(1) != 2 || x.shape(1)[1] != 4) return x.error("rois must be [rois, 4]");
  const DataType batches = x.input(2).type;
  if ((batches != DataType::i64 && batches != DataType::i32) || x.shape(2) != Shape{x.shape(1)[0]})
    return x.error("batch_indices must be whole numbers, one a roi");
  if (x.shape(0)[2] == 0 || x.shape(0)[3] == 0) return x.error("the image has no pixels");
  if (x.node().text("mode", "avg") != "avg")
    return fail(ErrorCode::unsupported, describe(x.node()) + ": only mode avg is supported");
  const std::string_view way = x.node().text("coordinate_transformation_mode", "half_pixel");
  if (way != "half_pixel" && way != "output_half_pixel")
    return x.error("coordinate_transformation_mode must be half_pixel or output_half_pixel");
  const std::int64_t height = x.node().integer("output_height", 1),
                     width = x.node().integer("output_width", 1);
  const std::int64_t samples = x.node().integer("sampling_ratio", 0);
  if (height < 1 || width < 1 || height > longest || width > longest || samples < 0 || samples > 1024)
    return x.error("output_height and output_width must be at least 1, and sampling_ratio 0 to 1024");
  x.set(0, x.input(0).type, {x.shape(1)[0], x.shape(0)[1], height, width});
  return {};
}

Result<> max_unpool(Inference& x) {
  if (auto ok = x.require(0, TypeClass::floating); !ok) return ok;
  if (auto ok = x.require_rank(0, 3, 5); !ok) return ok;
  if (x.input(1).type != DataType::i64 || x.shape(1) != x.shape(0))
    return x.error("its indices (input 1) must be int64 of the shape of its values");
  const std::size_t count = x.shape(0).size() - 2;
  const auto kernel = x.node().integers("kernel_shape"), strides = x.node().integers("strides"),
             pads = x.node().integers("pads");
  if (kernel.size() != count || (!strides.empty() && strides.size() != count) ||
      (!pads.empty() && pads.size() != 2 * count))
    return x.error("kernel_shape, strides and pads do not fit " + to_text(x.shape(0)));
  // What was pooled, as far as that can be told: indices are places there.
  Shape pooled = x.shape(0);
  for (std::size_t d = 0; d < count; ++d) {
    const std::int64_t step = strides.empty() ? 1 : strides[d];
    const auto pad = [&](std::size_t at) {
      return pads.empty() ? 0 : std::clamp(pads[at], -longest, longest);
    };
    const std::int64_t cut = pad(d) + pad(count + d);
    if (kernel[d] < 1 || kernel[d] > longest || step < 1 || step > longest || cut < 0 || cut > longest)
      return x.error("kernel_shape, strides or pads are out of range");
    pooled[2 + d] = (pooled[2 + d] - 1) * step + kernel[d] - cut;
    if (pooled[2 + d] < 1) return x.error("nothing is left of dimension " + std::to_string(2 + d));
  }
  Shape shape = pooled;
  if (x.present(2)) {
    auto told = x.integers(2, "output_shape");
    if (!told) return std::unexpected(told.error());
    bool fits = told->size() == pooled.size();
    for (std::size_t d = 0; fits && d < pooled.size(); ++d)
      fits = d < 2 ? (*told)[d] == pooled[d] : (*told)[d] >= pooled[d];
    if (!fits)
      return x.error("output_shape " + to_text(*told) + " does not hold what was pooled, " + to_text(pooled));
    shape = std::move(*told);
  }
  x.node().attributes.insert_or_assign("pooled", Attribute{std::move(pooled)});
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> tf_idf(Inference& x) {
  const bool texts = x.input(0).type == DataType::string;
  if (!texts && x.input(0).type != DataType::i64 && x.input(0).type != DataType::i32)
    return x.error("its words must be texts, int64 or int32, not " + std::string(onnx_name(x.input(0).type)));
  if (texts == x.node().has("pool_int64s"))
    return x.error(texts ? "its words are texts, but its pool is of numbers"
                         : "its words are numbers, but its pool is not");
  if (texts && x.node().has("pool_strings")) {
    std::vector<std::int64_t> pool;
    const auto& words = std::get<std::vector<std::string>>(x.node().attributes.at("pool_strings"));
    for (const std::string& word : words) {
      const auto known = known_texts().add(word);
      if (!known) return in_context(describe(x.node()), known.error());
      pool.push_back(*known);
    }
    x.node().attributes.insert_or_assign("pool_int64s", Attribute{std::move(pool)});
    x.node().attributes.erase("pool_strings");
  }
  if (auto ok = x.require_rank(0, 1, 2); !ok) return ok;
  const Node& node = x.node();
  const auto pool = node.integers("pool_int64s"), counts = node.integers("ngram_counts"),
             indexes = node.integers("ngram_indexes");
  const std::int64_t least = node.integer("min_gram_length", 0), most = node.integer("max_gram_length", 0);
  if (least < 1 || most < least || most > static_cast<std::int64_t>(counts.size()))
    return x.error(
        "min_gram_length and max_gram_length must be in order, and ngram_counts have one a length");
  if (node.integer("max_skip_count", 0) < 0) return x.error("max_skip_count must not be negative");
  if (const std::string_view mode = node.text("mode", ""); mode != "TF" && mode != "IDF" && mode != "TFIDF")
    return x.error("mode must be TF, IDF or TFIDF");
  // N-grams of each length lie one behind the other.
  std::size_t grams = 0;
  for (std::size_t n = 1; n <= counts.size(); ++n) {
    const std::int64_t first = counts[n - 1];
    const std::int64_t last = n < counts.size() ? counts[n] : static_cast<std::int64_t>(pool.size());
    if (first < 0 || last < first || last > static_cast<std::int64_t>(pool.size()) ||
        (last - first) % static_cast<std::int64_t>(n) != 0)
      return x.error("ngram_counts " + to_text(counts) + " do not divide its pool of " +
                     std::to_string(pool.size()));
    grams += static_cast<std::size_t>(last - first) / n;
  }
  std::int64_t columns = 0;
  for (const std::int64_t index : indexes) {
    if (index < 0 || index > longest) return x.error("ngram_indexes are out of range");
    columns = std::max(columns, index + 1);
  }
  if (indexes.size() != grams || (node.has("weights") && node.reals("weights").size() != grams))
    return x.error("ngram_indexes and weights must have one element for each of its " +
                   std::to_string(grams) + " n-grams");
  Shape shape = x.shape(0);
  shape.back() = columns;
  x.set(0, DataType::f32, std::move(shape));
  return {};
}

}  // namespace carillon::graph::infer
