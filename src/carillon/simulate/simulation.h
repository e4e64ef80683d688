#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/statistics.h"
#include "carillon/base/time.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/simulate/scaling.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// What went through a device, for the timeline plot.
struct Execution {
  DeviceId device;
  ModelId model;
  int batch = 0;
  TimePoint start, end;
  friend bool operator==(const Execution&, const Execution&) = default;
};

// What happened in one interval of virtual time; requests count where they were sent.
struct IntervalFigures {
  Duration length{0};  // the last may be shorter than the others
  std::uint64_t offered = 0, on_time = 0, late = 0, refused = 0;
  std::uint64_t loads = 0;
  Duration busy{0};      // of all devices, by the start of EXEC
  int devices_used = 0;  // devices that ran something
  Duration longest{0};   // latency of an answer
  friend bool operator==(const IntervalFigures&, const IntervalFigures&) = default;
};

struct ModelFigures {
  std::string name;
  Duration slo{0};
  std::uint64_t offered = 0, on_time = 0, late = 0, refused = 0, cancelled = 0;
  std::uint64_t batches = 0, batched = 0;  // INFERs that ran, and requests in them
  std::vector<Duration> latencies;         // of all answers, on time or late, in the order of answering
  std::vector<std::uint32_t> offered_by, on_time_by;  // by interval, where Options asks for intervals
  // Of answers that came after the warm-up, in INFERs: how many, how many of them were expected to be late
  // when their INFER was sent, were late, and were late although the chance of that was above what is
  // promised.
  std::uint64_t promised = 0, promised_late = 0, avoidable_late = 0;
  double expected_late = 0;
};

struct ClassFigures {
  std::uint64_t offered = 0, on_time = 0, late = 0, refused = 0, cancelled = 0;
  std::vector<Duration> latencies;  // as ModelFigures'
};

// What a run came to. Counts are of requests that arrived after the warm-up; busy times of that span too.
struct Figures {
  std::vector<ModelFigures> models;
  std::array<ClassFigures, 3> classes;     // by Class, of the requests themselves
  std::vector<std::uint64_t> batch_sizes;  // INFERs by batch size; [0] is unused
  std::vector<Duration> busy;              // by device
  std::vector<IntervalFigures>
      intervals;                    // from time 0 on, the warm-up included; where Options asks for them
  std::vector<Execution> timeline;  // at most Options::timeline, from the end of the warm-up on
  std::uint64_t loads = 0, unloads = 0, stopped = 0, too_late = 0;
  std::uint64_t profiled = 0;       // requests that were run again alone
  Duration profiling{0};            // of all devices, what that took, cut short or not; `busy` leaves it out
  std::uint64_t shed = 0;           // of the refused: turned away at the door (schedule::Door)
  std::uint64_t events = 0;         // that the simulation handled
  std::uint64_t decisions = 0;      // calls of the scheduler, and reports that came twice
  LatencyHistogram decision_times;  // of this machine's CPU; where Options has measured_decisions
  ScalingFigures scaling;           // where Options has it
  Duration span{0};                 // from the end of the warm-up to the end of the arrivals
  double wall_s = 0;
};

// What begins on any device within it takes `factor` times as long.
struct SlowSpell {
  Duration from, length;
  double factor = 1;
  friend bool operator==(const SlowSpell&, const SlowSpell&) = default;
};

// Things that go wrong, dealt out by the seed (spells by the clock). All off by default.
struct Faults {
  double speed = 1;            // true times over the profile's
  double noise = 0;            // EXEC and LOAD take 1 + noise * |normal| of their time
  double hiccups = 0;          // share of actions that take ten times as long
  double infer_failures = 0;   // share of INFERs that run and fail
  double load_failures = 0;    // share of LOADs that run and fail
  double lost_inputs = 0;      // share of INFERs that end as no_memory without running
  double late_reports = 0;     // share of reports that come up to 20 ms late
  double doubled_reports = 0;  // share of reports that come twice
  double lost_reports = 0;     // share of reports that never come: the device is given up for it
  double cancels = 0;  // share of requests whose client goes, at a time up to twice the SLO after it came
  double deaths_per_s = 0;     // of each device; it comes back after up to 2 s
  double stalls_per_s = 0;     // of each device: everything that runs then takes up to 200 ms longer
  double slowdowns_per_s = 0;  // of each device: up to four times slower for up to 1 s
  std::vector<SlowSpell> spells;
  Duration clock_offset{0};  // devices' clocks are off by up to this, either way
  // As the scenario has them (Options::with), by device, in time, and by model; empty: none.
  std::vector<double> speeds;
  std::vector<workload::DeviceFault> planned;
  std::vector<workload::Outliers> outliers;
  // What these three make of a time, on any device and at any time.
  double least_factor() const;
  double most_factor() const;
  bool any_hangs() const;
  friend bool operator==(const Faults&, const Faults&) = default;
};

