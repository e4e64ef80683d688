#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "carillon/tune/core.h"
#include "carillon/tune/model.h"
#include "carillon/tune/plan.h"
#include "carillon/tune/policies.h"

namespace carillon::tune {
namespace {

// How often work follows where a trial has done its budget: an asynchronous tuner starts another trial then,
// or lets the same go on; one that goes by rungs waits for the others of the group. Over the last 32 or so.
class Follows {
 public:
  // A trial has done what it was to do.
  void left(TimePoint now, Duration reaction) {
    looks_ = looks_ * fades + 1;
    followed_ *= fades;
    open_ = now - last_ <= reaction ? open_ + 1 : 1;
    last_ = now;
  }
  // So many came, `reaction` at most after what they follow.
  void came(std::size_t trials, TimePoint now, Duration reaction) {
    if (now - last_ > reaction) return;
    const std::size_t rest = open_ - std::min(open_, trials);
    followed_ += weight_of(open_) - weight_of(rest);  // the oldest of those that are open
    open_ = rest;
  }
  // [0, 1). One that nothing followed counts from the start on.
  double share() const { return followed_ / (looks_ + 1); }

 private:
  static constexpr double fades = 31.0 / 32;
  // What the last `looks` count in `looks_`.
  static double weight_of(std::size_t looks) {
    return (1 - std::pow(fades, static_cast<double>(looks))) / (1 - fades);
  }

  double looks_ = 0, followed_ = 0;
  std::size_t open_ = 0;
  TimePoint last_;
};

// Water-filling by marginal gain over devices of unlike speed and memory.
//
// A plan says how wide each trial that waits is to be, and in which order; it is made anew at each event that
// frees or takes something, and followed where the new one is no better. What is free after that goes to the
// trial that ends last and would gain by it by more than the change costs. Where packing or scaling is not
// measured yet, one device, or one trial, finds out.
class Best final : public TuneCore {
 public:
  explicit Best(const TuneOptions& options) : TuneCore(options) {}

 private:
  std::uint64_t event_effort() const { return options().effort / 12; }
  // Larger problems are planned by their water level alone: list scheduling would take longer than an event
  // may for each of the three candidates that there are at least.
  std::uint64_t most_steps() const { return event_effort() / 3; }

  void came(GroupId, std::span<const Slot> trials) override {
    follows_.came(trials.size(), told_at(), reaction());
    for (const Slot t : trials) {
      remember(t);
      waiting_.push_back(t);
    }
    dirty_ = new_group_ = true;
    filled_ = false;
  }
  void left(Slot t, bool had_company) override {
    std::erase(waiting_, t);
    follows_.left(told_at(), reaction());
    dirty_ = left_ = true;
    filled_ = filled_ && !had_company && alike_;
  }
  void waits_again(Slot t) override {
    remember(t);
    if (std::ranges::find(waiting_, t) == waiting_.end()) waiting_.insert(waiting_.begin(), t);
    dirty_ = true;
  }
  void settled(Slot) override {
    dirty_ = true;
    filled_ = false;
  }
  void devices_changed() override {
    dirty_ = new_group_ = fled_ = true;
    filled_ = false;
    alike_ = true;
    for (const Device& d : devices()) alike_ = alike_ && (!d.here || d.rate() == devices().front().rate());
  }
  void reported(Slot t, bool more) override {
    if (more) {
      follows_.left(told_at(), reaction());
      follows_.came(1, told_at(), reaction());
    }
    // What is known now may allow more, or less, than what was.
    const TuneModel m = model();
    if (m.c != c_ || m.d != d_ || m.alpha.known != alpha_known_ || m.beta.known != beta_known_) {
      dirty_ = true;
      filled_ = false;
    }
    // Who was measured as it is can find out what is not known.
    if (is_measured(t) && trial(t).steady == 2 && !(m.alpha.known && m.beta.known)) {
      dirty_ = true;
      filled_ = false;
    }
    c_ = m.c;
    d_ = m.d;
    alpha_known_ = m.alpha.known;
    beta_known_ = m.beta.known;
  }
  // Within this a tuner starts a trial for one that ended.
  Duration reaction() const {
    if (options().reaction) return *options().reaction;
    const Measured any = estimator().iteration(no_place);
    return any.known ? from_seconds(std::min(9e9, any.value / 10)) : Duration{0};
  }
  void remember(Slot t) {
    if (t >= widths_.size()) {
      widths_.resize(t + 1, 1.0);
      ranks_.resize(t + 1, 0);
      changed_.resize(t + 1, TimePoint::min());
    }
    widths_[t] = 1;
    ranks_[t] = no_place;  // behind those that were planned
  }

