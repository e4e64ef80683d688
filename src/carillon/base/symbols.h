#pragma once

#include <cstring>
#include <string>
#include <utility>

namespace carillon {

// Fills a table with a library's functions by their names.
template <typename Find>  // void*(const char* name); nullptr: there is none
class Symbols {
 public:
  explicit Symbols(Find find) : find_(std::move(find)) {}
  template <typename F>
  void operator()(const char* name, F& into) {
    void* const found = find_(name);
    static_assert(sizeof found == sizeof into);
    std::memcpy(&into, &found, sizeof into);
    if (found == nullptr) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  // Those that there are not, with commas between.
  const std::string& missing() const { return missing_; }

 private:
  Find find_;
  std::string missing_;
};

}  // namespace carillon
