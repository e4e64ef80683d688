#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// Where more copies of a model would help, for devices that cannot hold all models: how much device time each
// model asks for, and how that would be spread over the devices that hold it. For policies
// whose requests wait in one queue a model and may run on any of its devices: there a device that is steadily
// asked for more than others shows in rates long before it shows in a queue. Bursts, and what waits now, are
// LoadPriority's.
//
// A model's work is its rate of arrival times what a request took of late, averaged over `window`. It is
// poured over the model's devices like water: the emptiest are filled up to one level. Each model's level is
// found anew when its requests come, at most twenty times a window, and for one other model each time, so
// that those that are asked for no more sink, too. Not thread-safe.
class Placement {
 public:
  explicit Placement(Duration window) : window_(to_seconds(window)) {}

  void add_model(Duration each);  // what a request takes before anything was seen
  // It comes in another version: what was seen of its requests' times counts no more.
  void renew_model(ModelId model, Duration each);
  void add_device();
  void placed(ModelId model, DeviceId device, TimePoint now);   // LOAD was sent
  void removed(ModelId model, DeviceId device, TimePoint now);  // UNLOAD was sent, LOAD failed, device went

  // A request came. True where the model's level was found anew. O(devices where the model is).
  bool arrived(ModelId model, TimePoint now);
  // A batch ran.
  void served(ModelId model, std::size_t requests, Duration took, TimePoint now);

  std::size_t places(ModelId model) const { return models_[model.index()].shares.size(); }
  double rate(ModelId model, TimePoint now) const;  // requests a second
  double work(ModelId model) const { return models_[model.index()].work; }
  // Device time a second that the device is asked for; may be above 1.
  double load(DeviceId device) const { return load_[device.index()]; }
  // Calls see(device) for all devices, the one that is asked for least first, until it returns true. Nothing
  // may change here before. O(log devices) for each.
  template <typename See>
  void visit_by_load(See&& see) const {
    by_load_.visit([&](std::uint32_t device) { return see(DeviceId{device}); });
  }

  // Both in requests a second, so that they can be weighed against each other.
  // What a copy on a device without one would relieve: requests that could go there, by how much less that
  // device is asked for. 0 where the difference is within what chance makes of the rates (two standard
  // deviations). The model is somewhere.
  double gain_of_copy(ModelId model, DeviceId device) const;
  // What taking the device's copy away would cost: where there is no other all requests, as they would wait
  // for a LOAD; else those that have to go where more is asked for.
  double cost_of_removal(ModelId model, DeviceId device, TimePoint now) const;

 private:
  struct Share {
    DeviceId device;
    double work = 0;
  };
  struct Model {
    double each = 0;         // seconds a request alone takes
    double arrivals = 0;     // decaying sums, as of `seen`
    double served = 0;       // requests
    double served_time = 0;  // seconds of these
    TimePoint seen = TimePoint::min();
    TimePoint renewed = TimePoint::min();
    double work = 0;  // as of `renewed`
    std::vector<Share> shares;
  };
  void decay(Model& model, TimePoint now) const;
  double each(const Model& model) const;
  void set_load(DeviceId device, double load);
  void renew(Model& model, TimePoint now);
  // The level that `work` comes to, poured over devices that are filled up to `floors` (unordered). Changes
  // these.
  static double level_of(double work, std::vector<double>& floors);

  double window_;  // seconds
  std::vector<Model> models_;
  std::vector<double> load_;
  KeyedHeap<double> by_load_;  // devices
  std::size_t hand_ = 0;       // the model that is looked at next when another's request comes
  mutable std::vector<double> floors_;
};

}  // namespace carillon::schedule
