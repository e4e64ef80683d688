#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/engine/weight_files.h"

namespace carillon::server {

// Where a server keeps what it makes of models, as the command line describes it.
struct StoreArguments {
  std::string directory;  // empty: usual_store()
  std::string limit;      // a size as text; empty: half of what the file system has free, and what is kept
  bool none = false;
};

// carillon in $XDG_CACHE_HOME, else in ~/.cache, by $HOME or else the user's entry; nothing where none is
// known. Paths that are not absolute count as none (XDG Base Directory Specification 0.8).
std::optional<std::filesystem::path> usual_store();

// The store's packed weights. nullptr: none is wanted, or the usual one cannot be had, and `warn` heard why.
// Errors: a directory that somebody named cannot be had (as WeightFiles::open() says); a limit that is no
// size. `warn` also hears what WeightFiles has to say.
Result<std::shared_ptr<engine::WeightFiles>> open_store(const StoreArguments& arguments,
                                                        std::function<void(const std::string&)> warn);

// What the times of models depend on beside their plans: processor, instructions, library, the processors
// that may be used and how much of them, program. UTF-8. Nothing where the program's file cannot be looked
// at.
std::optional<std::string> machine_text();

}  // namespace carillon::server
