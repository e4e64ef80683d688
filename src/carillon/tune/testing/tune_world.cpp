#include "carillon/tune/testing/tune_world.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/tune/model.h"
#include "carillon/tune/testing/tune_checker.h"

namespace carillon::tune::testing {
namespace {

struct WorldTrial {
  GroupId group;
  double iteration = 1;  // seconds alone
  double budget = 1, done = 0;
  int pauses = 0;  // that are still to come
  int deaths = 0;
  bool tells_budget = true, tells_time = true;
  device::JobMemory memory;
  bool here = false, ended = false;
  TimePoint wanted_again = TimePoint::max();  // paused until then
};

struct WorldDevice {
  DeviceCame as;
  bool here = false;
};

class TuneWorld {
 public:
  TuneWorld(std::uint64_t seed, const std::string& policy) : random_(seed) {
    alpha_ = random_.below(3) == 0 ? 1 : 1 + 0.5 * random_.uniform();
    beta_ = random_.below(3) == 0 ? 1 : 1 + 0.4 * random_.uniform();
    move_ = from_seconds(random_.below(2) == 0 ? 0 : 0.5 * random_.uniform());
    TuneOptions options;
    if (random_.below(2) == 0) {
      options.alpha = alpha_;
      options.beta = beta_;
    }
    if (random_.below(2) == 0) options.move = move_;
    if (random_.below(2) == 0) options.c = static_cast<int>(1 + random_.below(4));
    if (random_.below(2) == 0) options.d = static_cast<int>(1 + random_.below(5));
    // Most plans are made in a hurry, so that a million worlds take minutes.
    if (random_.below(50) != 0) options.effort = 20'000;
    tuning_ = *make_tuning(policy, options);
    const std::size_t devices = 1 + random_.below(6);
    for (std::uint32_t d = 0; d < devices; ++d) devices_.push_back({.as = draw(d), .here = false});
    // One that can hold every trial, and that never goes.
    devices_[0].as.memory = Bytes{1000};
    bounded_ = random_.below(2) == 0;
    const std::size_t groups = 1 + random_.below(4);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const TimePoint at = TimePoint{} + from_seconds(g == 0 ? 0 : 40 * random_.uniform());
      const std::size_t size = 1 + random_.below(8);
      std::vector<std::uint32_t> members;
      for (std::size_t i = 0; i < size; ++i) {
        WorldTrial t{.group = GroupId{g}};
        t.iteration = std::exp(random_.normal());
        t.budget = static_cast<double>(1 + random_.below(10));
        t.pauses = random_.below(4) == 0 ? static_cast<int>(1 + random_.below(2)) : 0;
        t.deaths = random_.below(6) == 0 ? 1 : 0;
        t.tells_budget = random_.below(4) != 0;
        t.tells_time = random_.below(2) == 0;
        if (bounded_) t.memory = {Bytes{random_.below(200)}, Bytes{random_.below(300)}};
        members.push_back(static_cast<std::uint32_t>(trials_.size()));
        trials_.push_back(t);
      }
      comings_.push_back({at, members});
    }
    std::ranges::sort(comings_);
  }

  TuneWorldFigures run() {
    for (WorldDevice& d : devices_)
      if (&d == &devices_[0] || random_.below(4) != 0) bring(d);
    double all = 0;
    for (const WorldTrial& t : trials_) all += t.iteration * t.budget;
    // All one after the other on the slowest device with the most company, times what faults may add.
    const double limit = 200 + 100 * (all + static_cast<double>(trials_.size()) * 10);
    std::uint64_t steps = 0;
    while (!figures_.broken) {
      const std::size_t open = static_cast<std::size_t>(
          std::ranges::count_if(trials_, [](const WorldTrial& t) { return !t.ended; }));
      if (open == 0) break;
      if (to_seconds(now_ - TimePoint{}) > limit || ++steps > 200'000) {
        figures_.broken =
            std::to_string(open) + " trials never end, after " + std::to_string(steps) + " steps";
        break;
      }
      if (!step()) {
        figures_.broken = std::to_string(open) + " trials wait for ever";
        break;
      }
    }
    figures_.trials = trials_.size();
    figures_.changes = checker_.changes();
    figures_.end = now_;
    // Each change must bring something; many more than trials, devices and events that free something say
    // that it goes back and forth.
    const std::uint64_t most =
        40 + 4 * (figures_.trials + 4) * (devices_.size() + 4) + 4 * figures_.ended + 4 * turns_;
    if (!figures_.broken && figures_.changes > most)
      figures_.broken = std::to_string(figures_.changes) + " changes of " + std::to_string(figures_.trials) +
                        " trials: it goes back and forth";
    return figures_;
  }

 private:
  DeviceCame draw(std::uint32_t id) {
    DeviceCame d{DeviceId{id}};
    d.speed = random_.below(2) == 0 ? 1 : std::exp(0.7 * random_.normal());
    d.supply = random_.below(3) == 0 ? 0.1 + 0.9 * random_.uniform() : 1;
    d.memory = Bytes{300 + random_.below(1000)};
    return d;
  }

