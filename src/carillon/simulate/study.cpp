#include "carillon/simulate/study.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/simulate/tuners.h"
#include "carillon/tune/model.h"

namespace carillon::simulate {
namespace {

using tune::TrialId;
using tune::TuneOrder;
using workload::Study;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Which setting each new trial has.
class Settings {
 public:
  explicit Settings(const Study& study) : study_(study), random_(study.seed ^ 0x73657474ULL) {}

  // A curve's number: of the next `guesses` unused ones the best at its end. Once all are used, all are
  // unused again.
  std::uint32_t draw(std::uint32_t guesses) {
    if (next_ == order_.size()) {
      order_.resize(study_.curves.size());
      std::iota(order_.begin(), order_.end(), 0U);
      for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
      next_ = 0;
    }
    std::size_t best = next_;
    for (std::size_t i = next_; i < std::min<std::size_t>(order_.size(), next_ + guesses); ++i)
      if (final(order_[i]) > final(order_[best])) best = i;
    std::swap(order_[next_], order_[best]);
    return order_[next_++];
  }
  // One whose end is near that of `curve`: within a twentieth of all, up or down, as it comes. A stand-in for
  // what a parameter changed by a fifth brings.
  std::uint32_t near(std::uint32_t curve) {
    if (ranked_.empty()) {
      ranked_.resize(study_.curves.size());
      std::iota(ranked_.begin(), ranked_.end(), 0U);
      std::ranges::stable_sort(ranked_,
                               [&](std::uint32_t a, std::uint32_t b) { return final(a) < final(b); });
    }
    const auto all = static_cast<std::int64_t>(ranked_.size());
    const std::int64_t reach = std::max<std::int64_t>(1, all / 20);
    const std::int64_t rank = std::ranges::find(ranked_, curve) - ranked_.begin();
    const auto step =
        static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(2 * reach + 1))) - reach;
    return ranked_[static_cast<std::size_t>(std::clamp<std::int64_t>(rank + step, 0, all - 1))];
  }
  std::uint32_t any() { return static_cast<std::uint32_t>(random_.below(study_.curves.size())); }

 private:
  double final(std::uint32_t curve) const {
    const auto& all = study_.curves[curve].metric;
    const double metric = all[std::min<std::size_t>(study_.epochs, all.size()) - 1];
    if (std::isnan(metric)) return -std::numeric_limits<double>::infinity();
    return study_.larger_is_better ? metric : -metric;
  }

  const Study& study_;
  Random random_;
  std::vector<std::uint32_t> order_, ranked_;  // to be drawn; by their ends
  std::size_t next_ = 0;
};

struct TrialState {
  enum class Doing : std::uint8_t { absent, waiting, running, standing, held, paused, ended } doing{};
  std::uint32_t curve = 0;
  std::int64_t ahead = 0;                               // its place on the curve is its epochs and so many
  double factor = 1;                                    // of epoch_s, where there are no curves
  double luck = 0;                                      // likewise: its score
  std::uint32_t epochs = 0, budget = 0, iteration = 0;  // of this epoch
  std::vector<std::uint32_t> devices;                   // it runs or stands on; or its memory lies there
  double width = 0;
  std::optional<TuneOrder> order;  // to be carried out at its boundary
  double alone = 1;                // this iteration, seconds on a device of speed 1
  double progress = 0;             // of this iteration, [0, 1]
  double pace = 0;                 // of it a second
  TimePoint since;                 // of `progress`; the iteration began at `begun`
  TimePoint begun, active_since;
  std::uint32_t booking = 0;
  int leaving = 0;  // times that it paused or ended, and the policy has not heard so yet
  bool ran = false;
  Random random{0};
};

struct DeviceState {
  double speed = 1, supply = 1;
  std::vector<std::uint32_t> active;  // trials
  TimePoint busy_since;

  double rate() const { return speed * supply; }
};

struct StudyPlan {
  enum class Kind : std::uint8_t { boundary, stood, supply, wake };
  TimePoint at;
  Kind kind{};
  std::uint64_t order = 0;
  std::uint32_t what = 0, booking = 0;

  friend bool operator>(const StudyPlan& a, const StudyPlan& b) {
    return std::tie(a.at, a.kind, a.order) > std::tie(b.at, b.kind, b.order);
  }
};

