#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "numbers.h"
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "carillon/base/processors.h"
#include "carillon/tune/tuning.h"

// carillon.tune._planner: which trials run on which devices (tuning.h), for Python's tuners. Python's numbers
// are held to their ranges here; what the core then promises is in its header.
namespace nb = nanobind;
using namespace nb::literals;
using namespace carillon;
using namespace carillon::tune;
using python::Least;
using python::real;
using python::Real;
using python::whole;
using python::Whole;

namespace {

constexpr double most_s = 4e9;  // 126 years; nanoseconds of it have room for sums
constexpr double least_s = 1e-9;
constexpr double most_iterations = 1e15, most_rate = 1e6;
constexpr std::size_t most_told = 10 * most_trials;

std::uint32_t id(const Whole& number, const char* name) {
  return static_cast<std::uint32_t>(whole(number, name, 0, 0xffffffffU));
}
TrialId trial_id(const Whole& number) {
  return {id(number, "trial")};
}
DeviceId device_id(const Whole& number) {
  return {id(number, "device")};
}
Bytes size(const Whole& number, const char* name) {
  return {whole(number, name, 0, device::most_job_bytes.count)};
}
Duration time(const Real& number, const char* name, double least = 0) {
  return from_seconds(real(number, name, least, most_s));
}
std::optional<double> iterations(const Real& number, const char* name) {
  if (number.value.is_none()) return std::nullopt;
  return real(number, name, 0, most_iterations, Least::excluded);
}
std::optional<double> overhead(const Real& number, const char* name) {
  if (number.value.is_none()) return std::nullopt;
  return real(number, name, 1, 100);
}
std::optional<int> bound(const Whole& number, const char* name, std::uint64_t most) {
  if (number.value.is_none()) return std::nullopt;
  return static_cast<int>(whole(number, name, 1, most));
}

// --- Orders, a type each

struct Changed {
  std::uint32_t trial = 0;
  std::vector<std::uint32_t> devices;
  double width = 1;
  friend bool operator==(const Changed&, const Changed&) = default;
};
struct Place : Changed {};
struct Resize : Changed {};
struct Move : Changed {};
struct Stopped {
  std::uint32_t trial = 0;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};
struct Hold : Stopped {};
struct Release : Stopped {};
struct Refuse {
  std::optional<std::uint32_t> trial;  // nothing: a device
  std::string reason;
  friend bool operator==(const Refuse&, const Refuse&) = default;
};
struct WakeAt {
  double at = 0;
  friend bool operator==(const WakeAt&, const WakeAt&) = default;
};
using Order = std::variant<Place, Resize, Move, Hold, Release, Refuse, WakeAt>;

template <typename Kind>
Kind changed(const TuneOrder& order) {
  Kind out;
  out.trial = order.trial.value;
  out.width = order.width;
  for (const DeviceId device : order.devices) out.devices.push_back(device.value);
  return out;
}
template <typename Kind>
Kind stopped(const TuneOrder& order) {
  Kind out;
  out.trial = order.trial.value;
  return out;
}

Order order_of(const TuneOrder& order, bool of_device) {
  switch (order.kind) {
    case TuneOrder::Kind::place:
      return changed<Place>(order);
    case TuneOrder::Kind::resize:
      return changed<Resize>(order);
    case TuneOrder::Kind::move:
      return changed<Move>(order);
    case TuneOrder::Kind::hold:
      return stopped<Hold>(order);
    case TuneOrder::Kind::release:
      return stopped<Release>(order);
    case TuneOrder::Kind::refuse:
      return Refuse{of_device ? std::nullopt : std::optional(order.trial.value),
                    std::string(name_of(order.reason))};
    case TuneOrder::Kind::wake_at:
      return WakeAt{to_seconds(order.at.time_since_epoch())};
  }
  return WakeAt{};  // not reached
}

const nb::sig equals("def __eq__(self, arg: object, /) -> bool");

template <typename Kind>
void bind_changed(nb::module_& m, const char* name, const char* doc) {
  nb::class_<Kind>(m, name, doc)
      .def(
          "__init__",
          [](Kind* self, const Whole& trial, const std::vector<std::uint32_t>& devices, const Real& width) {
            new (self) Kind{{id(trial, "trial"), devices, real(width, "width", 0, 1e9, Least::excluded)}};
          },
          "trial"_a, "devices"_a, "width"_a = 1.0)
      .def_ro("trial", &Kind::trial)
      .def_prop_ro(
          "devices", [](const Kind& o) { return o.devices; }, "ascending")
      .def_ro("width", &Kind::width,
              "how many devices, all to itself; or 1/k: one, which it shares with at most k - 1 others")
      .def(nb::self == nb::self, equals)
      .def("__repr__", [name = std::string(name)](const Kind& o) {
        std::string devices;
        for (const std::uint32_t device : o.devices)
          devices += (devices.empty() ? "" : ", ") + std::to_string(device);
        return name + "(" + std::to_string(o.trial) + ", [" + devices + "], " + python::shown(o.width) + ")";
      });
}

template <typename Kind>
void bind_stopped(nb::module_& m, const char* name, const char* doc) {
  nb::class_<Kind>(m, name, doc)
      .def(
          "__init__", [](Kind* self, const Whole& trial) { new (self) Kind{{id(trial, "trial")}}; },
          "trial"_a)
      .def_ro("trial", &Kind::trial)
      .def(nb::self == nb::self, equals)
      .def("__repr__",
           [name = std::string(name)](const Kind& o) { return name + "(" + std::to_string(o.trial) + ")"; });
}

// --- The core, and what it must not be asked

class Planner {
 public:
  Planner(std::string name, const TuneOptions& options) : name_(std::move(name)) {
    auto made = make_tuning(name_, options);
    if (!made) throw nb::value_error(made.error().message.c_str());
    tuning_ = std::move(*made);
  }

