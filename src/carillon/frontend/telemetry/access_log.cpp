#include "carillon/frontend/telemetry/access_log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "carillon/base/unix_time.h"

namespace carillon::frontend {
namespace {

// Lines come this late at most, while the queue has room for what comes meanwhile.
constexpr auto write_every = std::chrono::milliseconds(20);
constexpr std::size_t written_at_once = std::size_t{64} << 10;

Result<Descriptor> open_file(const std::string& name) {
  Descriptor file(name == "-"
                      ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                      : ::open(name.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640));
  if (!file.open()) return fail(ErrorCode::unavailable, "cannot open " + name + ": " + std::strerror(errno));
  return file;
}

}  // namespace

Result<std::shared_ptr<AccessLog>> AccessLog::open(AccessLogOptions options) {
  auto file = open_file(options.file);
  if (!file) return std::unexpected(std::move(file.error()));
  return std::shared_ptr<AccessLog>(new AccessLog(std::move(options), std::move(*file)));
}

AccessLog::AccessLog(AccessLogOptions options, Descriptor file)
    : options_(std::move(options)),
      ring_(options_.queue),
      file_(std::move(file)),
      thread_([this] { run(); }) {}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void AccessLog::reopen() {
  const std::lock_guard lock(mutex_);
  reopen_ = true;
  wake_.notify_one();
}

void AccessLog::run() {
  pthread_setname_np(pthread_self(), "carillon-access");
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    last = ended_;
    const bool again = std::exchange(reopen_, false);
    lock.unlock();
    // What came before the order belongs into the old file.
    while (write_some() > 0) continue;
    if (again) open_again();
    lock.lock();
    if (!last) wake_.wait_for(lock, write_every, [this] { return ended_ || reopen_; });
  }
}

void AccessLog::open_again() {
  if (options_.file == "-") return;
  auto file = open_file(options_.file);
  if (!file) return complain("--access-log: " + file.error().message + "; the old file is written on");
  file_ = std::move(*file);
}

// How many were taken from the queue.
std::size_t AccessLog::write_some() {
  std::string lines;
  std::size_t count = 0;
  const Duration offset = unix_minus_steady();
  for (const AccessRecord* record = ring_.front(); record != nullptr && lines.size() < written_at_once;
       record = ring_.front()) {
    lines += access_line(*record, offset);
    ring_.pop();
    ++count;
  }
  if (count == 0) return 0;
  if (write(lines))
    written_.fetch_add(count, std::memory_order_relaxed);
  else
    dropped_.fetch_add(count, std::memory_order_relaxed);
  return count;
}

bool AccessLog::write(const std::string& lines) {
  for (std::size_t at = 0; at < lines.size();) {
    const ssize_t done = ::write(file_.number(), lines.data() + at, lines.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      complain("--access-log: cannot write to " + options_.file + ": " + std::strerror(errno) +
               "; lines are dropped until it goes again");
      return false;
    }
    at += static_cast<std::size_t>(done);
  }
  complained_ = false;
  return true;
}

void AccessLog::complain(const std::string& text) {
  if (!std::exchange(complained_, true) && options_.log) options_.log(text);
}

}  // namespace carillon::frontend