  void bring(WorldDevice& d) {
    d.here = true;
    tell(d.as);
  }

  double seconds_of(std::uint32_t trial) {
    const auto& known = checker_.trials().find(trial)->second;
    double rate = 1e9;
    for (const std::uint32_t d : known.devices) {
      const DeviceCame& as = devices_[d].as;
      rate = std::min(rate, as.speed * as.supply);
    }
    double times = height(static_cast<double>(known.devices.size()), 1, beta_);
    if (known.devices.size() == 1) {
      int company = 0;
      for (const auto& [id, other] : checker_.trials())
        if (other.doing == TuneChecker::Doing::running && other.devices == known.devices) ++company;
      times = std::pow(alpha_, company - 1);
    }
    return rate > 0 ? trials_[trial].iteration * times / rate * (0.95 + 0.1 * random_.uniform()) : 1e18;
  }

  // The next thing that happens, of all that may. False where nothing does.
  bool step() {
    TimePoint next = TimePoint::max();
    enum class What : std::uint8_t {
      iteration,
      settle,
      group,
      again,
      turn,
      wake,
      nothing
    } what = What::nothing;
    std::uint32_t who = 0;
    const auto offer = [&](TimePoint at, What kind, std::uint32_t of) {
      if (std::tie(at, kind, of) < std::tie(next, what, who))
        std::tie(next, what, who) = std::tuple(at, kind, of);
    };
    for (const auto& [trial, at] : iterations_) offer(at, What::iteration, trial);
    for (const auto& [trial, at] : settles_) offer(at, What::settle, trial);
    if (came_ < comings_.size()) offer(comings_[came_].first, What::group, 0);
    for (std::uint32_t t = 0; t < trials_.size(); ++t)
      if (trials_[t].wanted_again < TimePoint::max()) offer(trials_[t].wanted_again, What::again, t);
    if (turns_ < most_turns_) offer(turn_at_, What::turn, 0);
    if (wake_ < TimePoint::max()) offer(wake_, What::wake, 0);
    if (what == What::nothing) return false;
    now_ = std::max(now_, next);
    switch (what) {
      case What::iteration:
        iterate(who);
        break;
      case What::settle:
        settles_.erase(who);
        tell(TrialSettled{TrialId{who}, stood_[who]});
        break;
      case What::group:
        come();
        break;
      case What::again:
        again(who);
        break;
      case What::turn:
        turn();
        break;
      case What::wake:
        wake_ = TimePoint::max();
        tell(TuneWake{});
        break;
      case What::nothing:
        break;
    }
    return true;
  }

  TrialSpec spec(std::uint32_t trial) {
    const WorldTrial& t = trials_[trial];
    TrialSpec s{.trial = TrialId{trial}};
    if (t.tells_budget) s.budget = t.budget - t.done;
    if (t.tells_time) s.iteration = from_seconds(t.iteration);
    s.memory = t.memory;
    s.priority = random_.below(4) == 0 ? 0.5 + random_.uniform() : 1;
    return s;
  }

