#include "carillon/frontend/admin/device_actions.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "carillon/explain/terms.h"
#include "carillon/frontend/access/guard.h"

namespace carillon::frontend {
namespace {

using controller::TimelineAction;
using controller::TimelinePart;

// Gives an action its names; none where the caller may not use its model.
std::optional<DeviceAction> named(const TimelinePart& part, const TimelineAction& action,
                                  const Picture& picture, const Caller* caller) {
  DeviceAction out{.what = action, .device = part.first_device + action.device, .name = {}};
  const std::size_t place = std::size_t{part.first_model} + action.model;
  if (place < picture.places.size()) {
    out.name = picture.places[place].first;
    out.version = picture.places[place].second;
  } else if (caller != nullptr) {
    return std::nullopt;  // it came after the picture: nobody knows yet whose it is
  }
  if (!may_use(caller, out.name)) return std::nullopt;
  return out;
}

std::int64_t us(TimePoint t) {
  return std::chrono::duration_cast<std::chrono::microseconds>(t.time_since_epoch()).count();
}
std::int64_t us(Duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

// A cursor is the number of the next action of each timeline, with dots between them.
Result<std::vector<std::uint64_t>> parse_cursor(std::string_view text, std::size_t parts) {
  std::vector<std::uint64_t> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end && out.size() < parts) {
    std::uint64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || (next != end && (*next != '.' || next + 1 == end))) break;
    out.push_back(number);
    at = next == end ? end : next + 1;
  }
  if (at != end || out.size() != parts)
    return invalid("since is '" + std::string(text.substr(0, 64)) +
                   "'; it must be what an earlier answer gave as \"next\"");
  return out;
}

// The models that actions name, each told once.
class ModelTable {
 public:
  std::size_t index(const DeviceAction& action) {
    const auto [at, is_new] = places_.try_emplace({action.name, action.version}, places_.size());
    if (is_new) json.push_back({{"name", action.name}, {"version", action.version}});
    return at->second;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();

 private:
  std::map<std::pair<std::string, std::int64_t>, std::size_t> places_;
};

void append(std::string& out, std::string_view name, std::int64_t value) {
  out += ",\"";
  out += name;
  out += "\":";
  out += std::to_string(value);
}

void append_span(std::string& out, std::string_view name, TimePoint begin, TimePoint end) {
  if (end <= begin) return;
  out += ",\"";
  out += name;
  out += "\":[" + std::to_string(us(begin)) + ',' + std::to_string(us(end)) + ']';
}

void append_action(std::string& out, const DeviceAction& action, ModelTable& models) {
  const TimelineAction& a = action.what;
  const bool loads = a.kind == schedule::ActionKind::load;
  out += out.back() == '[' ? "{" : ",{";
  out += "\"device\":" + std::to_string(action.device);
  append(out, "action", static_cast<std::int64_t>(a.id.value));
  append(out, "model", static_cast<std::int64_t>(models.index(action)));
  if (!loads) {
    append(out, "batch", a.batch);
    out += ",\"class\":\"" + std::string(explain::name_of(action.what.cls)) + '"';
  }
  append(out, "predicted_us", us(a.predicted));
  if (a.open != 0) {
    out += ",\"executor\":\"" + std::string(action.executor()) + '"';
    // Windows without an end mean nothing to anybody.
    if (a.exec_begin > TimePoint{}) append(out, "earliest_us", us(a.exec_begin));
    if (a.exec_end < TimePoint::max()) append(out, "latest_us", us(a.exec_end));
  } else {
    out += ",\"status\":\"" + std::string(schedule::name_of(a.status)) + '"';
    if (!loads) append_span(out, "input", a.input_begin, a.input_end);
    append_span(out, loads ? "load" : "exec", a.exec_begin, a.exec_end);
    if (!loads) append_span(out, "output", a.output_begin, a.output_end);
  }
  out += '}';
}

}  // namespace

std::vector<DeviceAction> open_actions(const controller::Service& service, const Picture& picture,
                                       const Caller* caller) {
  std::vector<DeviceAction> out;
  std::vector<TimelineAction> open;
  for (const TimelinePart& part : service.timelines()) {
    open.clear();
    part.timeline->read_open(open);
    for (const TimelineAction& action : open)
      if (auto known = named(part, action, picture, caller)) out.push_back(*std::move(known));
  }
  return out;
}

Result<std::string> timeline_json(Watch& watch, std::string_view since, const Caller* caller) {
  const controller::Service& service = watch.service();
  const std::vector<TimelinePart> parts = service.timelines();
  std::vector<std::uint64_t> from(parts.size(), 0);
  if (!since.empty()) {
    auto cursor = parse_cursor(since, parts.size());
    if (!cursor) return std::unexpected(std::move(cursor.error()));
    from = *std::move(cursor);
  }
  const auto picture = watch.picture();
  std::string next;
  std::uint64_t left_out = 0;
  std::vector<DeviceAction> ended;
  std::vector<TimelineAction> read;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint64_t to = parts[i].timeline->count();
    if (from[i] > to) from[i] = 0;  // another server's, before this one started
    const std::size_t share = std::max<std::size_t>(1, most_actions / parts.size());
    std::uint64_t first = from[i];
    if (to - first > share) first = to - share;
    read.clear();
    parts[i].timeline->read(first, to, read);
    if (!since.empty()) left_out += to - from[i] - read.size();
    for (const TimelineAction& action : read)
      if (auto known = named(parts[i], action, *picture, caller)) ended.push_back(*std::move(known));
    next += (i > 0 ? "." : "") + std::to_string(to);
  }

  ModelTable models;
  std::string out = "{\"now_us\":" + std::to_string(us(service.now()));
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  append(out, "unix_us", std::chrono::duration_cast<std::chrono::microseconds>(unix_time).count());
  append(out, "started_us", us(watch.started()));
  out += ",\"next\":\"" + next + '"';
  append(out, "left_out", static_cast<std::int64_t>(left_out));
  out += ",\"actions\":[";
  for (const DeviceAction& action : ended) append_action(out, action, models);
  out += "],\"under_way\":[";
  for (const DeviceAction& action : open_actions(service, *picture, caller))
    append_action(out, action, models);
  out += "],\"models\":";
  out += models.json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out += '}';
  return out;
}

}  // namespace carillon::frontend
