#include "carillon/cli/service_manager.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

namespace carillon::cli {
namespace {

Result<std::int64_t> number_in(const char* name, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    return invalid(std::string(name) + " is '" + std::string(text.substr(0, 64)) +
                   "'; it must be a whole number");
  return value;
}

// A status is one line: what follows a line's end would be another message.
std::string line_of(std::string_view text) {
  std::string line(text.substr(0, 512));
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

// No step of a start takes longer, of those that progress() is told of.
constexpr auto a_step = std::chrono::minutes(5);

std::string microseconds(Duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

}  // namespace

Result<Supervision> supervision_in(const std::function<const char*(const char* name)>& value, int pid) {
  Supervision out;
  const char* const socket = value("NOTIFY_SOCKET");
  if (socket == nullptr || *socket == '\0') return out;
  out.socket = socket;
  const char* const period = value("WATCHDOG_USEC");
  if (period == nullptr) return out;
  if (const char* const whose = value("WATCHDOG_PID")) {
    const auto wanted = number_in("WATCHDOG_PID", whose);
    if (!wanted) return std::unexpected(wanted.error());
    if (*wanted != pid) return out;
  }
  const auto us = number_in("WATCHDOG_USEC", period);
  if (!us) return std::unexpected(us.error());
  constexpr auto longest = std::chrono::microseconds(std::chrono::hours(24 * 365));
  if (*us > 0) out.watchdog = std::min(std::chrono::microseconds(*us), longest);
  return out;
}

Result<std::unique_ptr<ServiceManager>> ServiceManager::open(const std::string& socket) {
  const auto make = [](Descriptor descriptor, std::string address) {
    return std::unique_ptr<ServiceManager>(new ServiceManager(std::move(descriptor), std::move(address)));
  };
  if (socket.empty()) return make({}, {});
  std::string address = socket;
  if (address.front() == '@')
    address.front() = '\0';
  else if (address.front() != '/')
    return invalid("NOTIFY_SOCKET is '" + socket.substr(0, 128) +
                   "'; a path or an abstract name (@...) is understood");
  if (address.size() < 2 || address.size() >= sizeof(sockaddr_un::sun_path))
    return invalid("NOTIFY_SOCKET has " + std::to_string(address.size()) +
                   " bytes; a socket's name has 2 to " + std::to_string(sizeof(sockaddr_un::sun_path) - 1));
  Descriptor descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!descriptor.open())
    return fail(ErrorCode::unavailable,
                "no socket to tell the service manager by: " + std::string(std::strerror(errno)));
  const timeval longest{.tv_sec = 1, .tv_usec = 0};
  (void)::setsockopt(descriptor.number(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
  return make(std::move(descriptor), std::move(address));
}

void ServiceManager::tell(std::string_view message, Weight weight) const {
  if (address_.empty()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::ranges::copy(address_, to.sun_path);
  // An abstract name has no end but the address's; a path's closing zero is in it.
  const std::size_t size =
      offsetof(sockaddr_un, sun_path) + address_.size() + (address_.front() == '\0' ? 0 : 1);
  (void)::sendto(socket_.number(), message.data(), message.size(),
                 MSG_NOSIGNAL | (weight == Weight::light ? MSG_DONTWAIT : 0),
                 reinterpret_cast<const sockaddr*>(&to), static_cast<socklen_t>(size));
}

void ServiceManager::progress(std::string_view status) {
  const State state = state_;
  if (state == State::starting)
    tell("STATUS=" + line_of(status) + "\nEXTEND_TIMEOUT_USEC=" + microseconds(a_step), Weight::light);
  else if (state == State::listening)
    tell("STATUS=" + line_of(status), Weight::light);
}

void ServiceManager::listening(std::string_view status) {
  state_ = State::listening;
  tell("READY=1\nSTATUS=" + line_of(status), Weight::must_be_known);
}

void ServiceManager::ready(std::string_view status) {
  State before = state_;
  do {
    if (before == State::stopping) return;  // the last model was loaded just then
  } while (!state_.compare_exchange_weak(before, State::ready));
  tell("READY=1\nSTATUS=" + line_of(status), Weight::must_be_known);
}

void ServiceManager::reload(TimePoint now, const std::function<void()>& act) {
  // Before it is ready, and after, it would say something else than that it reloads.
  const auto settled = [this] { return state_ == State::listening || state_ == State::ready; };
  const bool told = settled();
  if (told)
    tell("RELOADING=1\nMONOTONIC_USEC=" + microseconds(now.time_since_epoch()), Weight::must_be_known);
  act();
  if (told && settled()) tell("READY=1", Weight::must_be_known);
}

void ServiceManager::stopping(std::string_view status, Duration longest) {
  state_ = State::stopping;
  tell("STOPPING=1\nSTATUS=" + line_of(status) + "\nEXTEND_TIMEOUT_USEC=" + microseconds(longest),
       Weight::must_be_known);
}

void ServiceManager::alive() {
  tell("WATCHDOG=1", Weight::light);
}

Watchdog::Watchdog(ServiceManager& manager, Duration longest, std::function<bool(Duration)> is_alive)
    : manager_(manager), period_(longest / 2), is_alive_(std::move(is_alive)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "carillon-watch");
  std::unique_lock lock(mutex_);
  // The first at once: systemd counts from the start.
  do {
    lock.unlock();
    if (is_alive_(period_)) manager_.alive();
    lock.lock();
  } while (!wake_.wait_for(lock, period_, [this] { return ended_; }));
}

}  // namespace carillon::cli
