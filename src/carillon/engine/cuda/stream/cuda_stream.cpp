#include "carillon/engine/cuda/stream/cuda_stream.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/plan/cuda_plan.h"
#include "carillon/engine/turn_thread.h"

namespace carillon::engine::cuda {

// The thread, and who takes turns on it.
class Streams::Shared {
 public:
  Shared(std::shared_ptr<const Device> of, Duration in_flight, const Clock& time, Duration spins)
      : device(std::move(of)),
        bound(in_flight),
        clock(time),
        spin(spins),
        thread(
            time, [this] { return turn(); }, spins) {}

  Result<> add(One& stream);
  void remove(One& stream);
  void drain(One& stream);
  bool over() const { return over_.load(); }  // the last of them has stopped
  // The pair in whose first part a real-time run is, or 0.
  int pair() const;
  // A real-time run has begun in the first part of a pair: what runs all over the device goes on in the rest.
  void part_off();

  const std::shared_ptr<const Device> device;
  const Duration bound;
  const Clock& clock;
  const Duration spin;

 private:
  TimePoint turn();

  std::mutex mutex_;  // of who starts and stops
  bool started_ = false;
  std::atomic<bool> over_{false};
  std::vector<One*> streams_;  // the thread's; real-time ones first

 public:
  TurnThread thread;
};

class Streams::One final : public engine::Stream {
 public:
  One(std::shared_ptr<Shared> shared, const StreamOptions& options)
      : shared_(std::move(shared)),
        device_(*shared_->device),
        name_(options.name),
        cls_(options.cls),
        parts_(options.parts) {}
  ~One() override {
    stop();
    const Device::Current current(device_);
    for (const Event event : events_) (void)device_.driver.event_destroy(event);
  }

  Result<> start(Client& client) override {
    client_ = &client;
    const Device::Current current(device_);
    flights_.reserve(most_flights);
    events_.reserve(most_flights);
    for (std::size_t i = 0; i < most_flights; ++i) {
      Event event = nullptr;
      if (auto made = device_.check(device_.driver.event_create(&event, event_without_time), "an event");
          !made)
        return made;
      events_.push_back(event);
    }
    return shared_->add(*this);
  }
  void launch(const Launch& launch) override;
  void evict(std::uint64_t run) override {
    wanted_.store(run);
    shared_->thread.wake();
  }
  void give_up(std::uint64_t run) override { evict(run); }
  void wake() override {
    news_.store(true);
    shared_->thread.wake();
  }
  void wake_here() override {
    news_.store(true);
    shared_->thread.wake_here();
  }
  void help() override { wake(); }
  bool busy() const override { return busy_.load(); }
  void threads(std::vector<pid_t>& out) const override { out.push_back(shared_->thread.number()); }
  bool call(const std::function<void()>& task) override {
    return shared_->thread.call([&] {
      shared_->drain(*this);
      task();
      news_.store(true);
    });
  }
  bool post(std::function<void()> task) override {
    return shared_->thread.post([this, task = std::move(task)] {
      shared_->drain(*this);
      task();
      news_.store(true);
    });
  }
  void stop() override {
    if (!std::exchange(started_, false)) return;
    shared_->remove(*this);
  }

  // --- On the thread, with the device's context current.

  TimePoint turn();
  // Until nothing is under way and nothing was launched; nobody is asked for more.
  void drain() {
    draining_ = true;
    while (current_) advance();
    draining_ = false;
  }
  Class cls() const { return cls_; }
  // In whose first part it runs; 0: in none's.
  int pair() const { return current_ ? pair_of(*current_) : 0; }
  // Real-time work runs in a part of the device: what is all over it goes on in the rest.
  void part_off();

  bool started_ = false;

 private:
  static constexpr std::size_t most_flights = 8;
  struct Run {
    Launch launch;
    const CudaPlan* plan = nullptr;
    CudaState* state = nullptr;
    int next = 0;            // the first segment that is not with the device
    bool begun = false;      // the lane's words are set
    bool evicted = false;    // nothing more of it is to begin
    bool parted = false;     // it goes on in another part, once what is under way has ended
    bool disturbed = false;  // its time says nothing
    TimePoint since;
    Result<> result;

    bool all_there() const { return next == launch.kernels.last; }
    bool holds_back() const { return evicted || parted || !result; }
  };
  // A segment that is with the device.
  struct Flight {
    Event event = nullptr;
    std::uint64_t run = 0;
    Duration takes{0};
  };

  void advance();
  void collect();
  void push(Run& run);
  Result<> put(Run& run, Duration takes);
  void end_early(Run& run);
  void settle();
  bool under_way(const Run& run) const {
    return std::ranges::any_of(flights_, [&](const Flight& each) { return each.run == run.launch.run; });
  }
  int pair_of(const Run& run) const {
    return cls_ == Class::real_time && parts_ ? run.plan->parts().pair : 0;
  }
  Part part_of(const Run& run) const;
  Duration time_of(const Run& run) const;

