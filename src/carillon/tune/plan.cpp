#include "carillon/tune/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "carillon/base/assert.h"
#include "carillon/tune/model.h"

namespace carillon::tune {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
// Of two times that differ by less in all their digits, neither is the shorter.
constexpr double alike = 1e-9;

bool is_shorter(double a, double b) {
  return b - a > alike * a;
}

// Heights of all widths that a trial may have, narrowest first: 1/c .. 1/2, 1 .. d.
struct Heights {
  explicit Heights(const PlanModel& model) {
    for (int k = model.c; k > 1; --k) add(1.0 / k, model);
    for (int w = 1; w <= model.d; ++w) add(w, model);
  }
  void add(double width, const PlanModel& model) {
    widths.push_back(width);
    heights.push_back(height(width, model.alpha, model.beta));
  }
  // Place of the narrowest that is fast enough, else of the fastest.
  std::size_t place(double work, double level) const {
    std::size_t fastest = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (work * heights[i] <= level) return i;
      if (heights[i] < heights[fastest]) fastest = i;
    }
    return fastest;
  }
  std::vector<double> widths, heights;
};

class ListScheduler {
 public:
  ListScheduler(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices,
                const PlanModel& model)
      : trials_(trials),
        devices_(devices),
        model_(model),
        slots_(static_cast<std::size_t>(std::max(1, model.c))) {
    CARILLON_ASSERT(model.followed >= 0 && model.followed <= 1);
    for (const PlanTrial& t : trials)
      if (!t.has.empty() && t.width < 1)
        slots_ = std::max(slots_, static_cast<std::size_t>(sharers_of(t.width)));
    times_.resize(devices.size() * slots_);
    shared_.resize(devices.size());
    heaviest_.resize(devices.size());
    had_.resize(devices.size());
    free_.resize(devices.size());
    for (const PlanTrial& t : trials)
      for (const std::uint32_t d : t.has) had_[d] = true;
    std::uint32_t groups = 0;
    for (const PlanTrial& t : trials) groups = std::max(groups, t.group + 1);
    last_.resize(groups);
    for (const PlanDevice& d : devices) {
      rates_.push_back(d.rate);
      rate_ += d.rate;
    }
    std::ranges::sort(rates_);
    const auto rest = std::ranges::unique(rates_);
    rates_.erase(rest.begin(), rest.end());
    // More than a few kinds of devices are told apart by quantiles alone.
    constexpr std::size_t kinds = 8;
    if (rates_.size() > kinds) {
      std::vector<double> few;
      for (std::size_t i = 0; i < kinds; ++i) few.push_back(rates_[i * (rates_.size() - 1) / (kinds - 1)]);
      rates_ = std::move(few);
    }
  }

  std::uint64_t steps_each() const { return trials_.size() * (4 + devices_.size() * (1 + slots_)); }

  // Fills `plan`, whose vectors are used again. `all_fixed`: what runs stays as it is.
  void run(std::span<const std::uint32_t> order, std::span<const double> widths, bool all_fixed, Plan& plan) {
    std::ranges::fill(times_, 0.0);
    std::ranges::fill(shared_, 0);
    std::ranges::fill(heaviest_, 0);
    plan.of.resize(trials_.size());
    plan.order.assign(order.begin(), order.end());
    plan.cost = plan.makespan = plan.ends = 0;
    std::ranges::fill(last_, 0.0);
    plan.steps = steps_each();
    for (const std::uint32_t i : order) {
      const PlanTrial& t = trials_[i];
      Assignment& a = plan.of[i];
      const bool runs = !t.has.empty();
      if (runs && (t.fixed || all_fixed))
        keep(t, a);
      else if (widths[i] < 1)
        share(t, sharers_of(widths[i]), a);
      else
        spread(t, static_cast<std::size_t>(std::lround(widths[i])), a);
      if (a.devices.empty() || (runs && a.start > 0)) {
        plan.cost = plan.makespan = plan.ends = never;
        return;
      }
      plan.makespan = std::max(plan.makespan, a.end * t.priority);
      plan.ends += a.end * t.priority;
      last_[t.group] = std::max(last_[t.group], a.end * t.priority);
    }
    for (const double end : last_) plan.cost += end / static_cast<double>(last_.size());
    plan.cost += (1 - model_.followed) * plan.makespan + model_.followed * device_time(plan) / rate_;
  }