  void decide() override {
    if (!dirty_) return;
    // Who ends, or pauses, a trial often wants another at once, or the same again: what is free is given to
    // those that run only when that was told.
    if (std::exchange(left_, false) && waiting_.empty()) return wake_at(told_at());
    const bool group = new_group_;
    dirty_ = new_group_ = false;
    if (std::exchange(fled_, false)) flee();
    if (usable_devices() == 0) return;
    model_ = model();
    planned_ = {.alpha = packing(),
                .beta = scaling(),
                .c = model_.alpha.known ? model_.c : 1,
                .d = model_.beta.known ? model_.d : 1,
                .followed = follows_.share()};
    reserved_.assign(devices().size(), false);
    const std::uint64_t trials = waiting_.size() + running().size();
    const std::uint64_t steps =
        trials * (4 + usable_devices() * (1 + static_cast<std::uint64_t>(planned_.c)));
    if (steps <= most_steps())
      thorough(group);
    else
      quick(group);
    explore_packing();
    fill();
  }

  // Once at a time: what is planned and what is filled in may differ for ever where changes cost nothing.
  bool just_changed(Slot t) const { return changed_[t] == told_at(); }
  void change(Slot t, std::vector<Slot> on, double width) {
    changed_[t] = told_at();
    place(t, std::move(on), width);
  }
  bool is_running(Slot t) const { return trial(t).here && trial(t).state == State::running; }
  double slowest(std::span<const Slot> on) const {
    double rate = std::numeric_limits<double>::infinity();
    for (const Slot d : on) rate = std::min(rate, devices()[d].rate());
    return rate;
  }
  int company(Slot t) const {
    return trial(t).devices.size() == 1 ? static_cast<int>(devices()[trial(t).devices[0]].users.size()) : 1;
  }

  // Trials on devices that have nothing left for them: onto their others, else they stand still.
  void flee() {
    for (const Slot t : std::vector<Slot>(running())) {
      std::vector<Slot> rest;
      for (const Slot d : trial(t).devices)
        if (usable(d)) rest.push_back(d);
      if (rest.size() == trial(t).devices.size()) continue;
      if (trial(t).under != Under::none) {
        fled_ = true;  // once it has settled
      } else if (rest.empty()) {
        hold(t);
        remember(t);
        waiting_.insert(waiting_.begin(), t);
      } else {
        place(t, rest, static_cast<double>(rest.size()));
      }
    }
  }

  // --- Small problems: plans, held against each other by list scheduling

