#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/workload/request.h"

namespace carillon::device {

// What a device does.
enum class ActionKind : std::uint8_t { load, unload, infer };

// How an action ended.
enum class ActionStatus : std::uint8_t {
  success,
  too_late,    // could not start in its window: nothing was done
  no_memory,   // LOAD: not enough free pages; INFER: not enough I/O cache
  not_loaded,  // INFER: the weights are not there
  failed,      // ran and failed
  stopped,     // ended early, as it was told
};
std::string_view name_of(ActionStatus status);

// What becomes of an INFER that is ended early.
enum class After : std::uint8_t {
  drop,    // it is reported as stopped, and has no effect
  resume,  // it goes on later, at the kernel where it stopped, and is reported once
};

// What a device is told to do. Ids are not to be used twice; a model's is dense.
struct LoadAction {
  ActionId id;
  ModelId model;
  Window window;
  // That the copy has, where it is another version's than the model's present one.
  std::optional<std::uint64_t> pages = std::nullopt;
};
struct UnloadAction {
  ActionId id;
  ModelId model;
  bool discard = false;  // runs of the model that have begun are dropped; else it waits for them
};
struct InferAction {
  ActionId id;
  ModelId model;
  Window window;
  Class cls = Class::normal;
  std::uint8_t stream = 0;  // of the device's
  std::uint64_t units = 0;  // that it uses of the stream's, a bit each; 0: all
  float share = 1;          // of the stream's compute units, in (0, 1]
};

}  // namespace carillon::device
