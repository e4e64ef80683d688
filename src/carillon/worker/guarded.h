#pragma once

#include <exception>

#include "carillon/base/result.h"

namespace carillon::worker {

// What an engine's own words are worth: it may throw where it fails.
template <typename Call>
Result<> guarded(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return fail(ErrorCode::unavailable, error.what());
  } catch (...) {
    return fail(ErrorCode::unavailable, "the engine threw what is no std::exception");
  }
}

}  // namespace carillon::worker
