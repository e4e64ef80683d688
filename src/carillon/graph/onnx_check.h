#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace onnx {
class AttributeProto;
class ModelProto;
class TensorProto;
}  // namespace onnx

// What a file may say that nobody here knows. Such a file is refused by name, whichever engine it is for: an
// engine that guesses answers with another model's numbers.
namespace carillon::graph {

// The newest that ONNX has, as far as is known here.
inline constexpr std::int64_t newest_ir_version = 13;
inline constexpr std::int64_t newest_opset = 27;

// ONNX's name of an element type ("FLOAT8E4M3FN"), or its number where it is not known.
std::string onnx_type_name(std::int64_t number);

// That the file's IR version, and its opsets of the domains whose versions are known here, are not newer than
// the newest, and that no domain has two. Errors: invalid_argument.
Result<> check_versions(const onnx::ModelProto& model);

// Checks how a tensor is encoded: its data are in the field of its type and nowhere else, the tensor is no
// segment, and ONNX knows its data_location. Errors: invalid_argument. Sizes are not checked.
Result<> check_encoding(const onnx::TensorProto& tensor);

// That the attribute has one value alone, and an enumerated text is one of those that `op` takes. Errors
// (invalid_argument) do not name the attribute.
Result<> check_value(std::string_view op, const onnx::AttributeProto& attribute);

// For engines of others, which read the file themselves: that all in it that is of a type narrower than a
// byte, or an 8-bit float, is read there as ONNX has it. Constants of UINT4, INT4 and FLOAT4E2M1 are, and
// those of FLOAT8E4M3FN and FLOAT8E5M2 in raw_data or outside the file. Errors (unsupported): other such
// types, other encodings, nodes that make such values (what they do with NaN, and with numbers out of range,
// differs). Further: BFLOAT16 in int32_data (unsupported), tensors of more elements than can be counted
// (invalid_argument), and graphs nested more than 16 deep (unsupported).
Result<> check_for_others(const onnx::ModelProto& model);

// The first node, with the reason, of which OpenVINO 2026.4 makes something else than ONNX says: a form of an
// operator that it computes otherwise (a table in onnx_check.cpp), or a DFT. Of DFT of opset 20 and later it
// does not read the operand `axis`, and takes axis 1. Empty: there is none. A DFT whose axis, or whose
// signal's rank where the axis counts from the end, is not told by the file, counts as one.
std::string misread_node(const onnx::ModelProto& model);

}  // namespace carillon::graph