class StudyWorld {
 public:
  StudyWorld(const Study& study, tune::Tuning& tuning, const StudyRunOptions& options)
      : study_(study), tuning_(tuning), options_(options), tuner_(make_tuner(study)), settings_(study) {
    steps_ = std::max(1U, study.iterations);
    // Sums of all devices' times are counted in nanoseconds, too.
    longest_ = std::min(3e9, 9e9 / static_cast<double>(std::max<std::size_t>(1, study.devices.size())));
  }

  Result<StudyFigures> run() {
    devices_.resize(study_.devices.size());
    next_supply_.resize(study_.devices.size());
    for (std::uint32_t d = 0; d < devices_.size(); ++d) {
      const workload::StudyDevice& file = study_.devices[d];
      devices_[d].speed = file.speed;
      while (next_supply_[d] < file.supply.size() && file.supply[next_supply_[d]].at <= now_)
        devices_[d].supply = file.supply[next_supply_[d]++].share;
      plan_supply(d);
      told_.push_back(tune::DeviceCame{DeviceId{d}, file.speed, devices_[d].supply, file.memory});
    }
    pump();
    std::vector<TunerOrder> wanted;
    tuner_->begin(tuning_.appetite(), wanted);
    carry_out(wanted, std::nullopt);
    pump();
    std::uint64_t steps = 0;
    while (open_ > 0 && !figures_.target && !plans_.empty() && !interrupted_ && !too_short_) {
      const StudyPlan plan = plans_.top();
      plans_.pop();
      if (plan.at == TimePoint::max()) break;
      if (plan.at > now_) at_once_ = 0;
      now_ = plan.at;
      carry_out(plan);
      pump();
      if (at_once_ > 1000 * (trials_.size() + devices_.size() + 10))
        return fail(ErrorCode::internal,
                    "at " + std::to_string(to_seconds(now_ - TimePoint{})) +
                        " s the policy comes to no end: it changes trials again and again");
      // A supply that is never there again, or a policy that lets trials wait for ever.
      if ((++steps & 0xfff) == 0 && options_.progress && !options_.progress(now_)) return interrupted();
    }
    if (interrupted_) return interrupted();
    if (too_short_) return too_short(*too_short_);
    if (open_ > 0 && !figures_.target && too_long_)
      return invalid(
          "a trial would take longer than " + std::to_string(static_cast<std::int64_t>(longest_)) +
          " s, which is as long as is simulated on so many devices; see epoch_s, curves, speed and "
          "supply");
    if (open_ > 0 && !figures_.target)
      return fail(ErrorCode::internal, "at " + std::to_string(to_seconds(now_ - TimePoint{})) + " s " +
                                           std::to_string(open_) +
                                           " trials are left that nobody runs, and nothing is to come");
    figures_.last = now_;
    for (std::uint32_t t = 0; t < trials_.size(); ++t)
      if (is_active(t)) deactivate(t);
    for (std::uint32_t d = 0; d < devices_.size(); ++d) figures_.supply += supplied(d);
    figures_.model = tuning_.model();
    return std::move(figures_);
  }

 private:
  using Doing = TrialState::Doing;

  static Result<StudyFigures> interrupted() { return fail(ErrorCode::cancelled, "interrupted"); }
  // An iteration of this trial: time is counted in nanoseconds, so that it would end when it begins.
  Result<StudyFigures> too_short(std::uint32_t t) const {
    const double epoch = trials_[t].alone * steps_, pace = trials_[t].pace;
    const std::string what = !study_.seconds.empty() ? "the seconds in study.trials"
                             : study_.curves.empty() ? "trial.epoch_s"
                                                     : "the seconds in trial.curves";
    std::string text = "an iteration of trial " + std::to_string(t) + " would take " + text_of(1 / pace) +
                       " s, and the least that is simulated is 1e-09 s: ";
    const double most = std::floor(steps_ / pace * 1e9);  // iterations of this epoch
    if (study_.iterations > 1 && most >= 1)
      text += "trial.iterations is " + std::to_string(study_.iterations) + ", and must be at most " +
              std::to_string(static_cast<std::uint32_t>(most)) + " for an epoch of " + text_of(epoch) +
              " s there";
    else
      text += what + " must be longer, or the devices' speed lower";
    return invalid(text);
  }
  static std::string text_of(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", seconds);
    return text;
  }

