#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "carillon/repository/repository.h"

namespace carillon::controller {

// What of a repository was taken in, as texts that change when its files do (repository::stamp_of()).
struct Stamps {
  std::map<std::pair<std::string, std::int64_t>, std::string> loaded;  // by name and version
  // Of all of a model's versions, where not every one could be loaded: it is not tried again as it is.
  std::map<std::string, std::string> failed;
  std::set<std::string> by_name;  // models that were asked for themselves, and not only by ensembles
  std::set<std::string> skipped;  // what was told of folders that are passed over
};

// Of one model, looked at once.
struct EntryStamps {
  std::vector<std::string> versions;  // as in the entry
  std::string all;                    // of an entry with an error: that
};
EntryStamps stamps_of(const repository::RepositoryEntry& entry);

}  // namespace carillon::controller
