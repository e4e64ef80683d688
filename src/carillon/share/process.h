#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "carillon/base/descriptor.h"
#include "carillon/share/guard.h"

// Other processes, held by pidfds: a signal never reaches a stranger who got the number of one that ended.
namespace carillon::share {

// -1: none (errno).
Descriptor open_process(std::uint32_t pid);
// Of whoever connected `socket`.
Descriptor peer_process(int socket, std::uint32_t pid);
// False: it is gone, or there is none.
bool send_signal(const Descriptor& process, int signal);

// A process and all that descend from it, stopped (SIGSTOP) and let go on, time and again. Those that somebody else has
// stopped already (Ctrl-Z) are left as they are, then and later.
//
// Who was there the last time is held, and is stopped at once, before anybody is looked for: that takes some
// microseconds a process, looking some more a thread.
class StoppedTree {
 public:
  // At most so many processes; what comes beyond is not stopped.
  static constexpr std::size_t most = 4096;

  // Whoever is stopped here is told to it, which outlives this; null: nobody is.
  void guard_by(Guard* guard) { guard_ = guard; }
  // `process` is that of `pid`. Where it returns, no process of the tree makes another that is not stopped.
  void stop(std::uint32_t pid, const Descriptor& process);
  void go_on();  // SIGCONT to those that were stopped here
  void forget();  // goes on, and holds nobody any more
  std::size_t size() const;  // that are stopped here

 private:
  struct Member {
    std::uint32_t pid = 0;
    Descriptor process;
    bool stopped = false;
    std::uint32_t place = Guard::none;  // at the guard
    std::uint32_t walk = 0;  // in which it was last found
  };
  bool stop_one(Member& member);
  void start_one(Member& member);

  std::vector<Member> members_;  // parents before their children, as they were found; the first is the process itself
  std::uint32_t walk_ = 0;
  Guard* guard_ = nullptr;
};

// 'R', 'S', 'T', ..., as in /proc/PID/stat; 0: there is no such process.
char process_state(std::uint32_t pid);
std::vector<std::uint32_t> children_of(std::uint32_t pid);
// Whether a file whose name begins so is mapped, such that others see what is written there.
bool shares_file(std::uint32_t pid, std::string_view prefix);

}  // namespace carillon::share
