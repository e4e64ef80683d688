#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/device/class_streams.h"
#include "carillon/device/virtual_device.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/simulate/calendar.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/statistics.h"
#include "carillon/wire/report.h"

namespace carillon::simulate {

// The simulated devices at the other end of the network, with what goes wrong there: each is the device core
// that a live worker runs, in virtual time. Actions and evictions take one delay to their device, inputs
// Scenario::fetch_time() more, reports one delay back.
class Devices {
 public:
  // What was sent, until its report was heard.
  struct Flight {
    ActionId id;
    schedule::ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::vector<RequestId> requests;
    Window window;
    Class cls = Class::normal;  // INFER: its stream
    bool profiles = false;      // a finished request runs again: nobody waits for it
    bool begun = false;
    device::Work work;
    std::uint32_t life = 0;  // of its device
    enum class Where : std::uint8_t { nowhere, to_device, on_device, to_scheduler } where{};
    schedule::ActionStatus status{};
    TimePoint start, end;
    Duration busy{0};
    double outlies = 1;  // by this factor
  };

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void plan(TimePoint at, Step step) = 0;
    // A report is heard; `again` where it comes twice. The flight is there until something else is sent.
    virtual void reported(const Flight& flight, const wire::Report& report, bool again) = 0;
    // A device died by itself, in that life; it is there, in that one.
    virtual void died(DeviceId device, std::uint32_t life) = 0;
    virtual void comes(DeviceId device, std::uint32_t life) = 0;
    // Reports of what ends at once wait for all that was decided with it to be on its way.
    virtual bool deciding() const = 0;
  };

  Devices(const workload::Scenario& scenario, const std::vector<schedule::ModelInfo>& infos,
          const Options& options, Random& random, Statistics& statistics, Owner& owner);

  // The first so many devices start; faults are dealt out to all.
  void start(std::size_t count, TimePoint now);
  // An absent device comes.
  void turn_on(DeviceId device, TimePoint now);
  // A present device goes. All that it runs and holds is lost.
  void turn_off(DeviceId device, TimePoint now);
  // Nothing is on it, nor on the way there or back.
  bool idle(DeviceId device) const;

  // An INFER that takes `time` where nothing goes wrong.
  void send(const schedule::Infer& infer, Duration time, TimePoint now);
  // A request of `time` runs again, alone.
  void send(const schedule::Profile& profile, Duration time, TimePoint now);
  void send(const schedule::Load& load, TimePoint now);
  void send(const schedule::Unload& unload, TimePoint now);
  // It dies where it has not come to that life yet. It comes back by itself.
  void retire(DeviceId device, std::uint32_t life, TimePoint now);
  void evict(ActionId id, device::After after, TimePoint order, TimePoint now);

  void on(const DeviceStep& step, TimePoint now);
  void on(const ActionArrives& step, TimePoint now);
  void on(const EvictionArrives& step, TimePoint now);
  void on(const ReportArrives& step, TimePoint now);
  void on(const DeviceDies& step, TimePoint now);
  void on(const DeviceStalls& step, TimePoint now);
  void on(const DeviceSlowsDown& step, TimePoint now);
  void on(const DeviceReturns& step, TimePoint now);

  std::size_t count() const { return devices_.size(); }
  std::uint64_t pages() const { return pages_; }  // of each
  std::uint32_t life(DeviceId device) const { return devices_[device.index()].life; }

 private:
  struct Desk final : device::VirtualDevice::Host {
    Desk(Devices& all, std::uint32_t place) : devices(all), index(place) {}
    void plan(TimePoint at, std::uint64_t what) override;
    Duration begins(std::uint64_t tag, Duration planned, bool resumes) override;
    void ends(std::uint64_t tag, device::ActionStatus status) override;
    void done(const device::Done& done) override;
    Devices& devices;
    std::uint32_t index;
  };
  struct Device {
    std::unique_ptr<Desk> desk;
    std::unique_ptr<device::VirtualDevice> core;
    bool alive = false;
    std::uint32_t life = 0;  // how often it died
    Duration clock{0};       // what its clock shows beyond the true time
    TimePoint slow_until = TimePoint::min();
    TimePoint back_at = TimePoint::min();  // while it is away; max(): it stays away
    double slow = 1;
  };

  FlightIndex take(ActionId id, schedule::ActionKind kind, DeviceId device, ModelId model);
  void give_back(FlightIndex index);
  void send_run(FlightIndex index, Window window, Duration time, TimePoint now);
  void depart(FlightIndex index, TimePoint now);
  void arrive(FlightIndex index, TimePoint now);
  Duration true_time(Flight& flight, Duration planned, bool resumes);
  TimePoint hangs_until(std::uint32_t device) const;
  void ended(FlightIndex index, const device::Done& done);
  void deliver(FlightIndex index, bool again);
  void dies(std::uint32_t index, std::optional<Duration> length, TimePoint now);
  void stays_away(std::uint32_t index, Duration length, TimePoint now);
  void power(std::uint32_t index, bool alive);

  const std::vector<schedule::ModelInfo>& infos_;
  const Options& options_;
  Random& random_;
  Statistics& statistics_;
  Owner& owner_;
  Duration delay_, fetch_;
  Duration duration_;  // of the scenario
  std::uint64_t pages_;
  std::optional<device::ClassStreams> streams_;  // by class
  bool faulty_;                                  // beside what the scenario says
  Random own_;                                   // for that, so that clients draw the same without it
  TimePoint now_{};
  std::vector<Device> devices_;
  std::vector<Flight> flights_;
  std::vector<FlightIndex> free_;
};

}  // namespace carillon::simulate
