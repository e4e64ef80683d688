#include "carillon/simulate/usual_signals.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace carillon::simulate {

Result<UsualOptions> parse_usual(std::string_view text) {
  struct Name {
    std::string_view name;
    UsualSignal signal;
    double unit;
  };
  constexpr std::array names{Name{"concurrency", UsualSignal::concurrency, 1},
                             Name{"utilization", UsualSignal::utilization, 1},
                             Name{"queue", UsualSignal::queue_time, 1e-3}};
  const std::size_t colon = text.find(':');
  const auto named = std::ranges::find(names, text.substr(0, colon), &Name::name);
  double target = 0;
  if (named != names.end() && colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), target);
    if (error == std::errc{} && end == number.data() + number.size() && target >= 1e-6 && target <= 1e6)
      return UsualOptions{.signal = named->signal, .target = target * named->unit};
  }
  return invalid("'" + std::string(text) +
                 "' is none of wanted, concurrency:REQUESTS, utilization:SHARE and queue:MS, with a number "
                 "from 1e-6 to 1e6");
}

int UsualScaler::look(TimePoint now, int present, int asked, const Counters& counters) {
  const double passed = to_seconds(now - last_);
  int number = asked;
  if (begun_ && passed > 0) {
    double seen = 0;  // in all devices, by the target of one
    switch (options_.signal) {
      case UsualSignal::concurrency:
        seen = (counters.open_seconds - before_.open_seconds) / passed;
        break;
      case UsualSignal::utilization:
        seen = (counters.busy_seconds - before_.busy_seconds) / passed;
        break;
      case UsualSignal::queue_time: {
        const auto answered = static_cast<double>(counters.answered - before_.answered);
        seen = answered > 0 ? present * (counters.waited_seconds - before_.waited_seconds) / answered : 0;
        break;
      }
    }
    const double desired = seen / options_.target;
    if (std::abs(desired / asked - 1) > options_.tolerance)
      number = static_cast<int>(std::clamp(std::ceil(desired), 1.0, static_cast<double>(options_.most)));
  }
  begun_ = true;
  last_ = now;
  before_ = counters;
  while (!numbers_.empty() && numbers_.back().second <= number) numbers_.pop_back();
  numbers_.emplace_back(now, number);
  while (numbers_.front().first + options_.quiet < now) numbers_.pop_front();
  return numbers_.front().second;
}

}  // namespace carillon::simulate