 private:
  // Times the devices' rates. Of a shared device a trial takes its share: others are to come.
  double device_time(const Plan& plan) const {
    double sum = 0;
    for (const Assignment& a : plan.of) {
      double rate = 0;
      for (const std::uint32_t d : a.devices) rate += devices_[d].rate;
      sum += (a.end - a.start) * rate * std::min(1.0, a.width);
    }
    return sum;
  }
  double* slots(std::size_t d) { return &times_[d * slots_]; }
  // Slots that count: where nobody shares it, its first alone.
  std::size_t slots_of(std::size_t d) const {
    return shared_[d] == 0 ? 1 : static_cast<std::size_t>(shared_[d]);
  }
  double free_at(std::size_t d) const {
    const double* s = &times_[d * slots_];
    return *std::max_element(s, s + slots_of(d));
  }
  void occupy(std::size_t d, double until) {
    shared_[d] = 0;
    slots(d)[0] = until;
  }
  // The device is shared by `sharers` at most from now on.
  void divide(std::size_t d, int sharers) {
    double* s = slots(d);
    const auto wanted = static_cast<std::size_t>(sharers);
    if (shared_[d] == 0) {
      std::fill(s + 1, s + wanted, s[0]);
      shared_[d] = sharers;
    } else if (sharers < shared_[d]) {
      std::sort(s, s + shared_[d], std::greater<>());
      shared_[d] = sharers;
    }
  }
  bool holds(const PlanTrial& t, std::size_t d) const { return t.memory <= devices_[d].memory; }
  // The trial's own devices first, then idle ones.
  int liking(const PlanTrial& t, std::uint32_t d) const {
    if (t.home == d || std::ranges::binary_search(t.has, d)) return 0;
    return had_[d] ? 2 : 1;
  }
  double cost_of(const PlanTrial& t, std::span<const std::uint32_t> on) const {
    if (t.has.empty()) return t.home == no_place || (on.size() == 1 && on[0] == t.home) ? 0 : t.cost;
    return std::ranges::equal(t.has, on) ? 0 : t.cost;
  }

  void keep(const PlanTrial& t, Assignment& a) {
    a.devices = t.has;
    a.width = t.width;
    a.start = 0;
    double slowest = never;
    for (const std::uint32_t d : t.has) slowest = std::min(slowest, devices_[d].rate);
    if (t.has.size() > 1) {
      a.end = t.work * height(static_cast<double>(t.has.size()), 1, model_.beta) / slowest;
    } else {
      a.end = t.work * std::pow(model_.alpha, t.company - 1) / slowest;
    }
    if (t.has.size() == 1 && t.width < 1) {
      const std::size_t d = t.has[0];
      divide(d, sharers_of(t.width));
      double* s = slots(d);
      *std::min_element(s, s + shared_[d]) = a.end;
      heaviest_[d] = std::max(heaviest_[d], t.memory.count);
      return;
    }
    for (const std::uint32_t d : t.has) occupy(d, a.end);
  }

  void share(const PlanTrial& t, int sharers, Assignment& a) {
    a.devices.clear();
    a.end = never;
    std::uint32_t best = no_place;
    int best_liking = 9, best_used = -1;
    for (std::uint32_t d = 0; d < devices_.size(); ++d) {
      if (!holds(t, d)) continue;
      int k = shared_[d] == 0 ? sharers : std::min(sharers, shared_[d]);
      const std::uint64_t others = static_cast<std::uint64_t>(k - 1) * std::max(heaviest_[d], t.memory.count);
      if (others + t.memory.count > devices_[d].memory.count) continue;
      double* s = slots(d);
      // With fewer sharers than it had, the latest slots are those that count.
      double start = 0;
      if (shared_[d] == 0) {
        start = s[0];
      } else if (k < shared_[d]) {
        std::sort(s, s + shared_[d], std::greater<>());
        start = s[k - 1];
      } else {
        start = *std::min_element(s, s + shared_[d]);
      }
      const std::uint32_t on[] = {d};
      const double end = start + cost_of(t, on) + t.work * std::pow(model_.alpha, k - 1) / devices_[d].rate;
      const int like = liking(t, d), used = shared_[d] > 0 ? 1 : 0;
      // Where ends are equal, a device that is shared already: undivided ones stay undivided.
      const bool tie = !is_shorter(a.end, end) && !is_shorter(end, a.end);
      if (is_shorter(end, a.end) || (tie && (like == 0) > (best_liking == 0)) ||
          (tie && (like == 0) == (best_liking == 0) &&
           (used > best_used || (used == best_used && like < best_liking)))) {
        best = d;
        best_liking = like;
        best_used = used;
        a.start = start;
        a.end = end;
      }
    }
    if (best == no_place) {
      // There is no memory for so many beside it.
      if (sharers > 2) return share(t, sharers - 1, a);
      return spread(t, 1, a);
    }
    divide(best, sharers);
    double* s = slots(best);
    *std::min_element(s, s + shared_[best]) = a.end;
    heaviest_[best] = std::max(heaviest_[best], t.memory.count);
    a.devices.push_back(best);
    a.width = 1.0 / shared_[best];
  }

