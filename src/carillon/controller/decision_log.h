#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::controller {

// A log of everything that went into and out of a scheduler, in order, from which the run can be replayed.
// Text, one record a line; docs/replay.md has the format.

// Passes everything on to a scheduler and writes it down. Costs a few hundred nanoseconds an event, and a
// write of 256 KiB to the file now and then, on the thread that decides. A file that can no longer be written
// is given up, with a line on standard error; the scheduler goes on. Not thread-safe.
class RecordingScheduler final : public schedule::Scheduler {
 public:
  // `name` and `environment` are those that `inner` was made from. Fails where the file cannot be created.
  static Result<std::unique_ptr<schedule::Scheduler>> open(const std::filesystem::path& file,
                                                           std::unique_ptr<schedule::Scheduler> inner,
                                                           std::string_view name,
                                                           const schedule::Environment& environment);
  ~RecordingScheduler() override;

  std::string_view name() const override { return inner_->name(); }
  void add_model(const schedule::ModelInfo& model) override;
  void decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override;
  bool learns_from_profiles() const override { return inner_->learns_from_profiles(); }
  Duration predicted_exec(DeviceId device, ModelId model, int batch) const override {
    return inner_->predicted_exec(device, model, batch);
  }

 private:
  RecordingScheduler(std::FILE* file, std::unique_ptr<schedule::Scheduler> inner)
      : file_(file), inner_(std::move(inner)) {}
  void flush();

  std::FILE* file_;
  std::unique_ptr<schedule::Scheduler> inner_;
  std::string buffer_;
  std::uint64_t events_ = 0;
  TimePoint flushed_ = TimePoint::min();
};

struct LoggedDecision {
  schedule::Event event;
  TimePoint now;
  std::vector<std::string> actions;  // as to_line() writes them
  bool whole = true;                 // false where the log breaks off after it: actions may be missing
};

// Reads a log record by record. Outside input: every number is checked, and errors name file and line.
class LogReader {
 public:
  static Result<LogReader> open(const std::filesystem::path& file);

  const std::string& scheduler() const { return scheduler_; }
  const schedule::Environment& environment() const { return environment_; }
  const std::vector<schedule::ModelInfo>& models() const { return models_; }

  // The next decision; none at the end. A log without its end mark (the process was killed) ends where it
  // ends, and complete() is false then.
  Result<std::optional<LoggedDecision>> next();
  bool complete() const { return complete_; }

 private:
  std::unexpected<Error> wrong(const std::string& what) const;
  bool read_line();

  std::string file_;
  std::ifstream in_;
  std::string line_;
  std::uint64_t number_ = 0;  // of line_
  bool held_ = false;         // line_ was read and not used yet
  bool complete_ = false;
  std::string scheduler_;
  schedule::Environment environment_;
  std::vector<schedule::ModelInfo> models_;
};

// An action as a line of the log, without its end.
std::string to_line(const schedule::Action& action);

}  // namespace carillon::controller
