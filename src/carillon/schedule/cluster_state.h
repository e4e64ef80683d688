#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "carillon/profile/rolling.h"
#include "carillon/schedule/executor.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// Whether a model's weights are in a device's page cache.
enum class Residence : std::uint8_t { absent, loading, loaded, unloading };

// What was known of an action that is reported, or that went with its device.
struct FinishedAction {
  ActionKind kind{};
  DeviceId device;
  ModelId model;
  int batch_index = 0;              // INFER: place in the model's list of batch sizes
  std::vector<RequestId> requests;  // INFER
  bool sent_cold = false;           // INFER: sent while the model was still loading
  bool at_once = false;             // INFER: nothing was before it, and its window was open
  TimePoint sent;                   // INFER
  Duration expected{0};             // INFER: of EXEC, when it was sent
};

// The mirror of all devices that a scheduler decides by (Clockwork, section 5.3): memory state, action
// profiles, pending actions. It chooses nothing; a policy asks it, books what it sends, and passes on what is
// reported. Costs O(1) but where said. Memory grows with devices x models by four bytes, by about a quarter
// of a kilobyte for each pair that was ever loaded or run, and by as much again for each batch size that ran
// there. Models of zero pages are loaded everywhere, without a LOAD. Not thread-safe.
class ClusterState {
 public:
  // Ids ascend by one from zero; `batches` ascends and starts at 1.
  void add_model(const ModelInfo& model);
  std::size_t model_count() const { return models_.size(); }
  const ModelInfo& model(ModelId id) const { return models_[id.index()].info; }

  // A device came, went or started anew: what was loaded and pending there is gone. Returns the pending
  // INFERs, in the order of their ids. Ids are dense; a device that was never announced is not alive.
  std::vector<FinishedAction> device_changed(const DeviceChanged& change);
  std::size_t device_count() const { return devices_.size(); }
  bool alive(DeviceId id) const { return id.index() < devices_.size() && devices_[id.index()].alive; }
  std::uint64_t total_pages(DeviceId id) const { return device(id).total_pages; }
  std::uint64_t free_pages(DeviceId id) const { return device(id).free_pages; }
  // Pages that will be free once every UNLOAD on its way is reported.
  std::uint64_t freeing_pages(DeviceId id) const { return device(id).freeing_pages; }
  // Some device that is alive could hold the model.
  bool can_hold(ModelId model) const {
    return alive_ > 0 && models_[model.index()].info.pages <= largest_pages_;
  }
  // Devices that are alive.
  std::size_t alive_count() const { return alive_; }

  const Executor& exec(DeviceId id) const { return device(id).exec; }
  const Executor& load(DeviceId id) const { return device(id).load; }

  Residence residence(DeviceId device, ModelId model) const;
  // INFERs of the model that are pending on the device.
  int pending_infers(DeviceId device, ModelId model) const;
  // When the weights will be there, seen at `now`: `now` where loaded, the expected end of the LOAD where
  // loading, max() otherwise.
  TimePoint ready_at(DeviceId device, ModelId model, TimePoint now) const;
  // The LOAD of a loading model should have ended already: when it will is not known.
  bool load_overdue(DeviceId device, ModelId model, TimePoint now) const;

  // Rolling estimates; the model's seed where nothing was measured on this device.
  Duration exec_estimate(DeviceId device, ModelId model, int batch_index) const;
  // All of them by batch index; empty where the model never ran on the device: its seeds count.
  std::span<const Duration> exec_estimates(DeviceId device, ModelId model) const;
  Duration load_estimate(DeviceId device, ModelId model) const;
  // Bounds of all devices' estimates, for whoever would else ask them all: nobody's are longer (by batch
  // index), or shorter. They rise and fall with reports alone, and may for a while be further away than they
  // need.
  std::span<const Duration> longest_execs(ModelId model) const { return models_[model.index()].longest; }
  Duration shortest_exec(ModelId model) const { return models_[model.index()].shortest; }  // of one row
  Duration shortest_load(ModelId model) const { return models_[model.index()].shortest_load; }
  // Changes whenever some device's estimate for one row does.
  std::uint64_t exec_version(ModelId model) const { return models_[model.index()].version; }