  void spread(const PlanTrial& t, std::size_t width, Assignment& a) {
    a.devices.clear();
    a.end = never;
    if (width == 1) {
      std::uint32_t best = no_place;
      int best_liking = 9;
      for (std::uint32_t d = 0; d < devices_.size(); ++d) {
        if (!holds(t, d)) continue;
        const double start = free_at(d);
        const std::uint32_t on[] = {d};
        const double end = start + cost_of(t, on) + t.work / devices_[d].rate;
        const int like = liking(t, d);
        if (is_shorter(end, a.end) || (!is_shorter(a.end, end) && like < best_liking)) {
          best = d;
          best_liking = like;
          a.start = start;
          a.end = end;
        }
      }
      if (best == no_place) return;
      a.devices.push_back(best);
    } else {
      for (std::size_t d = 0; d < devices_.size(); ++d) free_[d] = free_at(d);
      // The slowest sets the pace: of each kind of devices and those that are faster, the soonest.
      for (const double slowest : rates_) {
        chosen_.clear();
        for (std::uint32_t d = 0; d < devices_.size(); ++d)
          if (holds(t, d) && devices_[d].rate >= slowest) chosen_.push_back(d);
        const std::size_t w = std::min(width, chosen_.size());
        if (w == 0) continue;
        std::ranges::partial_sort(chosen_, chosen_.begin() + static_cast<std::ptrdiff_t>(w),
                                  [&](std::uint32_t x, std::uint32_t y) {
                                    if (free_[x] != free_[y]) return free_[x] < free_[y];
                                    const int lx = liking(t, x), ly = liking(t, y);
                                    return lx != ly ? lx < ly : x < y;
                                  });
        chosen_.resize(w);
        double start = 0, pace = never;
        for (const std::uint32_t d : chosen_) {
          start = std::max(start, free_[d]);
          pace = std::min(pace, devices_[d].rate);
        }
        std::ranges::sort(chosen_);
        const double end =
            start + cost_of(t, chosen_) + t.work * height(static_cast<double>(w), 1, model_.beta) / pace;
        if (is_shorter(end, a.end)) {
          a.devices = chosen_;
          a.start = start;
          a.end = end;
        }
      }
    }
    a.width = static_cast<double>(a.devices.size());
    for (const std::uint32_t d : a.devices) occupy(d, a.end);
  }

  std::span<const PlanTrial> trials_;
  std::span<const PlanDevice> devices_;
  PlanModel model_;
  std::size_t slots_;
  std::vector<double> times_;  // of each device's slots: when they are free
  std::vector<int> shared_;    // by how many a device is shared at most; 0: it is not
  std::vector<std::uint64_t> heaviest_;
  std::vector<bool> had_;
  std::vector<double> free_, rates_;
  double rate_ = 0;           // of all devices
  std::vector<double> last_;  // by group: its last end
  std::vector<std::uint32_t> chosen_;
};

bool is_better(const Plan& a, const Plan& b) {
  if (is_shorter(a.cost, b.cost)) return true;
  return !is_shorter(b.cost, a.cost) && is_shorter(a.ends, b.ends);
}

class Search {
 public:
  Search(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices, const PlanModel& model,
         std::uint64_t effort)
      : trials_(trials), model_(model), heights_(model), scheduler_(trials, devices, model), effort_(effort) {
    for (const PlanDevice& d : devices) total_ += d.rate;
    devices_n_ = static_cast<double>(devices.size());
    for (const PlanTrial& t : trials) works_.push_back(t.work);
    any_running_ = std::ranges::any_of(trials, [](const PlanTrial& t) { return !t.has.empty(); });
  }