  std::vector<Order> on(const TuneEvent& event, const Real& now) {
    const TimePoint at{time(now, "now")};
    // A float has no nanoseconds of a long time: an order's `at` may come back a little early.
    if (at + 1us < now_)
      throw nb::value_error(("now is " + std::to_string(to_seconds(at.time_since_epoch())) + ", before " +
                             std::to_string(to_seconds(now_.time_since_epoch())) +
                             " of the last event: time never goes back")
                                .c_str());
    now_ = std::max(now_, at);
    TuneOrders told;
    tuning_->on(event, now_, told);
    const bool of_device =
        std::holds_alternative<DeviceCame>(event) || std::holds_alternative<DeviceChanged>(event);
    std::vector<Order> orders;
    orders.reserve(told.size());
    for (const TuneOrder& order : told) orders.push_back(order_of(order, of_device));
    return orders;
  }
  const Tuning& tuning() const { return *tuning_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::unique_ptr<Tuning> tuning_;
  TimePoint now_{Duration{0}};
};

std::vector<TrialSpec> specs(nb::handle trials) {
  std::vector<TrialSpec> out;
  for (const nb::handle trial : nb::iter(trials)) {
    if (out.size() >= most_told)
      throw nb::value_error(
          ("trials has more than " + std::to_string(most_told) + " entries: no group is that large").c_str());
    TrialSpec spec;
    if (!nb::try_cast(trial, spec))
      python::refuse_type(("trials[" + std::to_string(out.size()) + "]").c_str(), trial,
                          "a carillon.tune.core.Trial");
    out.push_back(spec);
  }
  if (out.empty()) throw nb::value_error("trials is empty; a group has at least one trial");
  return out;
}

template <typename Event>
std::vector<Order> told_device(Planner& planner, const Whole& device, const Real& now, const Real& speed,
                               const Real& supply, const Whole& memory) {
  return planner.on(Event{.device = device_id(device),
                          .speed = real(speed, "speed", 0, most_rate, Least::excluded),
                          .supply = real(supply, "supply", 0, 1),
                          .memory = memory.value.is_none() ? device::most_job_bytes : size(memory, "memory")},
                    now);
}

std::optional<double> seconds(const std::optional<Duration>& duration) {
  return duration ? std::optional(to_seconds(*duration)) : std::nullopt;
}

}  // namespace

NB_MODULE(_planner, m) {
  // A planner that a thread still has when Python ends is no fault.
  nb::set_leak_warnings(false);
  m.doc() =
      "Which training trials of a tuner run on which devices, and how wide, decided without a clock, a "
      "process or "
      "a device. Times are seconds, sizes bytes. An argument that cannot be is a ValueError or a TypeError "
      "that "
      "names it.";
  m.attr("MOST_TRIALS") = most_trials;
  m.attr("MOST_DEVICES") = most_devices;

  nb::class_<TrialSpec>(m, "Trial", "A trial as a tuner asks for it.")
      .def(
          "__init__",
          [](TrialSpec* self, const Whole& trial, const Real& budget, const Real& iteration,
             const Whole& persistent, const Whole& ephemeral, const Real& priority) {
            TrialSpec spec{.trial = trial_id(trial), .budget = iterations(budget, "budget")};
            if (!iteration.value.is_none()) spec.iteration = time(iteration, "iteration", least_s);
            spec.memory = {size(persistent, "persistent"), size(ephemeral, "ephemeral")};
            spec.priority = real(priority, "priority", 0, 1e6, Least::excluded);
            new (self) TrialSpec(spec);
          },
          "trial"_a, nb::kw_only(), "budget"_a.none() = nb::none(), "iteration"_a.none() = nb::none(),
          "persistent"_a = 0, "ephemeral"_a = 0, "priority"_a = 1.0,
          "`budget`: iterations until the tuner looks at it again, or until its end; None: not known. "
          "`iteration`: seconds of one, alone on a device of speed 1; None: measured. `persistent`, "
          "`ephemeral`: bytes on each of its devices, which stay, and which only iterations need.")
      .def_prop_ro("trial", [](const TrialSpec& s) { return s.trial.value; })
      .def_ro("budget", &TrialSpec::budget)
      .def_prop_ro("iteration", [](const TrialSpec& s) { return seconds(s.iteration); })
      .def_prop_ro("persistent", [](const TrialSpec& s) { return s.memory.persistent.count; })
      .def_prop_ro("ephemeral", [](const TrialSpec& s) { return s.memory.ephemeral.count; })
      .def_ro("priority", &TrialSpec::priority)
      .def("__repr__", [](const TrialSpec& s) { return "Trial(" + std::to_string(s.trial.value) + ")"; });

  bind_changed<Place>(
      m, "Place",
      "The trial runs on `devices` from now on: it starts, or goes on after it was held or paused.");
  bind_changed<Resize>(
      m, "Resize",
      "At the end of its iteration the trial goes on with `width`, on `devices`: more or fewer than it had.");
  bind_changed<Move>(m, "Move", "As Resize, on other devices, not all of which it had.");
  bind_stopped<Hold>(m, "Hold", "At the end of its iteration the trial stands still; its memory stays.");
  bind_stopped<Release>(
      m, "Release",
      "The trial lets go of its memory everywhere: it goes on from a checkpoint when it is placed.");
  nb::class_<Refuse>(m, "Refuse", "The trial, or the device, is not taken.")
      .def(
          "__init__",
          [](Refuse* self, const Whole& trial, const std::string& reason) {
            new (self)
                Refuse{trial.value.is_none() ? std::nullopt : std::optional(id(trial, "trial")), reason};
          },
          "trial"_a.none(), "reason"_a)
      .def_ro("trial", &Refuse::trial, "None where a device is refused")
      .def_ro("reason", &Refuse::reason, "duplicate, too_large or too_many")
      .def(nb::self == nb::self, equals)
      .def("__repr__", [](const Refuse& o) {
        return "Refuse(" + (o.trial ? std::to_string(*o.trial) : "None") + ", '" + o.reason + "')";
      });
  nb::class_<WakeAt>(m, "WakeAt", "`wake` is wanted at that time, unless a later order says otherwise.")
      .def(
          "__init__", [](WakeAt* self, const Real& at) { new (self) WakeAt{real(at, "at", 0, most_s)}; },
          "at"_a)
      .def_ro("at", &WakeAt::at)
      .def(nb::self == nb::self, equals)
      .def("__repr__", [](const WakeAt& o) { return "WakeAt(" + python::shown(o.at) + ")"; });

  nb::class_<Measured>(m, "Measured", "A number that was measured, or told.")
      .def_ro("value", &Measured::value)
      .def_ro("error", &Measured::error, "standard error; 0 where told")
      .def_ro("seen", &Measured::seen, "measurements")
      .def_ro("known", &Measured::known)
      .def("__repr__", [](const Measured& v) {
        return v.known ? "<" + python::shown(v.value) + " +- " + python::shown(v.error) + ">"
                       : std::string("<not known>");
      });
  nb::class_<TuneModel>(m, "Model",
                        "How the time of a trial follows from its width, for all trials of a tuner.")
      .def_ro("alpha", &TuneModel::alpha, "packing overhead")
      .def_ro("beta", &TuneModel::beta, "scaling overhead")
      .def_ro("move", &TuneModel::move, "seconds that a trial stands still for a change of its devices")
      .def_ro("c", &TuneModel::c, "trials a device at most")
      .def_ro("d", &TuneModel::d, "devices a trial at most");
  nb::class_<TrialView>(m, "TrialView", "What a trial is doing.")
      .def_prop_ro("trial", [](const TrialView& v) { return v.trial.value; })
      .def_prop_ro("group", [](const TrialView& v) { return v.group.value; })
      .def_prop_ro(
          "state", [](const TrialView& v) { return name_of(v.state); }, "waiting, running, held or paused")
      .def_ro("settling", &TrialView::settling, "an order is under way")
      .def_prop_ro("devices",
                   [](const TrialView& v) {
                     std::vector<std::uint32_t> out;
                     for (const DeviceId device : v.devices) out.push_back(device.value);
                     return out;
                   })
      .def_ro("width", &TrialView::width)
      .def_ro("iterations", &TrialView::iterations, "done")
      .def_ro("remaining", &TrialView::remaining, "iterations")
      .def_prop_ro(
          "left_alone", [](const TrialView& v) { return seconds(v.left_alone); },
          "seconds that these take alone on a device of speed 1")
      .def_ro("iteration", &TrialView::iteration_s, "seconds of one of them")
      .def("__repr__", [](const TrialView& v) {
        return "<trial " + std::to_string(v.trial.value) + " " + std::string(name_of(v.state)) + ">";
      });

  m.def(
      "policies",
      [] {
        std::vector<std::string> names;
        for (const auto name : tune_policy_names()) names.emplace_back(name);
        return names;
      },
      "The names of policies for Tuning.");

  m.def(
      "processor_limits",
      [](const std::string& root, int allowed) {
        const ProcessorLimits limits = processor_limits(root, allowed);
        return std::pair(limits.allowed, limits.quota);
      },
      "root"_a = "/", "allowed"_a = 0,
      "How many processors this process may run on, and how many processors' worth of time its control "
      "groups "
      "grant it (None: no quota). For tests: `root` stands before files, and `allowed` is what the system "
      "would tell.");

  const TuneOptions usual;
  nb::class_<Planner>(m, "Tuning",
                      "Which trials run on which devices, and how wide: events and times in, orders out.\n\n"
                      "    tuning = Tuning(\"best\")\n"
                      "    tuning.device_came(0, now=0.0)\n"
                      "    tuning.group_came(0, [Trial(0, budget=81)], now=0.0)  # [Place(0, [0], 1)]\n"
                      "    tuning.settled(0, now=0.1)                            # once it runs there\n\n"
                      "Each event returns what is to be done, in this order. `now` never goes back. Events "
                      "of trials or devices that "
                      "are not here are passed over. A trial has one order under way at most: until "
                      "`settled` it holds what it had "
                      "and what it gets.")
      .def(
          "__init__",
          [](Planner* self, const std::string& policy, const Real& alpha, const Real& beta, const Real& move,
             const Whole& c, const Whole& d, const Real& threshold, const Whole& most_packed,
             const Whole& effort, const Real& reaction) {
            TuneOptions options;
            options.alpha = overhead(alpha, "alpha");
            options.beta = overhead(beta, "beta");
            if (!move.value.is_none()) options.move = time(move, "move");
            options.c = bound(c, "c", 64);
            options.d = bound(d, "d", most_devices);
            options.threshold = real(threshold, "threshold", 0, 1);
            options.most_packed = static_cast<int>(whole(most_packed, "most_packed", 1, 64));
            options.effort = whole(effort, "effort", 1'000, 1'000'000'000);
            if (!reaction.value.is_none()) options.reaction = time(reaction, "reaction");
            new (self) Planner(policy, options);
          },
          "policy"_a = "best", nb::kw_only(), "alpha"_a.none() = nb::none(), "beta"_a.none() = nb::none(),
          "move"_a.none() = nb::none(), "c"_a.none() = nb::none(), "d"_a.none() = nb::none(),
          "threshold"_a = usual.threshold, "most_packed"_a = usual.most_packed, "effort"_a = usual.effort,
          "reaction"_a.none() = nb::none(),
          "`policy`: of policies(). `alpha`, `beta` (1 to 100) and `move` (seconds): told rather than "
          "measured. "
          "`c`, `d`: bounds of what is worked out from these. `threshold`: one more trial on a device pays "
          "where "
          "it brings more than this share. `most_packed`: c where nothing else bounds it. `effort`: steps "
          "that "
          "best may take to plan a new group. `reaction`: seconds within which the tuner starts a trial in "
          "the "
          "place of one that ended (default: a tenth of an iteration).")
      .def_prop_ro("policy", &Planner::name)
      .def(
          "group_came",
          [](Planner& self, const Whole& group, const nb::typed<nb::iterable, TrialSpec>& trials,
             const Real& now) {
            const GroupId number{id(group, "group")};
            return self.on(GroupCame{number, specs(trials)}, now);
          },
          "group"_a, "trials"_a, "now"_a,
          "Trials whose results are wanted together. One that was paused comes again with the same id.")
      .def(
          "reported",
          [](Planner& self, const Whole& trial, const Real& now, const Real& done, const Real& busy,
             const Real& remaining) {
            return self.on(TrialReported{.trial = trial_id(trial),
                                         .iterations = *iterations(done, "iterations"),
                                         .busy = time(busy, "busy"),
                                         .remaining = iterations(remaining, "remaining")},
                           now);
          },
          "trial"_a, "now"_a, nb::kw_only(), "iterations"_a = 1.0, "busy"_a = 0.0,
          "remaining"_a.none() = nb::none(),
          "Iterations have ended, since it last reported; `busy`: seconds that they took, 0: not known. "
          "`remaining`: iterations from now on, where the tuner changed its budget.")
      .def(
          "settled",
          [](Planner& self, const Whole& trial, const Real& now, const Real& stood) {
            return self.on(TrialSettled{trial_id(trial), time(stood, "stood")}, now);
          },
          "trial"_a, "now"_a, nb::kw_only(), "stood"_a = 0.0,
          "The last order for the trial is carried out; `stood`: seconds that it stood still for that.")
      .def(
          "ended",
          [](Planner& self, const Whole& trial, const Real& now) {
            return self.on(TrialEnded{trial_id(trial)}, now);
          },
          "trial"_a, "now"_a)
      .def(
          "paused",
          [](Planner& self, const Whole& trial, const Real& now) {
            return self.on(TrialPaused{trial_id(trial)}, now);
          },
          "trial"_a, "now"_a,
          "The tuner wants no more of it for now. Its memory stays; an order under way is void, but for a "
          "Release.")
      .def(
          "died",
          [](Planner& self, const Whole& trial, const Real& now, bool retry, const Real& lost) {
            return self.on(TrialDied{trial_id(trial), retry, real(lost, "lost", 0, most_iterations)}, now);
          },
          "trial"_a, "now"_a, nb::kw_only(), "retry"_a = false, "lost"_a = 0.0,
          "Its processes are gone. With `retry` it waits for a place again; `lost`: iterations that it does "
          "again.")
      .def("device_came", &told_device<DeviceCame>, "device"_a, "now"_a, nb::kw_only(), "speed"_a = 1.0,
           "supply"_a = 1.0, "memory"_a.none() = nb::none(),
           "`speed`: against a device of speed 1. `supply`: the share of its time that is there for trials, "
           "0 to "
           "1. `memory`: bytes; None: as many as are wanted.")
      .def("device_changed", &told_device<DeviceChanged>, "device"_a, "now"_a, nb::kw_only(), "speed"_a = 1.0,
           "supply"_a = 1.0, "memory"_a.none() = nb::none())
      .def(
          "device_went",
          [](Planner& self, const Whole& device, const Real& now) {
            return self.on(DeviceWent{device_id(device)}, now);
          },
          "device"_a, "now"_a, "Its trials lost what they had there.")
      .def(
          "wake", [](Planner& self, const Real& now) { return self.on(TuneWake{}, now); }, "now"_a,
          "It is the time of the last WakeAt.")
      .def("model", [](const Planner& self) { return self.tuning().model(); })
      .def(
          "trials", [](const Planner& self) { return self.tuning().trials(); }, "by id")
      .def(
          "appetite", [](const Planner& self) { return self.tuning().appetite(); },
          "Trials that could run now with a gain: how many a tuner that may choose should have going.");
}
