#include "carillon/frontend/telemetry/trend.h"

#include <algorithm>

namespace carillon::frontend {
namespace {

template <typename T>
T more(const T& before, const T& now) {
  return now > before ? now - before : T{};
}

}  // namespace

void Trend::look(TimePoint now, const Totals& totals, std::size_t devices, Bytes resident) {
  if (!begun_) {
    begun_ = true;
    last_ = now;
    before_ = totals;
    return;
  }
  if (now - last_ < step) return;
  Sample& sample = ring_[next_ % capacity];
  sample = {.end = now, .span = now - last_, .in = {}, .devices = devices, .resident = resident};
  for (const auto count : {&Totals::on_time, &Totals::late, &Totals::refused, &Totals::cancelled,
                           &Totals::failed, &Totals::invalid})
    sample.in.*count = more(before_.*count, totals.*count);
  for (const auto time : {&Totals::exec, &Totals::load}) sample.in.*time = more(before_.*time, totals.*time);
  ++next_;
  last_ = now;
  before_ = totals;
}

std::vector<Trend::Sample> Trend::samples(std::uint64_t since) const {
  const std::uint64_t oldest = next_ - std::min<std::uint64_t>(next_, capacity);
  std::vector<Sample> out;
  for (std::uint64_t n = std::max(since, oldest); n < next_; ++n) out.push_back(ring_[n % capacity]);
  return out;
}

}  // namespace carillon::frontend