  // Loaded models of a device that no pending action needs, from the least recently used on. Calls
  // `take(model, last use)` until it returns false. O(loaded models seen).
  template <typename Take>
  void visit_lru(DeviceId id, Take&& take) const {
    for (const auto& [used, model] : device(id).lru)
      if (pending_infers(id, model) == 0 && !take(model, used)) return;
  }

  // Book what is being sent. LOAD takes its pages at once, which must be free. UNLOAD is not for a model with
  // pending actions; its pages are free when it is reported.
  ActionId begin_load(DeviceId device, ModelId model, TimePoint earliest, Duration expected, TimePoint now);
  ActionId begin_unload(DeviceId device, ModelId model);
  // An INFER is on its way for `dispatch`: it cannot start before.
  ActionId begin_infer(DeviceId device, ModelId model, int batch_index, std::vector<RequestId> requests,
                       TimePoint earliest, Duration expected, TimePoint now, Duration dispatch = {});

  // An action is reported: corrects executors, memory and profiles. None where the action is not known (its
  // device went meanwhile, or it was reported before).
  std::optional<FinishedAction> finish(const ActionDone& done, TimePoint now);

  // Estimates decide what runs, and only what runs is measured: a slow spell must not shut a model out for
  // good. A policy calls this before it refuses a request because one row would take longer than `at_most`,
  // where the seed says it would not: where nothing was measured for a second, the seed counts again; on a
  // device that idles already after a tenth of that, and then after twice as long each time that the seed
  // proves wrong. True where it does: then the refusal had better be thought over.
  bool doubt(ModelId model, Duration at_most, TimePoint now);

 private:
  struct OnDevice {
    Residence residence = Residence::absent;
    ActionId load_action;
    int pending_infers = 0;
    TimePoint last_use;
    profile::RollingWindow load;
    std::vector<std::pair<std::size_t, profile::RollingWindow>> exec;  // of the batch sizes that ran here
    std::vector<Duration>
        estimates;   // by batch index, what `exec` and else the seeds say; empty where none ran
    int trials = 0;  // of the seed for one row, since it was right
  };
  static constexpr std::uint32_t no_slot = std::numeric_limits<std::uint32_t>::max();
  struct Device {
    bool alive = false;
    std::uint64_t total_pages = 0, free_pages = 0, freeing_pages = 0;
    Executor exec, load;
    std::vector<std::uint32_t> slot_of;  // by model
    std::vector<OnDevice> slots;
    std::set<std::pair<TimePoint, ModelId>> lru;  // of the loaded
  };
  struct Model {
    ModelInfo info;
    std::vector<std::uint32_t> devices;  // that have a slot for it
    std::vector<Duration> longest;
    Duration shortest, shortest_load;
    std::uint64_t version = 0;
    unsigned reports = 0;  // since the bounds were found anew
  };

  Device& device(DeviceId id);
  const Device& device(DeviceId id) const { return const_cast<ClusterState*>(this)->device(id); }
  OnDevice* find(Device& d, ModelId model) const;
  const OnDevice* find(const Device& d, ModelId model) const { return find(const_cast<Device&>(d), model); }
  OnDevice& get(Device& d, ModelId model);
  void use(Device& d, ModelId model, TimePoint now);
  void drop(Device& d, ModelId model);
  void measured(OnDevice& on, Model& model, std::size_t index, Duration duration, TimePoint now);
  void refresh_others(OnDevice& on, Model& model, std::size_t measured, TimePoint now);
  void set_estimate(OnDevice& on, Model& model, std::size_t index, Duration estimate);
  void find_bounds(Model& model);

  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::uint64_t largest_pages_ = 0;  // of a device that is alive
  IdMap<ActionId, FinishedAction> actions_;
  ActionId next_action_{};
};

}  // namespace carillon::schedule
