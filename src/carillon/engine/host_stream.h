#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "carillon/base/clock.h"
#include "carillon/engine/pacer.h"
#include "carillon/engine/stream.h"
#include "carillon/engine/turn_thread.h"

namespace carillon::engine {

// A stream whose thread runs the plans itself: the CPU's, and an emulated device's.
class HostStream final : public Stream {
 public:
  // `name`: of the thread; `spin`: see TurnThread.
  HostStream(const Clock& clock, std::string name, Duration spin);
  ~HostStream() override { stop(); }

  Result<> start(Client& client) override;
  void launch(const Launch& launch) override;
  void evict(std::uint64_t run) override;
  void wake() override { thread_.wake(); }
  bool busy() const override { return busy_.load(); }
  bool call(const std::function<void()>& task) override { return thread_.call(task); }
  bool post(std::function<void()> task) override { return thread_.post(std::move(task)); }
  void stop() override { thread_.stop(true); }

 private:
  TimePoint turn();

  std::string name_;
  Client* client_ = nullptr;
  std::optional<Launch> launched_;  // the stream's thread's
  std::atomic<bool> busy_{false};
  // The order of these against each other: evict() writes `wanted` and looks at `running`, a launch the other
  // way round, so that one of the two sees the other.
  std::atomic<std::uint64_t> running_{0}, wanted_{0};
  StopSignal signal_;
  Pacer pacer_;
  TurnThread thread_;
};

}  // namespace carillon::engine
