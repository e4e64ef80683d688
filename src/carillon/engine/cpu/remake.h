#pragma once

#include <concepts>

#include <dnnl.hpp>

#include "carillon/engine/cpu/layout.h"

// The same primitive once more, in another arena: for another number of parts. Descriptors that the first was
// left to choose are what it chose. What comes back may be empty, or another implementation. Concatenations
// and LRN have none: oneDNN does not tell all that they were made of.
namespace carillon::engine::cpu {

template <typename PrimitiveDesc>
requires std::same_as<PrimitiveDesc, dnnl::convolution_forward::primitive_desc> ||
    std::same_as<PrimitiveDesc, dnnl::deconvolution_forward::primitive_desc>
        PrimitiveDesc remake(const dnnl::engine& engine, const PrimitiveDesc& desc) {
  return PrimitiveDesc(engine, desc.get_prop_kind(), desc.get_algorithm(), desc.src_desc(),
                       desc.weights_desc(), desc.bias_desc(), desc.dst_desc(), desc.get_strides(),
                       desc.get_dilations(), desc.get_padding_l(), desc.get_padding_r(),
                       desc.get_primitive_attr(), true);
}

inline dnnl::matmul::primitive_desc remake(const dnnl::engine& engine,
                                           const dnnl::matmul::primitive_desc& desc) {
  const dnnl::primitive_attr attributes = desc.get_primitive_attr();
  if (desc.bias_desc().is_zero())
    return {engine, desc.src_desc(), desc.weights_desc(), desc.dst_desc(), attributes, true};
  return {engine, desc.src_desc(), desc.weights_desc(), desc.bias_desc(), desc.dst_desc(), attributes, true};
}

inline dnnl::pooling_forward::primitive_desc remake(const dnnl::engine& engine,
                                                    const dnnl::pooling_forward::primitive_desc& desc) {
  return {engine,
          desc.get_prop_kind(),
          desc.get_algorithm(),
          desc.src_desc(),
          desc.dst_desc(),
          desc.get_strides(),
          desc.get_kernel(),
          desc.get_dilations(),
          desc.get_padding_l(),
          desc.get_padding_r(),
          desc.get_primitive_attr(),
          true};
}

inline dnnl::eltwise_forward::primitive_desc remake(const dnnl::engine& engine,
                                                    const dnnl::eltwise_forward::primitive_desc& desc) {
  return {engine,          desc.get_prop_kind(),      desc.get_algorithm(),
          desc.src_desc(), desc.dst_desc(),           desc.get_alpha(),
          desc.get_beta(), desc.get_primitive_attr(), true};
}

inline dnnl::binary::primitive_desc remake(const dnnl::engine& engine,
                                           const dnnl::binary::primitive_desc& desc) {
  return {engine,
          desc.get_algorithm(),
          desc.src0_desc(),
          desc.src1_desc(),
          desc.dst_desc(),
          desc.get_primitive_attr(),
          true};
}

template <typename PrimitiveDesc>
requires std::same_as<PrimitiveDesc, dnnl::batch_normalization_forward::primitive_desc> ||
    std::same_as<PrimitiveDesc, dnnl::layer_normalization_forward::primitive_desc>
        PrimitiveDesc remake(const dnnl::engine& engine, const PrimitiveDesc& desc) {
  return PrimitiveDesc(engine, desc.get_prop_kind(), desc.src_desc(), desc.dst_desc(), desc.get_epsilon(),
                       desc.get_flags(), desc.get_primitive_attr(), true);
}

inline dnnl::softmax_forward::primitive_desc remake(const dnnl::engine& engine,
                                                    const dnnl::softmax_forward::primitive_desc& desc) {
  return {engine,          desc.get_prop_kind(), desc.get_algorithm(),      desc.src_desc(),
          desc.dst_desc(), desc.get_axis(),      desc.get_primitive_attr(), true};
}

inline dnnl::reorder::primitive_desc remake(const dnnl::engine& engine,
                                            const dnnl::reorder::primitive_desc& desc) {
  return {engine, desc.src_desc(), engine, desc.dst_desc(), desc.get_primitive_attr(), true};
}

}  // namespace carillon::engine::cpu