  void plan(TimePoint at, StudyPlan::Kind kind, std::uint32_t what, std::uint32_t booking = 0) {
    plans_.push({at, kind, planned_++, what, booking});
  }
  // Never, where that is behind the end of what can be counted.
  TimePoint in_seconds(double seconds) {
    if (seconds <= longest_ - to_seconds(now_ - TimePoint{})) return now_ + from_seconds(seconds);
    too_long_ = true;
    return TimePoint::max();
  }
  void plan_supply(std::uint32_t d) {
    const auto& steps = study_.devices[d].supply;
    if (next_supply_[d] < steps.size()) plan(steps[next_supply_[d]].at, StudyPlan::Kind::supply, d);
  }
  Duration supplied(std::uint32_t d) const {
    const auto& steps = study_.devices[d].supply;
    double sum = 0, share = 1;
    TimePoint from;
    for (const workload::SupplyStep& step : steps) {
      if (step.at >= now_) break;
      sum += share * to_seconds(step.at - from);
      from = step.at;
      share = step.share;
    }
    return from_seconds(sum + share * to_seconds(now_ - from));
  }

  // What the policy is told, one after the other, with what it orders in between.
  void pump() {
    while (!told_.empty()) {
      const tune::TuneEvent event = std::move(told_.front());
      told_.pop_front();
      // A policy that changes trials again and again, each of which settles at once.
      if (++at_once_ > 1000 * (trials_.size() + devices_.size() + 10)) {
        told_.clear();
        return;
      }
      if (interrupted_ || (options_.go_on && !options_.go_on())) {
        interrupted_ = true;
        told_.clear();
        return;
      }
      if (const auto* paused = std::get_if<tune::TrialPaused>(&event)) --trials_[paused->trial.value].leaving;
      if (const auto* ended = std::get_if<tune::TrialEnded>(&event)) --trials_[ended->trial.value].leaving;
      orders_.clear();
      ++figures_.events;
      tuning_.on(event, now_, orders_);
      for (TuneOrder& order : orders_) take(std::move(order));
    }
  }

  // --- What the tuner wants

  void carry_out(const std::vector<TunerOrder>& wanted, std::optional<std::uint32_t> who) {
    for (const TunerOrder& order : wanted) switch (order.kind) {
        case TunerOrder::Kind::group: {
          tune::GroupCame group{.group = tune::GroupId{groups_++}, .trials = {}};
          for (const std::uint32_t t : order.trials) {
            if (t >= trials_.size()) make(t);
            trials_[t].budget = trials_[t].epochs + order.epochs;
            trials_[t].doing = Doing::waiting;
            group.trials.push_back(spec(t, order.epochs));
          }
          told_.emplace_back(std::move(group));
          break;
        }
        case TunerOrder::Kind::go_on:
          CARILLON_ASSERT(who && order.trials.front() == *who);
          trials_[*who].budget = trials_[*who].epochs + order.epochs;
          break;
        case TunerOrder::Kind::pause: {
          const std::uint32_t t = order.trials.front();
          if (is_active(t)) deactivate(t);
          trials_[t].doing = Doing::paused;
          trials_[t].order.reset();
          ++trials_[t].leaving;
          told_.push_back(tune::TrialPaused{TrialId{t}});
          break;
        }
        case TunerOrder::Kind::end: {
          const std::uint32_t t = order.trials.front();
          if (is_active(t)) deactivate(t);
          trials_[t].doing = Doing::ended;
          trials_[t].order.reset();
          figures_.trials[t].ended = now_;
          figures_.trials[t].finished = true;
          ++trials_[t].leaving;
          told_.push_back(tune::TrialEnded{TrialId{t}});
          --open_;
          break;
        }
        case TunerOrder::Kind::becomes:
          become(order);
          break;
      }
  }

  void make(std::uint32_t t) {
    CARILLON_ASSERT(t == trials_.size());
    TrialState state;
    state.random = Random(study_.seed * 0x9e3779b97f4a7c15ULL + t);
    if (study_.curves.empty()) {
      // Lognormal of mean 1.
      state.factor = std::exp(study_.sigma * state.random.normal() - study_.sigma * study_.sigma / 2);
      state.luck = state.random.uniform();
    } else {
      state.curve = settings_.draw(tuner_->guesses());
    }
    trials_.push_back(std::move(state));
    figures_.trials.push_back({.metric = not_a_number});
    ++open_;
    // The policy would be told that it takes no time.
    if (const double epoch = epoch_of(t, 0); epoch < 1e-9) {
      trials_[t].alone = epoch / steps_;
      trials_[t].pace = 1 / trials_[t].alone;
      check_length(t);
    }
  }

