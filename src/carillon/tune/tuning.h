#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/lanes.h"

// Which training trials of a tuner run on which devices, and how wide: decided without a clock, a process or
// a device (Fluid: chapter 3 of Yu's dissertation). Events and the time go in, orders come out. Live the
// shells of Python's tuners drive it, simulated simulate/study.h does.
//
//   Result<std::unique_ptr<Tuning>> made = make_tuning("best", {});
//   TuneOrders orders;
//   (*made)->on(DeviceCame{DeviceId{0}}, now, orders);
//   (*made)->on(GroupCame{GroupId{0}, {TrialSpec{.trial = TrialId{0}, .budget = 81}}}, now, orders);
//   // orders: place trial 0 on device 0. Once it runs there: on(TrialSettled{TrialId{0}}, ...)
namespace carillon::tune {

using TrialId = Id<struct TrialTag, std::uint32_t>;
using GroupId = Id<struct GroupTag, std::uint32_t>;

// More trials at a time are refused.
inline constexpr std::size_t most_trials = 100'000;
inline constexpr std::size_t most_devices = 10'000;

// --- Events

// A trial as a tuner asks for it. The same id comes again once its trial was paused: it then goes on, with
// `budget` iterations more.
struct TrialSpec {
  TrialId trial;
  // Iterations until the tuner looks at it again (a rung), or until its end: above 0. Nothing: not known.
  std::optional<double> budget;
  // One iteration alone on a device of speed 1, where it is known. Nothing: measured from its reports.
  std::optional<Duration> iteration;
  device::JobMemory memory;  // on each device that it is on
  double priority = 1;       // of its remaining time against that of others: (0, 1e6]
};

// Trials whose results the tuner wants together, as soon as it can have the last of them.
struct GroupCame {
  GroupId group;
  std::vector<TrialSpec> trials;
};

// Iterations of a running trial have ended.
struct TrialReported {
  TrialId trial;
  double iterations = 1;            // since it last reported; above 0
  Duration busy{0};                 // what these took, without the time in which it stood still; above 0
  std::optional<double> remaining;  // iterations from now on, where the tuner changed its budget
};

// The last order for the trial is carried out: it runs where it was told to, or stands still, or is out.
// Until then it gets no other order, and holds both what it had and what it gets.
struct TrialSettled {
  TrialId trial;
  Duration stood{0};  // what that cost the trial: the cost of a move is measured by it
};

struct TrialEnded {
  TrialId trial;
};

// The tuner wants no more of it for now. It stands at its boundary, and its persistent memory stays where it
// is, so that it goes on at once, until a `release`. An order under way is void, but for a `release`: it is
// not told to have settled any more.
struct TrialPaused {
  TrialId trial;
};

// Its processes are gone, and with them an order under way. With `retry` it waits for a place again, from its
// checkpoint.
struct TrialDied {
  TrialId trial;
  bool retry = false;
  double lost = 0;  // iterations that it has to do again
};

// `speed`: iterations a second against a device of speed 1, (0, 1e6]. `supply`: the share of its time that is
// there for trials, [0, 1].
struct DeviceCame {
  DeviceId device;
  double speed = 1;
  double supply = 1;
  Bytes memory = device::most_job_bytes;
};
struct DeviceChanged {
  DeviceId device;
  double speed = 1;
  double supply = 1;
  Bytes memory = device::most_job_bytes;
};
// Its trials lost what they had there.
struct DeviceWent {
  DeviceId device;
};

// At the time of the last `wake_at`, which may be at once: then after what else has come about by then, such
// as the group that a tuner made of a trial's end.
struct TuneWake {};

using TuneEvent = std::variant<GroupCame, TrialReported, TrialSettled, TrialEnded, TrialPaused, TrialDied,
                               DeviceCame, DeviceChanged, DeviceWent, TuneWake>;

// --- Orders

// Why a trial, or what is told, is refused.
enum class TuneReason : std::uint8_t {
  none,
  duplicate,     // a trial of that id is here, and not paused; a device of that id is here
  bad_budget,    // 0, negative or not a number
  bad_priority,  // likewise, or too large
  bad_iteration,
  bad_device,  // its speed, supply or memory cannot be
  too_large,   // no device that is here can hold it
  too_many,    // most_trials, most_devices
  empty_group
};
std::string_view name_of(TuneReason reason);

struct TuneOrder {
  enum class Kind : std::uint8_t {
    place,    // the trial runs on `devices` from now on: it starts, or goes on after it was held or paused
    resize,   // at the end of its iteration it goes on with `width`, on `devices`: more or fewer than it had
    move,     // likewise on others, not all of which it had
    hold,     // at the end of its iteration it stands still; its memory stays
    release,  // it lets go of its memory everywhere: goes on from a checkpoint when it is placed
    refuse,   // it is not taken: `reason`
    wake_at   // TuneWake is wanted at `at`, unless a later order says otherwise
  };
  Kind kind{};
  TrialId trial;                  // all but wake_at, and refuse of an empty group or a device
  std::vector<DeviceId> devices;  // place, resize, move: ascending
  // place, resize, move: the number of devices, all to itself; or 1/k: one device that it shares with at most
  // k - 1 others.
  double width = 1;
  TuneReason reason{};  // refuse
  TimePoint at;         // wake_at

