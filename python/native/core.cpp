#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "carillon/device/lanes/job_sharing.h"
#include "carillon/share/client/chooser.h"

// carillon._core: the pure cores of sharing a device, for Python. Python's numbers are of any size, so each
// is held to its range here; what the cores then promise is in their headers.
namespace nb = nanobind;
using namespace nb::literals;
using namespace carillon;
using namespace carillon::device;
using share::client::BoundaryChooser;
using share::client::Signal;

namespace {

constexpr std::uint64_t most_ns = std::uint64_t{1} << 62U;  // 146 years
using Whole = nb::int_;
using MaybeWhole = std::optional<nb::int_>;

std::uint64_t whole(const Whole& number, const char* name, std::uint64_t least, std::uint64_t most) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  const bool wrong = PyErr_Occurred() != nullptr;
  if (wrong) PyErr_Clear();
  if (wrong || value < least || value > most)
    throw nb::value_error((std::string(name) + " is " + nb::str(number).c_str() + "; it must be from " +
                           std::to_string(least) + " to " + std::to_string(most))
                              .c_str());
  return value;
}
Bytes size(const Whole& number, const char* name) {
  return {whole(number, name, 0, most_job_bytes.count)};
}
Duration time(const Whole& number, const char* name) {
  return Duration{static_cast<std::int64_t>(whole(number, name, 0, most_ns))};
}
std::optional<Duration> time(const MaybeWhole& number, const char* name) {
  return number ? std::optional(time(*number, name)) : std::nullopt;
}
JobId job(const Whole& number) {
  return {static_cast<std::uint32_t>(whole(number, "job", 0, 0xffffffffU))};
}

std::optional<std::int64_t> or_none(TimePoint at) {
  return at == TimePoint::max() ? std::nullopt : std::optional(at.time_since_epoch().count());
}
std::optional<std::uint32_t> or_none(LaneId lane) {
  return lane == no_lane ? std::nullopt : std::optional(lane.value);
}

const char* name_of(JobCommand::Kind kind) {
  switch (kind) {
    case JobCommand::Kind::admit:
      return "admit";
    case JobCommand::Kind::open:
      return "open";
    case JobCommand::Kind::move:
      return "move";
    case JobCommand::Kind::close:
      return "close";
    case JobCommand::Kind::grant:
      return "grant";
    case JobCommand::Kind::recall:
      return "recall";
    case JobCommand::Kind::freeze:
      return "freeze";
    case JobCommand::Kind::thaw:
      return "thaw";
    case JobCommand::Kind::refuse:
      return "refuse";
    case JobCommand::Kind::evict:
      return "evict";
  }
  return "?";
}
bool is_of_lane(JobCommand::Kind kind) {
  return kind == JobCommand::Kind::open || kind == JobCommand::Kind::move || kind == JobCommand::Kind::close;
}

std::string to_text(const JobCommand& c) {
  std::string text = std::string("<") + name_of(c.kind);
  if (!is_of_lane(c.kind)) text += " job=" + std::to_string(c.job.value);
  if (c.lane != no_lane) text += " lane=" + std::to_string(c.lane.value);
  if (is_of_lane(c.kind))
    text += " offset=" + std::to_string(c.offset.count) + " size=" + std::to_string(c.size.count);
  if (c.reason != JobReason::none) text += " reason=" + std::string(device::name_of(c.reason));
  return text + ">";
}

struct OpenLane {
  std::uint32_t number = 0;
  Lane lane;
};

// A policy, and what it must not be asked.
class Sharing {
 public:
  explicit Sharing(std::unique_ptr<JobSharing> policy) : policy_(std::move(policy)) {}

  std::pair<std::vector<JobCommand>, std::optional<std::int64_t>> on(const JobEvent& event,
                                                                     const Whole& now) {
    const TimePoint at{time(now, "now_ns")};
    if (at < now_)
      throw nb::value_error(("now_ns is " + std::to_string(at.time_since_epoch().count()) + ", before " +
                             std::to_string(now_.time_since_epoch().count()) +
                             " of the last event: time never goes back")
                                .c_str());
    now_ = at;
    JobCommands out;
    const TimePoint wake = policy_->on(event, at, out);
    return {std::move(out), or_none(wake)};
  }
  std::vector<JobView> jobs() const { return policy_->jobs(now_); }
  std::vector<OpenLane> lanes() const {
    std::vector<OpenLane> out;
    const Lanes& all = policy_->lanes();
    for (std::uint32_t i = 0; i < all.lanes(); ++i)
      if (all.lane({i}).open) out.push_back({i, all.lane({i})});
    return out;
  }
  const Lanes& ledger() const { return policy_->lanes(); }