  bool may_go_on() const { return spent_ + scheduler_.steps_each() <= effort_; }

  // Running ones first, so that they start at once; then by time at their width, the longest first.
  void sort(std::vector<std::uint32_t>& order, const std::vector<double>& widths, bool by_width) {
    order.resize(trials_.size());
    std::iota(order.begin(), order.end(), 0U);
    keys_.resize(trials_.size());
    for (std::size_t i = 0; i < trials_.size(); ++i)
      keys_[i] =
          works_[i] * trials_[i].priority * (by_width ? 1 : height(widths[i], model_.alpha, model_.beta));
    std::ranges::stable_sort(order, [&](std::uint32_t x, std::uint32_t y) {
      const bool rx = !trials_[x].has.empty(), ry = !trials_[y].has.empty();
      if (rx != ry) return rx;
      if (by_width && widths[x] != widths[y]) return widths[x] > widths[y];
      return keys_[x] > keys_[y];
    });
  }

  void consider(const std::vector<std::uint32_t>& order, const std::vector<double>& widths, bool fixed) {
    scheduler_.run(order, widths, fixed, tried_);
    spent_ += tried_.steps;
    starts_.push_back({tried_.cost, order, widths, fixed});
    if (has_best_ && !is_better(tried_, best_)) return;
    std::swap(best_, tried_);
    has_best_ = true;
  }

  void consider_widths(const std::vector<double>& widths) {
    for (const bool by_width : {false, true}) {
      sort(order_, widths, by_width);
      for (const bool fixed : {true, false}) {
        if (!fixed && !any_running_) continue;
        if (has_best_ && !may_go_on()) return;
        consider(order_, widths, fixed);
      }
    }
  }

