#include <cstdio>
#include <cstdlib>

#include "carillon/base/assert.h"
#include "carillon/base/result.h"

namespace carillon {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::resource_exhausted:
      return "resource_exhausted";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::deadline_exceeded:
      return "deadline_exceeded";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "carillon: bug: '%s' does not hold at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace carillon
