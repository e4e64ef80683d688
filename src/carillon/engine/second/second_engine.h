#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "carillon/base/bytes.h"
#include "carillon/engine/reading_engine.h"
#include "carillon/engine/second/apart.h"
#include "carillon/engine/second/kind.h"
#include "carillon/engine/second/runtime.h"

namespace carillon::engine {

struct SecondOptions {
  int threads = 1;  // of a run, the calling one among them; >= 1
  // The module that holds the engine's side (module/runtime.cpp of its folder). Empty: the kind's beside the
  // program, or where its installation puts it (../lib/carillon).
  std::filesystem::path module;
  // Each model in a process of its own (apart.h): what a model ends is that process. Else in this one.
  bool apart = true;
  // The most that a result may have whose extents the data of a run decide: what a plan of our own engine may
  // need for all that it computes (worker::Options::workspace).
  Bytes workspace = mib(512);
  // Of these processes. Their program, where none is named: the kind's beside the module.
  second::ApartOptions processes{};
};

// Models that our own graph does not hold, on an engine of others: ONNX files, and what else that reads.
//
// A model is compiled once, for all of its batch sizes, lengths and extents; only the shapes of outputs are
// inferred for each plan. Its weights stay with that engine, in the host's memory: it has none to LOAD, and
// is always there. f32 is computed as f32, also where the processor has faster types, but where the config
// asks for bf16. Where its process goes, CompiledModel::usable() says so until another has it. Runs of one
// model beside each other may wait for each other inside the engine; each stream has a request of its own,
// made when first needed.
std::shared_ptr<ReadingEngine> make_second_engine(const second::Kind& kind, const SecondOptions& options);
// With a runtime that is there already (tests).
std::shared_ptr<ReadingEngine> make_second_engine(const second::Kind& kind, const SecondOptions& options,
                                                  std::shared_ptr<second::Runtime> runtime);

// How to get the engine, for people who run this program: begins with "; ".
std::string_view remedy_of(const second::Kind& kind, const std::filesystem::path& program);

}  // namespace carillon::engine
