#include <algorithm>
#include <cmath>
#include <limits>

#include "carillon/device/lanes/job_core.h"
#include "carillon/device/lanes/job_policies.h"

namespace carillon::device {
namespace {

// Ours. One job is the first: the one with the shortest remaining time, or, of those of which it is not
// known, what has had least so far, in classes that double (who has had t is taken to need another t). Others
// run beside it, each in a lane of its own, where that was measured to pay.
//
// What pays: while those of a set run at rates r of what they do alone, a job's turn comes nearer by the
// rates of those in the set that are before it or itself, where the first alone would bring it nearer by one.
// Summed up over all jobs, a set is worth the sum over its jobs of r times the number of jobs not before it,
// less the number of all; the first alone nothing. Some count that are still to come. A companion is kept
// that makes it worth more. Each is tried for a few iterations, and measured alone for as many before.
//
// Who waited for too long goes before all others for a while (JobOptions::longest_wait).
class Best final : public JobCore {
 public:
  explicit Best(const JobOptions& options) : JobCore(options) {}

 private:
  // Enough to tell a rate from another's by a few percent, where iterations are alike; and short beside any
  // job.
  static constexpr std::uint32_t iterations_measured = 3;
  // A first class of unknown jobs: below it nobody is told from others.
  static constexpr Duration first_class{std::chrono::seconds{1}};
  // A companion must be worth so much more than none, for each job that there is: what is measured differs by
  // a few percent by itself.
  static constexpr double worth_it = 0.01;
  // Those that are still to come gain from what is done sooner, as those that are behind do; how many is not
  // known.
  static constexpr double to_come = 8;
  // A trial takes at most one in so many of the time.
  static constexpr int between_trials = 20;
  // What was measured alone is measured again after so many iterations: one percent of them.
  static constexpr std::uint64_t measured_again = 300;
  // So many of the next in turn are looked at as companions.
  static constexpr std::size_t looked_at = 8;
  // Whoever has no more than so many before him among those that are admitted comes in: what is admitted
  // takes memory to its end, and what is not cannot start, nor run beside others.
  static constexpr std::size_t admitted_before = 4;
  static constexpr std::size_t most_companions = 15;

  bool one_lane() const override { return true; }
  Key turn(const Job& job) const override { return {need(job), job.order}; }
  Key rank(const Job& job) const override { return {need(job), job.order}; }
  double need(const Job& job) const {
    if (job.overdue) return -1;
    if (counts_as_known(job)) return to_seconds(*remaining(job));
    return to_seconds(class_end(attained(job)));
  }
  // What was said of a job counts until it has taken a quarter more: its rate beside others is an estimate.
  bool counts_as_known(const Job& job) const {
    return job.in_all && job.progress <= saturated(*job.in_all, *job.in_all / 4);
  }
  static Duration class_end(Duration attained) {
    Duration end = first_class;
    while (end <= attained && end < Duration::max() / 2) end *= 2;
    return end;
  }

  bool admits(const Job& first) const override {
    if (first.overdue) return true;
    std::size_t before = 0;
    // Those that wait for something else, such as requests, are in nobody's way.
    each_admitted([&](const Job& job) { before += !job.idle && rank(job) < turn(first) ? 1 : 0; });
    if (before < 2) return true;
    const Bytes lane = std::max(first.memory.ephemeral, lanes().ephemeral());
    const Bytes held = lanes().persistent() + first.memory.persistent + lane;
    return before < admitted_before && held.count < lanes().capacity().count / 100 * 75;
  }
  // Who waited for too long is waited for.
  bool overtakes() const override { return queue().empty() || !job(queue().top()).overdue; }
  Duration slice(const Job&, const Job&) const override { return Duration::max(); }

