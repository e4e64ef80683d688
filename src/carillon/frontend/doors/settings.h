#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::frontend {

// What is logged. Each kind includes those before it; `verbose` 1 adds details, 2 and more all there is.
struct LogLevels {
  bool error = true;
  bool warning = true;
  bool info = true;
  std::uint32_t verbose = 0;

  friend bool operator==(const LogLevels&, const LogLevels&) = default;
};

// How the program's log is asked and told. Any thread, one at a time; without both there are no log settings.
struct LogControl {
  std::function<LogLevels()> levels;
  std::function<void(const LogLevels&)> set;
};

// The settings of Triton's logging extension: log_error, log_warning, log_info (booleans), log_verbose_level
// (a whole number), log_file and log_format (texts). Safe from any thread.
class LogSettings {
 public:
  using Value = std::variant<bool, std::uint64_t, std::string>;
  using Values = std::map<std::string, Value, std::less<>>;

  explicit LogSettings(LogControl control) : control_(std::move(control)) {}

  bool there() const { return control_.levels && control_.set; }
  // Every setting. Error (unsupported): there are none.
  Result<Values> all() const;
  // All changes or none. Errors: also invalid_argument (an unknown setting, a value of the wrong kind, levels
  // of which one does not include those before it) and unsupported (log_file, and a log_format other than
  // "default": they stay as they were).
  Result<> change(const Values& changes);

 private:
  const LogControl control_;
  mutable std::mutex mutex_;
};

// The settings of Triton's trace extension, of the server and by model. They are kept and told, as far as
// they ask for nothing: this server records no traces. Safe from any thread.
class TraceSettings {
 public:
  // trace_level may have several values; all others have one.
  using Values = std::map<std::string, std::vector<std::string>, std::less<>>;

  // model empty: the server's; else the model's, which are the server's where it has none of its own.
  Values all(std::string_view model) const;
  // All changes or none; an empty value takes a setting back. Requires a model that is there, or none.
  // Errors: invalid_argument (an unknown setting, no number where one must be), unsupported (a trace_level
  // but OFF, a trace_mode but "triton", any trace_file).
  Result<> change(std::string_view model, const Values& changes);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Values, std::less<>> changed_;  // by model; "": the server's
};

}  // namespace carillon::frontend
