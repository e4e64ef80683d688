#pragma once

#include <filesystem>
#include <memory>

#include "carillon/engine/openvino/apart.h"
#include "carillon/engine/openvino/runtime.h"
#include "carillon/engine/reading_engine.h"

namespace carillon::engine {

struct OpenVinoOptions {
  int threads = 1;  // of a run, the calling one among them; >= 1
  // The module that holds OpenVINO's side (module/runtime.cpp). Empty: libcarillon_openvino.so beside the
  // program, or where its installation puts it (../lib/carillon).
  std::filesystem::path module;
  // Each model in a process of its own (apart.h): what a model ends is that process. Else in this one.
  bool apart = true;
  // Of these processes. Their program, where none is named: carillon-openvino beside the module.
  openvino::ApartOptions processes{};
};

// Models that our own graph does not hold, on OpenVINO's CPU plugin: ONNX files and OpenVINO IR (.xml).
//
// A model is compiled once, for all of its batch sizes, lengths and extents; only the shapes of outputs are
// inferred for each plan. Its weights stay with OpenVINO, in the host's memory: it has none to LOAD, and is
// always there. f32 is computed as f32, also where the processor has faster types, but where the config asks
// for bf16. Where its process goes, CompiledModel::usable() says so until another has it. Runs of one model
// beside each other wait for each other inside OpenVINO; each stream has a
// request of its own, made when first needed.
std::shared_ptr<ReadingEngine> make_openvino_engine(const OpenVinoOptions& options);
// With a runtime that is there already (tests).
std::shared_ptr<ReadingEngine> make_openvino_engine(const OpenVinoOptions& options,
                                                    std::shared_ptr<openvino::Runtime> runtime);

}  // namespace carillon::engine