  // --- Waiting
  TimePoint waiting_timer(const Job& job) const override {
    return job.overdue ? TimePoint::max() : saturating_add(job.waits_since, options().longest_wait);
  }
  bool timer_rang(Index index) override {
    Job& waits = job(index);
    if (waits.state == JobState::running) {
      waits.overdue = false;
      return false;  // it is looked at again
    }
    if (is_inside(waits) || waits.state == JobState::starting) return false;
    waits.overdue = true;
    rerank(index);
    admit_again();
    return true;
  }
  void granted(Job& job) override {
    job.had = attained(job);
    watch(job);
  }
  void resumed(Job& job) override { watch(job); }
  Duration turn_of_overdue() const {
    return std::max(Duration{1'000'000}, options().longest_wait / options().catch_up);
  }
  // The next time at which its place among the others changes by itself.
  void watch(Job& job) {
    const Index index = *find(job.id);
    if (job.overdue)  // in time of the device: nobody has his turn while he is frozen
      time_running(
          index, saturating_add(time(), std::max(Duration{0}, turn_of_overdue() + job.had - attained(job))));
    else if (!counts_as_known(job))
      time_running(index, saturating_add(time(), class_end(attained(job)) - attained(job)));
    else
      time_running(index,
                   saturating_add(time(), saturated(saturated(*remaining(job), *job.in_all / 4), 1ms)));
  }

  // --- Measuring
  void ended_iterations(Job& job, const IterationEnded& ended) override {
    const bool stands = standing_ && std::ranges::find(set_, *find(job.id)) != set_.end();
    if (!stands) return;
    if (job.set != set_number_) {
      // Of what it tells now, some may be from before.
      job.set = set_number_;
      job.beside_seen = 0;
      if (set_.size() == 1) job.alone_seen = std::min(job.alone_seen, iterations_measured - 1);
      return;
    }
    const Duration one = ended.busy / ended.iterations;
    Duration& mean = set_.size() == 1 ? job.alone : job.beside;
    std::uint32_t& seen = set_.size() == 1 ? job.alone_seen : job.beside_seen;
    mean = seen == 0 ? one : mean + (one - mean) / static_cast<int>(std::min(seen + 1, iterations_measured));
    seen = std::min(seen + ended.iterations, iterations_measured);
    if (set_.size() == 1) job.alone_at = job.iterations;
  }
  void left(Index index) override {
    std::erase(apart_, index);
    // There is room for another.
    if (std::erase(companions_, index) > 0 || index == first_) next_trial_ = time();
    if (candidate_ == index) candidate_ = nobody;
    if (probed_ == index) probed_ = nobody;
    if (first_ == index) first_ = nobody;
    if (std::erase(set_, index) > 0) standing_ = false;
  }

  // For each job that there is.
  double worth_of_set() const {
    double worth = -1;
    for (const Index index : set_) {
      const Key mine = rank(job(index));
      std::size_t behind = 0;
      each([&](const Job& other) { behind += rank(other) < mine ? 0 : 1; });
      worth +=
          rate(index) * (static_cast<double>(behind) + to_come) / (static_cast<double>(here()) + to_come);
    }
    return worth;
  }
  double rate(Index index) const {
    const Job& j = job(index);
    return j.beside > Duration{0} ? std::min(1.0, to_seconds(j.alone) / to_seconds(j.beside)) : 1;
  }

  // --- Who runs
  void settle(JobCommands& out) override {
    if (wanted()) return;
    leave_idle();
    choose_first();
    if (first_ == nobody) return;
    judge();
    if (options().packs) look_for_companion();
    want_.clear();
    if (probed_ != nobody) {
      want_.push_back(probed_);
    } else {
      want_.push_back(first_);
      if (job(first_).alone_seen >= iterations_measured)
        want_.insert(want_.end(), companions_.begin(), companions_.end());
    }
    bring_about(out);
  }

  Index follower(const Job&) const override {
    const auto waits = [this](Index index) { return job(index).state == JobState::waiting; };
    const auto next = std::ranges::find_if(want_, waits);
    return next == want_.end() ? nobody : *next;
  }

  // Who waits for something else than the device is not waited for.
  bool idle(Index index) const { return job(index).state == JobState::starting; }
  void leave_idle() {
    std::erase_if(companions_, [this](Index index) { return idle(index); });
    if (candidate_ != nobody && idle(candidate_)) candidate_ = nobody;
    if (probed_ != nobody && idle(probed_)) probed_ = nobody;
  }

