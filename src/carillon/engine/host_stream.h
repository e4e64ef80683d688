#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/clock.h"
#include "carillon/engine/pacer.h"
#include "carillon/engine/stream.h"
#include "carillon/engine/turn_thread.h"

namespace carillon::engine {

struct HostStreamOptions {
  std::string name;                          // of the thread
  Duration spin = TurnThread::default_spin;  // see TurnThread
  bool inside = true;                        // evictions end runs inside kernels, where plans can do that
  // A thread that runs the plans, where that is not to be the stream's own: of so low a priority that it must
  // not be waited for with a lock held. Called once on it, as it starts. Empty: the stream's own runs them.
  std::function<void()> on_runner{};
  // A run has been ended early. `raise`: on the thread that ran it, before anybody hears of that; where it
  // says so, or is empty, `evicted` follows on that thread, once the client was told (or is being told by the
  // stream's own thread).
  std::function<bool()> raise{};
  std::function<void()> evicted{};
};

// A stream whose thread runs the plans itself, or has a thread of its own run them: the CPU's, and an
// emulated device's.
class HostStream final : public Stream {
 public:
  HostStream(const Clock& clock, HostStreamOptions options);
  ~HostStream() override { stop(); }

  Result<> start(Client& client) override;
  void launch(const Launch& launch) override;
  void evict(std::uint64_t run) override;
  void give_up(std::uint64_t run) override;
  void wake() override { thread_.wake(); }
  void wake_here() override { thread_.wake_here(); }
  bool busy() const override { return busy_.load(); }
  void threads(std::vector<pid_t>& out) const override {
    out.push_back(thread_.number());
    if (runner_) out.push_back(runner_->number());
  }
  std::uint64_t steps() const override { return signal_.steps.load(std::memory_order_relaxed); }
  void help() override;
  bool call(const std::function<void()>& task) override {
    return thread_.call([this, &task] { alone(task); });
  }
  bool post(std::function<void()> task) override {
    return thread_.post([this, task = std::move(task)] { alone(task); });
  }
  void stop() override {
    thread_.stop(true);
    if (runner_) runner_->stop(true);
  }

 private:
  TimePoint own_turn();
  TimePoint turn();
  void alone(const std::function<void()>& task);
  bool raised() const { return !options_.raise || options_.raise(); }
  void run(const Launch& launch, Completion& completion);

  HostStreamOptions options_;
  Client* client_ = nullptr;
  std::atomic<bool> taken_{false};  // a turn, by the stream's thread or by who helps it
  std::optional<Launch> launched_;  // who has taken the turn's
  bool was_evicted_ = false;        // the runner's
  std::atomic<bool> busy_{false};
  // The order of these against each other: evict() writes `wanted` and looks at `running`, a launch the other
  // way round, so that one of the two sees the other.
  std::atomic<std::uint64_t> running_{0}, wanted_{0};
  StopSignal signal_;
  Pacer pacer_;
  std::unique_ptr<TurnThread> runner_;  // which the stream's thread waits for
  TurnThread thread_;
};

}  // namespace carillon::engine
