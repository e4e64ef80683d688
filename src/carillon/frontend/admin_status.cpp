#include "carillon/frontend/admin_status.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "carillon/explain/terms.h"
#include "carillon/frontend/commons.h"
#include "carillon/frontend/device_actions.h"

namespace carillon::frontend {
namespace {

using Json = nlohmann::ordered_json;

Json ms_of(const std::optional<Duration>& d) {
  return d ? Json(to_ms(*d)) : Json(nullptr);
}

Json number_of(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Of the refused, and of what failed as the scheduler refused it.
Json reasons_of(const RecentModel& counts) {
  Json out = Json::object();
  std::uint64_t told = 0;
  for (std::size_t i = 0; i < counts.reasons.size(); ++i) {
    const auto reason = static_cast<schedule::Reason>(i);
    if (counts.reasons[i] > 0) out[std::string(schedule::name_of(reason))] = counts.reasons[i];
    // These alone are refusals by the deadline; the others count as failed.
    if (reason == schedule::Reason::cannot_finish || reason == schedule::Reason::deadline_passed ||
        reason == schedule::Reason::rejected_late)
      told += counts.reasons[i];
  }
  if (counts.shed > 0) out["overloaded"] = counts.shed;
  told += counts.shed;
  // Before the scheduler heard of them: too near a deadline for any decision, or for plans of their size.
  if (counts.refused > told) out["no_time_to_decide"] = counts.refused - told;
  return out;
}

Json counts_of(const RecentModel& counts) {
  return {{"on_time", counts.on_time},     {"late", counts.late},     {"refused", counts.refused},
          {"cancelled", counts.cancelled}, {"failed", counts.failed}, {"invalid", counts.invalid},
          {"reasons", reasons_of(counts)}};
}

Json model_json(const Picture::Model& model) {
  Json minute = counts_of(model.minute);
  minute["on_time_share"] = number_of(model.minute.on_time_share());
  const bool answered = model.minute.on_time + model.minute.late > 0;
  minute["p50_ms"] = ms_of(answered ? std::optional(model.minute.p50) : std::nullopt);
  minute["p99_ms"] = ms_of(answered ? std::optional(model.minute.p99) : std::nullopt);
  Json devices = Json::array();
  for (const DeviceId device : model.held_by)
    if (devices.empty() || devices.back() != device.value) devices.push_back(device.value);
  return {{"name", model.name},
          {"version", model.version},
          {"state", model.ready      ? "ready"
                    : model.left_out ? "left_out"
                                     : "not_ready"},
          {"reason", model.reason},
          {"engine", model.engine},
          {"class", model.cls},
          {"slo_ms", ms_of(model.slo)},
          {"loaded_on", std::move(devices)},
          {"rate", number_of(model.rate)},
          {"last_minute", std::move(minute)},
          {"total", counts_of(model.total)}};
}

// What each executor does now: the first of the actions that it was given and that may start; behind it wait
// the others.
std::map<std::uint32_t, Json> running(const Watch& watch, const Picture& picture, const Caller* caller) {
  std::map<std::uint32_t, Json> out;
  std::map<std::tuple<std::uint32_t, schedule::ActionKind, Class>, std::size_t> first;
  const TimePoint now = watch.service().now();
  for (const DeviceAction& action : open_actions(watch.service(), picture, caller)) {
    Json& of = out.try_emplace(action.device, Json::array()).first->second;
    const auto [at, is_first] =
        first.try_emplace({action.device, action.what.kind, action.what.cls}, of.size());
    if (!is_first) {
      Json& waiting = of[at->second]["waiting"];
      waiting = waiting.get<std::uint64_t>() + 1;
      continue;
    }
    of.push_back({{"executor", action.executor()},
                  {"class", explain::name_of(action.what.cls)},
                  {"model", action.name},
                  {"version", action.version},
                  {"batch", action.what.batch},
                  {"begun", action.what.exec_begin <= now},
                  {"predicted_ms", to_ms(action.what.predicted)},
                  {"waiting", std::uint64_t{0}}});
  }
  return out;
}

Json server_json(const Watch& watch, const Picture& picture, const Commons& commons) {
  const ServerFacts& facts = commons.options.facts;
  Json options = Json::object();
  for (const auto& [name, value] : facts.options) options[name] = value;
  const auto readiness = server_ready(watch.service(), commons);
  const bool all_models = commons.guard->needs_keys();
  return {{"name", "carillon"},
          {"version", CARILLON_VERSION},
          {"uptime_s", to_seconds(watch.service().now() - watch.started())},
          {"state", commons.draining  ? "draining"
                    : picture.loading ? "loading"
                    : readiness       ? "ready"
                                      : "not_ready"},
          // With keys it may name a model that the caller should not know of.
          {"why", readiness || all_models ? "" : readiness.error().message},
          {"policy", facts.policy},
          {"model_control", facts.model_control},
          {"options", std::move(options)},
          {"open_requests", picture.open_requests}};
}

}  // namespace

std::string status_json(Watch& watch, const Commons& commons, const Caller* caller) {
  const auto picture = watch.picture();
  Json devices = Json::array();
  auto now = running(watch, *picture, caller);
  for (std::size_t i = 0; i < picture->devices.size(); ++i) {
    const auto& [counts, busy] = picture->devices[i];
    const auto found = now.find(static_cast<std::uint32_t>(i));
    devices.push_back({{"number", i},
                       {"name", counts.name},
                       {"alive", counts.alive},
                       {"lost", counts.lost},
                       {"pages_total", counts.pages_total},
                       {"pages_used", counts.pages_total - counts.pages_free},
                       {"models", counts.models},
                       {"executions", counts.executions},
                       {"busy", number_of(busy)},
                       {"now", found != now.end() ? std::move(found->second) : Json::array()}});
  }
  Json models = Json::array();
  for (const Picture::Model& model : picture->models)
    if (may_use(caller, model.name)) models.push_back(model_json(model));
  const Json out{{"server", server_json(watch, *picture, commons)},
                 {"age_ms", to_ms(watch.service().now() - picture->at)},
                 {"last_minute_s", to_seconds(picture->minute)},
                 {"devices", std::move(devices)},
                 {"models", std::move(models)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace carillon::frontend
