#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "carillon/base/trace_context.h"
#include "carillon/explain/row_spans.h"
#include "carillon/wire/row_trace.h"

namespace carillon::roles::testing {

// The place of a row in a sampled trace.
inline wire::RowTrace sampled_row() {
  wire::RowTrace out{.trace = {.trace_id = {1, 2, 3}, .span_id = {4, 5}, .flags = 1},
                     .unix_zero = TimePoint{Duration{-77}}};
  return out;
}

// Each part as "name begin-end", in milliseconds after the row's begin, and why it came to nothing.
inline std::vector<std::string> parts_of(const explain::RowSpans& spans) {
  const auto ms = [&](TimePoint t) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(t - spans.begin).count());
  };
  std::vector<std::string> out;
  for (const explain::RowSpans::Part& part : spans.parts)
    out.push_back(std::string(part.name) + " " + ms(part.begin) + "-" + ms(part.end) +
                  (part.failed.empty() ? "" : ": " + part.failed));
  return out;
}

}  // namespace carillon::roles::testing