  const std::shared_ptr<Shared> shared_;
  const Device& device_;
  const std::string name_;
  const Class cls_;
  const bool parts_;
  Client* client_ = nullptr;
  std::atomic<std::uint64_t> wanted_{0};
  std::atomic<bool> news_{true}, busy_{false};

  std::optional<Run> current_, ahead_;
  std::vector<Event> events_;    // that no flight has
  std::vector<Flight> flights_;  // in their order; as long as there are events
  Duration in_flight_{0};
  std::optional<Part> part_;  // of the last flight
  bool draining_ = false;
  TimePoint ask_at_ = TimePoint::min(), free_since_;

  friend class Shared;
};

// --- The thread

Result<> Streams::Shared::add(One& stream) {
  const std::lock_guard lock(mutex_);
  if (!started_) {
    if (auto made = thread.start("carillon-cuda"); !made) return made;
    started_ = true;
  }
  const bool added = thread.call([&] {
    const auto before = std::ranges::find_if(
        streams_, [&](const One* each) { return each->cls() > stream.cls(); });  // real-time is the least
    streams_.insert(before, &stream);
  });
  if (!added) return fail(ErrorCode::unavailable, "the thread of the device's streams has ended");
  stream.started_ = true;
  return {};
}

void Streams::Shared::remove(One& stream) {
  bool last = false;
  const std::lock_guard lock(mutex_);
  thread.call([&] {
    drain(stream);
    std::erase(streams_, &stream);
    last = streams_.empty();
  });
  if (!last) return;
  over_.store(true);
  thread.stop(true);
}

void Streams::Shared::drain(One& stream) {
  const Device::Current current(*device);
  stream.drain();
}

TimePoint Streams::Shared::turn() {
  const Device::Current current(*device);
  TimePoint next = TimePoint::max();
  for (One* const each : streams_) next = std::min(next, each->turn());
  return next;
}

int Streams::Shared::pair() const {
  for (const One* each : streams_)
    if (const int pair = each->pair(); pair != 0) return pair;
  return 0;
}

void Streams::Shared::part_off() {
  for (One* const each : streams_)
    if (each->cls() == Class::best_effort) each->part_off();
}

// --- A stream

void Streams::One::launch(const Launch& launch) {
  CARILLON_ASSERT(!ahead_ && launch.run != 0 && launch.binding.state != nullptr);
  Run run{.launch = launch,
          .plan = static_cast<const CudaPlan*>(launch.plan),
          .state = static_cast<CudaState*>(launch.binding.state),
          .next = launch.kernels.first,
          .since = shared_->clock.now(),
          .result = {}};
  (current_ ? ahead_ : current_) = std::move(run);
  busy_.store(true);
}

TimePoint Streams::One::turn() {
  const TimePoint now = shared_->clock.now();
  if (!current_ && (news_.exchange(false) || now >= ask_at_)) {
    ask_at_ = client_->idle();
    if (current_) ask_at_ = TimePoint::min();  // for what is behind it
  }
  if (!current_) return ask_at_;
  advance();
  // Who spins has a core for it; else others have it in between.
  if (!current_ || shared_->spin > Duration{0}) return TimePoint::min();
  return now + std::chrono::microseconds{20};
}

void Streams::One::advance() {
  collect();
  // A whole plan that is with the device is not to be had back.
  if (!current_->evicted && wanted_.load() == current_->launch.run &&
      (!current_->all_there() || current_->plan->divided())) {
    current_->evicted = true;
    end_early(*current_);
  }
  push(*current_);
  if (ahead_) push(*ahead_);
  const bool whole =
      current_->plan->kernels() == 1 && !current_->plan->divided() && current_->state->last > Duration{0};
  if (!draining_ && !ahead_ && whole && current_->all_there() && !current_->disturbed && current_->result) {
    const TimePoint now = shared_->clock.now();
    if (news_.exchange(false) || now >= ask_at_) {
      ask_at_ = client_->committed(current_->launch.run, current_->since + current_->state->last);
      if (ahead_) push(*ahead_);
    }
  }
  settle();
}

// What has ended since.
void Streams::One::collect() {
  while (!flights_.empty()) {
    const Flight& first = flights_.front();
    const Status status = device_.driver.event_query(first.event);
    if (status == not_ready) return;
    if (status != done) {  // nothing that is with the device will ever be heard of again
      const auto lost = device_.check(status, name_);
      for (auto* const run : {&current_, &ahead_})
        if (*run && (*run)->result) (*run)->result = lost;
      for (const Flight& each : flights_) events_.push_back(each.event);
      flights_.clear();
      in_flight_ = Duration{0};
      return;
    }
    events_.push_back(first.event);
    in_flight_ -= first.takes;
    flights_.erase(flights_.begin());
  }
}

Part Streams::One::part_of(const Run& run) const {
  if (cls_ == Class::real_time) return {.pair = pair_of(run)};
  if (cls_ == Class::best_effort) {
    const int pair = shared_->pair();
    return {.pair = pair, .rest = pair != 0};
  }
  return {};
}

// Of the next segment, in the part that it will be in: at most as many times longer as that has fewer
// processors.
Duration Streams::One::time_of(const Run& run) const {
  const Duration takes = run.plan->takes(run.next);
  const Splits* const splits = device_.splits();
  const Part part = part_of(run);
  if (splits == nullptr || part.pair == 0) return takes;
  const double fewer = static_cast<double>(splits->processors({})) / std::max(1U, splits->processors(part));
  return std::chrono::duration_cast<Duration>(takes * fewer);
}

void Streams::One::push(Run& run) {
  while (!run.holds_back() && !run.all_there() && !events_.empty()) {
    const Duration takes = time_of(run);
    const bool first = !under_way(run);
    // Behind a whole plan the next may be; of one in segments those that fit the bound.
    if (!first && (!run.plan->divided() || in_flight_ + takes > shared_->bound)) return;
    if (auto there = put(run, takes); !there) run.result = there;
  }
}

Result<> Streams::One::put(Run& run, Duration takes) {
  const Driver& driver = device_.driver;
  const Part part = part_of(run);
  CudaState& state = *run.state;
  const Address workspace = address(run.launch.binding.workspace),
                weights = address(run.launch.binding.weights);
  if (!state.is_ready(run.next, workspace, weights, part)) run.disturbed = true;
  if (auto prepared = state.prepare(workspace, weights, part); !prepared) return prepared;
  if (!flights_.empty() && part_ != part)
    if (auto waits = device_.check(driver.stream_wait(state.stream(), flights_.back().event, 0), "an event");
        !waits)
      return waits;
  if (run.plan->divided() && state.lane().ends_early() && !std::exchange(run.begun, true))
    if (auto begun = state.lane().begin(state.stream(), static_cast<std::uint32_t>(run.next)); !begun)
      return begun;
  if (auto put = run.plan->enqueue(run.next, run.launch.binding, state); !put) return put;
  if (auto marked = device_.check(driver.event_record(events_.back(), state.stream()), "an event"); !marked)
    return marked;
  flights_.push_back({.event = events_.back(), .run = run.launch.run, .takes = takes});
  events_.pop_back();
  in_flight_ += takes;
  part_ = part;
  ++run.next;
  if (cls_ == Class::real_time && part.pair != 0) shared_->part_off();
  return {};
}

// What is with the device, and can, ends soon.
void Streams::One::end_early(Run& run) {
  run.disturbed = true;
  if (!run.begun || !under_way(run)) return;
  // A segment that was cut runs again, and reads what it read. Calls of libraries in a later one, which look
  // at no flag, may have written there: buffers live until the end of the segment that reads them last.
  if (flights_.size() > 1) return;
  if (auto told = run.state->lane().end_early(); !told && run.result) run.result = told;
}

void Streams::One::part_off() {
  if (!current_ || !part_ || part_->pair != 0 || !current_->plan->divided() || current_->holds_back() ||
      current_->all_there())
    return;
  current_->parted = true;
  end_early(*current_);
}

// Where nothing of the run is under way any more: it is over, or goes on in another part.
void Streams::One::settle() {
  Run& run = *current_;
  if (under_way(run) || !(run.holds_back() || run.all_there())) return;
  if (run.result && run.begun && (run.evicted || run.parted))
    run.next = std::clamp(static_cast<int>(run.state->lane().marked()), run.launch.kernels.first, run.next);
  if (run.result && run.parted && !run.evicted && !run.all_there()) {
    run.parted = run.begun = false;
    return;
  }
  const TimePoint now = shared_->clock.now();
  if (run.result && !run.disturbed && run.launch.kernels.first == 0 && run.all_there())
    run.state->last = now - run.since;
  Completion completion{.run = run.launch.run, .next = run.next, .result = run.result};
  current_ = std::exchange(ahead_, std::nullopt);
  if (current_) current_->since = now;
  busy_.store(current_.has_value());
  ask_at_ = TimePoint::min();
  news_.store(true);
  client_->completed(completion);
}

// --- All of them

Streams::Streams(std::shared_ptr<const Device> device, Duration bound)
    : device_(std::move(device)), bound_(bound) {}
Streams::~Streams() = default;

std::unique_ptr<engine::Stream> Streams::make(const StreamOptions& options) {
  auto shared = shared_.lock();
  if (shared == nullptr || shared->over()) {
    shared = std::make_shared<Shared>(device_, bound_, options.clock, options.spin);
    shared_ = shared;
  }
  return std::make_unique<One>(std::move(shared), options);
}

}  // namespace carillon::engine::cuda
