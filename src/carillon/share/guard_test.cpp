#include "carillon/share/guard.h"

#include <csignal>
#include <optional>
#include <utility>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "carillon/share/process.h"
#include "carillon/share/testing/child.h"

namespace carillon::share {
namespace {

using testing::Child;
using testing::Gate;

std::uint32_t number(const Child& child) { return static_cast<std::uint32_t>(child.pid()); }

// A signal is there soon, not at once.
bool becomes(bool stopped, const Child& child) {
  for (int i = 0; i < 1'000'000 && (process_state(number(child)) == 'T') != stopped; ++i) sched_yield();
  return (process_state(number(child)) == 'T') == stopped;
}

int waits() {
  for (;;) pause();
}

TEST(Guard, WhoAKilledBrokerHadStoppedGoesOn) {
  Child held(waits), let_go(waits);
  Gate stopped;
  Child broker([&] {
    auto guard = Guard::start();
    if (!guard) return 1;
    StoppedTree first, second;
    first.guard_by(&*guard);
    second.guard_by(&*guard);
    const Descriptor a = open_process(number(held)), b = open_process(number(let_go));
    first.stop(number(held), a);
    second.stop(number(let_go), b);
    second.go_on();
    kill(let_go.pid(), SIGSTOP);  // its user's doing
    stopped.open();
    return waits();
  });
  stopped.pass();
  ASSERT_TRUE(becomes(true, held));
  ASSERT_TRUE(becomes(true, let_go));
  broker.signal(SIGKILL);
  EXPECT_TRUE(becomes(false, held));
  EXPECT_TRUE(becomes(true, let_go)) << "it was not the broker who stopped it";
  broker.wait();
}

TEST(Guard, EndsWithItsBroker) {
  std::optional<Guard> guard(*Guard::start());
  const pid_t process = guard->process();
  EXPECT_EQ(kill(process, 0), 0);
  kill(process, SIGTERM);  // meant for the broker, by whoever stops all of a service
  guard.reset();
  EXPECT_NE(kill(process, 0), 0);
}

TEST(Guard, HasRoomForSoMany) {
  Guard guard = *Guard::start();
  const auto nobody = static_cast<std::uint32_t>(getpid());  // SIGCONT to it changes nothing
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < Guard::most; ++i) last = guard.watch(nobody);
  EXPECT_NE(last, Guard::none);
  EXPECT_EQ(guard.watch(nobody), Guard::none);
  guard.forget(Guard::none);
  guard.forget(last);
  EXPECT_EQ(guard.watch(nobody), last);
}

}  // namespace
}  // namespace carillon::share