  // Goes on from another's weights with another setting: on that one's curve, from where it is as good.
  void become(const TunerOrder& order) {
    if (study_.curves.empty()) return;
    TrialState& t = trials_[order.trials.front()];
    const TrialState& source = trials_[order.source];
    const auto place = static_cast<std::int64_t>(source.epochs) + source.ahead;
    const double level = score(source.curve, place);
    const std::uint32_t other = order.anew ? settings_.any() : settings_.near(source.curve);
    const auto epochs = static_cast<std::int64_t>(study_.curves[other].epoch.size());
    std::int64_t at = 1;
    while (at < std::min(place, epochs) && !(score(other, at) >= level)) ++at;
    t.curve = other;
    t.ahead = at - static_cast<std::int64_t>(t.epochs);
  }

  // After so many epochs, from 1 on; behind the end of a curve as at its end. Larger is better.
  double score(std::uint32_t curve, std::int64_t epochs) const {
    const auto& metric = study_.curves[curve].metric;
    const double value = metric[static_cast<std::size_t>(
        std::clamp<std::int64_t>(epochs, 1, static_cast<std::int64_t>(metric.size())) - 1)];
    return study_.larger_is_better ? value : -value;
  }
  double score_of(const TrialState& t) const {
    if (study_.curves.empty()) return t.luck;
    return score(t.curve, static_cast<std::int64_t>(t.epochs) + t.ahead);
  }

  // Seconds of its epoch of that number, from 0 on.
  double epoch_of(std::uint32_t trial, std::int64_t epoch) const {
    const TrialState& t = trials_[trial];
    if (!study_.seconds.empty()) return study_.seconds[trial];
    if (study_.curves.empty()) return to_seconds(study_.epoch) * t.factor;
    const auto& epochs = study_.curves[t.curve].epoch;
    return to_seconds(epochs[static_cast<std::size_t>(
        std::clamp<std::int64_t>(epoch + t.ahead, 0, static_cast<std::int64_t>(epochs.size()) - 1))]);
  }

  tune::TrialSpec spec(std::uint32_t trial, std::uint32_t epochs) const {
    tune::TrialSpec spec{.trial = TrialId{trial}, .budget = epochs};
    spec.memory = {study_.persistent, study_.ephemeral};
    if (study_.tells_seconds) {
      double sum = 0;
      for (std::uint32_t e = 0; e < epochs; ++e) sum += epoch_of(trial, trials_[trial].epochs + e);
      spec.iteration = from_seconds(sum / epochs);
    }
    return spec;
  }

  // --- What the policy orders

  void take(TuneOrder order) {
    const std::uint32_t t = order.trial.value;
    // Void, as the policy is about to hear.
    const bool of_trial = order.kind != TuneOrder::Kind::wake_at && order.kind != TuneOrder::Kind::refuse;
    if (of_trial && order.kind != TuneOrder::Kind::release && trials_[t].leaving > 0) return;
    switch (order.kind) {
      case TuneOrder::Kind::refuse:
        ++figures_.refused;
        return;
      case TuneOrder::Kind::wake_at:
        wake_booking_ = static_cast<std::uint32_t>(planned_);
        plan(order.at, StudyPlan::Kind::wake, 0, wake_booking_);
        return;
      case TuneOrder::Kind::place:
        ++figures_.places;
        break;
      case TuneOrder::Kind::resize:
        ++figures_.resizes;
        break;
      case TuneOrder::Kind::move:
        ++figures_.moves;
        break;
      case TuneOrder::Kind::hold:
        ++figures_.holds;
        break;
      case TuneOrder::Kind::release:
        ++figures_.releases;
        break;
    }
    TrialState& trial = trials_[t];
    if (trial.doing == Doing::ended || trial.doing == Doing::absent) return;
    trial.order = std::move(order);
    // One that does not iterate, or is just between two iterations, or may change at any time.
    if (!is_active(t) || trial.begun == now_ || study_.iterations == 0) obey(t);
  }

  void obey(std::uint32_t t) {
    TrialState& trial = trials_[t];
    const TuneOrder order = *std::exchange(trial.order, std::nullopt);
    if (is_active(t)) deactivate(t);
    switch (order.kind) {
      case TuneOrder::Kind::refuse:
      case TuneOrder::Kind::wake_at:
        return;
      case TuneOrder::Kind::hold:
        trial.doing = Doing::held;
        break;
      case TuneOrder::Kind::release:
        trial.devices.clear();
        if (trial.doing != Doing::paused) trial.doing = Doing::waiting;
        break;
      case TuneOrder::Kind::place:
      case TuneOrder::Kind::resize:
      case TuneOrder::Kind::move: {
        std::vector<std::uint32_t> on;
        for (const DeviceId d : order.devices) on.push_back(d.value);
        const bool stands = trial.ran && on != trial.devices && study_.move.count() > 0;
        trial.devices = std::move(on);
        trial.width = order.width;
        if (stands) {
          trial.doing = Doing::standing;
          plan(now_ + study_.move, StudyPlan::Kind::stood, t, ++trial.booking);
          return;
        }
        told_.push_back(tune::TrialSettled{TrialId{t}, Duration{0}});
        go(t);
        return;
      }
    }
    told_.push_back(tune::TrialSettled{TrialId{t}, Duration{0}});
  }

