#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/model.h"

namespace carillon::engine {

// An engine that reads model files itself, for those that our graph cannot hold: which operators there are is
// its own affair. It shares a device with another engine, whose threads it is held to. A run is one opaque
// kernel: it is not stopped inside, and its memory is its own.
class ReadingEngine : public Engine {
 public:
  // Whether it is there: its libraries are looked for when first asked. An error (unavailable) says what is
  // missing and how to get it.
  virtual Result<> available() = 0;
  // "2026.4.1"; empty where it is not available.
  virtual std::string version() = 0;
  // Whether files of that name are for it alone, as no other engine reads their format.
  virtual bool reads_alone(const std::filesystem::path& file) const = 0;
  // The model as clients see it, by the rules of graph::make_model(); its specialize() fails, and compile()
  // takes it. Errors: as import_onnx(), but for operators, which are told when it is compiled where not
  // before; outputs whose shapes the data decide where nobody knows the most that they can be (unsupported);
  // it is not available.
  virtual Result<std::shared_ptr<const graph::Model>> read(const std::filesystem::path& file,
                                                           const graph::ImportOptions& options) = 0;
  // Ends reads, compiles and searches for shapes that are under way, as far as they can be ended, and refuses
  // later ones. What was compiled goes on to run, but a model whose shapes were just looked for. From any
  // thread.
  virtual void end_loading() {}
  // What compiling `model` took of the host's memory, beside all caches, as far as that can be measured:
  // pages of its own process, or of this one, others' of the same moment included.
  virtual Bytes taken(const CompiledModel& model) const = 0;
};

}  // namespace carillon::engine