 private:
  std::unique_ptr<JobSharing> policy_;
  TimePoint now_{Duration{0}};
};

Sharing make(const std::string& policy, const Whole& capacity, const Whole& assumed_persistent,
             const Whole& assumed_ephemeral, const Whole& quantum_ns, const Whole& longest_wait_ns,
             const Whole& catch_up, bool packs, const MaybeWhole& hang_after_ns, bool evict_hanging,
             bool contiguous, const Whole& most_jobs) {
  JobOptions options;
  options.capacity = size(capacity, "capacity");
  options.assumed = {size(assumed_persistent, "assumed_persistent"),
                     size(assumed_ephemeral, "assumed_ephemeral")};
  options.quantum = time(quantum_ns, "quantum_ns");
  options.longest_wait = time(longest_wait_ns, "longest_wait_ns");
  options.catch_up = static_cast<int>(whole(catch_up, "catch_up", 1, 1'000'000));
  options.packs = packs;
  options.hang_after = time(hang_after_ns, "hang_after_ns").value_or(Duration::max());
  options.evict_hanging = evict_hanging;
  options.contiguous = contiguous;
  options.most_jobs = whole(most_jobs, "most_jobs", 1, 1'000'000);
  auto made = make_job_sharing(policy, options);
  if (!made) throw nb::value_error(made.error().message.c_str());
  return Sharing(std::move(*made));
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() =
      "The decisions of Carillon's sharing of a device, without a clock, a process or the device. Times and "
      "durations are whole nanoseconds, sizes bytes. A number out of its range is a ValueError that says "
      "what "
      "would be right. None of it is thread-safe.";

  nb::enum_<Signal>(m, "Signal", nb::is_arithmetic(),
                    "What a training script does at about the end of an iteration.")
      .value("NEXT", Signal::next, "a data loader is asked for its next batch")
      .value("BACKWARD", Signal::backward, "a backward has returned")
      .value("STEP", Signal::step, "an optimizer has stepped")
      .value("MANUAL", Signal::manual,
             "the script says that an iteration ended; nothing else is heeded from then on");
  nb::class_<BoundaryChooser>(
      m, "BoundaryChooser",
      "Where a script's iterations end, told by its signals, which repeat: once two periods "
      "were alike, where the least memory is live; before, after each step.")
      .def(nb::init<>())
      .def(
          "on",
          [](BoundaryChooser& self, Signal signal, const Whole& which, const Whole& live) {
            return self.on(signal, whole(which, "which", 0, UINT64_MAX), whole(live, "live", 0, UINT64_MAX));
          },
          "signal"_a, "which"_a, "live"_a,
          "Whether an iteration ends at this signal. `which` tells sources of one kind apart (an optimizer's "
          "id); "
          "`live` is the memory that is allocated now, in bytes.")
      .def_prop_ro("certain", &BoundaryChooser::certain, "A period is known, and the last signal was of it.")
      .def_prop_ro_static(
          "longest_period", [](nb::handle) { return BoundaryChooser::longest_period; },
          "In signals; what repeats later is not seen to.");

  nb::class_<JobCame>(m, "JobCame", "A job that is not here comes.")
      .def(
          "__init__",
          [](JobCame* self, const Whole& number, const MaybeWhole& persistent, const MaybeWhole& ephemeral,
             const MaybeWhole& remaining_ns, double weight) {
            if (!(weight >= least_job_weight && weight <= most_job_weight))
              throw nb::value_error("weight must be from 1e-06 to 1000");
            JobSpec spec;
            if (persistent) spec.persistent = size(*persistent, "persistent");
            if (ephemeral) spec.ephemeral = size(*ephemeral, "ephemeral");
            spec.remaining = time(remaining_ns, "remaining_ns");
            spec.weight = weight;
            new (self) JobCame{job(number), spec};
          },
          "job"_a, "persistent"_a = nb::none(), "ephemeral"_a = nb::none(), "remaining_ns"_a = nb::none(),
          "weight"_a = 1.0,
          "`persistent`: bytes that stay from iteration to iteration; `ephemeral`: the most that an "
          "iteration takes "
          "besides. None: found out. `remaining_ns`: of the device, alone.");
  nb::class_<IterationEnded>(m, "IterationEnded", "Iterations of a job that was granted its lane have ended.")
      .def(
          "__init__",
          [](IterationEnded* self, const Whole& number, bool stopped, bool idle, const Whole& iterations,
             const Whole& busy_ns, const Whole& persistent, const Whole& ephemeral,
             const MaybeWhole& remaining_ns) {
            new (self) IterationEnded{
                .job = job(number),
                .stopped = stopped,
                .idle = idle,
                .iterations = static_cast<std::uint32_t>(whole(iterations, "iterations", 0, 0xffffffffU)),
                .busy = time(busy_ns, "busy_ns"),
                .memory = {size(persistent, "persistent"), size(ephemeral, "ephemeral")},
                .remaining = time(remaining_ns, "remaining_ns")};
          },
          "job"_a, "stopped"_a = false, "idle"_a = false, "iterations"_a = Whole(1), "busy_ns"_a = Whole(0),
          "persistent"_a = Whole(0), "ephemeral"_a = Whole(0), "remaining_ns"_a = nb::none(),
          "`stopped`: it is out of its lane, and waits to be granted it again; with `iterations=0`, for the "
          "first "
          "time. `idle`: it waits for something else first.");
  nb::class_<JobGone>(m, "JobGone", "A job has ended.")
      .def(
          "__init__", [](JobGone* self, const Whole& number) { new (self) JobGone{job(number)}; }, "job"_a);
  nb::class_<MemoryAsked>(
      m, "MemoryAsked",
      "A job cannot go on with less, in bytes. Answered at once: its lane opens, larger, or it is "
      "evicted; nothing where only persistent memory grew.")
      .def(
          "__init__",
          [](MemoryAsked* self, const Whole& number, const Whole& persistent, const Whole& ephemeral) {
            new (self)
                MemoryAsked{job(number), {size(persistent, "persistent"), size(ephemeral, "ephemeral")}};
          },
          "job"_a, "persistent"_a, "ephemeral"_a);
  nb::class_<DeviceWanted>(m, "DeviceWanted", "Somebody who goes before all jobs wants the device.")
      .def(nb::init<>());
  nb::class_<DeviceFree>(m, "DeviceFree", "Nobody does, until `until_ns` as far as is known; None: for good.")
      .def(
          "__init__",
          [](DeviceFree* self, const MaybeWhole& until_ns) {
            const auto until = time(until_ns, "until_ns");
            new (self) DeviceFree{until ? TimePoint{*until} : TimePoint::max()};
          },
          "until_ns"_a = nb::none());
  nb::class_<CapacityChanged>(m, "CapacityChanged", "The device's memory for jobs, in bytes, is another.")
      .def(
          "__init__",
          [](CapacityChanged* self, const Whole& capacity) {
            new (self) CapacityChanged{size(capacity, "capacity")};
          },
          "capacity"_a);
  nb::class_<JobWake>(m, "JobWake", "It is the time that the last on() gave.").def(nb::init<>());

  nb::class_<JobCommand>(m, "Command", "What whoever drives a JobSharing is to do.")
      .def_prop_ro(
          "kind", [](const JobCommand& c) { return name_of(c.kind); },
          "admit, open, move, close, grant, recall, freeze, thaw, refuse or evict")
      .def_prop_ro(
          "job",
          [](const JobCommand& c) { return is_of_lane(c.kind) ? std::nullopt : std::optional(c.job.value); },
          "None for open, move and close")
      .def_prop_ro("lane", [](const JobCommand& c) { return or_none(c.lane); })
      .def_prop_ro(
          "offset", [](const JobCommand& c) { return c.offset.count; },
          "of open and move: bytes from the end of the device's memory")
      .def_prop_ro(
          "size", [](const JobCommand& c) { return c.size.count; }, "of open and move, in bytes")
      .def_prop_ro(
          "reason", [](const JobCommand& c) { return device::name_of(c.reason); },
          "of refuse and evict: too_large, too_many, no_memory, capacity_fell, hangs or bad_report")
      .def_prop_ro(
          "fits",
          [](const JobCommand& c) { return std::pair(c.fits.persistent.count, c.fits.ephemeral.count); },
          "of refuse and evict: persistent and ephemeral bytes that would fit")
      .def("__repr__", [](const JobCommand& c) { return to_text(c); });

  nb::class_<JobView>(m, "Job", "What a job is doing.")
      .def_prop_ro("job", [](const JobView& v) { return v.job.value; })
      .def_prop_ro(
          "state", [](const JobView& v) { return device::name_of(v.state); },
          "queued, starting, waiting, running or recalled")
      .def_ro("frozen", &JobView::frozen)
      .def_ro("hanging", &JobView::hanging)
      .def_prop_ro("lane", [](const JobView& v) { return or_none(v.lane); })
      .def_prop_ro(
          "persistent", [](const JobView& v) { return v.memory.persistent.count; }, "bytes kept for it")
      .def_prop_ro(
          "ephemeral", [](const JobView& v) { return v.memory.ephemeral.count; }, "bytes kept for it")
      .def_prop_ro(
          "attained_ns", [](const JobView& v) { return v.attained.count(); }, "device time so far")
      .def_prop_ro(
          "remaining_ns",
          [](const JobView& v) { return v.remaining ? std::optional(v.remaining->count()) : std::nullopt; },
          "as far as known")
      .def_prop_ro("came_ns", [](const JobView& v) { return v.came.time_since_epoch().count(); })
      .def_ro("iterations", &JobView::iterations);

  nb::class_<OpenLane>(m, "Lane", "A part of the ephemeral region, which its jobs use one after the other.")
      .def_prop_ro(
          "lane", [](const OpenLane& l) { return l.number; }, "its number")
      .def_prop_ro(
          "size", [](const OpenLane& l) { return l.lane.size.count; }, "bytes")
      .def_prop_ro(
          "offset",
          [](const OpenLane& l) {
            return l.lane.offset ? std::optional(l.lane.offset->count) : std::nullopt;
          },
          "bytes from the end of the device's memory; None: no place yet")
      .def_prop_ro(
          "jobs", [](const OpenLane& l) { return l.lane.jobs; }, "how many");

  m.def(
      "policies",
      [] {
        std::vector<std::string> names;
        for (const auto name : job_policy_names()) names.emplace_back(name);
        return names;
      },
      "The names of policies for JobSharing.");

  const JobOptions usual;
  nb::class_<Sharing>(
      m, "JobSharing",
      "Which training jobs run on a device, and when (Salus): events and times in, commands out.\n\n"
      "    sharing = JobSharing(\"fair\", capacity=8 << 30)\n"
      "    commands, wake_ns = sharing.on(JobCame(1, 1 << 30, 2 << 30), now_ns=0)")
      .def(
          "__init__",
          [](Sharing* self, const std::string& policy, const Whole& capacity, const Whole& assumed_persistent,
             const Whole& assumed_ephemeral, const Whole& quantum_ns, const Whole& longest_wait_ns,
             const Whole& catch_up, bool packs, const MaybeWhole& hang_after_ns, bool evict_hanging,
             bool contiguous, const Whole& most_jobs) {
            new (self) Sharing(make(policy, capacity, assumed_persistent, assumed_ephemeral, quantum_ns,
                                    longest_wait_ns, catch_up, packs, hang_after_ns, evict_hanging,
                                    contiguous, most_jobs));
          },
          "policy"_a, nb::kw_only(), "capacity"_a,
          "assumed_persistent"_a = Whole(usual.assumed.persistent.count),
          "assumed_ephemeral"_a = Whole(usual.assumed.ephemeral.count),
          "quantum_ns"_a = Whole(usual.quantum.count()),
          "longest_wait_ns"_a = Whole(usual.longest_wait.count()), "catch_up"_a = Whole(usual.catch_up),
          "packs"_a = usual.packs, "hang_after_ns"_a = Whole(usual.hang_after.count()),
          "evict_hanging"_a = usual.evict_hanging, "contiguous"_a = usual.contiguous,
          "most_jobs"_a = Whole(usual.most_jobs),
          "`policy`: of policies(). `capacity`: of the device, in bytes. `assumed_*`: of a job that does not "
          "say. "
          "`quantum_ns`: 1 ms to 1 h, how far one job of a lane may get ahead (fair, pack). "
          "`longest_wait_ns`, "
          "`catch_up`: who waited so long goes first, for one in `catch_up` of that time (best). `packs`: "
          "several "
          "lanes at a time where that pays (best). `hang_after_ns`: 1 ms to 1 day, None for never. "
          "`contiguous`: "
          "lanes must lie somewhere, and are moved; else their sizes alone count.")
      .def("on", &Sharing::on, "event"_a, "now_ns"_a,
           "What is to be done, in this order, and when JobWake is wanted unless another event comes before "
           "(None: "
           "never). `now_ns` never goes back. Events of jobs that are not here are passed over.")
      .def("jobs", &Sharing::jobs, "All, in the order in which they came, as of the last event.")
      .def("lanes", &Sharing::lanes, "Those that are open.")
      .def_prop_ro(
          "capacity", [](const Sharing& s) { return s.ledger().capacity().count; }, "bytes")
      .def_prop_ro(
          "persistent", [](const Sharing& s) { return s.ledger().persistent().count; }, "bytes, of all jobs")
      .def_prop_ro(
          "ephemeral", [](const Sharing& s) { return s.ledger().ephemeral().count; }, "bytes, of all lanes");
}
