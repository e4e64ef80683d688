#include "fuzz.h"
#include <google/protobuf/stubs/logging.h>

#include "carillon/graph/model.h"
#include "carillon/graph/onnx_sizes.h"

// An ONNX file: import, shape inference, folding and fusion.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const google::protobuf::LogSilencer quiet;
  static const fuzz::InputFile file("model.onnx");
  file.write(fuzz::text_of(data, size));
  (void)graph::constant_sizes(file.path());
  for (const bool batched : {true, false}) {
    const auto model = graph::import_onnx(file.path(), {.batched = batched});
    if (fuzz::taken(model)) (void)fuzz::taken((*model)->specialize(batched ? 3 : 1));
  }
  return 0;
}