  // --- Iterations

  bool is_active(std::uint32_t t) const { return trials_[t].doing == Doing::running; }

  // Starts an iteration, or goes on within one (where it may change at any time).
  void go(std::uint32_t t) {
    TrialState& trial = trials_[t];
    trial.doing = Doing::running;
    if (!trial.ran) figures_.trials[t].began = now_;
    trial.ran = true;
    if (trial.progress == 0) begin_iteration(trial, t);
    trial.since = trial.active_since = now_;
    for (const std::uint32_t d : trial.devices) {
      if (devices_[d].active.empty()) devices_[d].busy_since = now_;
      devices_[d].active.push_back(t);
    }
    running_ += 1;
    figures_.most_running = std::max(figures_.most_running, running_);
    for (const std::uint32_t d : trial.devices) rebook(d);
  }

  void begin_iteration(TrialState& trial, std::uint32_t t) {
    trial.begun = trial.since = now_;
    trial.progress = 0;
    double factor = 1;
    if (study_.noise > 0) factor = std::max(0.1, 1 + study_.noise * trial.random.normal());
    trial.alone = epoch_of(t, trial.epochs) / steps_ * factor;
  }

  void deactivate(std::uint32_t t) {
    TrialState& trial = trials_[t];
    advance(trial);
    trial.pace = 0;
    ++trial.booking;
    --running_;
    figures_.trials[t].ran += now_ - trial.active_since;
    for (const std::uint32_t d : trial.devices) {
      DeviceState& device = devices_[d];
      std::erase(device.active, t);
      if (device.active.empty()) figures_.device_time += now_ - device.busy_since;
      if (options_.timeline && now_ > trial.active_since)
        figures_.stretches.push_back({d, t, trial.active_since, now_});
      rebook(d);
    }
  }

  void advance(TrialState& trial) {
    trial.progress = std::min(1.0, trial.progress + trial.pace * to_seconds(now_ - trial.since));
    trial.since = now_;
  }

  // The pace of those on the device is another one.
  void rebook(std::uint32_t d) {
    for (const std::uint32_t t : devices_[d].active) {
      TrialState& trial = trials_[t];
      double rate = std::numeric_limits<double>::infinity();
      for (const std::uint32_t on : trial.devices) rate = std::min(rate, devices_[on].rate());
      const auto w = static_cast<double>(trial.devices.size());
      const double times = trial.devices.size() == 1
                               ? std::pow(study_.alpha, static_cast<double>(devices_[d].active.size()) - 1)
                               : tune::height(w, 1, study_.beta);
      const double pace = rate / (trial.alone * times);
      if (pace == trial.pace) continue;
      advance(trial);
      trial.pace = pace;
      check_length(t);
      const TimePoint at = pace > 0 ? in_seconds((1 - trial.progress) / pace) : TimePoint::max();
      plan(at, StudyPlan::Kind::boundary, t, ++trial.booking);
    }
  }

  void carry_out(const StudyPlan& plan) {
    switch (plan.kind) {
      case StudyPlan::Kind::boundary:
        if (trials_[plan.what].booking == plan.booking) boundary(plan.what);
        break;
      case StudyPlan::Kind::stood: {
        TrialState& trial = trials_[plan.what];
        if (trial.booking != plan.booking || trial.doing != Doing::standing) break;
        figures_.trials[plan.what].stood += study_.move;
        told_.push_back(tune::TrialSettled{TrialId{plan.what}, study_.move});
        go(plan.what);
        break;
      }
      case StudyPlan::Kind::supply: {
        DeviceState& device = devices_[plan.what];
        const auto& file = study_.devices[plan.what];
        device.supply = file.supply[next_supply_[plan.what]++].share;
        plan_supply(plan.what);
        rebook(plan.what);
        told_.push_back(tune::DeviceChanged{DeviceId{plan.what}, device.speed, device.supply, file.memory});
        break;
      }
      case StudyPlan::Kind::wake:
        if (plan.booking == wake_booking_) told_.push_back(tune::TuneWake{});
        break;
    }
  }

