#pragma once

#include <memory>
#include <string>

#include <openvino/openvino.hpp>

namespace carillon::engine::second {

// The model in an ONNX file. By a file's path OpenVINO 2026.4 reads an If wrongly whose branches take a
// result of the model: the If gives that result itself. By the file's bytes it reads it well, so a file with
// an If is read so. Throws what OpenVINO throws, and std::runtime_error for a file with an If whose weights
// lie in other files, which bytes do not lead to.
//
// What OpenVINO makes of an ONNX file, and computes otherwise than ONNX says, is put right here:
// - DFT of one side takes numbers that are real, in a last dimension of 1, which its result has not. OpenVINO
//   leaves that dimension in; it is taken out in front of the operator.
// - Softmax of opsets 11 and 12 is of all dimensions from its axis on. OpenVINO takes the axis alone.
// - MaxPool by ceil_mode has no window that begins behind the data. OpenVINO has.
// - Sums, differences, products and negatives of INT8 and UINT8 wrap around. OpenVINO takes the largest or
//   the least number that there is.
// - DynamicQuantizeLinear of zeros has a scale of 1, and OpenVINO's is 0. It divides by the scale, where
//   OpenVINO divides 255 times the operand by the range, and rounds halves otherwise.
// - Trilu by a k far outside of the matrix is that of a corner. OpenVINO counts rows from k on in 32 bits.
// Nodes of which nothing can be put right are refused by name elsewhere (graph/onnx_check.h). Files of
// OpenVINO's own format stay as they are.
std::shared_ptr<ov::Model> read_onnx(ov::Core& core, const std::string& file);

}  // namespace carillon::engine::second
