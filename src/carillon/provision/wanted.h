#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/provision/autoscale.h"

namespace carillon::provision {

struct WantedOptions {
  int least = 1;            // devices: what the division, or a configuration, needs; 1 to `most`
  int most = 10'000;        // devices; never more are wanted
  double threshold = 0.01;  // bad rate above which devices are short; above 0, below 1
  // How long fewer devices have to be enough before fewer are wanted. Above 0.
  Duration quiet = std::chrono::minutes{5};
  // How long a device may take to come before nobody waits for it any more. Above 0.
  Duration give_up = std::chrono::minutes{10};
  // How long it counts that a number of devices was too small. Above 0.
  Duration remember = std::chrono::hours{1};
  // Whoever follows the number does nothing while it differs by no more than this share (Kubernetes' HPA:
  // 0.1). 0 to below 1.
  double tolerance = 0.1;
  int before = 0;  // devices that another has wanted until now; 0: nobody has, or nothing is known of that
};

// How many devices a group (Symphony: sub-cluster) should have: the advice of Symphony's section 3.5, made a
// number that whoever starts and stops devices can follow. Give look() an advice over a short time, such as
// AutoscaleWindow(15s) makes it, every few seconds. A pure function of its calls. Not thread-safe. A call
// takes amortized constant time and keeps no more numbers than the most that was ever wanted.
//
//   Wanted wanted = Wanted::make({.least = 2, .most = 16}).value();
//   AutoscaleWindow window(15s);
//   ... every few seconds: wanted.look(now, devices, window.observe(now, devices, counters)) ...
//
// Up at once. Where the bad rate r is above the threshold by more than chance explains, N/(1-r) devices are
// needed for N that are there, which is N*r/(1-r) more. 1-r is held at an eighth. The number is of devices in
// all, so one that was asked for and has not come is in it once. Three rules keep the formula to what it can
// know:
//   - An advice from before devices came or went says how much work there is: B/(1-r) devices' worth, for B
//     devices that were busy on average. So devices that have just come are not asked for again.
//   - While a whole device is idle, one more than the work (or than there are) is needed at a time.
//   - The work W never needs more than W + 3 sqrt(W) + 1 devices. With so many hardly anybody waits, and more
//     devices would not mend what is then still bad.
//
// Down after a quiet time, and only to the largest number that was needed within that time. Without bad
// requests, B devices' worth of work needs B, the paper's N - N*f, a quarter of a device against noise, and
// the spare devices, in proportion to sqrt(B), that were too few when devices were last short. While devices
// are short, none is released. Without an advice the number stays.
//
// A rise goes beyond what followers tolerate: to more than a tenth above the devices that are there and the
// number until then. Else eleven devices for ten would never come.
//
// The quiet time is at least as long as a device takes to come, for a device that is released too early is
// missed for so long. This is measured from when the number rose until the device was there; the longest of
// the last eight counts. Devices that were lost and come back are not measured. One that does not come within
// `give_up` is given up: it is still wanted, but is on its way no more, and delays nothing.
class Wanted {
 public:
  // Errors: an option is out of its range; the text names it and its value.
  static Result<Wanted> make(const WantedOptions& options);

  // Other limits from now on, as of a new division. Errors as make()'s; then nothing changes.
  Result<> limit(int least, int most);

  // There are `present` devices at `now`, which does not go back. Returns how many are wanted. The first call
  // finds all devices wanted that are there, or that were wanted before. For the first quiet time no fewer
  // are wanted. Errors: a share that is no number from 0 to 1, or a count or a time below 0. The text names
  // the value, and nothing changes.
  Result<int> look(TimePoint now, int present, const AutoscaleAdvice& advice);

  bool begun() const { return begun_; }   // it was looked at
  int wanted() const { return wanted_; }  // `least` before the first look
  int present() const { return present_; }
  int coming() const { return coming_; }      // asked for, not there yet, and not given up
  int given_up() const { return given_up_; }  // wanted, not there, and not on their way
  // How long devices take to come: the longest of the last eight that came; 0: none was seen to come.
  Duration start_up() const;
  // The quiet time that counts now.
  Duration quiet(TimePoint now) const;

 private:
  explicit Wanted(const WantedOptions& options) : options_(options), wanted_(options.least) {}
  int held(int count) const;
  int noticed(int need) const;
  void count(TimePoint now, int present);
  void ask(TimePoint now, int risen);
  // What the advice says is needed; 0: nothing.
  int needed(TimePoint now, const AutoscaleAdvice& advice);
  int needed_short(TimePoint now, const AutoscaleAdvice& advice);

  struct Need {
    TimePoint at;
    int devices = 0;
  };
  struct Asked {
    TimePoint at;
    int devices = 0;
    bool measured = false;  // the number rose; else devices were lost
  };
  WantedOptions options_;
  bool begun_ = false;
  TimePoint first_{}, last_{};
  TimePoint changed_ = TimePoint::min();  // when devices last came or went
  int wanted_;
  int present_ = 0;
  std::deque<Need> needs_;   // of a quiet time: ascending in time, descending in devices
  std::deque<Asked> asked_;  // ascending in time
  int coming_ = 0;           // the sum of asked_
  int given_up_ = 0;
  std::deque<Duration> start_ups_;  // the last that were measured
  bool short_ = false;              // the last advice found devices short
  double spare_ = 0;                // what was too few: spare devices by the root of the work
  TimePoint spare_at_ = TimePoint::min();
};

// The same for several groups, by name. Not thread-safe; a call takes the logarithm of their number besides.
class WantedByGroup {
 public:
  // For groups that have no limits of their own. Errors as Wanted::make()'s.
  static Result<WantedByGroup> make(const WantedOptions& options);

  // Another has wanted so many devices of a group that is not known yet. Errors name the group.
  Result<> begin(std::string_view group, int before);
  // A group has these limits from now on; it need not have been looked at. Errors name the group.
  Result<> limit(std::string_view group, int least, int most);
  // A group that is not known begins. Errors name the group.
  Result<int> look(TimePoint now, std::string_view group, int present, const AutoscaleAdvice& advice);
  // A group is no more; nothing is remembered of it.
  void remove(std::string_view group);

  const std::map<std::string, Wanted, std::less<>>& groups() const { return groups_; }

 private:
  explicit WantedByGroup(const WantedOptions& options) : options_(options) {}
  WantedOptions options_;
  std::map<std::string, Wanted, std::less<>> groups_;
};

// What is told of a group.
struct WantedFigures {
  std::string group;
  int wanted = 0, present = 0, coming = 0, given_up = 0;
  Duration start_up{0};

  friend bool operator==(const WantedFigures&, const WantedFigures&) = default;
};
// Of groups that were looked at.
std::vector<WantedFigures> wanted_figures(const WantedByGroup& wanted);

}  // namespace carillon::provision
