#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "carillon/tune/estimator.h"
#include "carillon/tune/tuning.h"

namespace carillon::tune {

// What all policies have in common: the book of trials and devices, memory, orders under way, what is
// measured. A policy is told what came about and gives out capacity that is free; it cannot give any twice.
//
// Trials and devices are numbers here, which are used again: `Slot`.
class TuneCore : public Tuning {
 public:
  void on(const TuneEvent& event, TimePoint now, TuneOrders& out) final;
  TuneModel model() const final;
  std::vector<TrialView> trials() const final;
  std::size_t appetite() const override;

 protected:
  using Slot = std::uint32_t;
  enum class State : std::uint8_t { waiting, running, held, paused };
  enum class Under : std::uint8_t { none, change, hold, release };

  struct Trial {
    bool here = false;
    TrialId id;
    GroupId group;
    State state{};
    Under under{};
    bool broken = false;  // it lost a device, and is to be stopped once it has settled
    std::uint64_t came = 0;
    std::optional<double> remaining;  // iterations
    std::optional<double> told_s;     // of an iteration
    device::JobMemory memory;
    double priority = 1;
    double done = 0;            // iterations
    std::vector<Slot> devices;  // where it is, or is told to be, or where its memory lies; ascending
    std::vector<Slot> leaving;  // where it was until it settles
    double width = 0;           // while running
    bool mixed = true;          // since its last report its width or company changed
    std::uint32_t steady = 0;   // reports in a row with the same width and company
    double credit = 0;          // seconds of its work that it has done since, as far as can be foreseen
    TimePoint since;            // of `credit`
    double rank = 0;            // the policy's own
    std::uint32_t place = 0;    // in running_
  };
  struct User {
    Slot trial = 0;
    int sharers = 1;  // at most so many on the device, itself counted
  };
  struct Device {
    bool here = false;
    DeviceId id;
    double speed = 1, supply = 1;
    device::Lanes lanes{Bytes{}};
    std::vector<User> users;    // running there, or not out yet
    std::size_t residents = 0;  // trials with memory there

    double rate() const { return speed * supply; }
  };

  explicit TuneCore(const TuneOptions& options) : options_(options) {}

  // Of a group whose trials have been taken: they are waiting, or paused, and wanted again.
  virtual void came(GroupId group, std::span<const Slot> trials) = 0;
  // A trial is wanted no more, for now or for good, or waits again. It is in the book as it is now.
  // `had_company`: others share what was its device.
  virtual void left(Slot trial, bool had_company) = 0;
  virtual void waits_again(Slot trial) = 0;
  // `more`: the tuner has given it more to do than was known.
  virtual void reported(Slot, bool /*more*/) {}
  virtual void settled(Slot) {}
  virtual void devices_changed() {}
  // After each event.
  virtual void decide() = 0;

  // --- What a policy asks
  const Trial& trial(Slot slot) const { return trials_[slot]; }
  Trial& trial(Slot slot) { return trials_[slot]; }
  // In no order that means anything, but the same for the same events.
  const std::vector<Slot>& running() const { return running_; }
  const std::vector<Device>& devices() const { return devices_; }
  bool usable(Slot device) const { return devices_[device].here && devices_[device].rate() > 0; }
  bool idle(Slot device) const { return usable(device) && devices_[device].users.empty(); }
  std::size_t usable_devices() const { return usable_; }
  // Whether it may have `sharers` on the device (1: all of it), itself counted. Memory is another matter.
  bool has_room(Slot device, Slot trial, int sharers) const;
  bool has_memory(Slot device, Slot trial) const;
  bool is_resident(Slot device, Slot trial) const;
  // Devices that could hold it if nobody else were there.
  std::size_t could_hold(Slot trial) const;
  // Seconds that the trial needs alone on a device of speed 1; of unknown length: as much again as it had, an
  // iteration at least. What it should have done since it last reported counts as done.
  double work(Slot trial) const;
  double iteration(Slot trial) const;
  // Whether its iterations were measured as it runs now: what a change brings can be told then.
  bool is_measured(Slot trial) const { return !trials_[trial].mixed && trials_[trial].steady >= 2; }
  double packing() const;  // alpha and beta as they are known now, and the cost of a move
  double scaling() const;
  double move_cost() const;
  // height() of so many devices, and of so many trials on one, with the overheads as they are known.
  double height_of(std::size_t devices, std::size_t sharers) const;
  const TuneOptions& options() const { return options_; }
  Estimator& estimator() { return estimator_; }
  const Estimator& estimator() const { return estimator_; }
  TimePoint told_at() const { return now_at_; }  // the time of this event

  // --- What a policy orders. Requires a trial that is not settling, and room and memory on the devices.
  void place(Slot trial, std::vector<Slot> on, double width);
  void hold(Slot trial);
  void release(Slot trial);
  // Paused and held trials of the device let go of their memory, so that `need` fits once they have. Whether
  // it will. `keep` is none of them.
  bool make_room(Slot device, const device::JobMemory& need, Slot keep);
  void wake_at(TimePoint at);

 private:
  void take(const GroupCame& event);
  void take(const TrialReported& event);
  void take(const TrialSettled& event);
  void take(const TrialEnded& event);
  void take(const TrialPaused& event);
  void take(const TrialDied& event);
  void take(const DeviceCame& event);
  void take(const DeviceChanged& event);
  void take(const DeviceWent& event);
  void take(const TuneWake&) {}

  TuneReason check(const TrialSpec& spec) const;
  std::optional<Slot> find(TrialId id) const;
  std::optional<Slot> find(DeviceId id) const;
  void refuse(TrialId id, TuneReason reason);
  void order(Slot trial, TuneOrder::Kind kind);
  void leave(Slot device, Slot trial);   // its share
  void vacate(Slot device, Slot trial);  // its memory, too
  void vacate_all(Slot trial);
  void forget(Slot trial);
  bool has_company(Slot trial) const;
  void company_changed(Slot device);
  double pace(Slot trial) const;
  double credit(Slot trial) const;
  void accrue(Slot device);  // before anything there changes
  void wait_again(Slot trial);
  void set_state(Slot trial, State state);
  void relieve(Slot device);
  void count_usable();

  TuneOptions options_;
  Estimator estimator_;
  std::vector<Trial> trials_;
  std::vector<Slot> free_trials_, running_;
  std::unordered_map<std::uint32_t, Slot> by_id_;
  std::vector<Device> devices_;
  std::unordered_map<std::uint32_t, Slot> device_by_id_;
  std::size_t here_ = 0, usable_ = 0, devices_here_ = 0;
  std::uint64_t came_ = 0;
  TimePoint now_at_;
  // Powers of what is known of alpha and beta: each event asks for those of all trials that run.
  struct Powers {
    double of = 0;
    std::vector<double> by;
  };
  mutable Powers packed_, scaled_;
  TuneOrders* out_ = nullptr;
};

}  // namespace carillon::tune