  void choose_first() {
    Index least = nobody;
    const auto offer = [&](Index index) {
      if (least == nobody || rank(job(index)) < rank(job(least))) least = index;
    };
    each_inside([&](Index index) { offer(index); });
    if (const auto& heap = waiting({0}); !heap.empty()) {
      const Index next = first_free_or_top(heap);
      if (next != nobody) offer(next);
    }
    if (least == first_) return;
    // Companions stay where they run; what the set is worth with another first, is measured anew.
    if (first_ != nobody && least != nobody && std::ranges::find(companions_, least) == companions_.end())
      companions_.clear();
    std::erase(companions_, least);
    first_ = least;
    candidate_ = nobody;
    worth_ = std::nullopt;
    if (probed_ != first_) probed_ = nobody;
  }
  // Those in lanes of jobs that hang cannot run.
  Index first_free_or_top(const JobHeap<Key>& heap) const {
    const auto stuck = [&](Index index) {
      const Index in = inside(job(index).lane);
      return in != nobody && job(in).hanging;
    };
    if (!stuck(heap.top())) return heap.top();
    Index least = nobody;
    for (std::size_t i = 0; i < heap.size(); ++i)
      if (const Index index = heap.at(i);
          !stuck(index) && (least == nobody || rank(job(index)) < rank(job(least))))
        least = index;
    return least;
  }

  // What the set that runs is worth, once it is known.
  void judge() {
    if (probed_ != nobody && job(probed_).alone_seen >= iterations_measured) {
      probed_ = nobody;
      worth_ = std::nullopt;
    }
    if (!standing_ || set_.size() < 2 || probed_ != nobody) return;
    for (const Index index : set_)
      if (job(index).set != set_number_ || job(index).beside_seen < iterations_measured) return;
    const bool judged = candidate_ == nobody && worth_;
    const double worth = judged ? *worth_ : worth_of_set();
    if (!judged)
      for (const Index index : set_) set_rate(job(index), rate(index));
    if (candidate_ != nobody) {
      Job& tried = job(candidate_);
      if (worth > worth_.value_or(0) + worth_it) {
        tried.failed_tries = 0;
        worth_ = worth;
      } else {
        drop(candidate_);
      }
      candidate_ = nobody;
      next_trial_ = saturating_add(time(), (time() - trial_began_) * between_trials);
    } else if (!worth_) {
      if (worth > worth_it)
        worth_ = worth;
      else if (!companions_.empty())
        drop(companions_.back());
    } else {
      // Times drift, and what paid may pay no more.
      const auto old = std::ranges::find_if(
          set_, [this](Index i) { return !idle(i) && job(i).iterations - job(i).alone_at > measured_again; });
      if (old == set_.end()) return;
      probed_ = *old;
      job(*old).alone_seen = 0;
    }
  }
  void drop(Index index) {
    Job& tried = job(index);
    tried.failed_tries = std::min(tried.failed_tries + 1, 6);
    tried.next_try = saturating_add(
        time(),
        std::max(Duration{1'000'000}, (time() - trial_began_) * (between_trials << tried.failed_tries)));
    std::erase(companions_, index);
  }

  void look_for_companion() {
    if (candidate_ != nobody || probed_ != nobody || time() < next_trial_ ||
        companions_.size() >= most_companions || job(first_).alone_seen < iterations_measured ||
        (!companions_.empty() && !worth_))
      return;
    auto& heap = waiting({0});
    if (heap.empty()) return;
    heap.first(looked_at, near_);
    for (const Index index : near_) {
      Job& other = job(index);
      if (index == first_ || other.next_try > time() ||
          std::ranges::find(companions_, index) != companions_.end())
        continue;
      if (!ledger().find_apart({Bytes{}, other.memory.ephemeral})) continue;
      candidate_ = index;
      trial_began_ = time();
      companions_.push_back(index);
      if (other.alone_seen < iterations_measured) probed_ = index;
      return;
    }
    next_trial_ = saturating_add(time(), Duration{100'000'000});
  }

