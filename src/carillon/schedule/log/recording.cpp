#include "carillon/schedule/log/recording.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "carillon/schedule/log/lines.h"

namespace carillon::schedule::log {
namespace {

constexpr std::size_t write_at = 256 << 10;

}  // namespace

Result<std::unique_ptr<Scheduler>> RecordingScheduler::open(const std::filesystem::path& file,
                                                            std::unique_ptr<Scheduler> inner,
                                                            std::string_view name,
                                                            const Environment& environment) {
  // One that is empty was never more than begun.
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error) && std::filesystem::is_empty(file, error) && !error)
    std::filesystem::remove(file, error);
  std::FILE* out = std::fopen(file.c_str(), "wbx");
  if (out == nullptr)
    return fail(ErrorCode::invalid_argument,
                "cannot create the log '" + file.string() + "': " + std::strerror(errno) +
                    (errno == EEXIST ? "; name a file that is not there yet" : ""));
  std::unique_ptr<RecordingScheduler> made(new RecordingScheduler(out, std::move(inner)));
  made->buffer_ =
      fmt::format("{} {}\nscheduler {}\nenvironment {} {} {} {} {} {} {} {} {} {} {} {}\n", magic, version,
                  name, environment.dispatch.count(), environment.answer.count(), environment.overrun,
                  environment.measured ? 1 : 0, environment.client.count(), environment.hangs_after.count(),
                  environment.profile_share, environment.preemption == Preemption::deadline ? 1 : 0,
                  environment.classes ? 1 : 0, environment.shortest.count(), environment.admission ? 1 : 0,
                  environment.miss_rate);
  return made;
}

RecordingScheduler::~RecordingScheduler() {
  buffer_ += fmt::format("end {}\n", events_);
  flush();
  if (file_ != nullptr) std::fclose(file_);
}

void RecordingScheduler::flush() {
  if (file_ != nullptr && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) {
    fmt::print(stderr, "carillon: the log cannot be written any more: {}\n", std::strerror(errno));
    std::fclose(file_);
    file_ = nullptr;
  }
  if (file_ != nullptr) std::fflush(file_);
  buffer_.clear();
}

TimePoint RecordingScheduler::decide(const Event& event, TimePoint now, Actions& out) {
  const std::size_t before = out.size();
  const TimePoint wake = policy_->decide(event, now, out);
  ++events_;
  if (file_ == nullptr) return wake;
  fmt::format_to(std::back_inserter(buffer_), "e {} ", now.time_since_epoch().count());
  append(buffer_, event);
  buffer_ += '\n';
  for (std::size_t i = before; i < out.size(); ++i) {
    buffer_ += "a ";
    append(buffer_, out[i]);
    buffer_ += '\n';
  }
  if (wake != wake_) fmt::format_to(std::back_inserter(buffer_), "w {}\n", wake.time_since_epoch().count());
  wake_ = wake;
  if (flushed_ == TimePoint::min()) flushed_ = now;
  if (buffer_.size() >= write_at || now - flushed_ >= 1s) {
    flush();
    flushed_ = now;
  }
  return wake;
}

}  // namespace carillon::schedule::log
