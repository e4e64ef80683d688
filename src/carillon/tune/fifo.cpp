#include <algorithm>
#include <deque>

#include "carillon/tune/core.h"
#include "carillon/tune/policies.h"

namespace carillon::tune {
namespace {

class Fifo final : public TuneCore {
 public:
  explicit Fifo(const TuneOptions& options) : TuneCore(options) {}
  std::size_t appetite() const override { return usable_devices(); }

 private:
  void came(GroupId, std::span<const Slot> trials) override {
    queue_.insert(queue_.end(), trials.begin(), trials.end());
  }
  void left(Slot trial, bool) override { std::erase(queue_, trial); }
  void waits_again(Slot trial) override {
    if (std::ranges::find(queue_, trial) == queue_.end()) queue_.push_front(trial);
  }

  void decide() override {
    std::size_t idle_ones = 0;
    for (Slot d = 0; d < devices().size(); ++d) idle_ones += idle(d) ? 1 : 0;
    for (auto next = queue_.begin(); next != queue_.end() && idle_ones > 0;) {
      const auto device = trial(*next).under == Under::none ? device_for(*next) : std::nullopt;
      if (!device) {
        ++next;
        continue;
      }
      place(*next, {*device}, 1);
      next = queue_.erase(next);
      --idle_ones;
    }
  }

  // Where its memory lies, if that is idle, else the first that is.
  std::optional<Slot> device_for(Slot trial) {
    std::optional<Slot> found, crowded;
    for (Slot d = 0; d < devices().size(); ++d) {
      if (!idle(d)) continue;
      if (!has_memory(d, trial)) {
        if (!crowded) crowded = d;
      } else if (is_resident(d, trial)) {
        return d;
      } else if (!found) {
        found = d;
      }
    }
    if (!found && crowded) make_room(*crowded, this->trial(trial).memory, trial);
    return found;
  }

  std::deque<Slot> queue_;
};

}  // namespace

std::unique_ptr<Tuning> make_fifo(const TuneOptions& options) {
  return std::make_unique<Fifo>(options);
}

}  // namespace carillon::tune