  void candidates(const KeptPlan* kept) {
    if (kept != nullptr) {
      consider(kept->order, kept->widths, true);
      kept_ = best_.cost;
      if (any_running_) consider(kept->order, kept->widths, false);
    }
    const double rate = total_ / devices_n_;
    const double level = water_level(works_, model_, devices_n_, rate);
    std::vector<double> widths(trials_.size());
    // Between the level, which cuts devices as it likes, and twice that, which 2-approximations reach.
    for (const double times : {1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0}) {
      for (std::size_t i = 0; i < widths.size(); ++i)
        widths[i] = heights_.widths[heights_.place(works_[i], level * times * rate)];
      consider_widths(widths);
      if (!may_go_on()) return;
    }
    // Algorithm 3.1.
    const double sum = std::accumulate(works_.begin(), works_.end(), 0.0);
    for (std::size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::min(std::max(std::floor(works_[i] / sum * devices_n_ + alike), 1.0 / model_.c),
                           static_cast<double>(model_.d));
    consider_widths(widths);
    std::ranges::fill(widths, 1.0);
    consider_widths(widths);
    std::ranges::fill(widths, 1.0 / model_.c);
    consider_widths(widths);
  }

  // From each candidate, the best first, changes of one width, of two, or of the places of two, as long as
  // any makes it better.
  void improve() {
    std::ranges::stable_sort(starts_, {}, &Start::cost);
    for (std::size_t i = 0; i < starts_.size() && may_go_on(); ++i) {
      if (i > 0 && starts_[i].order == starts_[i - 1].order && starts_[i].widths == starts_[i - 1].widths &&
          starts_[i].fixed == starts_[i - 1].fixed)
        continue;
      order_ = starts_[i].order;
      widths_ = starts_[i].widths;
      fixed_ = starts_[i].fixed;
      scheduler_.run(order_, widths_, fixed_, here_);
      spent_ += here_.steps;
      if (here_.makespan == never) return;
      while (may_go_on() && (changes_one() || swaps_two() || changes_two())) {
      }
      if (is_better(here_, best_)) std::swap(best_, here_);
    }
  }

  Plan take() {
    best_.steps = spent_;
    best_.kept = kept_;
    return std::move(best_);
  }

 private:
  struct Start {
    double cost = 0;
    std::vector<std::uint32_t> order;
    std::vector<double> widths;
    bool fixed = false;
  };

  // Whether order_ and widths_, as they are now, are better than what they were.
  bool accept() {
    scheduler_.run(order_, widths_, fixed_, tried_);
    spent_ += tried_.steps;
    if (!is_better(tried_, here_)) return false;
    std::swap(here_, tried_);
    return true;
  }
  bool may_change(std::uint32_t i) const { return !trials_[i].fixed && !(fixed_ && !trials_[i].has.empty()); }

  // The last to end first: the others do not bound the makespan.
  bool changes_one() {
    std::vector<std::uint32_t> last(trials_.size());
    std::iota(last.begin(), last.end(), 0U);
    std::ranges::stable_sort(last, [&](std::uint32_t x, std::uint32_t y) {
      return here_.of[x].end * trials_[x].priority > here_.of[y].end * trials_[y].priority;
    });
    for (const std::uint32_t i : last) {
      if (!may_change(i)) continue;
      const double was = widths_[i];
      for (const double width : heights_.widths) {
        if (width == was) continue;
        if (!may_go_on()) break;
        widths_[i] = width;
        if (accept()) return true;
      }
      widths_[i] = was;
    }
    return false;
  }

  bool swaps_two() {
    for (std::size_t x = 0; x < order_.size(); ++x)
      for (std::size_t y = x + 1; y < order_.size(); ++y) {
        if (trials_[order_[x]].has.empty() != trials_[order_[y]].has.empty()) continue;
        if (!may_go_on()) return false;
        std::swap(order_[x], order_[y]);
        if (accept()) return true;
        std::swap(order_[x], order_[y]);
      }
    return false;
  }

  // One gives what another gets.
  bool changes_two() {
    for (std::uint32_t x = 0; x < trials_.size(); ++x)
      for (std::uint32_t y = x + 1; y < trials_.size(); ++y) {
        if (!may_change(x) || !may_change(y)) continue;
        const double wx = widths_[x], wy = widths_[y];
        for (const double a : heights_.widths)
          for (const double b : heights_.widths) {
            if (a == wx || b == wy) continue;
            widths_[x] = a;
            widths_[y] = b;
            if (may_go_on() && accept()) return true;
            widths_[x] = wx;
            widths_[y] = wy;
          }
      }
    return false;
  }

  std::span<const PlanTrial> trials_;
  PlanModel model_;
  Heights heights_;
  ListScheduler scheduler_;
  std::uint64_t effort_, spent_ = 0;
  double total_ = 0, devices_n_ = 0, kept_ = never;
  bool any_running_ = false, has_best_ = false, fixed_ = true;
  std::vector<double> works_, keys_, widths_;
  std::vector<std::uint32_t> order_;
  std::vector<Start> starts_;
  Plan best_, here_, tried_;
};

}  // namespace

double width_for(double work, const PlanModel& model, double level, double rate) {
  const Heights heights(model);
  return heights.widths[heights.place(work, level * rate)];
}

double water_level(std::span<const double> works, const PlanModel& model, double devices, double rate) {
  const Heights heights(model);
  double sum = 0, longest = 0;
  const double fastest = *std::ranges::min_element(heights.heights);
  for (const double w : works) {
    sum += w;
    longest = std::max(longest, w);
  }
  // In seconds on a device of speed 1. High: all one after another.
  double low = longest * fastest, high = std::max(low, sum);
  for (int i = 0; i < 40; ++i) {  // to a 2^-40th of it
    const double level = (low + high) / 2;
    double area = 0;
    for (const double w : works) {
      const std::size_t at = heights.place(w, level);
      area += w * heights.heights[at] * heights.widths[at];
    }
    (area <= devices * level ? high : low) = level;
  }
  return high / rate;
}

Plan list_schedule(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices,
                   const PlanModel& model, std::span<const std::uint32_t> order,
                   std::span<const double> widths) {
  ListScheduler scheduler(trials, devices, model);
  Plan plan;
  scheduler.run(order, widths, false, plan);
  return plan;
}

Plan make_plan(std::span<const PlanTrial> trials, std::span<const PlanDevice> devices, const PlanModel& model,
               const KeptPlan* kept, std::uint64_t effort) {
  Search search(trials, devices, model, effort);
  search.candidates(kept);
  search.improve();
  return search.take();
}

}  // namespace carillon::tune
