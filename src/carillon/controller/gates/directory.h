#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/controller/calls/service.h"

namespace carillon::controller {

// The models by name and version, as clients ask for them. Safe from any thread; a view that was given out
// stays good.
//
// A view whose config has steps, and that is not left out, is an ensemble: whether it is ready, or why not,
// follows from the views of its steps' models, and is worked out whenever one of them is put. A view that is
// not usable at the moment is given out as not ready; ensembles and counts() do not heed that, as it passes.
class Directory {
 public:
  // Ids of ensembles have this bit, and no others.
  static constexpr std::uint32_t ensemble_bit = std::uint32_t{1} << 31;

  // Replaces the view of the same name and version.
  void put(ModelView view);
  // Until open() is called views are given out as not ready, of those that are with this reason.
  void close(std::string reason);
  void open();

  // Whether it is ready, once the directory is open, or why not.
  Result<> state(std::string_view model, std::int64_t version) const;
  // By the id of a view of it that somebody still has; null: there is none.
  std::shared_ptr<const Ensemble> ensemble(ModelId id) const;

  std::vector<ModelView> all() const;  // in order of name, then version
  ModelCounts counts() const;
  // `version` empty: the newest that is ready, or else the newest. Errors (not_found, invalid_argument for a
  // version that is no positive integer) name what was asked for and what there is.
  Result<std::shared_ptr<const ModelView>> find(std::string_view model, std::string_view version) const;

 private:
  // What was put, and what is shown, which for ensembles is not the same.
  struct Entry {
    std::shared_ptr<const ModelView> put;
    std::shared_ptr<const ModelView> shown;
    bool known = true;  // `shown` is of now: while ensembles are worked out
  };
  std::span<const Entry> of_name(std::string_view model) const;
  void work_out();
  void work_out(Entry& entry);
  void show_unready(Entry& entry, std::string reason);
  bool may_come(const Entry& entry) const;
  std::string circle(const std::string& model) const;
  std::shared_ptr<const ModelView> seen(const std::shared_ptr<const ModelView>& view) const;

  mutable std::mutex mutex_;
  std::optional<std::string> closed_;
  std::vector<Entry> entries_;  // in that order
  std::uint32_t next_ensemble_ = 0;
  std::map<ModelId, std::weak_ptr<const Ensemble>> ensembles_;
};

}  // namespace carillon::controller
