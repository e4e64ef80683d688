#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/explain/facts.h"

namespace carillon::explain {

// What is drawn: requests, and the actions of all devices.
struct TraceInput {
  std::span<const RequestFacts> requests;
  std::span<const ActionFacts> actions;
  std::map<std::uint32_t, std::string> device_names;
  TimePoint now;  // where what has not ended ends
  // Names of models that may be shown; empty: all.
  std::function<bool(std::string_view model)> may_see = {};
};

// As Chrome's trace-event JSON, which ui.perfetto.dev opens: a process a device with a thread for each of
// LOAD, INPUT, EXEC and OUTPUT (and further ones where these overlap, as streams do), a process of requests
// from arrival to answer, with counters of those that wait, by model; flow arrows lead from a request to the
// steps of its actions. Begins and ends match, and times ascend, from 0 at the first of them.
std::string to_trace(const TraceInput& input);

}  // namespace carillon::explain
