#pragma once

#include "carillon/engine/second/kind.h"

namespace carillon::engine {

// onnxruntime's CPU provider: ONNX files.
inline constexpr second::Kind onnxruntime{
    .name = "onnxruntime",
    .title = "onnxruntime",
    .remedy =
        "; a build with -DCARILLON_ONNXRUNTIME=ON makes the module, where onnxruntime's development files "
        "are (docs/engines.md)",
    .wheel_remedy = "; the wheel has none (docs/engines.md)"};

}  // namespace carillon::engine
