#pragma once

#include <cstdint>
#include <memory>

#include <openvino/openvino.hpp>

#include "carillon/engine/openvino/module/guard.h"

// Sizes and whole numbers that the data of a run decide. OpenVINO takes memory for whatever they come to,
// computes them in 32 bits without telling what does not fit, and gives nothing, or a wrong number of
// elements, for what ONNX does not allow.
namespace carillon::engine::second {

// Adds guards to the model and to the bodies in it, for `faults`:
//
// - in front of an operator that is told sizes (Tile, Broadcast, Pad, OneHot, Range, Interpolate, DFT, Eye,
//   VariadicSplit): what ONNX does not allow is noted, and so is a result of more than `most_bytes`. The
//   operator then has sizes by which its result is small.
// - in front of Reshape, where numbers say the extents: others than the operand's elements fill are noted.
// - in front of Range: it has as many elements as ONNX says.
// - in front of any other operator that makes more of what data have sized (MatMul, a sum over two such
//   operands, a Concat in a Loop's body), and where a Loop collects: a result of more than `most_bytes` ends
//   the run.
// - in front of sums, products and casts to whole numbers: a result beyond OpenVINO's 32 bits is noted.
// - in front of reductions, quotients, powers and comparisons of whole numbers, which OpenVINO computes in
//   FP32: a number that FP32 may not have is noted, and so is a divisor of 0.
// - in front of ROIAlign: an index of no image is noted.
//
// May add outputs behind the model's own, which say nothing. Sizes that follow from the inputs' extents alone
// are left as they are. Throws std::runtime_error, naming the operator, where a constant does not fit
// OpenVINO's 32 bits and is computed with.
void guard_sizes(ov::Model& model, std::uint64_t most_bytes, const std::shared_ptr<Faults>& faults);

}  // namespace carillon::engine::second
