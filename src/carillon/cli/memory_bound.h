#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"
#include "carillon/repository/repository.h"
#include "carillon/server/memory_plan.h"

namespace carillon::cli {

// What the processes of a server may have resident together.
struct MemoryBound {
  Bytes bytes;
  std::string named;  // for errors: "--memory 256MiB"
  std::string from;   // who says so: "--memory", "the machine's memory", a control group's file
  bool given = false;
  Bytes limit;  // the machine's or the control group's at that time
};

// `text` is a size, or "auto": what the control group or the machine leaves, and this process has already. Of
// a control group's limit a sixteenth is left to the kernel, which counts its own memory there. Errors: no
// size, or nobody says how much there is.
Result<MemoryBound> memory_bound(const std::string& text);

// What the files of models say of the memory that they want; files that cannot be read want none.
struct KnownModels {
  Bytes largest_weights;
  std::optional<Bytes> all_weights;  // none where a file does not tell all: see graph::ConstantSizes
  Bytes memory;                      // all plans, and the largest one while it is made ready
  Bytes measured;  // all plans, and the largest one while it is measured, but for what its run works in
};
struct KnownOptions {
  bool stay = false;   // packed weights stay in memory, beside those that are loaded, as there is no store
  bool later = false;  // models come with one plan each, where nothing else is asked of them
};
KnownModels known_models(const std::vector<repository::RepositoryEntry>& entries, KnownOptions options);

// Models' part of the bound.
std::shared_ptr<MemoryAccount> make_account(const MemoryBound& bound, const server::MemoryWanted& wanted,
                                            const server::MemoryPlan& plan);

// Follows the limit of the machine or the control group: where that falls below what was planned with, fewer
// models are admitted.
class LimitWatch {
 public:
  LimitWatch(MemoryBound bound, std::shared_ptr<MemoryAccount> account)
      : bound_(std::move(bound)), account_(std::move(account)) {}
  // A line for people where something has changed; else empty. From one thread.
  std::string look();

 private:
  const MemoryBound bound_;
  const std::shared_ptr<MemoryAccount> account_;
  bool low_ = false;
};

}  // namespace carillon::cli
