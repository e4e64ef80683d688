#pragma once

#include <openvino/openvino.hpp>

namespace carillon::engine::second {

// OpenVINO's CPU plugin has no f64: it computes such values as f32, and takes infinities and numbers beyond
// f32's range for f32's largest. Throws std::runtime_error, naming the node and the type, where the model,
// with the extents that it has, computes or moves f64 values at run time, or casts a constant of f64 that f32
// does not hold. What OpenVINO computes from constants alone it computes in f64.
void refuse_doubles(const ov::Model& model);

}  // namespace carillon::engine::second
