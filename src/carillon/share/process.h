#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "carillon/base/descriptor.h"

// Other processes, held by pidfds: a signal never reaches a stranger who got the number of one that ended.
namespace carillon::share {

// -1: none (errno).
Descriptor open_process(std::uint32_t pid);
// Of whoever connected `socket`.
Descriptor peer_process(int socket, std::uint32_t pid);
void send_signal(const Descriptor& process, int signal);

// A process and all that descend from it, stopped (SIGSTOP). Those that somebody else has stopped already (Ctrl-Z)
// are left as they are, then and later.
class StoppedTree {
 public:
  StoppedTree() = default;
  // At most so many processes; what comes beyond is not stopped.
  static constexpr std::size_t most = 4096;
  static StoppedTree stop(std::uint32_t pid, const Descriptor& process);

  void go_on();  // SIGCONT to those that were stopped here
  std::size_t size() const { return stopped_.size(); }

 private:
  std::vector<Descriptor> stopped_;
};

// 'R', 'S', 'T', ..., as in /proc/PID/stat; 0: there is no such process.
char process_state(std::uint32_t pid);
std::vector<std::uint32_t> children_of(std::uint32_t pid);
// Whether a file whose name begins so is mapped, such that others see what is written there.
bool shares_file(std::uint32_t pid, std::string_view prefix);

}  // namespace carillon::share
