#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "carillon/tune/tuning.h"

namespace carillon::tune::testing {

// Checks a Tuning's promises by its events and orders:
// - a device is all one trial's, or has at most as many as each of its trials was told, counting trials that
//   have not settled yet at both ends;
// - what runs, is held or is paused on a device fits its memory, but since that fell, when no trial comes in
//   before it fits again;
// - a trial has one order under way at most, and none that does not go with what it does;
// - nothing is ordered of trials or devices that are not here;
// - each trial that came is refused in the same call, or never.
class TuneChecker {
 public:
  // In turn: what the tuning hears, and what it ordered then. The first promise broken, or nothing.
  std::optional<std::string> heard(const TuneEvent& event);
  std::optional<std::string> said(const TuneOrders& orders);

  enum class Doing : std::uint8_t { waiting, running, held, paused };
  struct Trial {
    Doing doing{};
    bool settling = false;
    TuneOrder::Kind under{};
    device::JobMemory memory;
    std::set<std::uint32_t> devices, leaving;  // where it is, or its memory lies; and has not left yet
    std::set<std::uint32_t> had;               // before the order under way
    double width = 0, old_width = 0;           // the latter until it settles
  };
  const std::map<std::uint32_t, Trial>& trials() const { return trials_; }
  std::size_t changes() const { return changes_; }  // resizes and moves so far

 private:
  struct Device {
    double rate = 1;
    Bytes memory;
    bool fell = false;
  };
  std::optional<std::string> said(const TuneOrder& order);
  std::optional<std::string> shares() const;
  std::optional<std::string> memory(std::uint32_t device, bool came_in);
  void leave_all(Trial& trial);

  std::map<std::uint32_t, Trial> trials_;
  std::map<std::uint32_t, Device> devices_;
  std::set<std::uint32_t> coming_;
  std::size_t changes_ = 0;
  bool group_ = false, device_ = false;
};

}  // namespace carillon::tune::testing
