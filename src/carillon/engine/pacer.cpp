#include "carillon/engine/pacer.h"

#include <ctime>

namespace carillon::engine {
namespace {

constexpr Duration worth_a_sleep = std::chrono::microseconds{100};

Duration read(clockid_t clock) {
  timespec at{};
  clock_gettime(clock, &at);
  return std::chrono::seconds{at.tv_sec} + Duration{at.tv_nsec};
}

void sleep_until(Duration at) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
  const timespec until{seconds.count(), (at - seconds).count()};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

}  // namespace

void Pacer::begin() {
  now_ = share();
  if (now_ >= 1) return;
  wall_ = read(CLOCK_MONOTONIC);
  cpu_ = read(CLOCK_THREAD_CPUTIME_ID);
}

void Pacer::rest() {
  rest(worth_a_sleep);
}

void Pacer::end() {
  rest(Duration{0});
}

void Pacer::rest(Duration least) {
  if (now_ >= 1) return;
  const Duration used = read(CLOCK_THREAD_CPUTIME_ID) - cpu_;
  const Duration due = wall_ + from_ns(static_cast<double>(used.count()) / now_);
  if (due - read(CLOCK_MONOTONIC) > least) sleep_until(due);
}

}  // namespace carillon::engine
