#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::log {

// Passes everything on to a scheduler and writes it down, in order, so that the run can be replayed. Text,
// one record a line; docs/replay.md has the format. Costs a few hundred nanoseconds an event, and a write of
// 256 KiB to the file now and then, on the thread that decides. A file that can no longer be written is given
// up, with a line on standard error; the scheduler goes on. Not thread-safe.
class RecordingScheduler final : public Scheduler {
 public:
  // `name` and `environment` are those that `inner` was made from. Fails where the file cannot be created.
  static Result<std::unique_ptr<Scheduler>> open(const std::filesystem::path& file,
                                                 std::unique_ptr<Scheduler> inner, std::string_view name,
                                                 const Environment& environment);
  ~RecordingScheduler() override;

  std::string_view name() const override { return inner_->name(); }
  std::optional<Environment> environment() const override { return inner_->environment(); }
  const Scheduler* within() const override { return inner_.get(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

 private:
  RecordingScheduler(std::FILE* file, std::unique_ptr<Scheduler> inner)
      : file_(file), inner_(std::move(inner)) {}
  void flush();

  std::FILE* file_;
  std::unique_ptr<Scheduler> inner_;
  std::string buffer_;
  std::uint64_t events_ = 0;
  TimePoint wake_ = TimePoint::max();  // as it was written last
  TimePoint flushed_ = TimePoint::min();
};

}  // namespace carillon::schedule::log
