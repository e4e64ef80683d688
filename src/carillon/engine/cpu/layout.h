#pragma once

#include <span>
#include <string>
#include <string_view>

#include <dnnl.hpp>

#include "carillon/graph/tensor.h"

// What a oneDNN memory descriptor says about bytes.
namespace carillon::engine::cpu {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using DnnlType = dnnl::memory::data_type;

// Dense, last dimension innermost. A scalar becomes one dimension of 1.
Desc row_major(std::span<const std::int64_t> shape, DnnlType type);
// Dense, dimension 1 innermost (nhwc and its like); needs at least two dimensions.
Desc channels_last(const Dims& dims, DnnlType type);
// `shape` with ones in front, up to `rank` dimensions (rank >= shape.size()).
Dims with_rank(std::span<const std::int64_t> shape, std::size_t rank);

// The same order of elements as row-major without gaps, whatever the descriptor calls it: dimensions of one
// element do not matter, and nChw16c with one pixel and 16 | C is row-major too.
bool is_row_major(const Desc& desc);
// No gaps: every byte of the descriptor's size belongs to an element.
bool is_dense(const Desc& desc);
// The same type, dimensions and place for every element.
bool same_layout(const Desc& a, const Desc& b);
// `desc` seen with other dimensions of the same elements in the same order; a zero descriptor where strides
// cannot say that.
Desc reshaped(const Desc& desc, std::span<const std::int64_t> shape);
// `desc` seen through ONNX's Transpose: dimension i of the result is dimension perm[i].
Desc transposed(const Desc& desc, std::span<const std::int64_t> perm);
Desc with_type(const Desc& desc, DnnlType type);

// Dense, dimension `axis` innermost, the others in their order.
Desc innermost(const Dims& dims, DnnlType type, std::size_t axis);
// The layout of `desc` for other extents, without gaps; row-major where its blocks do not divide them.
Desc layout_like(const Desc& desc, const Dims& dims);

// oneDNN's last resorts, orders of magnitude behind its other implementations.
bool is_slow(std::string_view implementation);
// Goes on to the implementation of that name, one of those that serve what `desc` describes. False: there is
// none, and `desc` is what it was.
template <typename PrimitiveDesc>
bool seek(PrimitiveDesc& desc, std::string_view implementation) {
  PrimitiveDesc other = desc;
  while (std::string_view(other.impl_info_str()) != implementation)
    if (!other.next_impl()) return false;
  desc = other;
  return true;
}
// Dense, channels in blocks of 16 (nChw16c and its like), filled up where they are not a multiple; needs 3 to
// 5 dimensions.
Desc in_blocks(const Dims& dims, DnnlType type);
// What tells layouts apart, as text.
std::string to_text(const Desc& desc);

// Convolution by unfolding and a matrix product: behind the direct ones.
bool is_by_gemm(std::string_view implementation);

}  // namespace carillon::engine::cpu
