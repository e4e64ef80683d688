#include "carillon/frontend/unheeded.h"

#include <algorithm>

namespace carillon::frontend {
namespace {

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 64;
  std::string text(name.substr(0, longest));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return name.size() > longest ? text + "..." : text;
}

std::string_view advice(std::string_view name) {
  if (name.starts_with("sequence_")) return "models keep no state between requests; each is answered alone";
  if (name.find("timeout") != std::string_view::npos || name.find("deadline") != std::string_view::npos)
    return "a deadline goes into 'timeout', in microseconds";
  return "the requests are answered without it";
}

}  // namespace

void UnheededParameters::tell(std::string_view name) {
  if (!log_) return;
  auto text = shown(name);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (told_.size() >= names_most || !told_.insert(text).second) return;
    last = told_.size() == names_most;
  }
  log_("requests have the parameter '" + text + "', which is not heeded: " + std::string(advice(name)) +
       (last ? "; other names will not be told" : ""));
}

}  // namespace carillon::frontend
