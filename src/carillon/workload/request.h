#pragma once

#include <array>
#include <cstdint>

#include "carillon/base/effort.h"
#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon {

enum class Class : std::uint8_t { real_time, normal, best_effort };
// The more urgent first.
inline constexpr std::array all_classes{Class::real_time, Class::normal, Class::best_effort};

// One row of work for one model, as a scheduler sees it: no tensors, only ids and times. A client's request
// of k rows is k of these with one deadline.
struct Request {
  RequestId id;
  ModelId model;
  AppId app;
  Class cls = Class::normal;
  std::uint32_t priority = 0;  // among normal requests the smaller first on a tie
  TimePoint arrival;
  TimePoint deadline;
  Effort effort{};  // of its size, where its model tells sizes apart (schedule::ModelInfo::sizes)

  friend bool operator==(const Request&, const Request&) = default;
};

}  // namespace carillon
