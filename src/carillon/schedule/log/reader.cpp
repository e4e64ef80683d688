#include "carillon/schedule/log/reader.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "carillon/base/files.h"
#include "carillon/schedule/log/lines.h"

namespace carillon::schedule::log {
namespace {

constexpr std::size_t longest_line = 1 << 20;

}  // namespace

std::unexpected<Error> LogReader::wrong(const std::string& what) const {
  return invalid(file_ + ":" + std::to_string(number_) + ": " + what);
}

// False at the end. A last line without its end was cut off, and counts as not there.
bool LogReader::read_line() {
  if (held_) {
    held_ = false;
    return true;
  }
  if (!std::getline(in_, line_) || in_.eof()) return false;
  ++number_;
  return true;
}

Result<LogReader> LogReader::open(const std::filesystem::path& file) {
  LogReader reader;
  reader.file_ = file.string();
  auto opened = open_to_read("the log", file);
  if (!opened) return std::unexpected(std::move(opened.error()));
  reader.in_ = std::move(*opened);
  if (auto head = reader.read_head(); !head) return std::unexpected(std::move(head.error()));
  return reader;
}

Result<> LogReader::read_head() {
  const bool any = read_line();
  Words first(line_);
  if (!any || first.word() != magic)
    return wrong("this is not a log of carillon: the first line must be '" + std::string(magic) + " " +
                 std::to_string(version) + "'");
  version_ = first.number<int>();
  if (!first.good() || !first.done() || version_ < 1 || version_ > version)
    return wrong("this program reads logs of version 1 to " + std::to_string(version));
  while (read_line()) {
    if (line_.size() > longest_line) return wrong("the line is too long");
    Words words(line_);
    const auto kind = words.word();
    if (kind == "scheduler") {
      scheduler_ = words.rest();
    } else if (kind == "environment") {
      environment_.dispatch = words.duration();
      environment_.answer = words.duration();
      environment_.overrun = words.number<double>();
      if (!words.done()) {  // else a log of before it was measured: what was told stayed
        environment_.measured = words.number<int>() == 1;
        environment_.client = words.duration();
      }
      if (version_ >= 3) {
        environment_.hangs_after = words.duration();
        environment_.profile_share = words.number<double>();
      }
      if (version_ >= 4) {
        environment_.preemption = words.flag() ? Preemption::deadline : Preemption::none;
        environment_.classes = words.flag();
      }
      if (version_ >= 6) environment_.shortest = words.duration();
      if (version_ >= 9) environment_.admission = words.flag();
      if (version_ >= 10) environment_.miss_rate = words.number<double>();
      if (!words.good() || !(environment_.overrun >= 0 && environment_.overrun <= 100) ||
          environment_.dispatch < Duration{0} || environment_.answer < Duration{0} ||
          environment_.dispatch > 1h || environment_.answer > 1h || environment_.client < Duration{0} ||
          environment_.client > environment_.answer || environment_.hangs_after < Duration{0} ||
          environment_.hangs_after > 24h || environment_.shortest < Duration{0} ||
          environment_.shortest > 1h ||
          !(environment_.profile_share >= 0 && environment_.profile_share <= 1) ||
          !(environment_.miss_rate > 0 && environment_.miss_rate <= 0.5))
        return wrong(
            "environment needs two times in nanoseconds, up to an hour, a share, 0 or 1, a part of the "
            "second time, a time up to a day, a share, two times 0 or 1, a time up to an hour, 0 or 1, and a "
            "share up to "
            "0.5");
    } else if (kind == "model" && version_ == 1) {
      ModelInfo model;
      if (const auto what = read_model(words, sizes_.size(), version_, model); !what.empty())
        return wrong(std::string(what));
      if (model.id.index() != sizes_.size()) return wrong("a model comes once");
      came(model);
      before_.push_back(std::move(model));
    } else {
      held_ = true;
      break;
    }
  }
  if (scheduler_.empty()) return wrong("the log does not say its scheduler");
  return {};
}

void LogReader::came(const ModelInfo& model) {
  if (model.id.index() == sizes_.size()) {
    sizes_.emplace_back();
    served_.emplace_back();
  }
  served_[model.id.index()] = model.pages;
  std::vector<int>& sizes = sizes_[model.id.index()];
  sizes.clear();
  for (const BatchProfile& b : model.batches) sizes.push_back(b.batch);
}

Result<std::optional<LoggedDecision>> LogReader::next() {
  if (!read_line()) return std::nullopt;
  Words words(line_);
  const auto first = words.word();
  if (first == "end") {
    complete_ = true;
    return std::nullopt;
  }
  if (first != "e")
    return wrong("an event ('e ...') or the end was expected, not '" + line_.substr(0, 40) + "'");
  LoggedDecision decision;
  decision.now = words.time();
  if (!before_.empty()) {
    if (!words.good()) return wrong("an event needs its time");
    held_ = true;
    decision.event = model_comes(before_.front());
    before_.pop_front();
    return decision;
  }
  const auto kind = words.word();
  if (kind == "model") {
    ModelInfo model;
    if (const auto what = read_model(words, sizes_.size(), version_, model); !what.empty())
      return wrong(std::string(what));
    came(model);
    decision.event = model_comes(model);
  } else if (kind == "times") {
    TimesChanged times;
    if (const auto what = read_times(words, sizes_, times); !what.empty()) return wrong(what);
    decision.event = std::move(times);
  } else {
    decision.event = read_event(kind, words, sizes_.size());
    if (!words.good() || !words.done()) return wrong("'" + line_.substr(0, 60) + "' is not an event");
    if (const auto* gone = std::get_if<ModelChanged>(&decision.event)) served_[gone->model.index()].reset();
    if (const auto* change = std::get_if<DeviceChanged>(&decision.event)) {
      const std::uint32_t device = change->device.value;
      if (device > devices_)
        return wrong("device " + std::to_string(device) + " comes before device " + std::to_string(devices_));
      devices_ = std::max(devices_, device + 1);
      if (const auto what = wrong_held(*change, served_); !what.empty()) return wrong(what);
    }
  }
  while (read_line()) {
    Words said(line_);
    const auto what = said.word();
    if (what == "w") {
      wake_ = said.time();
    } else if (what == "a") {
      if (version_ == 1 && said.rest().starts_with("wake_at ")) continue;
      decision.actions.push_back(read_action(said, version_));
    } else {
      held_ = true;
      break;
    }
    if (!said.good() || !said.done()) return wrong("'" + line_.substr(0, 60) + "' is not an action");
  }
  if (version_ > 1) decision.wake = wake_;
  decision.whole = held_;
  return decision;
}

}  // namespace carillon::schedule::log
