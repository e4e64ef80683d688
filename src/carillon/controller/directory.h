#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/controller/service.h"

namespace carillon::controller {

// The models by name and version, as clients ask for them. Safe from any thread; a view that was given out
// stays good.
class Directory {
 public:
  // Replaces the view of the same name and version.
  void put(ModelView view);
  // Until open() is called views are given out as not ready, of those that are with this reason.
  void close(std::string reason);
  void open();

  std::vector<ModelView> all() const;  // in order of name, then version
  ModelCounts counts() const;
  // `version` empty: the newest that is ready, or else the newest. Errors (not_found, invalid_argument for a
  // version that is no positive integer) name what was asked for and what there is.
  Result<std::shared_ptr<const ModelView>> find(std::string_view model, std::string_view version) const;

 private:
  std::shared_ptr<const ModelView> seen(const std::shared_ptr<const ModelView>& view) const;

  mutable std::mutex mutex_;
  std::optional<std::string> closed_;
  std::vector<std::shared_ptr<const ModelView>> views_;  // in that order
};

}  // namespace carillon::controller
