#include <algorithm>
#include <cmath>
#include <deque>

#include "carillon/tune/core.h"
#include "carillon/tune/model.h"
#include "carillon/tune/policies.h"

namespace carillon::tune {
namespace {

// StaticFluid and DynamicFluid to the letter, with what the paper leaves open read as follows.
// - Lines 5 and 7 of Algorithm 3.2 update with w', not w.
// - h is what is left of a trial's time, on a device of the mean speed, times its priority.
// - Devices that rounding down leaves over stay idle: no line gives them to anybody. Shares below 1 go to the
//   fullest device that has one left, so that whole devices stay free for groups to come.
// - A trial that does not fit is passed over by those behind it that do.
// - n of Algorithm 3.1 is the idle devices when the group came; of 3.2 all devices.
class Fluid final : public TuneCore {
 public:
  Fluid(const TuneOptions& options, bool dynamic) : TuneCore(options), dynamic_(dynamic) {}

 private:
  struct Waiting {
    Slot trial = 0;
    double width = 1;
  };

  // Line 3 of both.
  static double share(double h, double sum, double n, const TuneModel& m) {
    // Rounding of h / sum * n must not make 2.9999... of 3.
    const double whole = sum > 0 ? std::floor(h / sum * n + 1e-9) : 0;
    return std::min(std::max(whole, 1.0 / m.c), static_cast<double>(std::max(1, m.d)));
  }

  double h(Slot t) const { return work(t) * trial(t).priority; }

  void came(GroupId, std::span<const Slot> trials) override {
    std::size_t n = 0;
    for (Slot d = 0; d < devices().size(); ++d) n += idle(d) ? 1 : 0;
    double sum = 0;
    for (const Slot t : trials) sum += h(t);
    const TuneModel m = model();
    std::vector<Waiting> group;
    for (const Slot t : trials) {
      group.push_back({t, share(h(t), sum, static_cast<double>(n), m)});
      trial(t).rank = h(t);
    }
    // By w, then by h, neither increasing.
    std::ranges::stable_sort(group, [&](const Waiting& a, const Waiting& b) {
      return a.width != b.width ? a.width > b.width : trial(a.trial).rank > trial(b.trial).rank;
    });
    queue_.insert(queue_.end(), group.begin(), group.end());
  }
  void left(Slot slot, bool) override {
    std::erase_if(queue_, [&](const Waiting& w) { return w.trial == slot; });
    freed_ = true;
  }
  void waits_again(Slot slot) override {
    if (std::ranges::find(queue_, slot, &Waiting::trial) != queue_.end()) return;
    queue_.push_front({slot, 1.0 / model().c});
  }
  void settled(Slot) override { freed_ = freed_ || short_; }
  void devices_changed() override { freed_ = true; }

  void decide() override {
    schedule();
    if (dynamic_ && freed_ && queue_.empty()) rebalance();
    freed_ = false;
  }

  // --- Algorithm 3.1, lines 2 and 4
  void schedule() {
    if (queue_.empty() || !any_room()) return;
    double failed = 1e9;  // no trial of the group's size fits where a narrower one did not
    const bool unlike = has_memory_bounds();
    for (auto next = queue_.begin(); next != queue_.end();) {
      if (trial(next->trial).under != Under::none || (!unlike && next->width >= failed)) {
        ++next;
      } else if (start(*next)) {
        next = queue_.erase(next);
        if (!any_room()) return;
      } else {
        failed = std::min(failed, next->width);
        ++next;
      }
    }
  }

  bool any_room() const {
    for (Slot d = 0; d < devices().size(); ++d)
      if (usable(d) && (devices()[d].users.empty() || devices()[d].users.front().sharers > 1)) return true;
    return false;
  }
  bool has_memory_bounds() const {
    return std::ranges::any_of(queue_, [&](const Waiting& w) {
      return trial(w.trial).memory.persistent.count + trial(w.trial).memory.ephemeral.count > 0;
    });
  }

