#include <algorithm>

#include <nlohmann/json.hpp>

#include "carillon/explain/story.h"

namespace carillon::explain {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t us(Duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_same_v<T, Duration>)
    return us(*value);
  else
    return *value;
}

Json since(TimePoint arrival, TimePoint at) {
  if (at == TimePoint::min() || at == TimePoint::max()) return nullptr;
  return us(at - arrival);
}

Json steps_json(const std::vector<Step>& steps) {
  Json out = Json::array();
  for (const Step& step : steps)
    out.push_back({{"what", name_of(step.what)},
                   {"begin_us", us(step.begin)},
                   {"end_us", us(step.end)},
                   {"device", or_null(step.device)},
                   {"note", step.note},
                   {"predicted_us", or_null(step.predicted)}});
  return out;
}

// What lists have, too, in their order; `whole` is given what stands between.
void begin(Json& out, const Story& story, bool whole) {
  const RequestFacts& r = story.request;
  out["number"] = r.number;
  out["id"] = r.id;
  out["model"] = r.model;
  out["version"] = r.version == 0 ? Json(nullptr) : Json(r.version);
  out["class"] = name_of(r.cls);
  if (whole) out["priority"] = r.priority;
  out["application"] = r.application;
  if (whole) {
    out["key"] = r.key;
    out["trace"] = r.trace;
    out["rows"] = r.rows;
    out["log_request"] = r.log_request;
  }
  out["arrived_unix_us"] = r.arrived_unix_us == 0 ? Json(nullptr) : Json(r.arrived_unix_us);
  out["deadline_us"] = since(r.arrival, r.deadline);
  if (whole) out["deadline_from"] = name_of(r.deadline_from);
  out["outcome"] = name_of(r.outcome);
  out["reason"] = name_of(r.cause);
  if (whole) out["text"] = r.text;
  out["would_take_us"] = or_null(r.would_take);
  if (whole) out["retry_after_us"] = or_null(r.retry_after);
  out["took_us"] = or_null(story.took());
  out["device"] = story.last ? Json(story.last->device) : Json(nullptr);
  if (whole) out["device_name"] = story.device_name;
  out["batch"] = story.last ? Json(story.last->rows) : Json(nullptr);
  if (whole) {
    Json others = Json::array();
    if (story.last)
      for (const std::uint64_t number : story.last->requests)
        if (number != r.number) others.push_back(number);
    out["companions"] = std::move(others);
  }
  out["predicted_us"] = story.last ? Json(us(story.last->predicted)) : Json(nullptr);
}

}  // namespace

nlohmann::ordered_json to_short_json(const Story& story) {
  Json out;
  begin(out, story, false);
  return out;
}

nlohmann::ordered_json to_json(const Story& story) {
  const RequestFacts& r = story.request;
  Json out;
  begin(out, story, true);
  out["window"] = story.last ? Json{{"earliest_us", since(r.arrival, story.last->window.earliest)},
                                    {"latest_us", since(r.arrival, story.last->window.latest)}}
                             : Json(nullptr);
  out["tries"] = r.tries;
  out["preemptions"] = story.last ? story.last->preemptions : 0;
  out["paused_us"] = story.last ? us(story.last->paused) : 0;
  out["expected"] = nullptr;
  if (r.expected) {
    const Expectation& e = *r.expected;
    out["expected"] = {{"exec_us", us(e.exec)}, {"exec_batch", e.batch}, {"devices", e.devices},
                       {"holding", e.holding},  {"device", e.device},    {"busy_us", us(e.busy)},
                       {"actions", e.actions},  {"loading", e.loading},  {"margin_us", or_null(margin(r))}};
  }
  out["steps"] = steps_json(story.steps);
  out["after"] = steps_json(story.after);
  out["story"] = sentences(story);
  return out;
}

}  // namespace carillon::explain
