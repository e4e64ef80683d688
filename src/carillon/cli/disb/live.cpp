#include "carillon/cli/disb/live.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <utility>

#include <sys/prctl.h>

#include "carillon/base/assert.h"
#include "carillon/base/cpu_time.h"
#include "carillon/base/random.h"
#include "carillon/workload/disb_client.h"

namespace carillon::cli {
namespace {

// Windows open so long before now that real-time requests come before all others wherever they meet in one
// stream, and among themselves in the order in which they were planned.
constexpr Duration real_time_before = 24h;

void sleep_until(TimePoint at) {
  const std::int64_t ns = at.time_since_epoch().count();
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

class LiveDriver {
 public:
  LiveDriver(const workload::DisbWorkload& workload, std::span<const std::size_t> model_of,
             LocalWorker& local, const Clock& clock, const LiveOptions& options)
      : workload_(workload), local_(local), clock_(clock), options_(options) {
    Random random(options.seed);
    for (std::size_t i = 0; i < workload.clients.size(); ++i) {
      const workload::DisbClient& client = workload.clients[i];
      clients_.emplace_back(client, random.split(), local.models()[model_of[i]], options.seed + i);
      LiveClient& made = clients_.back();
      made.command.model = ModelId{static_cast<std::uint32_t>(model_of[i])};
      made.command.batch = 1;
      made.command.cls = client.cls;
      made.command.rows[0] = made.row.buffers();
      made.sends = client.cls == Class::real_time || options.best_effort;
    }
    run_.clients.resize(clients_.size());
  }

  Result<LiveRun> run() {
    // Arrivals are met as closely as the system can.
    const int slack = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    local_.listen([this](const worker::ActionResult& result) { answered(result); });
    send_all();
    auto ended = end_all();
    if (!ended) local_.worker().retire();  // what is under way still answers to nobody
    local_.listen({});
    prctl(PR_SET_TIMERSLACK, slack > 0 ? static_cast<unsigned long>(slack) : 0UL, 0UL, 0UL, 0UL);
    if (!ended) return std::unexpected(ended.error());
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      const workload::DisbSender& sender = clients_[i].sender;
      run_.clients[i].requests = sender.requests();
      run_.clients[i].dropped = sender.dropped();
      // What was under way at the end stays so for its sender.
      run_.clients[i].unfinished = sender.unfinished();
    }
    run_.requests.assign(done_.begin(), done_.end());
    return std::move(run_);
  }

 private:
  struct LiveClient {
    LiveClient(const workload::DisbClient& client, const Random& random, const LocalModel& model,
               std::uint64_t seed)
        : arrivals(client, random),
          sender(client.arrivals == workload::DisbClient::Arrivals::closed_loop),
          row(model, seed) {}
    workload::DisbArrivals arrivals;
    workload::DisbSender sender;
    LocalRow row;
    worker::InferCommand command;  // whoever sends for the client writes it: one at a time does
    std::atomic<std::uint64_t> id{~std::uint64_t{0}};  // of the last
    TimePoint planned;                                 // of the request under way
    bool sends = true;
  };
  using Arrival = std::pair<TimePoint, std::size_t>;  // when, from the start; whose

  void plan(std::size_t client) {
    const TimePoint at = clients_[client].arrivals.next();
    if (at < TimePoint{} + workload_.length) arrivals_.emplace(at, client);
  }

  void send_all() {
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].sends) plan(i);
    const Duration cpu = process_cpu_time();
    run_.start = clock_.now() + 1ms;
    const TimePoint end = run_.start + workload_.length;
    while (true) {
      const TimePoint at =
          arrivals_.empty() ? end : std::min(end, run_.start + arrivals_.top().first.time_since_epoch());
      TimePoint now = clock_.now();
      // Woken now and then, as someone may want it to end.
      while (now < at && go_on(now)) {
        sleep_until(std::min(at, now + 100ms));
        now = clock_.now();
      }
      if (!go_on(now) || now >= end) break;
      const auto [planned, client] = arrivals_.top();
      arrivals_.pop();
      plan(client);
      arrive(client, run_.start + planned.time_since_epoch(), now);
    }
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    run_.length = std::clamp(clock_.now() - run_.start, Duration{1}, workload_.length);
    run_.cpu = process_cpu_time() - cpu;
  }

