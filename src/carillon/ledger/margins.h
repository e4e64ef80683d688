#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/environment.h"

namespace carillon::ledger {

// The largest of the last 512 values, of the last ten seconds, but for those that a promise may break: at a
// promise of 0.25% that is one of 512. Small and cheap: 8 KiB; adding costs a store, and every sixteenth a
// search. Not thread-safe.
class TailWindow {
 public:
  static constexpr std::size_t capacity = 512;
  static constexpr std::size_t enough = 64;  // values before which its tail says nothing
  static constexpr std::size_t few = 4;      // likewise its median: no fewer can outvote one that is odd
  // A stall is forgotten after so long, however few values come: with 50 a second and more it changes
  // nothing.
  static constexpr Duration longest = 10s;

  // `exceeded` in [0, 1): the share of values that may be larger.
  explicit TailWindow(double exceeded = Environment{}.miss_rate / 2) : exceeded_(exceeded) {}
  // `now` never goes back. True where tail() may have changed. It is found anew at every sixteenth value, at
  // each value above it, and when the value that it equals has become too old.
  bool add(double value, TimePoint now);
  bool known() const { return recent_ >= enough; }
  bool some() const { return recent_ >= few; }
  double tail() const { return tail_; }
  // The median of the same values, found with it, and at each of the first sixteen.
  double usual() const { return usual_; }

 private:
  struct Value {
    double value = 0;
    TimePoint at;
  };
  double exceeded_;
  std::vector<Value> values_;  // a ring; none before the first
  std::size_t count_ = 0, next_ = 0, since_ = 0;
  std::size_t recent_ = 0;  // of them, those that are not too old; of the last search, and what came since
  double tail_ = 0, usual_ = 0;
  TimePoint tail_at_;
};

// What a policy allows for besides execution times, measured while serving, by device: how long after a
// decision EXEC starts where nothing is in its way, by how much a batch outlasts its estimate, and how long
// after its end that is heard, or its outputs are where they are wanted. Each at the quantile that is
// promised (half of Environment::miss_rate for lasting longer, half for being heard of later), over the last
// 512 executions of ten seconds; where these are fewer than 64, what was told at the start counts where it is
// larger. What comes after a report is heard (Environment::client) cannot be seen from here and is taken as
// told. Where the environment is not to be measured, what was told stays.
//
// A pure object: what it measures of devices of its own host comes from actions and their reports, so that a
// simulated run, a live one and its replay measure alike. What other hosts tell besides, by arrived() and
// delivered(), is in no log. Not thread-safe.
class Margins {
 public:
  // Answers that may be late, where nobody says otherwise.
  static constexpr double promised = Environment{}.miss_rate;

  explicit Margins(const Environment& told) : told_(told), worst_(told), least_(told) {}

  // A device appears, or starts anew: what was told counts until it has been measured.
  void start(DeviceId device, bool alive);

  struct Execution {
    TimePoint decided;     // when the INFER was sent
    bool at_once = false;  // the device was idle and the window open: nothing else kept it from starting
    Duration estimate;     // of EXEC, when it was sent
    TimePoint start, end;  // as reported
    Duration took;         // of EXEC, as reported: less than between them where more was done
    TimePoint heard;       // when the report came
  };
  // An INFER succeeded. True where at(), worst() or least() changed by more than a twentieth: then whoever
  // keeps numbers that were made of them has to make them anew.
  bool observe(DeviceId device, const Execution& execution);

  // An order has come to the device with its inputs, so long after it was sent. Devices of other hosts tell
  // so by itself, of each order and not of those alone that begin at once. Fewer than 64 count for nothing.
  void arrived(DeviceId device, Duration after_order, TimePoint now);
  // The outputs of a run have come to where they are wanted, so long after its end. Devices of other hosts
  // tell so by itself; at the device's own host they are there when the run is reported. Each counts at once,
  // where it is larger than what else is known: a client waits for it.
  void delivered(DeviceId device, Duration after_end, TimePoint now);

  // A run of the device for an earlier scheduler, which came another way: by how much it outlasted its
  // estimate.
  void recall(DeviceId device, Duration took, Duration estimate, TimePoint at);

  // A request is to be refused that has `left`, on models that take `exec`. Where it could be on time with
  // what was told, the devices of which nothing was heard of late start anew, as what is refused is not
  // measured: a stall would be believed for ever. Of late is a tenth of a second (longer where EXEC
  // takes longer), and after that twice as long each time, a second at most, until a device has been measured
  // again: so one answer in that time may be late. True where something changed, as of observe().
  bool doubt(Duration left, Duration exec, TimePoint now);

  const Environment& at(DeviceId device) const { return devices_[device.index()].now; }
  // What the device usually needs: medians where at() has the quantiles that are promised, and what was told
  // until there are some values. For work that nobody stands to lose by. After a doubt at() may be less.
  const Environment& usual(DeviceId device) const { return devices_[device.index()].usual; }
  // The largest of each over the devices that are alive; what was told where none is.
  const Environment& worst() const { return worst_; }
  // The smallest of each over them: what nobody can do better than.
  const Environment& least() const { return least_; }
  // Changes whenever a device starts anew, and where observe() or doubt() says that something changed.
  std::uint64_t version() const { return version_; }

 private:
  static constexpr Duration least_patience = 100ms, most_patience = 1s;
  struct Device {
    bool alive = false;
    Environment now, usual;
    TimePoint heard;                     // of anything; or when it started anew
    Duration patience = least_patience;  // from then until it may be doubted
    Duration longest{0};                 // EXEC of late: while one such runs, nothing is heard
    TailWindow dispatch, arrival, answer, delivery, overrun;
  };
  Device fresh(bool alive) const;
  bool add_overrun(Device& device, Duration took, Duration estimate, TimePoint at);
  bool look_again(Device& device);
  void find_usual(Device& device);
  void find_bounds();

  Environment told_, worst_, least_;
  std::vector<Device> devices_;
  TimePoint doubt_from_;  // before it no device may be doubted
  std::uint64_t version_ = 0;
};

}  // namespace carillon::ledger
