#include "carillon/cli/service_manager.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace carillon::cli {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Supervision> read(const Variables& variables) {
  return supervision_in(
      [&](const char* name) -> const char* {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      42);
}

TEST(Supervision, IsWhatTheEnvironmentSays) {
  EXPECT_TRUE(read({})->socket.empty());
  EXPECT_TRUE(read({{"NOTIFY_SOCKET", ""}})->socket.empty());
  EXPECT_EQ(read({{"NOTIFY_SOCKET", "/run/x"}})->socket, "/run/x");
  EXPECT_FALSE(read({{"NOTIFY_SOCKET", "/run/x"}})->watchdog);
  EXPECT_EQ(read({{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", "3000000"}})->watchdog, Duration(3s));
  EXPECT_FALSE(read({{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", "0"}})->watchdog);
  EXPECT_FALSE(read({{"WATCHDOG_USEC", "3000000"}})->watchdog);  // nobody to tell
  const Variables ours{{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", "5"}, {"WATCHDOG_PID", "42"}};
  EXPECT_EQ(read(ours)->watchdog, Duration(5us));
  const Variables others{{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", "5"}, {"WATCHDOG_PID", "43"}};
  EXPECT_FALSE(read(others)->watchdog);
  for (const char* wrong : {"", "1s", "-1", "99999999999999999999"})
    EXPECT_FALSE(read({{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", wrong}})) << wrong;
  // A number that is far too large is a long time.
  EXPECT_GT(*read({{"NOTIFY_SOCKET", "/run/x"}, {"WATCHDOG_USEC", "9223372036854775807"}})->watchdog,
            Duration(1h));
}

// Listens as a service manager does.
class Manager {
 public:
  // name: as in NOTIFY_SOCKET.
  explicit Manager(std::string name)
      : name_(std::move(name)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(name_, address.sun_path);
    if (name_.front() == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0) << std::strerror(errno);
  }
  ~Manager() {
    ::close(socket_);
    if (name_.front() == '/') ::unlink(name_.c_str());
  }
  // The next message; "nothing" where none is there.
  std::string heard(int wait_ms = 0) {
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, wait_ms) != 1) return "nothing";
    char text[4096];
    const auto size = ::recv(socket_, text, sizeof text, 0);
    return {text, static_cast<std::size_t>(std::max<ssize_t>(0, size))};
  }

 private:
  const std::string name_;
  const int socket_;
};

std::string a_name(const char* test) {
  return std::string(test) + "." + std::to_string(getpid());
}

TEST(ServiceManager, IsToldOverPathsAndAbstractNames) {
  const auto folder = std::filesystem::temp_directory_path() / a_name("carillon_notify");
  for (const std::string& name : {folder.string(), '@' + a_name("carillon_notify")}) {
    Manager there(name);
    auto manager = ServiceManager::open(name);
    ASSERT_TRUE(manager) << manager.error().message;
    (*manager)->progress("model 1 of 2\nREADY=1");
    EXPECT_EQ(there.heard(), "STATUS=model 1 of 2 READY=1\nEXTEND_TIMEOUT_USEC=300000000");
    (*manager)->listening("loading");
    EXPECT_EQ(there.heard(), "READY=1\nSTATUS=loading");
    (*manager)->progress("model 2 of 2");
    EXPECT_EQ(there.heard(), "STATUS=model 2 of 2");
    (*manager)->ready("2 models");
    EXPECT_EQ(there.heard(), "READY=1\nSTATUS=2 models");
    (*manager)->progress("a model comes");  // not about its start any more
    EXPECT_EQ(there.heard(), "nothing");
    (*manager)->alive();
    EXPECT_EQ(there.heard(), "WATCHDOG=1");
    (*manager)->stopping("drains", 40s);
    EXPECT_EQ(there.heard(), "STOPPING=1\nSTATUS=drains\nEXTEND_TIMEOUT_USEC=40000000");
  }
}

TEST(ServiceManager, ReloadsAreToldWhereItServes) {
  const std::string name = '@' + a_name("carillon_reload");
  Manager there(name);
  const auto manager = *ServiceManager::open(name);
  int done = 0;
  const auto act = [&] { ++done; };
  manager->reload(TimePoint{1s}, act);
  EXPECT_EQ(there.heard(), "nothing");  // READY=1 would be too early
  manager->listening("");
  (void)there.heard();
  manager->reload(TimePoint{2s}, [&] {
    EXPECT_EQ(there.heard(), "RELOADING=1\nMONOTONIC_USEC=2000000");
    act();
  });
  EXPECT_EQ(there.heard(), "READY=1");
  manager->stopping("", 1s);
  (void)there.heard();
  manager->reload(TimePoint{3s}, act);
  EXPECT_EQ(there.heard(), "nothing");
  EXPECT_EQ(done, 3);
}

TEST(ServiceManager, WhatMustBeKnownWaitsForRoom) {
  const std::string name = '@' + a_name("carillon_full");
  Manager there(name);
  const auto manager = *ServiceManager::open(name);
  for (int i = 0; i < 2000; ++i)
    manager->progress("model " + std::to_string(i));  // more than there is room for
  std::thread reader([&] {
    std::string last;
    while (!last.starts_with("READY=1")) last = there.heard(60'000);
    EXPECT_EQ(last, "READY=1\nSTATUS=2000 models");
  });
  manager->ready("2000 models");
  reader.join();
}

TEST(ServiceManager, NobodyAskedOrListens) {
  (*ServiceManager::open(""))->listening("");
  (*ServiceManager::open("/nowhere/at/all"))->listening("");
  for (const std::string wrong : {"notify", "@", "/", "vsock:2:1234"})
    EXPECT_FALSE(ServiceManager::open(wrong)) << wrong;
  EXPECT_FALSE(ServiceManager::open("/" + std::string(200, 'x')));
}

TEST(Watchdog, SpeaksForWhatIsAliveAlone) {
  const std::string name = '@' + a_name("carillon_watchdog");
  Manager there(name);
  const auto manager = *ServiceManager::open(name);
  std::atomic<bool> alive = true;
  std::atomic<int> asked = 0;
  {
    const Watchdog watchdog(*manager, 2ms, [&](Duration longest) {
      EXPECT_EQ(longest, Duration(1ms));
      ++asked;
      return alive.load();
    });
    for (int i = 0; i < 3; ++i) EXPECT_EQ(there.heard(60'000), "WATCHDOG=1");
    alive = false;
    const int seen = asked;
    while (asked < seen + 2) std::this_thread::yield();  // who was asked before has spoken by now
    while (there.heard() != "nothing") continue;
    while (asked < seen + 20) std::this_thread::yield();
    EXPECT_EQ(there.heard(), "nothing");
  }
}

}  // namespace
}  // namespace carillon::cli
