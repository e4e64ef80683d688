#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::log {

struct LoggedDecision {
  Event event;
  TimePoint now;
  Actions actions;
  // What decide() returned; none in a log of version 1, whose policies asked for wakes they did not need.
  std::optional<TimePoint> wake;
  bool whole = true;  // false where the log breaks off after it: actions may be missing
};

// Reads a log record by record, of this program's version or of one before it: of version 1, the models that
// stand in front of the events are told as ModelChanged at the time of the first. Outside input: every number
// is checked, and errors name file and line.
class LogReader {
 public:
  static Result<LogReader> open(const std::filesystem::path& file);

  const std::string& scheduler() const { return scheduler_; }
  const Environment& environment() const { return environment_; }

  // The next decision; none at the end. A log without its end mark (the process was killed) ends where it
  // ends, and complete() is false then.
  Result<std::optional<LoggedDecision>> next();
  bool complete() const { return complete_; }

 private:
  std::unexpected<Error> wrong(const std::string& what) const;
  bool read_line();
  Result<> read_head();

  std::string file_;
  std::ifstream in_;
  std::string line_;
  std::uint64_t number_ = 0;  // of line_
  bool held_ = false;         // line_ was read and not used yet
  bool complete_ = false;
  int version_ = 0;
  std::string scheduler_;
  Environment environment_;
  void came(const ModelInfo& model);

  std::vector<std::vector<int>> sizes_;               // of batches, by model that has come
  std::vector<std::optional<std::uint64_t>> served_;  // pages, by model that has come; none: it is gone
  std::uint32_t devices_ = 0;                         // that have come
  std::deque<ModelInfo> before_;                      // of version 1, not yet told
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule::log
