#include "carillon/cli/serve/waiting.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/base/processors.h"
#include "carillon/cli/serve/doors.h"

namespace carillon::cli::serving {
namespace {

// Looks once a second: says that requests are being turned away, where they are, and how many processors and
// how much memory may be used, where that is another number.
class EachSecond {
 public:
  EachSecond(std::shared_ptr<const std::atomic<std::uint64_t>> turned_away,
             std::shared_ptr<UsableProcessors> processors, LimitWatch memory)
      : turned_away_(std::move(turned_away)),
        processors_(std::move(processors)),
        memory_(std::move(memory)),
        thread_([this] { run(); }) {}
  ~EachSecond() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  EachSecond(const EachSecond&) = delete;
  EachSecond& operator=(const EachSecond&) = delete;

 private:
  void run() {
    std::uint64_t told = 0;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, 1s, [this] { return ended_; })) {
      const std::uint64_t now = turned_away_->load();
      if (now > told)
        spdlog::warn(
            "overloaded: {} requests of the last second were turned away, as they come faster than "
            "they can be decided on",
            now - told);
      told = now;
      if (processors_->look()) spdlog::info("processors: {} from now on", to_text(processors_->limits()));
      if (const std::string news = memory_.look(); !news.empty()) spdlog::warn("{}", news);
    }
  }

  std::shared_ptr<const std::atomic<std::uint64_t>> turned_away_;
  std::shared_ptr<UsableProcessors> processors_;
  LimitWatch memory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

// What the end may take beside open requests: devices that finish what they run, threads.
constexpr auto of_the_end = std::chrono::seconds(30);

}  // namespace

Result<Supervised> find_supervisor() {
  const auto supervision = supervision_in([](const char* name) { return std::getenv(name); }, getpid());
  if (!supervision) return std::unexpected(supervision.error());
  auto manager = ServiceManager::open(supervision->socket);
  if (!manager) return std::unexpected(manager.error());
  return Supervised{.manager = std::move(*manager), .watchdog = supervision->watchdog};
}

void tell_ready(const frontend::Frontend& frontend, const Arguments& arguments, ServiceManager& manager,
                const std::string& what) {
  // In a cluster its schedulers have the policy.
  const std::string policy =
      arguments.cluster.cluster.empty() ? "; scheduler " + arguments.scheduler : std::string();
  spdlog::info("ready: {}{}; {}; Ctrl-C stops", what, policy, ports_text(frontend));
  manager.ready("ready: " + what);
}

void serve(frontend::Frontend& frontend, const Arguments& arguments, const SignalWait& signals,
           const controller::Options& options, ServiceManager& manager, const Memory& memory,
           frontend::SpanExporter* spans, const std::function<void()>& before_stopping) {
  {
    const EachSecond looks(options.turned_away, arguments.devices.each.processors,
                           LimitWatch(memory.bound, memory.account));
    signals.wait();
  }
  const std::string stopping =
      fmt::format("stopping: open requests have {:g} s, new ones are refused", arguments.drain_s);
  spdlog::info("{}", stopping);
  manager.stopping(stopping, from_ms(arguments.drain_s * 1000) + of_the_end);
  if (before_stopping) before_stopping();
  frontend.stop();
  if (spans != nullptr) spans->stop(flush_of_spans);
}

}  // namespace carillon::cli::serving
