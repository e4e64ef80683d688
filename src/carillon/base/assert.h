#pragma once

namespace carillon {

// Prints the broken promise with its place on standard error and aborts. Never returns.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace carillon

// A promise of our own code, checked in release builds too: a broken one is a bug, never a user's mistake.
#define CARILLON_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::carillon::assertion_failed(#expression, __FILE__, __LINE__))
