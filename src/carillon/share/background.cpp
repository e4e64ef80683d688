#include "carillon/share/background.h"

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>
#include <unordered_set>
#include <vector>

#include <sched.h>

#include "carillon/share/process.h"

namespace carillon::share {
namespace {

// False: no thread was new.
bool set_threads(std::uint32_t pid, int policy, std::unordered_set<std::uint32_t>& seen) {
  bool more = false;
  std::error_code gone;
  const std::filesystem::path threads = "/proc/" + std::to_string(pid) + "/task";
  for (std::filesystem::directory_iterator thread(threads, gone), end; !gone && thread != end; thread.increment(gone)) {
    const std::string name = thread->path().filename();
    std::uint32_t id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc{}) continue;
    if (!seen.insert(id).second) continue;
    more = true;
    const sched_param none{};
    sched_setscheduler(static_cast<pid_t>(id), policy, &none);
  }
  return more;
}

}  // namespace

bool set_background(std::uint32_t pid, bool background) {
  constexpr std::size_t most = 65536;
  const int policy = background ? SCHED_IDLE : SCHED_OTHER;
  std::unordered_set<std::uint32_t> threads, processes;
  // Again until there is nothing new: a thread not yet changed may have made another.
  for (bool more = true; more && threads.size() < most && processes.size() < most;) {
    more = false;
    std::vector<std::uint32_t> left{pid};
    processes.clear();
    while (!left.empty() && processes.size() < most) {
      const std::uint32_t process = left.back();
      left.pop_back();
      if (!processes.insert(process).second) continue;
      more = set_threads(process, policy, threads) || more;
      for (const std::uint32_t child : children_of(process)) left.push_back(child);
    }
  }
  return sched_getscheduler(static_cast<pid_t>(pid)) == policy;
}

}  // namespace carillon::share
