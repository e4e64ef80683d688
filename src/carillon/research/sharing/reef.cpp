#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/research/sharing/padding.h"
#include "carillon/research/sharing/policies.h"
#include "carillon/research/sharing/queue_set.h"

namespace carillon::research {
namespace {

// How many real-time kernels are looked at beyond the one that runs, and how many best-effort streams are
// offered the room that there is at a time: both bound what a decision takes.
constexpr std::size_t horizon = 16;
constexpr int offers = 8;
// Best-effort work is not owed more than this (best_effort_share), nor ahead by more.
constexpr Duration most_owed = 10ms;
// What is heard of real-time runs fades: of about the last 50.
constexpr double memory = 0.98;
// Who asks again so soon after an answer waited for it.
constexpr Duration prompt = 100us;

// REEF (sections 3 to 5). Normal mode: best-effort streams side by side, each with a bounded number of
// launches in flight. As a real-time run comes they are evicted, and real-time runs have the device one after
// the other, the most urgent first; best-effort kernels run on the units that these leave.
//
// Beyond the paper: what is in flight is bounded by time as well; kernels beside a real-time run need not end
// with the real-time kernel beside which they started, where those that follow leave them their units.
class Reef final : public Sharing {
 public:
  explicit Reef(const SharingOptions& options) : Sharing(options) {
    rooms_.reserve(horizon + 2);
    held_.reserve(horizon + 2);
  }

 private:
  TimePoint submitted(Queue queue, TimePoint now, ShareCommands& out) override {
    account(now);
    if (stream(queue).cls == Class::real_time) {
      if (!running_) {
        start_real_time(now, out);
      } else {
        stale_ = true;
        clear_way(now, out);
      }
    } else {
      note(queue);
      if (!running_) {
        feed(queue, now, out);
      } else {
        pad_all(now, out);
      }
    }
    return next_tick();
  }

  TimePoint advanced(Queue queue, const Flight& ended, TimePoint now, ShareCommands& out) override {
    account(now);
    if (stream(queue).cls == Class::real_time) {
      CARILLON_ASSERT(queue == running_);
      real_time_advanced(now, out);
      return next_tick();
    }
    owed_ -= ended.spread.time * ended.spread.units / options_.units;
    note(queue);
    if (!running_) {
      feed(queue, now, out);
    } else {
      give_room(ended);
      pad_all(now, out);
    }
    return next_tick();
  }

  TimePoint emptied(Queue queue, TimePoint now, ShareCommands& out) override {
    account(now);
    --evicting_;
    note(queue);
    if (!running_) {
      feed(queue, now, out);
    } else {
      stale_ = true;
      if (evicting_ == 0 && !real_time_runs_) {
        real_time_runs_ = true;
        rebase(now);
      }
      pad_all(now, out);
    }
    return next_tick();
  }

  TimePoint ticked(TimePoint now, ShareCommands& out) override {
    account(now);
    if (now < held_until_) return held_until_;
    // What best-effort work was given it is to have something of: what runs may end, and nothing else begins.
    TimePoint last = now;
    flying_.each([&](Queue queue) { last = std::max(last, stream(queue).flight.front().end); });
    if (!draining_ && last > now && last - now <= most_owed) {
      draining_ = true;
      return held_until_ = last + from_ns(static_cast<double>((last - now).count()) * options_.margin);
    }
    draining_ = false;
    held_until_ = TimePoint::max();
    given_from_ = now;
    if (!running_ && real_time()) begin_real_time(now, out);
    return next_tick();
  }

  void queue_added(Queue) override { lags_.emplace_back(); }
  void killed(Queue queue, const Flight& flight) override {
    if (stream(queue).cls != Class::real_time)
      owed_ -= flight.spread.time * flight.spread.units / options_.units;
  }

  TimePoint next_tick() const { return held_until_; }

  // --- Normal mode.
  void feed(Queue queue, TimePoint now, ShareCommands& out) {
    Stream& of = stream(queue);
    if (draining_ || of.cls == Class::real_time || of.evicting || !begin(of)) return;
    const int rivals = std::max(1, wanting_.size());
    while (!all_launched(of) && of.flight.size() < static_cast<std::size_t>(options_.in_flight) &&
           (of.flight.empty() || of.flight.back().end - now < options_.in_flight_time)) {
      const KernelPlan& plan = plan_of(of);
      const KernelPlan::Kernel& kernel = plan.kernel(of.kernel);
      const int blocks = kernel.blocks - of.first;
      const Spread spread = frugal(plan, kernel, blocks, options_.units, rivals);
      launch(queue, blocks, spread, false, now, out);
    }
    note(queue);
  }

