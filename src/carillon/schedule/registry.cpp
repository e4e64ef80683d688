#include "carillon/schedule/registry.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "carillon/schedule/abandoned.h"
#include "carillon/schedule/admission.h"
#include "carillon/schedule/baselines/clipper.h"
#include "carillon/schedule/baselines/nexus.h"
#include "carillon/schedule/baselines/shepherd.h"
#include "carillon/schedule/by_size.h"
#include "carillon/schedule/carillon/carillon.h"
#include "carillon/schedule/classes.h"
#include "carillon/schedule/clockwork/clockwork.h"
#include "carillon/schedule/edf/edf.h"
#include "carillon/schedule/fcfs/fcfs.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/orloj/orloj.h"
#include "carillon/schedule/symphony/symphony.h"
#include "carillon/schedule/watchdog.h"

namespace carillon::schedule {
namespace {

// A policy may take a value, written "name:value"; its maker gets the text behind the colon.
struct Row {
  std::string_view name;
  Result<std::unique_ptr<Scheduler>> (*make)(std::string_view value, const Environment& environment);
  std::string_view example = {};  // a value behind its name, where it needs one
  bool preempts = false;
  // Admission may stand around it, and lets so large a share of the refusals come later. 0: it may not.
  double admits = 0;
  bool fixed_times = true;  // it plans with: sizes of requests are told apart for it (BySize)
  bool by_class = false;    // it decides on requests of all classes: no Classed stands around it

