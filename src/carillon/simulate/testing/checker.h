#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/device_account.h"
#include "carillon/simulate/testing/problems.h"
#include "carillon/simulate/testing/tally.h"
#include "carillon/workload/clients.h"

namespace carillon::simulate::testing {

// What must hold in every run, whatever goes wrong in it, checked at every event against an account of its
// own, kept from the scenario and from what was sent: nothing is taken on the simulation's word.
//
// Of clients:
//   - each request is sent when the scenario's processes say so, with its model's SLO, class and priority; a
//     closed loop's client sends again when it was answered;
//   - the scheduler hears of each once, one network delay later, and of each that is cancelled at once.
// Of models: what they take is what the scenario says, throughout.
// Of devices (DeviceAccount):
//   - each action starts in its turn, as soon as it may, within its window by the device's own clock, and is
//     refused where the window has closed, the weights are not there or the pages are not;
//   - an executor does one thing at a time, and it takes the model's time, but for the run's faults;
//   - weights never take more pages than there are, from the start of a LOAD to the UNLOAD;
//   - a Stop ends what it stops when it is there; what a device had goes when it dies;
//   - each action is reported once, one network delay after its end, with the times by the device's clock. A
//   second report is not told to the scheduler.
// Of the scheduler:
//   - each request gets one outcome, is refused only once and while it is open, and never runs twice at once,
//     nor after its outcome or its cancellation, nor after it was refused;
//   - a request is refused for a device's failure only where devices fail, or were given up;
//   - an INFER holds requests of its model only, in a batch size of the model, each once, and goes to a
//   device
//     that holds the model's weights or is loading them;
//   - LOADs never ask for more pages than are free, nor for what is there; an UNLOAD is of what is loaded and
//     not in use; a Stop is of an INFER that is pending;
//   - a Preempt is of an INFER that is pending, each of them at most eight times, and makes none of its
//     requests late where all takes the time that it should, and no real-time runs come in between;
//   - a request runs again, alone, only where it was to be kept and was answered, while no request is open
//     (of class normal, where there are others);
//   - where devices have streams by class, a request runs in its class's or in the normal one, and a device
//   is
//     given at most two real-time INFERs, and two best-effort ones for each that it does at a time;
//   - a device is given up only where something that it was sent was not reported for a second;
//   - no action is sent to a device that is dead, nor with an id that was used before, nor with a window that
//     ends before it begins; no wake is asked for in the past, and each is given when it was asked for.
// Of outcomes and figures:
//   - an answer comes one network delay after the end of the INFER, to all requests of it that are open, on
//     time or late by the deadline that the scenario gives;
//   - counts, latencies, busy times and all other figures are what was seen.
// Time does not run backwards. A broken promise is put into problems() (the first of a kind), and the run
// goes on.
class Checker final : public Observer {
 public:
  // `options`: the run's.
  Checker(const workload::Scenario& scenario, const Options& options);

  void on_sent(const Request& request, Duration alone, TimePoint at) override;
  void on_device(DeviceId device, bool alive, Duration clock, TimePoint at) override;
  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                   TimePoint wake) override;
  void on_decided(TimePoint at) override;
  void on_odd_report(DeviceId device, TimePoint at) override;
  void on_outcome(const Request& request, Outcome outcome, TimePoint at) override;
  void on_start(ActionId id, DeviceId device, TimePoint at) override;
  void on_end(ActionId id, DeviceId device, schedule::ActionStatus status, TimePoint at) override;

  // Call it after the run: what should have happened and has not, and the figures.
  void finish(const Figures& figures);
  const std::map<std::string, std::string>& problems() const { return problems_.all(); }
  std::string text() const;
  std::uint64_t checks() const { return checks_; }

 private:
  static constexpr int most_preemptions = 8;