// Sees everything in its order, in virtual time: a recorder, a checker. Requests are as the clients sent
// them.
class Observer {
 public:
  virtual ~Observer() = default;
  // A client sends a request, which takes `alone` by itself where its model's time depends on the input.
  virtual void on_sent(const Request&, Duration /*alone*/, TimePoint) {}
  // A device starts (also at the beginning) or dies. Its clock shows `clock` more than the true time.
  virtual void on_device(DeviceId, bool /*alive*/, Duration /*clock*/, TimePoint) {}
  // `wake`: when the scheduler wants to be woken from then on; max() for never. Not of models: they come
  // before all else.
  virtual void on_decision(const schedule::Event&, TimePoint, const schedule::Actions&, TimePoint /*wake*/) {}
  // Where decisions take time: the last one is made, and its actions are on their way.
  virtual void on_decided(TimePoint) {}
  // A report came twice; the scheduler does not hear of it again.
  virtual void on_odd_report(DeviceId, TimePoint) {}
  enum class Outcome : std::uint8_t { on_time, late, refused, cancelled, unanswered };
  virtual void on_outcome(const Request&, Outcome, TimePoint) {}
  // The device begins or ends (start == end: refused without running) an action, a Profile too.
  virtual void on_start(ActionId, DeviceId, TimePoint) {}
  virtual void on_end(ActionId, DeviceId, schedule::ActionStatus, TimePoint) {}
};

struct Options {
  Faults faults;
  // With what the scenario says goes wrong.
  Options with(const workload::Scenario& scenario) const;
  // What a decision takes of virtual time, as on a controller's thread: the scheduler hears one event after
  // another, and what it decides is on its way so much later. With measured_decisions it is what each took of
  // this machine's CPU, so that equal runs differ. Arrivals wait at a schedule::Door, as they do live; one
  // that is turned away there takes shed_time.
  Duration decision_time{0};
  bool measured_decisions = false;
  Duration shed_time = std::chrono::nanoseconds{100};
  // Where the scenario has classes: how long after it is told a run ends that makes way. REEF's dismissal of
  // what waits and kill of what runs (docs/reef.md).
  Duration stop_latency = std::chrono::microseconds{11};
  std::size_t timeline = 0;  // executions to keep
  Duration interval{0};      // of Figures::intervals; 0: none
  // Devices come and go; none: all are there from the start. Not with planned faults, nor with deaths.
  std::optional<ScalingOptions> scaling;
  Observer* observer = nullptr;
  // Called about ten times a second of wall time, with the share of virtual time that has passed, in [0, 1];
  // false ends the run.
  std::function<bool(double)> progress;
};

// What a scheduler is told of a scenario: the models with all batch sizes up to their largest (where that is
// above 128, at steps that keep within 2% of it), and the environment. Without a memory limit models take no
// pages and are everywhere from the start.
//
// Where a model or a request is not of class normal, devices have streams by class (device::ClassStreams,
// with one for best effort, all of them on all of the device), and the environment says so.
std::vector<schedule::ModelInfo> model_infos(const workload::Scenario& scenario);
bool has_classes(const workload::Scenario& scenario);
schedule::Environment environment(const workload::Scenario& scenario);

// Runs a scenario in virtual time under a scheduler that has seen nothing yet (models and devices are
// announced here). The same scenario, scheduler and options give the same figures, but for wall_s and
// measured decisions. The run goes on after the last arrival until every request has its outcome.
// Thread-safe: different runs share nothing.
//
// Time of a request: sent at its arrival, heard by the scheduler one network delay later; INFER reaches the
// device one network delay after the decision and its inputs one more; the answer reaches the client, and the
// report the scheduler, one after the end of EXEC. It is on time where the client has the answer by arrival +
// SLO.
//
// A request's application is its mode's `app`: modes that name the same share it, over all models, and those
// that name none are application 0, as a live client's requests are that names none.
Figures run(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options = {});

}  // namespace carillon::simulate
