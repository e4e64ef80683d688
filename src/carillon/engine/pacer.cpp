#include "carillon/engine/pacer.h"

#include <ctime>

#include "carillon/base/cpu_time.h"

namespace carillon::engine {

void Pacer::begin() {
  now_ = share();
  if (now_ >= 1) return;
  wall_ = read_clock(CLOCK_MONOTONIC);
  cpu_ = cpu_time();
}

Duration Pacer::rest_until(Duration cpu) const {
  return wall_ + from_ns(static_cast<double>((cpu - cpu_).count()) / now_);
}

Duration Pacer::cpu_time() {
  return thread_cpu_time();
}

Duration Pacer::now() {
  return read_clock(CLOCK_MONOTONIC);
}

void Pacer::sleep(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec left{seconds.count(), (time - seconds).count()};
  nanosleep(&left, nullptr);
}

}  // namespace carillon::engine
