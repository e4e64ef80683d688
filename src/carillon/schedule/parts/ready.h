#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/ledger/ledger.h"

namespace carillon::schedule::parts {

// Lines whose batch may start, by key. A line is fresh when what it may start has changed: it may go to
// devices to which it did not go before. Those that stay are listed where their model is: with the devices
// that have it where these are few, else with all. O(log lines) but where said. Not thread-safe.
class Ready {
 public:
  struct Key {
    Class cls{};
    bool rest = false;  // it comes after all of its class that are not
    TimePoint at;
    std::uint32_t line = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // The line may start, from now on with that key. It is fresh, and not listed yet.
  void put(const Key& key) {
    remove(key.line);
    Line& line = lines_[key.line];
    line.key = key;
    line.is = true;
    ++count_;
    freshen(key.line);
  }
  void remove(std::uint32_t line) {
    if (line >= lines_.size()) lines_.resize(line + 1);
    Line& l = lines_[line];
    if (l.everywhere) everywhere_.erase(l.key);
    for (const DeviceId device : l.places) there_[device.index()].erase(l.key);
    count_ -= l.is ? 1 : 0;
    l.is = l.fresh = l.everywhere = l.listed = false;
    l.places.clear();
  }
  bool any() const { return count_ > 0; }
  // The key of a line that may start.
  std::optional<Key> key(std::uint32_t line) const {
    return line < lines_.size() && lines_[line].is ? std::optional(lines_[line].key) : std::nullopt;
  }

  void freshen(std::uint32_t line) {
    if (line >= lines_.size() || !lines_[line].is || lines_[line].fresh) return;
    lines_[line].fresh = true;
    fresh_.push_back(lines_[line].key);
    std::push_heap(fresh_.begin(), fresh_.end(), std::greater{});
  }
  bool fresh(std::uint32_t line) const { return lines_[line].fresh; }
  // The first of the fresh lines, which is fresh no more.
  std::optional<std::uint32_t> take_fresh() {
    while (!fresh_.empty()) {
      const Key key = fresh_.front();
      std::pop_heap(fresh_.begin(), fresh_.end(), std::greater{});
      fresh_.pop_back();
      Line& line = lines_[key.line];
      if (!line.is || !line.fresh || line.key != key) continue;
      line.fresh = false;
      return key.line;
    }
    return std::nullopt;
  }
  // Lists the line, for visit().
  void list(std::uint32_t line, const ledger::Ledger& ledger, ModelId model) {
    Line& l = lines_[line];
    if (!l.is || l.listed) return;
    l.listed = true;
    const auto& m = ledger.model(model);
    if (m.info->pages == 0 || m.places.size() > few) {
      everywhere_.insert(l.key);
      l.everywhere = true;
      return;
    }
    for (const DeviceId device : m.places) {
      if (device.index() >= there_.size()) there_.resize(device.index() + 1);
      there_[device.index()].insert(l.key);
      l.places.push_back(device);
    }
  }
  // All that are fresh. O(those).
  template <typename ModelOf>
  void list_fresh(const ledger::Ledger& ledger, ModelOf&& model_of) {
    for (const Key& key : fresh_)
      if (lines_[key.line].fresh) list(key.line, ledger, model_of(key.line));
  }
  // Calls look(line) for what is listed with the device, by key, until it returns true or `most` were looked
  // at; `only`: for lines of that class alone. False: these were not all.
  template <typename Look>
  bool visit(DeviceId device, std::optional<Class> only, std::size_t most, Look&& look) const {
    static const Keys nothing;
    const Keys& own = device.index() < there_.size() ? there_[device.index()] : nothing;
    const auto begin = [&](const Keys& keys) {
      return only ? keys.lower_bound(first_of(*only)) : keys.begin();
    };
    const auto more = [&](const Keys& keys, auto at) {
      return at != keys.end() && (!only || at->cls == *only);
    };
    auto a = begin(own), b = begin(everywhere_);
    for (; more(own, a) || more(everywhere_, b); --most) {
      if (most == 0) return false;
      const bool first = !more(everywhere_, b) || (more(own, a) && *a < *b);
      if (look((first ? *a++ : *b++).line)) return true;
    }
    return true;
  }

 private:
  using Keys = std::set<Key>;
  static constexpr std::size_t few = 4;  // copies: a line is listed with each
  static Key first_of(Class cls) { return {.cls = cls, .rest = false, .at = TimePoint::min(), .line = 0}; }
  struct Line {
    Key key;
    bool is = false, fresh = false, listed = false, everywhere = false;
    std::vector<DeviceId> places;
  };
  std::size_t count_ = 0;
  Keys everywhere_;
  std::vector<Keys> there_;  // by device
  std::vector<Line> lines_;
  std::vector<Key> fresh_;  // a heap; some are not any more
};

}  // namespace carillon::schedule::parts
