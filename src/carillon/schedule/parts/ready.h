#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/ledger/ledger.h"

namespace carillon::schedule::parts {

// Lines whose batch may start, listed by key where their model is: with the devices that have it where these
// are few, else with all. O(log lines) but where said. Not thread-safe.
class Ready {
 public:
  struct Key {
    Class cls{};
    TimePoint at;
    std::uint32_t line = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // Lists the line, or lists it anew.
  void put(const Key& key, const ledger::Ledger& ledger, ModelId model) {
    remove(key.line);
    Listed& listed = listed_[key.line];
    listed.key = key;
    listed.is = true;
    ++count_;
    const auto& m = ledger.model(model);
    if (m.info->pages == 0 || m.places.size() > few) {
      everywhere_.insert(key);
      listed.everywhere = true;
      return;
    }
    for (const DeviceId device : m.places) {
      if (device.index() >= there_.size()) there_.resize(device.index() + 1);
      there_[device.index()].insert(key);
      listed.places.push_back(device);
    }
  }
  void remove(std::uint32_t line) {
    if (line >= listed_.size()) listed_.resize(line + 1);
    Listed& listed = listed_[line];
    if (listed.everywhere) everywhere_.erase(listed.key);
    for (const DeviceId device : listed.places) there_[device.index()].erase(listed.key);
    count_ -= listed.is ? 1 : 0;
    listed.is = listed.everywhere = false;
    listed.places.clear();
  }
  bool any() const { return count_ > 0; }
  // The key of a line that is listed.
  std::optional<Key> key(std::uint32_t line) const {
    return line < listed_.size() && listed_[line].is ? std::optional(listed_[line].key) : std::nullopt;
  }
  // Calls look(line) for what may start on the device, by key, until it returns true or `most` were looked
  // at.
  template <typename Look>
  void visit(DeviceId device, std::size_t most, Look&& look) const {
    static const Keys nothing;
    const Keys& own = device.index() < there_.size() ? there_[device.index()] : nothing;
    auto a = own.begin(), b = everywhere_.begin();
    for (; most > 0 && (a != own.end() || b != everywhere_.end()); --most) {
      const bool first = b == everywhere_.end() || (a != own.end() && *a < *b);
      if (look((first ? *a++ : *b++).line)) return;
    }
  }

 private:
  using Keys = std::set<Key>;
  static constexpr std::size_t few = 4;  // copies: a line is listed with each
  struct Listed {
    Key key;
    bool is = false, everywhere = false;
    std::vector<DeviceId> places;
  };
  std::size_t count_ = 0;
  Keys everywhere_;
  std::vector<Keys> there_;     // by device
  std::vector<Listed> listed_;  // by line
};

}  // namespace carillon::schedule::parts