  // --- Real-time mode.
  void start_real_time(TimePoint now, ShareCommands& out) {
    if (held_until_ != TimePoint::max()) return;
    if (options_.best_effort_share > 0 && owed_ > Duration{0}) {
      held_until_ = now + owed_;
      return;
    }
    begin_real_time(now, out);
  }
  void begin_real_time(TimePoint now, ShareCommands& out) {
    running_ = most_urgent();
    flying_.each([&](Queue queue) {
      if (!stream(queue).evicting) make_way(queue, now, out);
    });
    begin_run(now, out);
    pad_all(now, out);
  }
  void begin_run(TimePoint now, ShareCommands& out) {
    Stream& on = stream(*running_);
    begin(on);
    // Had there been no best-effort work, those before it would have ended sooner, and so would it. A client
    // that waits for its answer before it asks again would have asked sooner, too.
    const Lag& lag = lags_[*running_];
    asked_ = std::max(on.run.at, given_from_);
    alone_from_ = asked_ - lag.ended <= prompt ? asked_ - lag.by : asked_;
    alone_end_ = std::max(alone_from_, alone_end_) + options_.dispatch + plan_of(on).alone();
    feed_real_time(now, out);
    real_time_runs_ = evicting_ == 0;
    kernel_end_ = now + options_.dispatch + stream(*running_).flight.front().spread.time;
    stale_ = true;
  }
  void feed_real_time(TimePoint now, ShareCommands& out) {
    const Stream& of = stream(*running_);
    while (!all_launched(of) && of.flight.size() < real_time_in_flight())
      launch_whole(*running_, true, now, out);
  }
  void real_time_advanced(TimePoint now, ShareCommands& out) {
    const Stream& of = stream(*running_);
    real_time_runs_ = true;
    if (of.active) {
      feed_real_time(now, out);
      rebase(now);
      pad_all(now, out);
      return;
    }
    heed(now);
    running_ = std::nullopt;
    if (real_time()) {
      if (options_.best_effort_share > 0 && owed_ > Duration{0}) {
        start_real_time(now, out);
      } else {
        running_ = most_urgent();
        begin_run(now, out);
        clear_way(now, out);
        pad_all(now, out);
        return;
      }
    }
    offers_.each([&](Queue queue) { feed(queue, now, out); });
  }
  // A real-time run has ended: how much later than it would have, and so which kernels are still padded.
  // Those that leave most units are worth most for what company costs them.
  void heed(TimePoint now) {
    Lag& lag = lags_[*running_];
    lag = {.ended = now, .by = now - alone_end_};
    excess_ = excess_ * memory + to_seconds((now - asked_) - (alone_end_ - alone_from_));
    taken_ = taken_ * memory + to_seconds(alone_end_ - alone_from_);
    if (excess_ > options_.slowdown * taken_) {
      least_ = std::min(options_.units, least_ + 1);
    } else if (excess_ < 0.8 * options_.slowdown * taken_) {
      least_ = std::max(1, least_ - 1);
    }
  }
  // The real-time kernel that is first in flight starts now.
  void rebase(TimePoint now) {
    kernel_end_ = now + stream(*running_).flight.front().spread.time;
    stale_ = true;
  }

  // Units beside a real-time kernel that takes so many, where best-effort launches have so many.
  int left(int taken, int held) const {
    const int free = options_.units - taken - held;
    return options_.units - taken < least_ ? std::min(free, 0) : free;
  }
  // What the real-time runs that are known of leave free, and when.
  void look(TimePoint now) {
    stale_ = false;
    rooms_.clear();
    const Stream* on = &stream(*running_);
    const KernelPlan* plan = &plan_of(*on);
    int kernel = on->flight.front().kernel;
    TimePoint from = now, end = std::max(now, kernel_end_);
    rooms_.push_back({from, plan->kernel(kernel).alone.units});
    if (!options_.look_ahead) {
      leave();
      rooms_.push_back({end, 0});
      return;
    }
    std::optional<Queue> after = next_urgent();
    while (rooms_.size() <= horizon) {
      from = end;
      if (++kernel == plan->kernels()) {
        if (!after) {
          rooms_.push_back({from, 0});
          return leave();
        }
        const Stream& next = stream(*after);
        plan = &this->plan(next.waiting.front().spec.plan);
        kernel = 0;
        after = std::nullopt;
      }
      const Spread& alone = plan->kernel(kernel).alone;
      rooms_.push_back({from, alone.units});
      end = from + alone.time;
    }
    leave();
    rooms_.push_back({end, 0});
  }
  // Of the units that real-time kernels take, which the rooms have so far, to those that they and best-effort
  // launches leave.
  void leave() {
    held_.assign(rooms_.size(), 0);
    flying_.each([&](Queue queue) {
      const Stream& stream = this->stream(queue);
      const Flight& flight = stream.flight.front();
      held_.front() += flight.spread.units;  // one that should have ended by now has not
      for (std::size_t i = 1; i < rooms_.size() && (stream.evicting || flight.end > rooms_[i].from); ++i)
        held_[i] += flight.spread.units;
    });
    for (std::size_t i = 0; i < rooms_.size(); ++i) rooms_[i].free = left(rooms_[i].free, held_[i]);
  }
  // The real-time run that follows.
  std::optional<Queue> next_urgent() const {
    std::optional<Queue> best;
    std::pair<TimePoint, std::uint64_t> earliest;
    for (const Queue queue : of(Class::real_time)) {
      const Stream& stream = this->stream(queue);
      if (stream.waiting.empty()) continue;
      const std::pair key{stream.waiting.front().spec.deadline, stream.waiting.front().order};
      if (!best || key < earliest) {
        best = queue;
        earliest = key;
      }
    }
    return best;
  }

