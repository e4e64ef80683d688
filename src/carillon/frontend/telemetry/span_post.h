#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "carillon/base/time.h"

namespace carillon::frontend {

// What a collector says to spans.
struct PostAnswer {
  unsigned status = 0;  // HTTP's; 0: nobody answered, and `body` says why
  std::optional<Duration> retry_after;
  std::string body;
};

// POSTs `body` (OTLP in protobuf) to the collector. Takes no longer than `patience`, and ends soon after
// `given_up` says true, which it asks often. Throws nothing.
using SpanPost = std::function<PostAnswer(const std::string& body, Duration patience,
                                          const std::function<bool()>& given_up)>;

// Spans by what became of them. `rejected`: the collector took their post, but not them.
struct SpanCounts {
  std::uint64_t sent = 0, dropped = 0, rejected = 0;
};

}  // namespace carillon::frontend