  struct Asked {  // a request
    Request request;
    Duration alone{0};
    bool heard = false;
    bool done = false;                   // has its outcome,
    bool answered = false;               // which is an answer
    bool gone = false;                   // the scheduler has heard that it is cancelled
    std::optional<TimePoint> refused;    // when the refusal reaches the client
    std::optional<TimePoint> cancelled;  // when
    std::optional<TimePoint> answer;     // when it should reach the client,
    ActionId answered_by;                // from that
    std::optional<ActionId> in;          // the INFER that it is in, as far as the scheduler knows
  };
  struct Action {
    schedule::ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::vector<RequestId> requests;
    TimePoint sent;
    std::optional<RequestId> profiled;  // an INFER of this again, and none of `requests`
    bool stopped = false;               // a Stop was sent
    bool lost = false;                  // the scheduler has heard that its device died
    bool reported = false;
    std::optional<schedule::ActionStatus> ended;
    TimePoint start, end;
    Duration busy{0};
    int preempted = 0;
    Class cls = Class::normal;  // INFER
  };
  // A device as the scheduler knows it.
  struct Known {
    enum class Place : std::uint8_t { absent, loading, loaded, unloading };
    bool alive = false;
    std::uint64_t pages = 0, booked = 0;
    std::map<ModelId, Place> places;
    std::map<ModelId, int> pending;  // INFERs
    std::array<int, 3> of_class{};   // the same by class
  };

  void problem(const char* kind, const std::string& detail, TimePoint at) { problems_.add(kind, detail, at); }
  void tick(TimePoint at);
  bool charged() const { return options_.decision_time > Duration{0} || options_.measured_decisions; }
  bool closed(ModelId model) const;
  Asked* find(RequestId id) { return id.value < requests_.size() ? &requests_[id.value] : nullptr; }
  std::uint64_t pages_of(ModelId model) const;
  Duration load_time(ModelId model) const;
  bool has_batch(ModelId model, std::size_t size) const;
  bool open(const Asked* asked) const;
  bool unheard(const Asked& asked) const;
  bool runs(const Asked& asked) const;

  void heard(const schedule::RequestArrived& event, TimePoint now);
  void heard(const schedule::RequestCancelled& event, TimePoint now);
  void heard(const schedule::ActionDone& event, TimePoint now);
  void heard(const schedule::DeviceChanged& event, TimePoint now);
  void heard(const schedule::Wake& event, TimePoint now);
  void heard(const schedule::AllArrived&, TimePoint) {}
  void heard(const schedule::RequestProfiled& event, TimePoint now);
  void heard(const schedule::ModelChanged&, TimePoint) {}  // all come before anything is checked
  void heard(const schedule::TimesChanged& event, TimePoint now);
  void decided(const schedule::Load& load, TimePoint now);
  void decided(const schedule::Unload& unload, TimePoint now);
  void decided(const schedule::Infer& infer, TimePoint now);
  void decided(const schedule::Refuse& refuse, TimePoint now);
  void decided(const schedule::Stop& stop, TimePoint now);
  void decided(const schedule::Keep& keep, TimePoint now);
  void decided(const schedule::Profile& profile, TimePoint now);
  void decided(const schedule::GiveUp& up, TimePoint now);
  void decided(const schedule::Preempt& preempt, TimePoint now);
  void gone(DeviceId device);
  Known* take(ActionId id, schedule::ActionKind kind, DeviceId device, ModelId model, const Window& window,
              TimePoint now);
  void send(const schedule::Actions& actions, TimePoint at);

  const workload::Scenario& scenario_;
  Options options_;
  workload::Clients clients_;
  Tally tally_;
  Problems problems_;
  std::uint64_t checks_ = 0;
  TimePoint last_ = TimePoint::min();

  std::deque<Asked> requests_;                     // by id
  std::vector<std::size_t> sent_;                  // by model
  std::vector<std::multiset<TimePoint>> due_;      // by model: when clients of a closed loop send
  std::set<std::tuple<ModelId, Duration>> alone_;  // of requests that were sent
  std::map<ActionId, Action> actions_;             // not yet reported, or not for the last time
  std::map<std::uint64_t, ActionId> next_action_;  // by group of devices
  bool classes_ = false;                           // devices have streams by class
  std::set<ActionId> used_;                        // then: ids of actions, of which some are held back
  std::vector<Known> known_;
  bool devices_changed_ = false;  // since time last went on
  std::vector<DeviceAccount> devices_;
  std::set<DeviceId> seen_;
  std::set<DeviceId> given_up_;
  std::set<RequestId> kept_;                   // or to be, once they are answered
  std::optional<schedule::Actions> outgoing_;  // decided, but not yet on their way
  TimePoint wake_ = TimePoint::max();          // that the scheduler has asked for
  std::vector<RequestId> untold_;              // cancelled at last_, which the scheduler has yet to hear
};

}  // namespace carillon::simulate::testing