  // Recalls who should not run, and grants who should, where his lane is free.
  void bring_about(JobCommands& out) {
    const auto is_wanted = [this](Index index) { return std::ranges::find(want_, index) != want_.end(); };
    // A lane of its own is for running beside others: who waits needs none.
    std::erase_if(apart_, [&](Index index) {
      const Job& waits = job(index);
      if (waits.state != JobState::waiting || is_wanted(index)) return false;
      const auto place = ledger().find_shared({Bytes{}, waits.memory.ephemeral});
      if (!place || place->lane == no_lane) return false;
      if (place->lane != waits.lane) move(index, *place, out);
      admit_again();
      return true;
    });
    bool there = true;
    each_inside([&](Index index) {
      if (is_wanted(index)) return;
      there = false;
      if (job(index).state == JobState::running) recall(index, out);
    });
    // Those whose lanes have no place go first: who is in their way comes out, and goes back in only after
    // them.
    std::ranges::stable_partition(want_, [this](Index index) {
      return job(index).state == JobState::waiting && !ledger().lane(job(index).lane).offset;
    });
    for (const Index index : want_) {
      Job& wants = job(index);
      if (wants.state == JobState::running) {
        if (timer_is_due(wants)) watch(wants);
        continue;
      }
      if (wants.state != JobState::waiting) {
        there = false;
        continue;
      }
      const Index in = inside(wants.lane);
      const bool taken = std::ranges::any_of(want_, [&](Index other) {
        return other != index && job(other).lane == wants.lane && (other == first_ || is_inside(job(other)));
      });
      if (taken && want_.size() > 1) {
        if (const auto apart = ledger().find_apart({Bytes{}, wants.memory.ephemeral})) {
          move(index, *apart, out);
          if (std::ranges::find(apart_, index) == apart_.end()) apart_.push_back(index);
        } else {
          // There is no room beside: a companion gives way to the first, in whose lane it is.
          there = false;
          const Index gives_way = index == first_ ? in : index;
          std::erase(companions_, gives_way);
          if (candidate_ == gives_way) candidate_ = nobody;
          if (index == first_ && in != nobody && job(in).state == JobState::running) recall(in, out);
          continue;
        }
      } else if (in != nobody) {
        there = false;  // who is in it was recalled
        continue;
      }
      // Alone means alone: who was recalled is still at it.
      if (want_.size() == 1 && !there) continue;
      if (!grant(index, out)) {
        there = false;
        break;
      }
    }
    if (there && (!standing_ || !same_set())) {
      set_ = want_;
      ++set_number_;
      standing_ = true;
      // Until it is measured.
      for (const Index index : set_) set_rate(job(index), 1 / static_cast<double>(set_.size()));
    } else if (!there) {
      standing_ = false;
    }
  }
  bool same_set() const {
    return set_.size() == want_.size() &&
           std::ranges::all_of(set_, [&](Index i) { return std::ranges::find(want_, i) != want_.end(); });
  }
  // One whose time was known and is over is taken as unknown from then on.
  bool timer_is_due(const Job& running) const { return !running.overdue && !counts_as_known(running); }

  Index first_ = nobody;
  std::vector<Index> companions_;  // in the order in which they were taken, the first not among them
  Index candidate_ = nobody;       // the companion that is being tried
  Index probed_ = nobody;          // runs alone, to be measured
  std::optional<double> worth_;    // of the first with its companions, but for the candidate
  TimePoint trial_began_, next_trial_;
  std::vector<Index> set_;  // what runs, once all of it does and nothing else
  std::uint64_t set_number_ = 0;
  bool standing_ = false;
  std::vector<Index> apart_;  // who was given a lane of its own, and is in it
  std::vector<Index> want_, near_;
};

}  // namespace

std::unique_ptr<JobSharing> make_best(const JobOptions& options) {
  return std::make_unique<Best>(options);
}

}  // namespace carillon::device
