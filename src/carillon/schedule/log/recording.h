#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/schedule/around.h"

namespace carillon::schedule::log {

// Passes everything on to a scheduler and writes it down, in order, so that the run can be replayed. Text,
// one record a line; docs/replay.md has the format. Costs a few hundred nanoseconds an event, and a write of
// 256 KiB to the file now and then, on the thread that decides. A file that can no longer be written is given
// up, with a line on standard error; the scheduler goes on. Not thread-safe.
class RecordingScheduler final : public Around {
 public:
  // `name` and `environment` are those that `inner` was made from. Fails where the file cannot be created.
  static Result<std::unique_ptr<Scheduler>> open(const std::filesystem::path& file,
                                                 std::unique_ptr<Scheduler> inner, std::string_view name,
                                                 const Environment& environment);
  ~RecordingScheduler() override;

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  // What it sends would stand in no log.
  bool load_ahead(const LoadAhead&, TimePoint, Actions&) override { return false; }

 private:
  RecordingScheduler(std::FILE* file, std::unique_ptr<Scheduler> inner)
      : Around(std::move(inner)), file_(file) {}
  void flush();

  std::FILE* file_;
  std::string buffer_;
  std::uint64_t events_ = 0;
  TimePoint wake_ = TimePoint::max();  // as it was written last
  TimePoint flushed_ = TimePoint::min();
};

}  // namespace carillon::schedule::log
