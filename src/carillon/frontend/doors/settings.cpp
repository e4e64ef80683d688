#include "carillon/frontend/doors/settings.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace carillon::frontend {
namespace {

// A text from outside may be any length.
std::string cut_setting(std::string_view text) {
  constexpr std::size_t longest = 64;
  return "'" + std::string(text.substr(0, longest)) + (text.size() > longest ? "...'" : "'");
}

template <typename Values>
std::unexpected<Error> unknown_setting(std::string_view kind, std::string_view name, const Values& known) {
  std::string names;
  for (const auto& [each, value] : known) names += (names.empty() ? "" : ", ") + each;
  return invalid("there is no " + std::string(kind) + " setting " + cut_setting(name) + "; there are " +
                 names);
}

LogSettings::Values values_of(const LogLevels& levels) {
  return {{"log_error", levels.error},
          {"log_file", std::string()},
          {"log_format", std::string("default")},
          {"log_info", levels.info},
          {"log_verbose_level", std::uint64_t{levels.verbose}},
          {"log_warning", levels.warning}};
}

Result<bool> switch_of(std::string_view name, const LogSettings::Value& value) {
  if (const bool* on = std::get_if<bool>(&value)) return *on;
  return invalid("setting " + cut_setting(name) + " must be true or false");
}

Result<> apply_log_setting(std::string_view name, const LogSettings::Value& value, LogLevels& levels) {
  if (name == "log_file" || name == "log_format") {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) return invalid("setting " + cut_setting(name) + " must be text");
    if (*text == (name == "log_file" ? "" : "default")) return {};
    return fail(ErrorCode::unsupported,
                name == "log_file"
                    ? "the log's file cannot be changed over the network: the log goes to standard "
                      "error, where whoever started the server sends it"
                    : "the log has one format, 'default', not " + cut_setting(*text));
  }
  if (name == "log_verbose_level") {
    const auto* level = std::get_if<std::uint64_t>(&value);
    constexpr std::uint64_t most = 1'000'000;
    if (level == nullptr || *level > most)
      return invalid("setting 'log_verbose_level' must be a whole number from 0 to 1000000");
    levels.verbose = static_cast<std::uint32_t>(*level);
    return {};
  }
  const auto on = switch_of(name, value);
  if (!on) return std::unexpected(on.error());
  (name == "log_error" ? levels.error : name == "log_warning" ? levels.warning : levels.info) = *on;
  return {};
}

// The settings as they are where nobody has changed them.
const TraceSettings::Values& untouched() {
  static const TraceSettings::Values values{{"log_frequency", {"0"}},   {"trace_count", {"-1"}},
                                            {"trace_file", {""}},       {"trace_level", {"OFF"}},
                                            {"trace_mode", {"triton"}}, {"trace_rate", {"1000"}}};
  return values;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return n;
}

Result<> check_trace(const std::string& name, const std::vector<std::string>& value) {
  if (value.empty()) return {};
  if (name == "trace_level") {
    if (std::ranges::all_of(value, [](const std::string& level) { return level == "OFF"; })) return {};
    return fail(ErrorCode::unsupported,
                "trace_level can only be OFF: this server records no traces (its statistics and /metrics say "
                "where time goes)");
  }
  if (value.size() != 1)
    return invalid("trace setting " + cut_setting(name) + " has " + std::to_string(value.size()) +
                   " values; it takes one");
  if (name == "trace_file") {
    if (value[0].empty()) return {};
    return fail(ErrorCode::unsupported, "the file of traces cannot be set over the network");
  }
  if (name == "trace_mode") {
    if (value[0] == "triton") return {};
    return fail(ErrorCode::unsupported, "trace_mode can only be 'triton', not " + cut_setting(value[0]));
  }
  const std::int64_t least = name == "trace_count" ? -1 : 0;
  const auto n = whole_number(value[0]);
  if (!n || *n < least)
    return invalid("trace setting " + cut_setting(name) + " is " + cut_setting(value[0]) +
                   "; it must be a whole number, at least " + std::to_string(least));
  return {};
}

}  // namespace

Result<LogSettings::Values> LogSettings::all() const {
  if (!there()) return fail(ErrorCode::unsupported, "this server's log has no settings");
  const std::lock_guard lock(mutex_);
  return values_of(control_.levels());
}

Result<> LogSettings::change(const Values& changes) {
  if (!there()) return fail(ErrorCode::unsupported, "this server's log has no settings");
  const std::lock_guard lock(mutex_);
  const LogLevels before = control_.levels();
  const Values known = values_of(before);
  LogLevels levels = before;
  for (const auto& [name, value] : changes) {
    if (!known.contains(name)) return unknown_setting("log", name, known);
    if (auto applied = apply_log_setting(name, value, levels); !applied) return applied;
  }
  if ((levels.warning && !levels.error) || (levels.info && !levels.warning) ||
      (levels.verbose > 0 && !levels.info))
    return invalid(
        "each of log_error, log_warning, log_info and a log_verbose_level above 0 includes those before it: "
        "what "
        "comes before one that is on cannot be off; turn off the later ones with it");
  if (levels != before) control_.set(levels);
  return {};
}

TraceSettings::Values TraceSettings::all(std::string_view model) const {
  Values values = untouched();
  const std::lock_guard lock(mutex_);
  for (const std::string_view whose : {std::string_view(), model})
    if (const auto it = changed_.find(whose); it != changed_.end())
      for (const auto& [name, value] : it->second) values[name] = value;
  return values;
}

Result<> TraceSettings::change(std::string_view model, const Values& changes) {
  for (const auto& [name, value] : changes) {
    if (!untouched().contains(name)) return unknown_setting("trace", name, untouched());
    if (auto good = check_trace(name, value); !good) return good;
  }
  const std::lock_guard lock(mutex_);
  Values& own = changed_[std::string(model)];
  for (const auto& [name, value] : changes) {
    if (value.empty())
      own.erase(name);
    else if (name == "trace_level")
      own[name] = {"OFF"};  // however often it was said
    else
      own[name] = value;
  }
  return {};
}

}  // namespace carillon::frontend