  friend bool operator==(const TuneOrder&, const TuneOrder&) = default;
};
using TuneOrders = std::vector<TuneOrder>;

// --- What is known of how trials go

// A number that was measured, or told.
struct Measured {
  double value = 1;
  double error = 0;        // standard error of `value`; 0 where told
  std::uint64_t seen = 0;  // measurements; 0: told, or not known
  bool known = false;
};

// How the time of a trial follows from its width (equation 3.2), for all trials of a tuner.
struct TuneModel {
  Measured alpha, beta;  // packing and scaling overhead
  Measured move;         // seconds that a trial stands still for each change of its devices
  int c = 1;             // trials a device at most (equation 3.1)
  int d = 1;             // devices a trial at most: the widest at which its time still falls
};

// What is told rather than measured.
struct TuneOptions {
  std::optional<double> alpha;  // [1, 100]
  std::optional<double> beta;   // [1, 100]
  std::optional<Duration> move;
  // Bounds of c and d where given. They are lowered where what is measured says that the last step does not
  // pay.
  std::optional<int> c, d;  // 1 .. 64, 1 .. most_devices
  // Equation 3.1: one more trial on a device pays where it brings more than this share. [0, 1)
  double threshold = 0;
  // c where neither `c` nor memory bounds it, as where trials do not slow each other at all.
  int most_packed = 16;
  // best: steps of list scheduling, of about a nanosecond, that a plan of a new group may take; any other
  // event may take a twelfth. 1,000 .. 1e9
  std::uint64_t effort = 500'000;
  // best: trials that come so soon after another has ended, or paused, were started in its place: the tuner
  // always has more to do, and devices count more than the end of those that are here. Above 0 where given;
  // nothing: a tenth of an iteration, as of a tuner that starts a trial at once.
  std::optional<Duration> reaction;
};

struct TrialView {
  TrialId trial;
  GroupId group;
  enum class State : std::uint8_t { waiting, running, held, paused } state{};
  bool settling = false;  // an order is under way
  std::vector<DeviceId> devices;
  double width = 0;
  double iterations = 0;                // done
  std::optional<double> remaining;      // iterations
  std::optional<Duration> left_alone;   // what these take alone on a device of speed 1, as estimated
  std::optional<Measured> iteration_s;  // one of them
};
std::string_view name_of(TrialView::State state);

// Not thread-safe; `now` never goes back. Each call appends to `out`. What is told is not trusted: events of
// trials or devices that are not here are passed over, what cannot be is refused. What holds under every
// policy, at every moment, as far as is told:
// - A device is all one trial's, or its trials are at most as many as each of them was told to share it with.
// - Memory is kept by device::Lanes (equation 2.1), until a trial is told to be out.
// - A trial has one order under way at most.
// - A trial that came ends by an event, or is refused in the same call; it is lost by nothing else.
class Tuning {
 public:
  virtual ~Tuning() = default;
  virtual void on(const TuneEvent& event, TimePoint now, TuneOrders& out) = 0;
  virtual TuneModel model() const = 0;
  virtual std::vector<TrialView> trials() const = 0;  // by id
  // Trials that could run now with a gain: how many a tuner that may choose should have going.
  virtual std::size_t appetite() const = 0;
};

// "fifo", "static", "dynamic", "best".
std::span<const std::string_view> tune_policy_names();
// Errors: an unknown name (with the names); an option out of its range.
Result<std::unique_ptr<Tuning>> make_tuning(std::string_view name, const TuneOptions& options);

}  // namespace carillon::tune
