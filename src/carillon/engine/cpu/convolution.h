#pragma once

#include <optional>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

// What a Conv or ConvTranspose node says, in oneDNN's terms.
struct Convolution {
  bool transpose = false;
  Dims strides, dilations, pads_begin, pads_end;
  Dims weight_dims;    // (G,) O, I, kernel
  Desc weight_source;  // the ONNX tensor seen so, as f32
  graph::ValueId bias = graph::no_value;
  bool turned = false;  // rows and columns of all of the above have changed places
};

// Reads the attributes and shapes of a convolution of `input` with `weight`; the bias is left to the caller.
std::optional<Convolution> read_convolution(PlanBuilder& builder, const graph::Node& node,
                                            graph::ValueId input, graph::ValueId weight);

}  // namespace carillon::engine::cpu
