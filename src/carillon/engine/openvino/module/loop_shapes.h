#pragma once

#include <openvino/openvino.hpp>

namespace carillon::engine::second {

// A Loop whose number of iterations the data decide, and that carries a value of which an iteration makes
// another shape: OpenVINO takes the shape behind the first iteration for that of the result, and fails where
// the Loop runs 0 times, or more often. Has OpenVINO know no extents of such a value, in the bodies of
// others, too.
void open_carried_shapes(ov::Model& model);

}  // namespace carillon::engine::second