  void boundary(std::uint32_t t) {
    TrialState& trial = trials_[t];
    figures_.work += from_seconds(trial.alone);
    tune::TrialReported report{TrialId{t}, 1.0 / steps_, std::max(Duration{1}, now_ - trial.begun), {}};
    std::vector<TunerOrder> wanted;
    if (++trial.iteration == steps_) {
      trial.iteration = 0;
      ++trial.epochs;
      ++figures_.trials[t].epochs;
      const double now_scores = score_of(trial);
      if (!study_.curves.empty()) tell_metric(t, now_scores);
      if (trial.epochs == trial.budget)
        tuner_->reached(t, trial.epochs, now_scores, tuning_.appetite(), wanted);
    }
    for (const TunerOrder& order : wanted)
      if (order.kind == TunerOrder::Kind::go_on) report.remaining = order.epochs;
    told_.emplace_back(report);
    trial.progress = 0;
    trial.since = now_;
    carry_out(wanted, t);
    if (!is_active(t)) return;
    if (trial.order) {
      obey(t);
      return;
    }
    begin_iteration(trial, t);
    trial.pace = 0;
    rebook_one(t);
  }

  // Its next iteration takes another time; that of others on its devices is as before.
  void rebook_one(std::uint32_t t) {
    TrialState& trial = trials_[t];
    double rate = std::numeric_limits<double>::infinity();
    for (const std::uint32_t on : trial.devices) rate = std::min(rate, devices_[on].rate());
    const auto w = static_cast<double>(trial.devices.size());
    const double times =
        trial.devices.size() == 1
            ? std::pow(study_.alpha, static_cast<double>(devices_[trial.devices[0]].active.size()) - 1)
            : tune::height(w, 1, study_.beta);
    trial.pace = rate / (trial.alone * times);
    check_length(t);
    const TimePoint at = trial.pace > 0 ? in_seconds(1 / trial.pace) : TimePoint::max();
    plan(at, StudyPlan::Kind::boundary, t, ++trial.booking);
  }

  void check_length(std::uint32_t t) {
    if (trials_[t].pace > 1e9 && !too_short_) too_short_ = t;
  }

  void tell_metric(std::uint32_t t, double score) {
    const double metric = study_.larger_is_better ? score : -score;
    figures_.trials[t].metric = metric;
    if (std::isnan(score)) return;
    if (figures_.best.empty() || score > best_) {
      best_ = score;
      figures_.best.push_back({now_, metric});
    }
    if (study_.target && !figures_.target &&
        score >= (study_.larger_is_better ? *study_.target : -*study_.target))
      figures_.target = now_;
  }

  const Study& study_;
  tune::Tuning& tuning_;
  const StudyRunOptions& options_;
  std::unique_ptr<StudyTuner> tuner_;
  Settings settings_;
  std::uint32_t steps_ = 1;  // of an epoch
  TimePoint now_;
  std::vector<TrialState> trials_;
  std::vector<DeviceState> devices_;
  std::vector<std::size_t> next_supply_;
  std::priority_queue<StudyPlan, std::vector<StudyPlan>, std::greater<>> plans_;
  std::uint64_t planned_ = 1;
  std::uint32_t wake_booking_ = 0, groups_ = 0;
  std::size_t open_ = 0, running_ = 0;
  double best_ = 0;
  std::uint64_t at_once_ = 0;  // events at this instant
  double longest_ = 0;         // seconds that are simulated at most
  bool too_long_ = false;      // something was to come later
  bool interrupted_ = false;
  std::optional<std::uint32_t> too_short_;  // a trial whose iterations would take no time
  std::deque<tune::TuneEvent> told_;
  tune::TuneOrders orders_;
  StudyFigures figures_;
};

}  // namespace

tune::TuneOptions tune_options(const Study& study) {
  tune::TuneOptions options;
  if (study.tells_overheads) {
    options.alpha = study.alpha;
    options.beta = study.beta;
  }
  if (study.tells_move) options.move = study.move;
  options.c = study.c;
  options.d = study.d;
  options.threshold = study.threshold;
  return options;
}

Result<StudyFigures> run_study(const Study& study, tune::Tuning& tuning, const StudyRunOptions& options) {
  return StudyWorld(study, tuning, options).run();
}

}  // namespace carillon::simulate
