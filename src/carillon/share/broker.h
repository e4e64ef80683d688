#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/device/lanes/job_sharing.h"
#include "carillon/share/desk.h"
#include "carillon/share/lane_memory.h"

// The live shell of device::JobSharing: one thread with sockets, timers and processes around a Desk.
namespace carillon::share {

struct BrokerOptions {
  std::string socket;  // a path, 107 characters at most
  std::string policy = "fair";
  device::JobOptions jobs;
  bool any_user = false;             // takes jobs of all users; needs root, who alone can stop them
  std::size_t most_clients = 1024;   // connections at a time; fewer where the system allows fewer descriptors
  // For so long before and after the time at which a job that it recalled is to come out of its lane, as iterations are
  // alike, the broker looks at that job's page all the time, and whoever is to follow stays awake: a processor that
  // sleeps takes longer to wake up than all else of a hand-over. A hundredth of the quantum at most, so that this is no
  // more than a fiftieth of a processor's time. 0: never. At most 10 ms.
  Duration polls = std::chrono::microseconds{250};
  std::shared_ptr<LaneSource> lanes;  // none: the host's memory
  bool release_at_end = false;       // jobs go on alone when the broker ends; else they wait for another
  std::function<void(const Note&)> log;  // on the broker's thread
  // The device is another's, who lends it by leisure() and has it first: jobs run only while it is lent, and at
  // SCHED_IDLE. What Lending waits before it lends; none: the device is the jobs' own.
  std::optional<Duration> lent_after{};
};

class Broker {
 public:
  // Listens when it returns. Errors: a path that is too long, is taken by a living broker, or is no socket; a
  // policy or option that the core refuses; no descriptors. A socket that a broker left behind is replaced.
  static Result<std::unique_ptr<Broker>> start(BrokerOptions options, const Clock& clock);
  virtual ~Broker() = default;

  // Until stop(); then every job is told that the broker ends.
  virtual void run() = 0;

  // Any thread, while it runs.
  virtual void stop() = 0;
  // Somebody who goes before all jobs wants the device: who runs is frozen where it is, soon.
  virtual void want_device() = 0;
  // Not until `until`, as far as is known.
  virtual void free_device(TimePoint until) = 0;
  // Where BrokerOptions::lent_after is set, and in place of the two above: until when whoever has the device first
  // cannot want it; none: it does. One thread, at any rate; it never blocks, and seldom makes a system call.
  virtual void leisure(std::optional<TimePoint> free_until) = 0;
  // Waits for the broker's thread, at most so long.
  virtual std::optional<Overview> overview(Duration longest) = 0;

  virtual std::size_t most_clients() const = 0;
};

// Where the broker is, unless told otherwise: CARILLON_SOCKET, else in the user's runtime folder
// (XDG_RUNTIME_DIR, else /tmp/carillon-UID). `value` is the environment: nullptr for what is not set.
std::string default_socket(const std::function<const char*(const char* name)>& value, std::uint32_t uid);

// What the broker at `socket` lists: JSON. Errors: nobody is there, or it says nothing for `longest`.
Result<std::string> ask_for_list(const std::string& socket, Duration longest);

}  // namespace carillon::share
