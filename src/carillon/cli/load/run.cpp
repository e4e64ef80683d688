#include "carillon/cli/load/run.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <utility>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"

namespace carillon::cli {
namespace {

// What the sending thread and the client's threads share. It outlives the run: an answer may come after it.
struct Shared {
  SteadyClock clock;
  TimePoint start;
  std::vector<Duration> deadlines;  // by stream
  std::vector<bool> closed_loop;    // by stream
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Answered> answers;
  std::vector<std::string> first_errors;
  Progress progress;
  std::uint64_t open = 0;
  std::vector<std::uint32_t> wants_next;  // streams of closed loops whose client got its answer
};

class Run {
 public:
  Run(Client& client, const std::vector<Stream>& streams, const RunOptions& options,
      const std::function<bool(const Progress&)>& progress)
      : client_(client), streams_(streams), options_(options), report_(progress) {
    shared_->first_errors.resize(streams.size());
    for (const Stream& stream : streams) {
      shared_->deadlines.push_back(stream.deadline);
      shared_->closed_loop.push_back(stream.arrivals.kind == workload::ArrivalKind::closed);
    }
  }

  RunResult operator()() {
    Random seeds(options_.seed);
    std::vector<std::optional<workload::ArrivalProcess>> arrivals(streams_.size());
    std::uint32_t index = 0;
    for (const Stream& stream : streams_) {
      if (!options_.planned.empty()) break;
      if (stream.arrivals.kind == workload::ArrivalKind::closed) {
        for (int i = 0; i < stream.arrivals.clients; ++i) shared_->wants_next.push_back(index);
      } else {
        arrivals[index].emplace(stream.arrivals, stream.rate, seeds.bits());
        planned_.push({arrivals[index]->next_gap(), index});
      }
      ++index;
    }
    std::size_t next_planned = 0;
    if (!options_.planned.empty()) planned_.push({options_.planned[0].first, options_.planned[0].second});
    shared_->start = shared_->clock.now();
    bool stopped = false;
    while (!stopped) {
      const Duration now = elapsed();
      if (now >= options_.duration) break;
      for (const std::uint32_t stream : take_wanted()) send(stream, elapsed());
      while (!planned_.empty() && planned_.top().at <= elapsed()) {
        const Planned next = planned_.top();
        planned_.pop();
        if (next.at >= options_.duration) continue;
        send(next.stream, next.at);
        if (options_.planned.empty())
          planned_.push({next.at + arrivals[next.stream]->next_gap(), next.stream});
        else if (++next_planned < options_.planned.size())
          planned_.push({options_.planned[next_planned].first, options_.planned[next_planned].second});
      }
      stopped = !report();
      wait_until(planned_.empty() ? options_.duration : std::min(planned_.top().at, options_.duration));
    }
    const Duration give_up = elapsed() + options_.drain;
    while (!stopped && elapsed() < give_up) {
      std::unique_lock lock(shared_->mutex);
      if (shared_->open == 0) break;
      shared_->changed.wait_for(lock, 100ms);
      lock.unlock();
      stopped = !report();
    }
    return result(stopped);
  }

 private:
  struct Planned {
    Duration at{0};
    std::uint32_t stream = 0;
    bool operator<(const Planned& other) const { return at > other.at; }  // earliest on top
  };

  Duration elapsed() const { return shared_->clock.now() - shared_->start; }

  std::vector<std::uint32_t> take_wanted() {
    const std::scoped_lock lock(shared_->mutex);
    return std::exchange(shared_->wants_next, {});
  }

  void send(std::uint32_t index, Duration planned) {
    const Stream& stream = streams_[index];
    const Duration sent = elapsed();
    std::size_t place = 0;
    {
      const std::scoped_lock lock(shared_->mutex);
      place = shared_->answers.size();
      shared_->answers.push_back({index, Outcome::unanswered, planned, sent, sent});
      ++shared_->open;
      ++shared_->progress.sent;
    }
    Duration timeout{0};
    if (options_.send_deadline && stream.deadline.count() > 0)
      timeout = std::max<Duration>(1us, planned + stream.deadline - options_.slack - sent);
    const Template& what = stream.whats[stream.whats.size() > 1 ? draw_.below(stream.whats.size()) : 0];
    client_.send(what, timeout, [shared = shared_, index, place](const Reply& reply) {
      answered(*shared, index, place, reply);
    });
  }

  static void answered(Shared& shared, std::uint32_t index, std::size_t place, const Reply& reply) {
    const Duration deadline = shared.deadlines[index];
    const Duration now = shared.clock.now() - shared.start;
    const std::scoped_lock lock(shared.mutex);
    Answered& answer = shared.answers[place];
    answer.answered = now;
    switch (reply.kind) {
      case Reply::Kind::result:
        if (deadline.count() == 0 || answer.latency() <= deadline) {
          answer.outcome = Outcome::on_time;
          ++shared.progress.on_time;
        } else {
          answer.outcome = Outcome::late;
          ++shared.progress.late;
        }
        break;
      case Reply::Kind::refused:
        answer.outcome = Outcome::refused;
        ++shared.progress.refused;
        break;
      case Reply::Kind::error:
        answer.outcome = Outcome::failed;
        ++shared.progress.failed;
        if (shared.first_errors[index].empty()) shared.first_errors[index] = reply.error;
        break;
    }
    --shared.open;
    if (shared.closed_loop[index]) shared.wants_next.push_back(index);
    if (shared.open == 0 || !shared.wants_next.empty()) shared.changed.notify_one();
  }

  bool report() {
    const Duration now = elapsed();
    if (now - reported_ < 100ms) return true;
    reported_ = now;
    Progress progress;
    {
      const std::scoped_lock lock(shared_->mutex);
      progress = shared_->progress;
    }
    progress.elapsed = now;
    return report_(progress);
  }

  // Sleeps to just before `at` and watches the clock for the rest: a late send would be the client's fault.
  void wait_until(Duration at) {
    static constexpr Duration watch = 60us;
    const Duration left = at - elapsed();
    if (left > watch) {
      std::unique_lock lock(shared_->mutex);
      shared_->changed.wait_for(lock, std::min<Duration>(left - watch, 100ms),
                                [this] { return !shared_->wants_next.empty(); });
    }
    while (at - elapsed() > 0ns && at - elapsed() < watch) std::this_thread::yield();
  }

  RunResult result(bool interrupted) {
    const std::scoped_lock lock(shared_->mutex);
    RunResult result{shared_->answers, shared_->first_errors, interrupted};
    std::stable_sort(result.answers.begin(), result.answers.end(),
                     [](const Answered& a, const Answered& b) { return a.planned < b.planned; });
    return result;
  }

  Client& client_;
  const std::vector<Stream>& streams_;
  const RunOptions& options_;
  const std::function<bool(const Progress&)>& report_;
  Random draw_{options_.seed ^ 0x5eed};
  Duration reported_{0};
  std::priority_queue<Planned> planned_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

RunResult run_load(Client& client, const std::vector<Stream>& streams, const RunOptions& options,
                   const std::function<bool(const Progress&)>& progress) {
  return Run(client, streams, options, progress)();
}

}  // namespace carillon::cli
