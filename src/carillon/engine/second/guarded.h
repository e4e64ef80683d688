#pragma once

#include <exception>
#include <string>

namespace carillon::engine::second {

// Runs `body`; what it throws becomes the answer. For modules: nothing may throw through runtime.h.
template <typename Body>
std::string guarded(const Body& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an exception without a text" : text;
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace carillon::engine::second