  void thorough(bool group) {
    std::vector<std::uint32_t> number(devices().size(), no_place);
    std::vector<Slot> slot_of;
    std::vector<PlanDevice> on;
    for (Slot d = 0; d < devices().size(); ++d)
      if (usable(d)) {
        number[d] = static_cast<std::uint32_t>(on.size());
        slot_of.push_back(d);
        on.push_back({devices()[d].rate(), devices()[d].lanes.capacity()});
      }
    std::vector<Slot> who;
    std::vector<PlanTrial> trials;
    KeptPlan kept;
    std::unordered_map<std::uint32_t, std::uint32_t> groups;
    double doubt = 0;
    const auto add = [&](Slot t, bool runs) {
      const Trial& book = trial(t);
      // Of one that has nothing left to do, and is about to say so, any change looks alike.
      constexpr double least_work = 1e-9;
      PlanTrial p{.work = std::max(least_work, work(t)), .priority = book.priority};
      p.group = groups.try_emplace(book.group.value, static_cast<std::uint32_t>(groups.size())).first->second;
      p.memory = book.memory.persistent + book.memory.ephemeral;
      p.cost = move_cost();
      if (runs) {
        for (const Slot d : book.devices) p.has.push_back(number[d]);
        std::ranges::sort(p.has);
        p.width = book.width;
        p.company = company(t);
        // A trial that tries out packing or scaling stays as it is until the outcome is known.
        p.fixed = book.under != Under::none || just_changed(t) || p.work <= least_work ||
                  (book.width * planned_.c < 0.999 && doubts_packing()) ||
                  (book.width > planned_.d && doubts_scaling());
      } else if (!book.devices.empty()) {
        p.home = number[book.devices.front()];
        if (p.home == no_place) p.home = static_cast<std::uint32_t>(devices().size());  // elsewhere
      }
      if (!book.told_s) {
        const Measured m = estimator().iteration(t);
        if (m.known && m.seen > 0) doubt = std::max(doubt, m.error / m.value);
      }
      kept.order.push_back(static_cast<std::uint32_t>(trials.size()));
      kept.widths.push_back(std::clamp(widths_[t], 1.0 / planned_.c, static_cast<double>(planned_.d)));
      who.push_back(t);
      trials.push_back(std::move(p));
    };
    // As the last plan had them.
    std::vector<Slot> run = running();
    std::ranges::sort(run, [&](Slot a, Slot b) { return std::pair(ranks_[a], a) < std::pair(ranks_[b], b); });
    for (const Slot t : run) {
      // One that is on its way off a device without supply is counted once it is there.
      if (std::ranges::all_of(trial(t).devices, [&](Slot d) { return usable(d); })) add(t, true);
    }
    for (const Slot t : waiting_)
      if (trial(t).under == Under::none && could_hold(t) > 0) add(t, false);
    if (trials.empty()) return;
    const Plan plan = make_plan(trials, on, planned_, &kept, group ? options().effort : event_effort());
    if (plan.of.empty() || !std::isfinite(plan.makespan)) return;

    const auto devices_of = [&](std::uint32_t i) {
      std::vector<Slot> list;
      for (const std::uint32_t d : plan.of[i].devices) list.push_back(slot_of[d]);
      return list;
    };
    const auto changes = [&](std::uint32_t i) {
      return !trials[i].has.empty() &&
             (plan.of[i].devices != trials[i].has || plan.of[i].width != trials[i].width);
    };
    bool resizes = false;
    for (std::uint32_t i = 0; i < trials.size(); ++i) resizes = resizes || changes(i);
    // What is measured with an error cannot say that so small a change is for the better.
    const bool believed = !resizes || plan.cost < plan.kept * (1 - doubt) || doubt == 0;
    std::vector<Slot> next;
    for (std::size_t at = 0; at < plan.order.size(); ++at) {
      const std::uint32_t i = plan.order[at];
      ranks_[who[i]] = static_cast<std::uint32_t>(at);
      if (believed || trials[i].has.empty()) widths_[who[i]] = plan.of[i].width;
      if (trials[i].has.empty()) next.push_back(who[i]);
    }
    if (believed) {
      // Those that give something first: what they give is there for others once they have settled.
      for (const bool gives : {true, false})
        for (std::uint32_t i = 0; i < trials.size(); ++i) {
          if (!changes(i) || trials[i].fixed || trial(who[i]).under != Under::none) continue;
          const std::vector<Slot> list = devices_of(i);
          const bool narrower = std::ranges::includes(trials[i].has, plan.of[i].devices);
          if (narrower != gives) continue;
          if (fits(who[i], list, plan.of[i].width)) {
            change(who[i], list, plan.of[i].width);
          } else {
            for (const Slot d : list) reserved_[d] = true;  // until those that give have settled
          }
        }
    }
    for (const std::uint32_t i : plan.order) {
      if (!trials[i].has.empty()) continue;
      const std::vector<Slot> list = devices_of(i);
      if (believed && plan.of[i].start <= 0 && start(who[i], list, plan.of[i].width)) {
        std::erase(next, who[i]);
        continue;
      }
      for (const Slot d : list) reserved_[d] = true;
    }
    // In the order of the plan; what could not be planned stays behind.
    std::vector<Slot> rest;
    for (const Slot t : waiting_)
      if (trial(t).state != State::running && std::ranges::find(next, t) == next.end()) rest.push_back(t);
    next.insert(next.end(), rest.begin(), rest.end());
    waiting_ = std::move(next);
  }

  bool fits(Slot t, std::span<const Slot> on, double width) const {
    const int sharers = sharers_of(width);
    return std::ranges::all_of(
        on, [&](Slot d) { return usable(d) && has_room(d, t, sharers) && has_memory(d, t); });
  }

