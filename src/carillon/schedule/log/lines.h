#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"

// The words of a log of decisions: docs/replay.md has the format.
namespace carillon::schedule::log {

constexpr std::string_view magic = "carillon-log";
constexpr int version = 10;

// Appends what stands behind "e NOW " and behind "a ", without the line's end.
void append(std::string& out, const Event& event);
void append(std::string& out, const Action& action);
// An action for people: as it stands in the log.
std::string to_line(const Action& action);

// The words of a line, taken one after the other. A word that is not there, or not what was asked for, makes
// good() false for good.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view word() {
    const auto space = rest_.find(' ');
    const auto taken = rest_.substr(0, space);
    rest_ = space == std::string_view::npos ? std::string_view{} : rest_.substr(space + 1);
    if (taken.empty()) good_ = false;
    return taken;
  }
  template <typename Number>
  Number number() {
    Number value{};
    const auto text = word();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) good_ = false;
    return value;
  }
  bool flag() {
    const int value = number<int>();
    if (value != 0 && value != 1) good_ = false;
    return value == 1;
  }
  template <typename Tag, typename Rep>
  void id(Id<Tag, Rep>& out) {
    out.value = number<Rep>();
  }
  TimePoint time() { return TimePoint{Duration{number<std::int64_t>()}}; }
  Window window() {
    const TimePoint earliest = time();
    return {earliest, time()};
  }
  Duration duration() { return Duration{number<std::int64_t>()}; }
  std::string_view rest() const { return rest_; }
  bool done() const { return rest_.empty(); }
  bool good() const { return good_; }
  void fail() { good_ = false; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// What stands behind "a ", in a log of `version`. Not good() where it is none.
Action read_action(Words& words, int version);
// What stands behind "e NOW ", all but the events that tell of models and their times; `models`: how many
// have come.
Event read_event(std::string_view kind, Words& words, std::size_t models);
// What is wrong with the models that a device comes with, or nothing. `served`: pages of the models that have
// come, by id; none of one that is gone.
std::string wrong_held(const DeviceChanged& change, std::span<const std::optional<std::uint64_t>> served);
// A model's id, pages, load time, batch sizes with their times, and name; with what a log of `version` knows
// of it besides. The id is one of `models` that have come, or the next. Says what is wrong, or nothing.
std::string_view read_model(Words& words, std::size_t models, int version, ModelInfo& model);

// What a model's batches take from now on: its id, batch sizes and their times. `sizes`: of the models that
// have come, by id. Says what is wrong, or nothing.
std::string read_times(Words& words, std::span<const std::vector<int>> sizes, TimesChanged& times);

}  // namespace carillon::schedule::log