  bool go_on(TimePoint now) {
    if (failed_) return false;
    if (options_.progress && now - asked_ >= 100ms) {
      asked_ = now;
      const double done = to_seconds(now - run_.start) / to_seconds(workload_.length);
      if (!options_.progress(std::clamp(done, 0.0, 1.0))) run_.interrupted = true;
    }
    return !run_.interrupted;
  }

  void arrive(std::size_t index, TimePoint planned, TimePoint now) {
    {
      const std::lock_guard lock(mutex_);
      if (!clients_[index].sender.planned(planned)) return;
      ++under_way_;
      run_.late.push_back(now - planned);
    }
    send(index, planned, now);
  }

  // The client's request is under way from here on.
  void send(std::size_t index, TimePoint planned, TimePoint now) {
    LiveClient& client = clients_[index];
    client.planned = planned;
    const std::uint64_t id = sent_++ * clients_.size() + index;
    client.id = id;
    client.command.id = ActionId{id};
    client.command.window = {client.command.cls == Class::real_time ? planned - real_time_before : now,
                             TimePoint::max()};
    if (local_.worker().submit(client.command)) return;
    const std::lock_guard lock(mutex_);
    fail_with("the worker's queue is full");
    --under_way_;
    changed_.notify_all();
  }

  // With the lock held.
  void fail_with(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    failed_ = true;
  }

  // On the worker's threads.
  void answered(const worker::ActionResult& result) {
    const std::size_t index = result.id.value % clients_.size();
    LiveClient& client = clients_[index];
    std::optional<TimePoint> next;
    TimePoint now;
    {
      const std::lock_guard lock(mutex_);
      now = clock_.now();
      if (!over_) {
        const std::string& name = workload_.clients[index].name;
        if (result.status != device::ActionStatus::success)
          fail_with("client " + name + ": a request ended as " + std::string(device::name_of(result.status)) +
                    (result.error.empty() ? "" : ": " + result.error));
        else if (!result.bad_rows.empty())
          fail_with("client " + name +
                    ": the model has no use for random data: " + result.bad_rows.front().error.message);
        else
          done_.push_back({index, client.planned, result.times});
        if (!failed_) next = client.sender.answered(now);
      }
      if (!next) {
        --under_way_;
        changed_.notify_all();
      }
    }
    if (next) send(index, *next, now);
  }

  Result<> end_all() {
    std::unique_lock lock(mutex_);
    const TimePoint limit = clock_.now() + 60s;
    while (under_way_ > 0) {
      if (clock_.now() > limit)
        return fail(ErrorCode::unavailable, "the device does not answer: " + std::to_string(under_way_) +
                                                " requests are under way a minute after the end");
      lock.unlock();
      for (const LiveClient& client : clients_) local_.worker().stop(ActionId{client.id});
      lock.lock();
      // Again: one may have been about to be sent.
      changed_.wait_for(lock, 20ms, [this] { return under_way_ == 0; });
    }
    if (!failure_.empty()) return fail(ErrorCode::internal, failure_);
    return {};
  }

  const workload::DisbWorkload& workload_;
  LocalWorker& local_;
  const Clock& clock_;
  const LiveOptions& options_;
  std::deque<LiveClient> clients_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<bool> failed_{false};
  TimePoint asked_;  // whether to go on

  std::mutex mutex_;  // of what follows, and of the clients' senders
  std::condition_variable changed_;
  bool over_ = false;
  std::size_t under_way_ = 0;
  std::string failure_;
  std::deque<LiveRequest> done_;  // grows without moving what is there, as the device waits meanwhile
  LiveRun run_;
};

}  // namespace

Result<LiveRun> run_live(const workload::DisbWorkload& workload, std::span<const std::size_t> model_of,
                         LocalWorker& local, const Clock& clock, const LiveOptions& options) {
  CARILLON_ASSERT(model_of.size() == workload.clients.size());
  return LiveDriver(workload, model_of, local, clock, options).run();
}

}  // namespace carillon::cli