  // Places one that waits; where only memory lacks, what stands still there makes way.
  bool start(Slot t, const std::vector<Slot>& on, double width) {
    if (trial(t).under != Under::none) return false;
    const int sharers = sharers_of(width);
    bool memory = true;
    for (const Slot d : on) {
      if (!usable(d) || !has_room(d, t, sharers)) return false;
      memory = memory && has_memory(d, t);
    }
    if (memory) {
      place(t, on, width);
      return true;
    }
    for (const Slot d : on)
      if (!has_memory(d, t)) make_room(d, trial(t).memory, t);
    return false;
  }

  // --- Large problems: widths by the water level, in the order of work

  void quick(bool group) {
    if (group) level_widths();
    std::vector<Slot> free, shared;
    for (Slot d = 0; d < devices().size(); ++d) {
      if (!usable(d)) continue;
      const auto& users = devices()[d].users;
      if (users.empty())
        free.push_back(d);
      else if (users.front().sharers > static_cast<int>(users.size()))
        shared.push_back(d);
    }
    if (free.empty() && shared.empty()) return;
    // The fastest first, as the longest trial is; taken from the back.
    std::ranges::stable_sort(free, [&](Slot a, Slot b) {
      return devices()[a].rate() != devices()[b].rate() ? devices()[a].rate() < devices()[b].rate() : a > b;
    });
    std::size_t failures = 0;
    constexpr std::size_t most_failures = 32;  // of memory: what an event may take is bounded
    std::vector<Slot> rest;
    std::size_t at = 0;
    for (; at < waiting_.size() && !(free.empty() && shared.empty()) && failures < most_failures; ++at) {
      const Slot t = waiting_[at];
      const double width = widths_[t];
      bool placed = false;
      if (trial(t).under == Under::none) {
        if (width < 1) {
          for (std::size_t i = shared.size(); i-- > 0 && !placed;)
            if (start(t, {shared[i]}, width)) {
              placed = true;
              if (devices()[shared[i]].users.size() >= static_cast<std::size_t>(std::lround(1 / width)))
                shared.erase(shared.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        if (!placed && !free.empty()) {
          const auto wanted = std::min(free.size(), static_cast<std::size_t>(std::max(1.0, width)));
          const std::vector<Slot> on(free.end() - static_cast<std::ptrdiff_t>(wanted), free.end());
          const double w = width < 1 ? width : static_cast<double>(wanted);
          if (start(t, on, w)) {
            placed = true;
            widths_[t] = w;
            free.resize(free.size() - wanted);
            if (w < 1) shared.push_back(on.front());
          }
        }
        if (!placed) ++failures;
      }
      if (!placed) rest.push_back(t);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(at));
    waiting_.insert(waiting_.begin(), rest.begin(), rest.end());
    for (const Slot d : free) reserved_[d] = !waiting_.empty() && failures < most_failures;
  }

  void level_widths() {
    double rate = 0;
    for (Slot d = 0; d < devices().size(); ++d)
      if (usable(d)) rate += devices()[d].rate();
    rate /= static_cast<double>(usable_devices());
    std::vector<double> works;
    for (const Slot t : waiting_) works.push_back(trial(t).rank = work(t) * trial(t).priority);
    for (const Slot t : running()) works.push_back(work(t) * trial(t).priority);
    const double level = water_level(works, planned_, static_cast<double>(usable_devices()), rate);
    for (const Slot t : waiting_) widths_[t] = width_for(trial(t).rank, planned_, level, rate);
    std::ranges::stable_sort(waiting_, [&](Slot a, Slot b) { return trial(a).rank > trial(b).rank; });
    // Those that are wider than the level has them make room for who waits.
    if (waiting_.empty()) return;
    for (const Slot t : std::vector<Slot>(running())) {
      if (trial(t).under != Under::none || trial(t).width <= 1) continue;
      const double width = std::max(1.0, width_for(work(t) * trial(t).priority, planned_, level, rate));
      if (width >= trial(t).width) continue;
      std::vector<Slot> on(trial(t).devices.begin(),
                           trial(t).devices.begin() + static_cast<std::ptrdiff_t>(width));
      widths_[t] = width;
      place(t, std::move(on), width);
    }
  }

  // --- What is not known yet

  // Whether one more on a device might pay: it is not known, or the error is too large to tell.
  bool doubts_packing() const {
    const int most = options().c.value_or(options().most_packed);
    if (!model_.alpha.known) return most > 1;
    const double least = std::max(1.0, model_.alpha.value - model_.alpha.error);
    return model_.alpha.seen > 0 && packing_limit(least, options().threshold, most) > model_.c;
  }
  bool doubts_scaling() const {
    const int most =
        std::min(options().d.value_or(static_cast<int>(most_devices)), static_cast<int>(usable_devices()));
    if (!model_.beta.known) return most > 1;
    const double least = std::max(1.0, model_.beta.value - model_.beta.error);
    return model_.beta.seen > 0 && scaling_limit(least, most) > model_.d;
  }

  // One device is shared by one more than is known to pay: by one that waits, else, where no device is idle,
  // by the trial with least to do, whose own device then goes to others. What is learned is of use to all.
  void explore_packing() {
    if (!doubts_packing()) return;
    const int sharers = (model_.alpha.known ? model_.c : 1) + 1;
    if (waiting_.empty() && running().size() < 2) return;
    Slot alone = no_place;
    double least = 0;
    for (Slot d = 0; d < devices().size(); ++d) {
      if (!usable(d)) continue;
      const auto& users = devices()[d].users;
      if (users.empty()) {
        if (waiting_.empty()) return;
        continue;
      }
      const int most = sharers_of(trial(users.front().trial).width);
      if (most >= sharers) {
        // The device that finds out, or is about to.
        if (users.front().sharers == most && static_cast<int>(users.size()) < most) join(d, most);
        return;
      }
      const Slot t = users.front().trial;
      if (trial(t).under != Under::none || trial(t).devices.size() != 1) continue;
      // Somebody has to be measured alone: else another one is, on another device.
      if (!is_measured(t) && (waiting_.empty() || usable_devices() == 1)) continue;
      const double left = work(t) / devices()[d].rate();
      if (alone == no_place || left < least) {
        alone = d;
        least = left;
      }
    }
    if (alone == no_place) return;
    for (const User& user : std::vector<User>(devices()[alone].users))
      if (is_running(user.trial) && trial(user.trial).under == Under::none) {
        widths_[user.trial] = 1.0 / sharers;
        place(user.trial, {alone}, widths_[user.trial]);
      }
  }

  // One more comes to the device.
  void join(Slot device, int sharers) {
    for (const Slot t : waiting_) {
      if (trial(t).under != Under::none) continue;
      if (start(t, {device}, 1.0 / sharers)) {
        widths_[t] = 1.0 / sharers;
        std::erase(waiting_, t);
      }
      return;
    }
    Slot found = no_place;
    for (const Slot t : running()) {
      if (trial(t).under != Under::none || trial(t).devices.size() != 1 || trial(t).devices[0] == device)
        continue;
      if (company(t) != 1 || !has_room(device, t, sharers) || !has_memory(device, t)) continue;
      if (found == no_place || std::pair(work(t), t) < std::pair(work(found), found)) found = t;
    }
    // One that is about to end would end before it has told anything of its company.
    if (found == no_place || work(found) < move_cost()) return;
    widths_[found] = 1.0 / sharers;
    place(found, {device}, widths_[found]);
  }

  // --- What is free

  struct Gain {
    double end = 0;
    Slot trial = 0;
    bool operator<(const Gain& other) const {
      return end != other.end ? end < other.end : trial > other.trial;
    }
  };

  // Idle devices that no plan waits for, one after the other to the trial that ends last and gains by it.
  void fill() {
    if (filled_) return;
    std::vector<Slot> free;
    for (Slot d = 0; d < devices().size(); ++d)
      if (idle(d) && !reserved_[d]) free.push_back(d);
    if (free.empty()) return;
    std::ranges::stable_sort(free, [&](Slot a, Slot b) { return devices()[a].rate() > devices()[b].rate(); });
    // Who is widened pays for sure: by the larger overhead that the error allows.
    const double beta = model_.beta.known ? model_.beta.value + model_.beta.error : 1;
    const double alpha = std::max(1.0, packing() - model_.alpha.error), cost = move_cost();
    const bool tries = doubts_scaling();
    bool one_tries = false;  // somebody is as wide as is not known to pay
    std::vector<Gain> heap;
    struct Wider {
      std::vector<Slot> on;  // where it would be
      double ends = 0, ended = 0;
      bool changed = false;
    };
    std::unordered_map<Slot, Wider> wider;
    heap.reserve(running().size());
    bool heap_had_all = true;
    for (const Slot t : running()) {
      if (static_cast<int>(trial(t).devices.size()) > planned_.d) one_tries = true;
      if (trial(t).under != Under::none || just_changed(t)) {
        heap_had_all = false;
        continue;
      }
      const double end = ends(t, trial(t).devices, company(t), alpha, beta);
      heap.push_back({end * trial(t).priority, t});
    }
    std::make_heap(heap.begin(), heap.end());
    std::vector<bool> taken(free.size(), false);
    std::size_t left = free.size();
    while (!heap.empty() && left > 0) {
      std::pop_heap(heap.begin(), heap.end());
      const Gain next = heap.back();
      heap.pop_back();
      const Slot t = next.trial;
      auto [entry, fresh] = wider.try_emplace(t);
      Wider& w = entry->second;
      if (fresh) {
        w.on = trial(t).devices;
        w.ended = w.ends = next.end / trial(t).priority;
      }
      // Choices: one device more, or away from company, or to a faster one.
      double best = w.ends;
      std::vector<Slot> chosen;
      std::vector<std::size_t> uses;
      const bool alone = w.changed || company(t) == 1;
      const double once = w.changed ? 0 : cost;
      for (std::size_t i = 0; i < free.size(); ++i) {
        if (taken[i] || !has_memory(free[i], t)) continue;
        const auto size = static_cast<int>(w.on.size());
        const bool may_try = tries && !one_tries && is_measured(t);
        if (alone && (size < planned_.d || (may_try && size < planned_.d + 1))) {
          std::vector<Slot> on = w.on;
          on.push_back(free[i]);
          const double end = ends(t, on, 1, alpha, beta) + once;
          if (end < best) {
            best = end;
            chosen = std::move(on);
            uses = {i};
          }
        }
        if (size == 1 && !w.changed) {
          const Slot on[] = {free[i]};
          const double end = ends(t, on, 1, alpha, beta) + once;
          if (end < best) {
            best = end;
            chosen = {free[i]};
            uses = {i};
          }
        }
        break;  // the fastest that could hold it: the others are no faster
      }
      if (chosen.empty()) continue;
      if (static_cast<int>(chosen.size()) > planned_.d) one_tries = true;
      for (const std::size_t i : uses) {
        taken[i] = true;
        --left;
      }
      w.on = std::move(chosen);
      w.ends = best;
      w.changed = true;
      heap.push_back({best * trial(t).priority, t});
      std::push_heap(heap.begin(), heap.end());
    }
    std::vector<std::pair<Slot, const Wider*>> changed;
    for (const auto& [t, w] : wider)
      if (w.changed) changed.push_back({t, &w});
    std::ranges::sort(changed);
    // Devices are left over, and nobody gains by one: nor does anybody as time goes by, until something
    // changes besides another device of that kind that comes free.
    filled_ = left > 0 && changed.empty() && alike_ && heap_had_all;
    for (const auto& [t, w] : changed) {
      widths_[t] = static_cast<double>(w->on.size());
      change(t, w->on, widths_[t]);
    }
  }

  double ends(Slot t, std::span<const Slot> on, int sharers, double alpha, double beta) const {
    const double w = static_cast<double>(on.size());
    const auto height_is = [&] {
      if (on.size() == 1) return sharers == 1 ? 1.0 : std::pow(alpha, sharers - 1);
      return height(w, 1, beta);
    };
    return work(t) * height_is() / slowest(on);
  }

  std::vector<Slot> waiting_;         // in the order of the plan
  std::vector<double> widths_;        // by trial: as the last plan has it, whether or not it is so yet
  std::vector<std::uint32_t> ranks_;  // by trial: its place in that plan
  std::vector<TimePoint> changed_;    // by trial: when it was last made wider, narrower, or moved
  std::vector<bool> reserved_;        // devices that somebody who waits is to have
  TuneModel model_;
  PlanModel planned_;
  int c_ = 0, d_ = 0;
  bool alpha_known_ = false, beta_known_ = false;
  Follows follows_;
  bool dirty_ = false, new_group_ = false, fled_ = false, left_ = false;
  bool alike_ = true;    // all devices are of one rate
  bool filled_ = false;  // nobody gains by what is idle
};

}  // namespace

std::unique_ptr<Tuning> make_best(const TuneOptions& options) {
  return std::make_unique<Best>(options);
}

}  // namespace carillon::tune
