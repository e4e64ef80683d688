#include "carillon/engine/pacer.h"

#include <ctime>

namespace carillon::engine {
namespace {

Duration read(clockid_t clock) {
  timespec at{};
  clock_gettime(clock, &at);
  return std::chrono::seconds{at.tv_sec} + Duration{at.tv_nsec};
}

}  // namespace

void Pacer::begin() {
  now_ = share();
  if (now_ >= 1) return;
  wall_ = read(CLOCK_MONOTONIC);
  cpu_ = cpu_time();
}

Duration Pacer::rest_until(Duration cpu) const {
  return wall_ + from_ns(static_cast<double>((cpu - cpu_).count()) / now_);
}

Duration Pacer::cpu_time() {
  return read(CLOCK_THREAD_CPUTIME_ID);
}

Duration Pacer::now() {
  return read(CLOCK_MONOTONIC);
}

void Pacer::sleep(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec left{seconds.count(), (time - seconds).count()};
  nanosleep(&left, nullptr);
}

}  // namespace carillon::engine
