#pragma once

#include "carillon/engine/second/kind.h"

namespace carillon::engine {

// OpenVINO's CPU plugin: ONNX files, and its own IR (model.xml with model.bin).
inline constexpr second::Kind openvino{
    .name = "openvino",
    .title = "OpenVINO",
    .remedy = "; tools/setup installs OpenVINO, and a build that finds it makes the module",
    .wheel_remedy = "; it is an extra of the wheel: pip install 'carillon[openvino]' (README.md)",
    .format = ".xml",
    .misreads_nodes = true,
};

}  // namespace carillon::engine
