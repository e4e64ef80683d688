#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace carillon::frontend {

// Told of what an operator should know. Any thread; quick.
using Log = std::function<void(const std::string&)>;

// Warns of request parameters that are not heeded, once a name. Names come from clients: no more than
// names_most are remembered, then none is told any more, and they are shown cut and without control
// characters. Any thread.
class UnheededParameters {
 public:
  static constexpr std::size_t names_most = 64;

  explicit UnheededParameters(Log log) : log_(std::move(log)) {}

  void tell(std::string_view name);

 private:
  const Log log_;
  std::mutex mutex_;
  std::set<std::string, std::less<>> told_;
};

}  // namespace carillon::frontend
