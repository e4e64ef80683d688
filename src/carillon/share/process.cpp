#include "carillon/share/process.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <unordered_set>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace carillon::share {
namespace {

constexpr int peer_pidfd = 77;  // SO_PEERPIDFD of Linux 6.5, which older headers lack

std::string proc(std::uint32_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

bool stands_still(std::uint32_t pid) {
  const char state = process_state(pid);
  return state == 'T' || state == 't';
}

}  // namespace

Descriptor open_process(std::uint32_t pid) {
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

Descriptor peer_process(int socket, std::uint32_t pid) {
  int process = -1;
  socklen_t size = sizeof process;
  if (getsockopt(socket, SOL_SOCKET, peer_pidfd, &process, &size) == 0) return Descriptor(process);
  return open_process(pid);
}

void send_signal(const Descriptor& process, int signal) {
  if (process.open()) syscall(SYS_pidfd_send_signal, process.number(), signal, nullptr, 0);
}

StoppedTree StoppedTree::stop(std::uint32_t pid, const Descriptor& process) {
  StoppedTree tree;
  std::unordered_set<std::uint32_t> seen{pid};
  if (!stands_still(pid)) {
    send_signal(process, SIGSTOP);
    tree.stopped_.emplace_back(fcntl(process.number(), F_DUPFD_CLOEXEC, 0));
  }
  // A parent that stands still reaps nobody, so its children's numbers stay theirs; but it may have been about to
  // make one.
  for (bool more = true; more;) {
    more = false;
    std::vector<std::uint32_t> parents(seen.begin(), seen.end());
    while (!parents.empty()) {
      const std::uint32_t parent = parents.back();
      parents.pop_back();
      for (const std::uint32_t child : children_of(parent)) {
        if (seen.size() >= most) return tree;
        if (!seen.insert(child).second) continue;
        parents.push_back(child);
        more = true;
        if (stands_still(child)) continue;
        Descriptor held = open_process(child);
        send_signal(held, SIGSTOP);
        if (held.open()) tree.stopped_.push_back(std::move(held));
      }
    }
  }
  return tree;
}

void StoppedTree::go_on() {
  // Children first: a parent that waits for one finds it going.
  for (auto process = stopped_.rbegin(); process != stopped_.rend(); ++process) send_signal(*process, SIGCONT);
  stopped_.clear();
}

char process_state(std::uint32_t pid) {
  std::ifstream file(proc(pid, "stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t end = line.rfind(')');  // of the name, which may have any character
  return end == std::string::npos || end + 2 >= line.size() ? '\0' : line[end + 2];
}

std::vector<std::uint32_t> children_of(std::uint32_t pid) {
  std::vector<std::uint32_t> out;
  std::error_code gone;
  for (std::filesystem::directory_iterator task(proc(pid, "task"), gone), end; !gone && task != end;
       task.increment(gone)) {
    std::ifstream file(task->path() / "children");
    for (std::uint32_t child = 0; file >> child;) out.push_back(child);
  }
  return out;
}

bool shares_file(std::uint32_t pid, std::string_view prefix) {
  std::ifstream file(proc(pid, "maps"));
  for (std::string line; std::getline(file, line);)
    // ADDRESSES rw-s OFFSET DEVICE INODE NAME; a private mapping has copies of what it wrote.
    if (const std::size_t at = line.find('/'), flags = line.find(' ');
        at != std::string::npos && flags + 4 < at && line[flags + 4] == 's' &&
        std::string_view(line).substr(at).starts_with(prefix))
      return true;
  return false;
}

}  // namespace carillon::share