  bool start(const Waiting& w) {
    if (w.width < 1) {
      const auto device = share_for(w.trial, sharers_of(w.width));
      if (device) place(w.trial, {*device}, w.width);
      return device.has_value();
    }
    // Devices may have gone since its width was chosen.
    const std::size_t wanted =
        std::min(static_cast<std::size_t>(w.width), std::max<std::size_t>(1, could_hold(w.trial)));
    std::vector<Slot> on = idle_for(w.trial, wanted);
    if (on.size() < wanted) return false;
    place(w.trial, std::move(on), static_cast<double>(wanted));
    return true;
  }

  // The fullest device with a share left, where its memory lies before others.
  std::optional<Slot> share_for(Slot t, int sharers) {
    std::optional<Slot> found, crowded;
    std::pair<bool, std::size_t> best;
    for (Slot d = 0; d < devices().size(); ++d) {
      if (!usable(d) || !has_room(d, t, sharers)) continue;
      if (!has_memory(d, t)) {
        if (!crowded) crowded = d;
        continue;
      }
      const std::pair<bool, std::size_t> key{is_resident(d, t), devices()[d].users.size()};
      if (!found || key > best) {
        found = d;
        best = key;
      }
    }
    if (!found && crowded) make_room(*crowded, trial(t).memory, t);
    return found;
  }

  // So many idle devices, those that it has or where its memory lies before others.
  std::vector<Slot> idle_for(Slot t, std::size_t count) {
    std::vector<Slot> on;
    std::optional<Slot> crowded;
    for (const bool resident : {true, false})
      for (Slot d = 0; d < devices().size() && on.size() < count; ++d) {
        if (!usable(d) || !has_room(d, t, 1) || is_resident(d, t) != resident) continue;
        if (has_memory(d, t))
          on.push_back(d);
        else if (!crowded)
          crowded = d;
      }
    if (on.size() < count && crowded) make_room(*crowded, trial(t).memory, t);
    return on;
  }

  // --- Algorithm 3.2
  void rebalance() {
    std::vector<Slot> group;
    double sum = 0;
    for (const Slot t : running()) {
      trial(t).rank = h(t);
      sum += trial(t).rank;
      group.push_back(t);
    }
    std::ranges::stable_sort(group, [&](Slot a, Slot b) {
      return trial(a).rank != trial(b).rank ? trial(a).rank > trial(b).rank : a < b;
    });
    const TuneModel m = model();
    const double alpha = packing(), beta = scaling(), cost = move_cost();
    const auto n = static_cast<double>(usable_devices());
    double rate = 0;  // the mean
    for (Slot d = 0; d < devices().size(); ++d)
      if (usable(d)) rate += devices()[d].rate() / n;
    short_ = false;
    for (const Slot t : group) {
      if (trial(t).under != Under::none) {
        short_ = true;  // looked at again once it has settled
        continue;
      }
      const double w = trial(t).width, next = share(trial(t).rank, sum, n, m), all = work(t);
      const double now_takes = all * height(w, alpha, beta) / rate,
                   then_takes = all * height(next, alpha, beta) / rate;
      const bool up = next > w && then_takes + cost < now_takes;
      const bool down = next < w && next * (then_takes + cost) < w * now_takes;
      if ((up || down) && !resize(t, next)) short_ = true;
    }
  }

  bool resize(Slot t, double width) {
    if (width < 1) {
      // On a device of its own, unless others there were told that more would share it.
      const Slot device = trial(t).devices.front();
      if (!has_room(device, t, sharers_of(width))) return false;
      place(t, {device}, width);
      return true;
    }
    std::vector<Slot> on = idle_for(t, static_cast<std::size_t>(width));
    if (on.size() < static_cast<std::size_t>(width)) return false;
    place(t, std::move(on), width);
    return true;
  }

  bool dynamic_;
  bool freed_ = false;  // something came free since Algorithm 3.2 was last run
  bool short_ = false;  // it lacked devices, or some were settling
  std::deque<Waiting> queue_;
};

}  // namespace

std::unique_ptr<Tuning> make_fluid(const TuneOptions& options, bool dynamic) {
  return std::make_unique<Fluid>(options, dynamic);
}

}  // namespace carillon::tune
