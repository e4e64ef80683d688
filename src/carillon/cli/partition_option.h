#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "carillon/base/result.h"
#include "carillon/schedule/subclusters.h"

namespace carillon::cli {

// Reads a division that `carillon partition --json` wrote. `devices` bounds the number of groups.
// Errors name the file.
Result<schedule::GroupsOfModels> read_division(const std::string& file, std::size_t devices);

// The file of --partition while a process runs. Any thread.
class PartitionFile {
 public:
  // Hears a division that was read again. True: models move. False: the division counts once this process
  // leads. Errors say what happens instead.
  using Divide = std::function<Result<bool>(const schedule::GroupsOfModels&)>;

  // An empty name: there are no groups.
  explicit PartitionFile(std::string file) : file_(std::move(file)) {}
  bool given() const { return !file_.empty(); }

  // The first division. read_division()'s errors, which then name the option.
  Result<schedule::GroupsOfModels> read(std::size_t devices);
  // Until end() returns, `divide` hears what is read again.
  void begin(Divide divide);
  void end();
  // The number of groups stays. A model that the file does not name stays in its group. Tells the log.
  void read_again();
  // What a scheduler that takes the lead divides by: the file as it is then. If the file is refused, what was
  // read last. Tells the log.
  schedule::GroupsOfModels lead();
  // GroupsOfModels::hash() of the division in force, or of what lead() would return; 0 without a file.
  std::uint64_t hash(bool leads) const;

 private:
  Result<schedule::GroupsOfModels> read_next() const;  // with mutex_

  const std::string file_;
  std::mutex calls_;  // of divide_; before mutex_
  Divide divide_;
  mutable std::mutex mutex_;  // of what follows
  std::size_t devices_ = 0;
  schedule::GroupsOfModels division_;
};

}  // namespace carillon::cli
