#include "carillon/frontend/admin/admin_status.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/explain/terms.h"
#include "carillon/frontend/admin/device_actions.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_routes.h"

namespace carillon::frontend {
namespace {

using Json = nlohmann::ordered_json;

// To four places: more digits tell people nothing, and make answers long.
double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

Json ms_of(const std::optional<Duration>& d) {
  return d ? Json(rounded(to_ms(*d))) : Json(nullptr);
}

Json number_of(const std::optional<double>& value) {
  return value ? Json(rounded(*value)) : Json(nullptr);
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
  return {{"on_time", counts.on_time},
          {"late", counts.late},
          {"refused", counts.refused},
          {"cancelled", counts.cancelled},
          {"failed", counts.failed},
          {"invalid", counts.invalid},
          {"promised",
           {{"rows", counts.promised},
            {"expected_late", rounded(counts.expected_late)},
            {"late", counts.promised_late},
            {"avoidable_late", counts.avoidable_late}}},
          {"reasons", reasons_of(counts)}};
}

using Model = Picture::Model;
using Sort = StatusQuery::Sort;

// Not served, though somebody wants it, and it will not come by itself.
bool broken(const Model& model) {
  return !model.ready && !model.left_out && !model.coming;
}

double p99_of_slo(const Model& model) {
  return model.slo && *model.slo > Duration{0} ? to_seconds(model.minute.p99) / to_seconds(*model.slo) : 0;
}

// Stable sorts keep the order of names where nothing else decides.
void sort(std::vector<const Model*>& models, Sort by) {
  const auto rate = [](const Model* m) { return m->rate.value_or(0); };
  switch (by) {
    case Sort::name:
      return;
    case Sort::rate:
      std::ranges::stable_sort(models, std::greater{}, rate);
      return;
    case Sort::trouble:
      std::ranges::stable_sort(models, std::greater{}, [&](const Model* m) {
        return std::tuple(broken(*m), m->minute.bad(), p99_of_slo(*m), rate(m));
      });
      return;
  }
}

bool contains(std::string_view name, std::string_view part) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return !std::ranges::search(name, part, {}, small, small).empty() || part.empty();
}

// A mean over `count`; nothing where there were none.
Json mean_ms(Duration sum, std::uint64_t count) {
  return ms_of(count == 0 ? std::nullopt : std::optional(sum / static_cast<std::int64_t>(count)));
}

// Where requests and devices spent the last minute.
Json time_json(const Picture& picture, const RecentModel& minute) {
  const std::uint64_t answered = minute.on_time + minute.late;
  Json margin = nullptr;
  if (picture.margin) {
    const auto& kept = *picture.margin;
    const Duration exec = answered > 0 ? minute.exec / static_cast<std::int64_t>(answered) : Duration{0};
    margin = {{"ms", ms_of(kept.of(exec))},
              {"dispatch_ms", ms_of(kept.dispatch)},
              {"answer_ms", ms_of(kept.answer)},
              {"overrun", rounded(kept.overrun)}};
  }
  const auto& devices = picture.device_time;
  return {{"exec_share", devices ? Json(rounded(devices->exec)) : Json(nullptr)},
          {"load_share", devices ? Json(rounded(devices->load)) : Json(nullptr)},
          {"waiting_ms", mean_ms(minute.waited, answered)},
          {"input_ms", mean_ms(minute.input, answered)},
          {"exec_ms", mean_ms(minute.exec, answered)},
          {"output_ms", mean_ms(minute.output, answered)},
          {"latency_ms", mean_ms(minute.took, answered)},
          {"margin", std::move(margin)}};
}

Json memory_json(const Picture& picture) {
  if (!picture.memory) return nullptr;
  Json parts = Json::object();
  for (const auto& [part, size] : picture.memory->parts) parts[part] = size.count;
  return {{"limit", picture.memory->limit.count},
          {"resident", picture.memory->resident.count},
          {"parts", std::move(parts)}};
}

Json overview_json(const Picture& picture, const std::vector<const Model*>& models) {
  RecentModel minute;
  double rate = 0;
  for (const Model* model : models) {
    if (model->ensemble) continue;
    minute += model->minute;
    rate += model->rate.value_or(0);
  }
  Json out = counts_of(minute);
  const double seconds = to_seconds(picture.minute);
  out["on_time_share"] = number_of(minute.on_time_share());
  out["goodput"] = seconds > 0 ? Json(rounded(static_cast<double>(minute.on_time) / seconds)) : Json(nullptr);
  out["rate"] = seconds > 0 ? Json(rounded(rate)) : Json(nullptr);
  out["time"] = time_json(picture, minute);
  out["memory"] = memory_json(picture);
  return out;
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
                    : model.coming   ? "coming"
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
                  {"predicted_ms", ms_of(action.what.predicted)},
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
          {"uptime_s", rounded(to_seconds(watch.service().now() - watch.started()))},
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

Result<StatusQuery> parse_status_query(std::string_view target) {
  StatusQuery out;
  const std::string_view sort = query_value(target, "sort");
  if (sort == "rate")
    out.sort = StatusQuery::Sort::rate;
  else if (sort == "trouble")
    out.sort = StatusQuery::Sort::trouble;
  else if (!sort.empty() && sort != "name")
    return invalid("sort is '" + std::string(sort.substr(0, 64)) + "'; it must be name, rate or trouble");
  auto part = unescape(query_value(target, "name"));
  if (!part) return invalid("name has a broken % escape");
  out.part = std::move(*part);
  for (const auto& [name, value] : {std::pair("offset", &out.offset), std::pair("limit", &out.limit)}) {
    const std::string_view text = query_value(target, name);
    if (text.empty()) continue;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc{} || end != text.data() + text.size())
      return invalid(std::string(name) + " is '" + std::string(text.substr(0, 64)) +
                     "'; it must be a whole number");
  }
  return out;
}

std::string status_json(Watch& watch, const Commons& commons, const Caller* caller,
                        const StatusQuery& query) {
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
                       {"page_bytes", counts.page.count},
                       {"models", counts.models},
                       {"executions", counts.executions},
                       {"busy", number_of(busy)},
                       {"now", found != now.end() ? std::move(found->second) : Json::array()}});
  }
  std::vector<const Model*> seen;
  std::size_t ready = 0, wrong = 0;
  for (const Model& model : picture->models) {
    if (!may_use(caller, model.name)) continue;
    seen.push_back(&model);
    ready += model.ready ? 1 : 0;
    wrong += broken(model) ? 1 : 0;
  }
  Json overview = overview_json(*picture, seen);
  const std::size_t all = seen.size();
  std::erase_if(seen, [&](const Model* model) { return !contains(model->name, query.part); });
  sort(seen, query.sort);
  Json models = Json::array();
  const std::size_t begin = std::min(query.offset, seen.size());
  for (std::size_t i = begin; i < begin + std::min(query.limit, seen.size() - begin); ++i)
    models.push_back(model_json(*seen[i]));
  const Json out{
      {"server", server_json(watch, *picture, commons)},
      {"age_ms", ms_of(watch.service().now() - picture->at)},
      {"last_minute_s", rounded(to_seconds(picture->minute))},
      {"last_minute", std::move(overview)},
      {"devices", std::move(devices)},
      {"model_counts", {{"all", all}, {"ready", ready}, {"broken", wrong}, {"found", seen.size()}}},
      {"models", std::move(models)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::string> trend_json(Watch& watch, std::string_view since, const Caller* caller) {
  std::uint64_t from = 0;
  const auto [end, error] = std::from_chars(since.data(), since.data() + since.size(), from);
  if (!since.empty() && (error != std::errc{} || end != since.data() + since.size()))
    return invalid("since is '" + std::string(since.substr(0, 64)) +
                   "'; it must be what an earlier answer gave as \"next\"");
  auto [samples, next] = watch.trend(from);
  // The totals are of all models: whose key is for some sees none of them.
  if (caller != nullptr && std::ranges::find(caller->key.models, "*") == caller->key.models.end())
    samples.clear();
  Json rows = Json::array();
  for (const Trend::Sample& sample : samples) {
    const double device_seconds =
        to_seconds(sample.span) * static_cast<double>(std::max<std::size_t>(1, sample.devices));
    const auto share = [&](Duration d) { return rounded(to_seconds(d) / device_seconds); };
    const auto tenths = [](double x) { return std::round(x * 10) / 10; };
    rows.push_back({tenths(to_seconds(sample.end - watch.started())), tenths(to_seconds(sample.span)),
                    sample.in.on_time, sample.in.late, sample.in.refused, sample.in.cancelled,
                    sample.in.failed, sample.in.invalid, share(sample.in.exec), share(sample.in.load),
                    sample.resident.count});
  }
  const Json out{
      {"started_us",
       std::chrono::duration_cast<std::chrono::microseconds>(watch.started().time_since_epoch()).count()},
      {"now_s", rounded(to_seconds(watch.service().now() - watch.started()))},
      {"next", std::to_string(next)},
      {"fields",
       {"end_s", "seconds", "on_time", "late", "refused", "cancelled", "failed", "invalid", "exec_share",
        "load_share", "resident_bytes"}},
      {"samples", std::move(rows)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace carillon::frontend