  void come() {
    GroupCame group{.group = trials_[comings_[came_].second.front()].group, .trials = {}};
    for (const std::uint32_t t : comings_[came_].second) {
      group.trials.push_back(spec(t));
      trials_[t].here = true;
      // What cannot be comes besides, and is refused.
      if (random_.below(8) == 0) group.trials.push_back(spec(t));
      if (random_.below(16) == 0) {
        TrialSpec bad{.trial = TrialId{100'000 + t}};
        if (random_.below(2) == 0)
          bad.budget = std::nan("");
        else
          bad.priority = -1;
        group.trials.push_back(bad);
      }
    }
    ++came_;
    tell(group);
    if (random_.below(8) == 0) tell(GroupCame{GroupId{999}, {}});
  }

  void again(std::uint32_t trial) {
    trials_[trial].wanted_again = TimePoint::max();
    tell(GroupCame{trials_[trial].group, {spec(trial)}});
  }

  void iterate(std::uint32_t trial) {
    WorldTrial& t = trials_[trial];
    const Duration busy = now_ - begun_[trial];
    iterations_.erase(trial);
    t.done = std::min(t.budget, t.done + 1);
    const bool odd = random_.below(20) == 0;
    tell(TrialReported{TrialId{trial}, odd ? std::nan("") : 1, odd ? -busy : busy, {}});
    if (t.done >= t.budget) {
      t.ended = true;
      ++figures_.ended;
      forget(trial);
      tell(TrialEnded{TrialId{trial}});
    } else if (t.deaths > 0 && random_.below(3) == 0) {
      --t.deaths;
      forget(trial);
      const double lost = t.done > 1 ? 1 : 0;
      t.done -= lost;
      tell(TrialDied{TrialId{trial}, true, lost});
    } else if (t.pauses > 0 && random_.below(2) == 0) {
      --t.pauses;
      forget(trial);
      t.wanted_again = now_ + from_seconds(5 * random_.uniform());
      tell(TrialPaused{TrialId{trial}});
    }
  }

  // Of trials that are paused an order to let go stays under way.
  void forget(std::uint32_t trial) {
    iterations_.erase(trial);
    settles_.erase(trial);
  }

  void turn() {
    ++turns_;
    turn_at_ = now_ + from_seconds(10 * random_.uniform());
    if (turns_ == most_turns_) {
      // From here on all is well.
      for (WorldDevice& d : devices_) {
        d.as.supply = std::max(d.as.supply, 0.5);
        if (&d == &devices_[0]) d.as.memory = Bytes{1000};
        if (d.here)
          tell(DeviceChanged{d.as.device, d.as.speed, d.as.supply, d.as.memory});
        else
          bring(d);
      }
      return;
    }
    WorldDevice& d = devices_[random_.below(devices_.size())];
    const bool first = &d == &devices_[0];
    if (!d.here) return bring(d);
    if (!first && random_.below(3) == 0) {
      d.here = false;
      tell(DeviceWent{d.as.device});
      return;
    }
    const DeviceCame drawn = draw(d.as.device.value);
    d.as.speed = drawn.speed;
    d.as.supply = random_.below(4) == 0 ? 0 : drawn.supply;
    if (!first) d.as.memory = drawn.memory;
    if (random_.below(10) == 0) tell(DeviceChanged{d.as.device, -1, 1, d.as.memory});
    if (random_.below(10) == 0) tell(DeviceCame{d.as.device, 1, 1, d.as.memory});
    tell(DeviceChanged{d.as.device, d.as.speed, d.as.supply, d.as.memory});
  }

  void tell(const TuneEvent& event) {
    if (figures_.broken) return;
    ++figures_.events;
    checker_.heard(event);
    orders_.clear();
    tuning_->on(event, now_, orders_);
    figures_.broken = checker_.said(orders_);
    if (figures_.broken) return;
    for (const TuneOrder& order : orders_) {
      if (order.kind == TuneOrder::Kind::wake_at) wake_ = order.at;
      if (order.kind == TuneOrder::Kind::refuse || order.kind == TuneOrder::Kind::wake_at) continue;
      const std::uint32_t trial = order.trial.value;
      const bool runs = iterations_.contains(trial);
      const bool moves = order.kind == TuneOrder::Kind::resize || order.kind == TuneOrder::Kind::move;
      stood_[trial] = moves ? move_ : Duration{0};
      // At the end of its iteration, late, or at once.
      const TimePoint boundary = runs ? std::min(iterations_[trial], now_ + from_seconds(60)) : now_;
      settles_[trial] =
          boundary + stood_[trial] + from_seconds(random_.below(4) == 0 ? 0.2 * random_.uniform() : 0);
    }
    // Those that run have an iteration under way; what they take is drawn as they begin.
    for (auto next = iterations_.begin(); next != iterations_.end();)
      next = is_running(next->first) ? std::next(next) : iterations_.erase(next);
    for (auto next = settles_.begin(); next != settles_.end();) {
      const auto known = checker_.trials().find(next->first);
      const bool settling = known != checker_.trials().end() && known->second.settling;
      next = settling ? std::next(next) : settles_.erase(next);
    }
    for (const auto& [trial, known] : checker_.trials()) {
      if (!is_running(trial)) continue;
      const double seconds = seconds_of(trial);
      // One whose device has nothing for it stands still, and goes on when that changes.
      if (iterations_.contains(trial) && seconds < 1e17 && iterations_[trial] < TimePoint::max()) continue;
      if (seconds > 1e17) {
        iterations_.erase(trial);
        continue;
      }
      begun_[trial] = now_;
      iterations_[trial] = now_ + from_seconds(seconds);
    }
  }

  bool is_running(std::uint32_t trial) const {
    const auto known = checker_.trials().find(trial);
    return known != checker_.trials().end() && known->second.doing == TuneChecker::Doing::running &&
           !known->second.devices.empty() && trial < trials_.size() && !trials_[trial].ended;
  }

  Random random_;
  double alpha_ = 1, beta_ = 1;
  Duration move_{0};
  bool bounded_ = false;
  std::unique_ptr<Tuning> tuning_;
  TuneChecker checker_;
  std::vector<WorldDevice> devices_;
  std::vector<WorldTrial> trials_;
  std::vector<std::pair<TimePoint, std::vector<std::uint32_t>>> comings_;
  std::size_t came_ = 0;
  std::uint64_t turns_ = 0;
  static constexpr std::uint64_t most_turns_ = 12;
  TimePoint now_, wake_ = TimePoint::max(), turn_at_ = TimePoint{} + from_seconds(3);
  std::map<std::uint32_t, TimePoint> iterations_, settles_, begun_;
  std::map<std::uint32_t, Duration> stood_;
  TuneOrders orders_;
  TuneWorldFigures figures_;
};

}  // namespace

TuneWorldFigures run_tune_world(std::uint64_t seed, const std::string& policy) {
  return TuneWorld(seed, policy).run();
}

}  // namespace carillon::tune::testing
