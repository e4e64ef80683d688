#include "carillon/engine/cpu/layout.h"

#include <algorithm>
#include <numeric>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {

namespace {

Dims row_major_strides(const Dims& dims) {
  Dims strides(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(dims[i], 1);
  }
  return strides;
}

std::int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

Desc row_major(std::span<const std::int64_t> shape, DnnlType type) {
  Dims dims(shape.begin(), shape.end());
  if (dims.empty()) dims.push_back(1);
  return Desc(dims, type, row_major_strides(dims));
}

Desc channels_last(const Dims& dims, DnnlType type) {
  Dims strides(dims.size());
  std::int64_t stride = strides[1] = 1;
  stride *= dims[1];
  for (std::size_t i = dims.size(); i-- > 2;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  strides[0] = stride;
  return Desc(dims, type, strides);
}

Dims with_rank(std::span<const std::int64_t> shape, std::size_t rank) {
  CARILLON_ASSERT(shape.size() <= rank);
  Dims dims(rank - shape.size(), 1);
  dims.insert(dims.end(), shape.begin(), shape.end());
  return dims;
}

bool is_dense(const Desc& desc) {
  return static_cast<std::int64_t>(desc.get_size()) ==
         product(desc.get_padded_dims()) *
             static_cast<std::int64_t>(dnnl::memory::data_type_size(desc.get_data_type()));
}

bool is_row_major(const Desc& desc) {
  if (desc.is_zero() || desc.get_format_kind() != dnnl::memory::format_kind::blocked) return false;
  const Dims dims = desc.get_dims();
  if (desc.get_submemory_offset() != 0 || desc.get_padded_dims() != dims) return false;
  // Every dimension as a list of (extent, stride): outer part, then its inner blocks.
  struct Factor {
    std::size_t dim;
    std::int64_t extent, stride;
  };
  std::vector<Factor> inner;
  Dims outer = dims;
  const Dims blocks = desc.get_inner_blks(), indices = desc.get_inner_idxs();
  std::int64_t stride = 1;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const auto dim = static_cast<std::size_t>(indices[i]);
    inner.push_back({dim, blocks[i], stride});
    stride *= blocks[i];
    outer[dim] /= blocks[i];
  }
  const Dims strides = desc.get_strides();
  std::vector<Factor> factors;  // outermost first
  for (std::size_t d = 0; d < dims.size(); ++d) {
    factors.push_back({d, outer[d], strides[d]});
    for (std::size_t i = inner.size(); i-- > 0;)
      if (inner[i].dim == d) factors.push_back(inner[i]);
  }
  std::int64_t expected = 1;
  for (std::size_t i = factors.size(); i-- > 0;) {
    if (factors[i].extent == 1) continue;
    if (factors[i].stride != expected) return false;
    expected *= factors[i].extent;
  }
  return true;
}

bool same_layout(const Desc& a, const Desc& b) {
  if (a == b) return true;
  if (a.is_zero() || b.is_zero()) return false;
  if (a.get_data_type() != b.get_data_type() || a.get_dims() != b.get_dims()) return false;
  if (is_row_major(a) && is_row_major(b)) return true;
  using Kind = dnnl::memory::format_kind;
  if (a.get_format_kind() != Kind::blocked || b.get_format_kind() != Kind::blocked) return false;
  if (a.get_inner_nblks() != 0 || b.get_inner_nblks() != 0) return false;
  if (a.get_submemory_offset() != b.get_submemory_offset()) return false;
  const Dims dims = a.get_dims(), sa = a.get_strides(), sb = b.get_strides();
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != 1 && sa[i] != sb[i]) return false;
  return true;
}

Desc reshaped(const Desc& desc, std::span<const std::int64_t> shape) {
  Dims dims(shape.begin(), shape.end());
  if (dims.empty()) dims.push_back(1);
  if (is_row_major(desc)) return row_major(dims, desc.get_data_type());  // strides of single elements tidied
  if (desc.get_dims() == dims) return desc;
  const Desc seen = desc.reshape(dims, /*allow_empty=*/true);
  return seen ? seen : Desc();
}

Desc transposed(const Desc& desc, std::span<const std::int64_t> perm) {
  // oneDNN asks where each of the old dimensions goes.
  std::vector<int> goes_to(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i)
    goes_to[static_cast<std::size_t>(perm[i])] = static_cast<int>(i);
  const Desc seen = desc.permute_axes(goes_to, /*allow_empty=*/true);
  return seen ? seen : Desc();
}

Desc with_type(const Desc& desc, DnnlType type) {
  if (desc.get_data_type() == type) return desc;
  if (desc.get_inner_nblks() == 0) return Desc(desc.get_dims(), type, desc.get_strides());
  return row_major(desc.get_dims(), type);
}

Desc layout_like(const Desc& desc, const Dims& dims) {
  using Tag = dnnl::memory::format_tag;
  const DnnlType type = desc.get_data_type();
  const Dims own = desc.get_dims();
  if (desc.get_inner_nblks() != 0) {
    for (const Tag tag : {Tag::nCw16c, Tag::nChw16c, Tag::nCdhw16c}) {
      const std::size_t rank = tag == Tag::nCw16c ? 3 : tag == Tag::nChw16c ? 4 : 5;
      if (own.size() == rank && dims[1] % 16 == 0 && desc == Desc(own, type, tag))
        return Desc(dims, type, tag);
    }
    return row_major(dims, type);
  }
  std::vector<std::size_t> order(dims.size());  // outermost first
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Dims strides = desc.get_strides();
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  Dims made(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    made[order[i]] = stride;
    stride *= dims[order[i]];
  }
  return Desc(dims, type, made);
}

Desc innermost(const Dims& dims, DnnlType type, std::size_t axis) {
  Dims strides(dims.size());
  std::int64_t stride = dims[axis];
  strides[axis] = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (i == axis) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return Desc(dims, type, strides);
}

Desc in_blocks(const Dims& dims, DnnlType type) {
  using Tag = dnnl::memory::format_tag;
  CARILLON_ASSERT(dims.size() >= 3 && dims.size() <= 5);
  return Desc(dims, type, dims.size() == 3 ? Tag::nCw16c : dims.size() == 4 ? Tag::nChw16c : Tag::nCdhw16c);
}

std::string to_text(const Desc& desc) {
  if (desc.is_zero()) return "-";
  const auto list = [](const Dims& values) {
    std::string text;
    for (const auto value : values) text += (text.empty() ? "" : "x") + std::to_string(value);
    return text;
  };
  std::string text = std::to_string(static_cast<int>(desc.get_data_type())) + ":" + list(desc.get_dims());
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return text + ":other";
  // Strides of single elements say nothing.
  Dims strides = desc.get_strides();
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (desc.get_dims()[i] == 1) strides[i] = 0;
  return text + ":" + list(strides) + (desc.get_inner_nblks() == 0 ? "" : ":" + list(desc.get_inner_blks()) +
                                                                         "/" + list(desc.get_inner_idxs()));
}

bool is_slow(std::string_view implementation) {
  return implementation.starts_with("ref") || implementation.starts_with("simple:ref");
}

bool is_by_gemm(std::string_view implementation) {
  return implementation.find("gemm") != std::string_view::npos;
}

}  // namespace carillon::engine::cpu
