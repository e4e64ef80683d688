#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/shared_memory.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/memory/parse_room.h"
#include "carillon/graph/tensor.h"

namespace carillon::frontend {

// One output that the client wants, in the order in which it wants them.
struct OutputChoice {
  std::size_t index = 0;  // into ModelConfig::outputs
  bool binary = false;    // as a blob behind the JSON; no meaning over gRPC, which always sends raw bytes
  std::optional<SharedPart> shared;  // goes there, and not into the answer
  std::int64_t classes = 0;  // so many of its largest values as text (classification.h); 0: its values
};

// An input as the model takes it: held against the config.
struct InputSlot {
  std::size_t index = 0;  // into ModelConfig::inputs
  graph::DataType type = graph::DataType::f32;
  graph::Shape shape;
  std::size_t elements = 0;
  std::size_t bytes = 0;
};

// An input that lies on a device, and is not here yet.
struct Fetch {
  InputSlot slot;
  SharedPart from;
};

// What a request may lean on beside its message.
struct Surroundings {
  const SharedMemory* regions = nullptr;     // null: there are none
  const Key* key = nullptr;                  // whose request it is; null: there are no keys
  Reservation* room = nullptr;               // grows for inputs from shared memory; null: without a bound
  ParseRoom::Admission* admitted = nullptr;  // of large JSON; null: there is none
};

// A request as a codec leaves it: checked against the model's config, tensors in place but for `fetches`.
struct InferRequest {
  std::string id;  // echoed; empty: none given
  std::vector<OutputChoice> outputs;
  std::vector<Fetch> fetches;                   // what fetch_inputs() has to bring
  std::vector<std::string> unheeded;            // names of parameters that mean nothing here; the first few
  Reservation more_room;                        // that the tensors hold beyond the body's; see hold_inputs()
  std::unique_ptr<controller::InferCall> call;  // deadline TimePoint::max(): the client named none
};

}  // namespace carillon::frontend