  std::string full_name() const { return std::string(name).append(example); }
};

Result<> no_value(std::string_view name, std::string_view value) {
  if (value.empty()) return {};
  return invalid("scheduler '" + std::string(name) + "' takes no value, but was given '" +
                 std::string(value) + "'");
}

Result<std::unique_ptr<Scheduler>> make_fcfs(std::string_view value, const Environment&) {
  if (auto none = no_value("fcfs", value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Fcfs>();
}

Result<std::unique_ptr<Scheduler>> make_clockwork(std::string_view value, const Environment& environment) {
  if (auto none = no_value("clockwork", value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Clockwork>(environment);
}

Result<std::unique_ptr<Scheduler>> make_symphony(std::string_view value, const Environment& environment) {
  auto options = symphony_options(value);
  if (!options) return std::unexpected(std::move(options.error()));
  return std::make_unique<Symphony>(environment, *options);
}

Result<std::unique_ptr<Scheduler>> make_carillon(std::string_view value, const Environment& environment) {
  auto options = carillon_options(value);
  if (!options) return std::unexpected(std::move(options.error()));
  return std::make_unique<Carillon>(environment, *options);
}

Result<std::unique_ptr<Scheduler>> make_orloj(std::string_view value, const Environment& environment) {
  OrlojOptions options;
  if (!value.empty()) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), options.b);
    if (error != std::errc{} || end != value.data() + value.size() || !(options.b >= 1e-9 && options.b <= 1))
      return invalid(
          "scheduler 'orloj:" + std::string(value) +
          "': write orloj or orloj:B, where B from 1e-9 to 1 (1/ms) is the parameter of the anticipated "
          "delay, such as orloj:1e-4");
  }
  return std::make_unique<Orloj>(environment, options);
}

// Symphony's section 3.4: Algorithm 1, but batches start by the clock. To the letter heads are never dropped
// early; `drops` does as symphony does. Which batch goes first is Algorithm 1's at all loads.
SymphonyOptions by_the_clock(std::string name, double timeout, bool drops) {
  SymphonyOptions options;
  options.name = std::move(name);
  if (!drops) options.hold = 0;
  options.waste = options.value = 0;
  options.spare = options.fill = 0;
  options.timeout = timeout;
  return options;
}

template <bool drops>
Result<std::unique_ptr<Scheduler>> make_eager(std::string_view value, const Environment& environment) {
  const std::string name = drops ? "eager-drop" : "eager";
  if (auto none = no_value(name, value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Symphony>(environment, by_the_clock(name, 0, drops));
}

template <bool drops>
Result<std::unique_ptr<Scheduler>> make_timeout(std::string_view value, const Environment& environment) {
  const std::string name = drops ? "timeout-drop" : "timeout";
  double share = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), share);
  if (error != std::errc{} || end != value.data() + value.size() || !(share >= 0 && share <= 1))
    return invalid("scheduler '" + name + ":" + std::string(value) + "': write " + name +
                   ":F, where F from 0 to 1 is the share of the SLO that a batch waits, such as " + name +
                   ":0.3");
  return std::make_unique<Symphony>(environment, by_the_clock(name + ":" + std::string(value), share, drops));
}

template <typename Baseline>
Result<std::unique_ptr<Scheduler>> make_baseline(std::string_view value, const Environment& environment) {
  auto made = std::make_unique<Baseline>(environment);
  if (auto none = no_value(made->name(), value); !none) return std::unexpected(std::move(none.error()));
  return made;
}

constexpr Row policies[] = {
    {"clockwork", make_clockwork, {}, true, Allowance::promised},
    {"fcfs", make_fcfs},
    {"symphony", make_symphony, {}, false, Allowance::promised},
    {"orloj", make_orloj, {}, false, 0, false},
    {"eager", make_eager<false>},
    {"eager-drop", make_eager<true>},
    {"timeout", make_timeout<false>, ":0.3"},
    {"timeout-drop", make_timeout<true>, ":0.3"},
    {"clipper", make_baseline<baselines::Clipper>},
    {"nexus", make_baseline<baselines::Nexus>},
    {"shepherd", make_baseline<baselines::Shepherd>},
    // It prefers requests that take less device time, which Admission cannot foresee: with 0.25% of late
    // refusals it costs 1.6 points of the requests on time under overload, with a tenth 1.0.
    {.name = "carillon",
     .make = make_carillon,
     .preempts = true,
     .admits = 0.1,
     .fixed_times = false,
     .by_class = true},
    {.name = "edf", .make = make_baseline<Edf>, .preempts = true, .fixed_times = false, .by_class = true},
};

bool any(std::string_view text, auto&& is) {
  return std::ranges::any_of(policies, [&, name = text.substr(0, text.find(':'))](const Row& policy) {
    return is(policy) && policy.name == name;
  });
}

}  // namespace

bool takes_preemption(std::string_view text) {
  return any(text, [](const Row& policy) { return policy.preempts; });
}

bool takes_admission(std::string_view text) {
  return any(text, [](const Row& policy) { return policy.admits > 0; });
}

Result<std::unique_ptr<Scheduler>> make_scheduler(std::string_view text, const Environment& environment) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto value = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  for (const Row& policy : policies)
    if (policy.name == name) {
      auto made = policy.make(value, environment);
      if (made && policy.admits > 0 && environment.admission)
        made = std::make_unique<Admission>(std::move(*made), policy.admits);
      if (made && policy.fixed_times) made = std::make_unique<BySize>(std::move(*made));
      if (made && environment.classes && !policy.by_class)
        made = std::make_unique<Classed>(std::move(*made), environment);
      if (made && environment.hangs_after > Duration{0})
        made = std::make_unique<Watched>(std::move(*made), environment.hangs_after);
      if (made) made = std::make_unique<EndsAbandoned>(std::move(*made));
      if (made) made = std::make_unique<Ledgered>(std::move(*made));
      return made;
    }
  return fail(ErrorCode::not_found,
              "no scheduler '" + std::string(text) + "'; there are " + scheduler_list());
}

Result<std::unique_ptr<Subclusters>> make_subclusters(std::string_view name, const Environment& environment,
                                                      GroupsOfModels division) {
  if (auto made = make_scheduler(name, environment); !made) return std::unexpected(std::move(made.error()));
  return std::make_unique<Subclusters>([&] { return *make_scheduler(name, environment); }, environment,
                                       std::move(division));
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Row& policy : policies) names.push_back(policy.full_name());
  return names;
}

std::string scheduler_list() {
  std::string list;
  for (const std::string& name : scheduler_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace carillon::schedule
