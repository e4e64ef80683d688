#include "carillon/share/client/client.h"

#include <algorithm>

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace carillon::share::client {

constinit Client me{};
constinit thread_local bool trains = false;

std::uint64_t live_bytes() { return me.on_device ? me.keeper->live() : me.own.live() + me.lane.live(); }

std::uint64_t clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
}

std::uint64_t identity(int fd) {
  struct stat is {};
  if (fd < 0 || fstat(fd, &is) != 0) return 0;
  return (std::uint64_t{is.st_dev} << 40U) ^ is.st_ino ^ (std::uint64_t{1} << 63U);
}

void close_own(int& fd, std::uint64_t was) {
  if (fd >= 0 && identity(fd) == was) close(fd);
  fd = -1;
}

void because(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(me.why, sizeof me.why, format, arguments);
  va_end(arguments);
}

void tell() {
  char line[600];
  const int n = snprintf(line, sizeof line, "carillon: %s\n", me.why);
  if (n > 0 && write(2, line, std::min(static_cast<std::size_t>(n), sizeof line - 1)) < 0) return;
}

void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* longest) {
  syscall(SYS_futex, word, operation, value, longest, nullptr, 0);
}

}  // namespace carillon::share::client
