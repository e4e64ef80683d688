#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::cli {

// What the environment says of whoever watches over this process (systemd: sd_notify(3),
// sd_watchdog_enabled(3)).
struct Supervision {
  std::string socket;                // NOTIFY_SOCKET: a path, or "@name" of an abstract socket; empty: nobody
  std::optional<Duration> watchdog;  // WATCHDOG_USEC, where it is meant for this process (WATCHDOG_PID)
};

// `value` is the environment: nullptr for what is not set. Errors: a number that is none.
Result<Supervision> supervision_in(const std::function<const char*(const char* name)>& value, int pid);

// Tells the service manager how the program is, as datagrams of lines NAME=VALUE. Nothing is told where
// nobody asked, and a manager that does not listen holds nobody up. Safe from any thread.
class ServiceManager {
 public:
  // Errors: the address is neither a path nor an abstract name, or is too long for a socket's.
  static Result<std::unique_ptr<ServiceManager>> open(const std::string& socket);

  // How far it is with its start, a line for people. Until listening() it also asks for more time.
  void progress(std::string_view status);
  void listening(std::string_view status);  // what waits for this program may start
  void ready(std::string_view status);      // all of it is there: progress() is over
  // Does `act` as a reload of the program's files; `now` is of CLOCK_MONOTONIC.
  void reload(TimePoint now, const std::function<void()>& act);
  // It ends, and may take so long.
  void stopping(std::string_view status, Duration longest);
  void alive();

 private:
  enum class State : std::uint8_t { starting, listening, ready, stopping };

  explicit ServiceManager(Descriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  enum class Weight : std::uint8_t { light, must_be_known };
  void tell(std::string_view message, Weight weight) const;

  const Descriptor socket_;
  const std::string address_;  // sockaddr_un's path; empty: nobody to tell
  std::atomic<State> state_{State::starting};
};

// Tells a manager, at half of its time, that the program is alive, as long as it is: `is_alive` waits for a
// proof at most as long as it is told, on the watchdog's thread.
class Watchdog {
 public:
  Watchdog(ServiceManager& manager, Duration longest, std::function<bool(Duration)> is_alive);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();

  ServiceManager& manager_;
  const Duration period_;
  const std::function<bool(Duration)> is_alive_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace carillon::cli
