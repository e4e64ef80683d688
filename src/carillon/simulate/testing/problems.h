#pragma once

#include <map>
#include <string>

#include "carillon/base/time.h"

namespace carillon::simulate::testing {

// Broken promises by their kind: the first of each, in words.
class Problems {
 public:
  void add(const std::string& kind, const std::string& detail, TimePoint at) {
    found_.emplace(kind, detail + " at " + std::to_string(at.time_since_epoch().count()) + " ns");
  }
  const std::map<std::string, std::string>& all() const { return found_; }

 private:
  std::map<std::string, std::string> found_;
};

}  // namespace carillon::simulate::testing