  // Best-effort launches that started when less was known make way.
  void clear_way(TimePoint now, ShareCommands& out) {
    look(now);
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      while (rooms_[i].free < 0) {
        std::optional<Queue> last;
        flying_.each([&](Queue queue) {
          const Stream& stream = this->stream(queue);
          if (stream.evicting || (i > 0 && stream.flight.front().end <= rooms_[i].from)) return;
          if (!last || stream.flight.front().end > this->stream(*last).flight.front().end) last = queue;
        });
        if (!last) break;
        const Flight& flight = stream(*last).flight.front();
        for (std::size_t j = 0; j < rooms_.size(); ++j)
          if (j == 0 || flight.end > rooms_[j].from) rooms_[j].free += flight.spread.units;
        make_way(*last, now, out);
      }
    }
    stale_ = true;
  }

  // A best-effort launch has ended: its units are free, sooner than was expected perhaps.
  void give_room(const Flight& ended) {
    if (least_ > 1) stale_ = true;  // rooms that are too small count as none
    if (stale_) return;
    for (std::size_t i = 0; i < rooms_.size(); ++i)
      if (i == 0 || rooms_[i].from < ended.end) rooms_[i].free += ended.spread.units;
    // The units that nothing is known of stay so.
    if (rooms_.size() > horizon || !options_.look_ahead) rooms_.back().free = 0;
  }

  void pad_all(TimePoint now, ShareCommands& out) {
    if (!options_.padding || !real_time_runs_ || offers_.empty()) return;
    if (stale_) look(now);
    if (rooms_.front().free <= 0) return;
    const int rivals = offers_.size();
    int offered = 0;
    Queue last = turn_;
    offers_.each_from(turn_, [&](Queue queue) {
      last = queue;
      Stream& on = stream(queue);
      begin(on);
      const KernelPlan& plan = plan_of(on);
      const KernelPlan::Kernel& kernel = plan.kernel(on.kernel);
      const auto padding = pad(plan, kernel, kernel.blocks - on.first, rooms_, now, options_.dispatch,
                               options_.margin, rivals);
      if (padding) {
        launch(queue, padding->blocks, padding->spread, false, now, out);
        note(queue);
        const TimePoint end = on.flight.front().end;
        for (std::size_t i = 0; i < rooms_.size(); ++i)
          if (i == 0 || rooms_[i].from < end) rooms_[i].free -= padding->spread.units;
      }
      return ++offered < offers && rooms_.front().free > 0;
    });
    turn_ = static_cast<Queue>((last + 1U) % queues());
  }

  void make_way(Queue queue, TimePoint now, ShareCommands& out) {
    evict(queue, true, now, out);
    ++evicting_;
  }

  // Keeps the sets of best-effort queues true.
  void note(Queue queue) {
    const Stream& of = stream(queue);
    const bool wants = of.wants();
    wanting_.set(queue, wants);
    flying_.set(queue, !of.flight.empty());
    offers_.set(queue, wants && of.idle());
  }

  // What best-effort work is owed grows while it has something to do.
  void account(TimePoint now) {
    if (options_.best_effort_share <= 0) return;
    if (!wanting_.empty())
      owed_ += from_ns(static_cast<double>((now - accounted_).count()) * options_.best_effort_share);
    owed_ = std::clamp(owed_, -most_owed, most_owed);
    accounted_ = now;
  }

  std::optional<Queue> running_;  // the real-time queue whose run has the device
  bool real_time_runs_ = false;   // its first kernel has what it needs
  TimePoint kernel_end_;          // when its kernel that is first in flight should end
  std::size_t evicting_ = 0;
  std::vector<Room> rooms_;
  std::vector<int> held_;  // of each, by best-effort launches
  bool stale_ = true;      // rooms_ are of an earlier state
  Queue turn_ = 0;         // where the next round of offers starts
  QueueSet wanting_, flying_,
      offers_;  // of best-effort queues: with a run; with launches; with a run and none
  // What the real-time runs took longer than they would have, and would have taken, in seconds, fading.
  double excess_ = 0, taken_ = 0;
  int least_ = 1;  // units that a real-time kernel has to leave, for others to run beside it
  struct Lag {
    TimePoint ended{-1h};
    Duration by{0};  // later than without best-effort work
  };
  std::vector<Lag> lags_;             // by queue: of its last real-time run
  TimePoint asked_;                   // when the real-time run under way was asked for
  TimePoint alone_from_, alone_end_;  // of the real-time run under way, without best-effort work
  TimePoint given_from_;              // until then real-time runs waited for what best-effort work was owed
  Duration owed_{0};
  TimePoint accounted_;
  bool draining_ = false;                    // as they do, what runs ends, and nothing begins
  TimePoint held_until_ = TimePoint::max();  // real-time runs wait so long for best-effort ones
};

}  // namespace

std::unique_ptr<Sharing> make_reef(const SharingOptions& options) {
  return std::make_unique<Reef>(options);
}

}  // namespace carillon::research
