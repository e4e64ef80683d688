#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/schedule/parts/life.h"

namespace carillon::schedule::parts {

// What is loaded where. Models come into free memory as long as there is some. A model that somebody waits
// for and that is nowhere is loaded where that costs least. A device that has nothing to run gets a copy of
// the most urgent model that it lacks, in the place of models that were not used for long. Copies of a
// version that is served no more are unloaded. Not thread-safe.
class Loads {
 public:
  // What an event says of devices, models and LOADs: unloads what left, and refuses whatever waits for a
  // model that no device can hold, or whose LOADs fail everywhere. O(devices) where it is a RequestArrived, a
  // ModelChanged or a LOAD that failed, and for each request that came back. O(devices x models) where it is
  // a DeviceChanged.
  void hear(const Event& event, Life& life, Orders& out);
  // Sends LOADs, and UNLOADs that make room for them. O(lines that wait x devices), times c log c for each
  // device without free memory, where c models were ever loaded; and O(models) for a device with free memory.
  void step(const Waiting& waiting, Orders& out);
  // See LoadsAhead. Where room is being made, step() goes on.
  void load_ahead(const LoadAhead& wanted, Orders& out);
  // When step() has something to do by the clock alone.
  TimePoint wake_at() const { return wake_; }

 private:
  using Ledger = ledger::Ledger;
  struct Failed {
    std::uint32_t times = 0;  // in a row
    TimePoint retry;
  };
  struct Room {
    std::vector<ModelId> victims;
    std::size_t waited_for = 0;  // of them
    std::size_t loads = 0;       // that the device has to do
    auto cost() const { return std::tuple(waited_for, loads, victims.size()); }
  };
  void ended(const Ledger::Action& action, Life& life, Orders& out);
  void give_up(ModelId model, Life& life, Orders& out);
  bool may_load(const Ledger& ledger, DeviceId device, ModelId model, TimePoint now);
  std::optional<Room> room(const Ledger& ledger, DeviceId device, const Waiting::Head& head,
                           const Waiting& waiting, bool spare, TimePoint now) const;
  void make_room(DeviceId device, ModelId model, const Room& room, Orders& out);
  void load_somewhere(const Waiting::Head& head, const Waiting& waiting, Orders& out);
  void load_wanted(Orders& out);
  void fill(DeviceId device, Orders& out);

  std::vector<std::pair<DeviceId, ModelId>> wanted_;  // by load_ahead(): room is being made
  std::map<std::pair<DeviceId, ModelId>, Failed> failed_;
  std::vector<bool> taken_;   // by device: its free memory is spoken for in this step
  std::vector<bool> filled_;  // by device: nothing more fits, until something there or a model changes
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule::parts
