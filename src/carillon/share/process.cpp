#include "carillon/share/process.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

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

// All of a file of the kernel's, without what streams do besides; empty: it cannot be read.
std::string read_whole(const std::string& path) {
  std::string out;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return out;
  char part[4096];
  for (ssize_t got = 0; (got = read(file.number(), part, sizeof part)) > 0;) out.append(part, static_cast<std::size_t>(got));
  return out;
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

bool send_signal(const Descriptor& process, int signal) {
  return process.open() && syscall(SYS_pidfd_send_signal, process.number(), signal, nullptr, 0) == 0;
}

// False: it is gone.
bool StoppedTree::stop_one(Member& member) {
  if (member.stopped) return true;
  if (stands_still(member.pid)) return send_signal(member.process, 0);
  if (guard_ != nullptr) member.place = guard_->watch(member.pid);
  member.stopped = send_signal(member.process, SIGSTOP);
  if (!member.stopped && guard_ != nullptr) guard_->forget(member.place);
  return member.stopped;
}

void StoppedTree::start_one(Member& member) {
  if (!std::exchange(member.stopped, false)) return;
  send_signal(member.process, SIGCONT);
  if (guard_ != nullptr) guard_->forget(member.place);
}

void StoppedTree::stop(std::uint32_t pid, const Descriptor& process) {
  if (!members_.empty() && members_[0].pid != pid) forget();
  if (members_.empty()) members_.push_back({.pid = pid, .process = Descriptor(fcntl(process.number(), F_DUPFD_CLOEXEC, 0))});
  std::erase_if(members_, [this](Member& member) { return !stop_one(member); });
  std::unordered_map<std::uint32_t, std::size_t> known;
  for (std::size_t i = 0; i < members_.size(); ++i) known.emplace(members_[i].pid, i);
  // What a process makes before it was told to stop is among its children by then. But a thread that ends leaves its own
  // to another, so it is looked once more where there was anything new.
  for (bool more = known.contains(pid); more;) {
    more = false;
    ++walk_;
    std::vector<std::uint32_t> left{pid};
    members_[known[pid]].walk = walk_;
    while (!left.empty()) {
      const std::uint32_t parent = left.back();
      left.pop_back();
      for (const std::uint32_t child : children_of(parent)) {
        const auto found = known.find(child);
        if (found != known.end()) {
          if (std::exchange(members_[found->second].walk, walk_) != walk_) left.push_back(child);
          continue;
        }
        if (members_.size() >= most) continue;
        Member member{.pid = child, .process = open_process(child), .walk = walk_};
        if (!stop_one(member)) continue;
        known.emplace(child, members_.size());
        members_.push_back(std::move(member));
        left.push_back(child);
        more = true;
      }
    }
  }
  // Who does not descend from it any more is nobody's to stop.
  std::erase_if(members_, [this](Member& member) {
    if (member.walk == walk_) return false;
    start_one(member);
    return true;
  });
}

void StoppedTree::go_on() {
  // Children first: a parent that waits for one finds it going.
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) start_one(*member);
}

void StoppedTree::forget() {
  go_on();
  members_.clear();
}

std::size_t StoppedTree::size() const {
  return static_cast<std::size_t>(std::ranges::count(members_, true, &Member::stopped));
}

// Of its first thread, which is quicker to ask than all of them; a process stops as one.
char process_state(std::uint32_t pid) {
  const std::string number = std::to_string(pid);
  const std::string line = read_whole("/proc/" + number + "/task/" + number + "/stat");
  const std::size_t end = line.rfind(')');  // of the name, which may have any character
  return end == std::string::npos || end + 2 >= line.size() ? '\0' : line[end + 2];
}

std::vector<std::uint32_t> children_of(std::uint32_t pid) {
  std::vector<std::uint32_t> out;
  const std::string threads = "/proc/" + std::to_string(pid) + "/task";
  std::error_code gone;
  for (std::filesystem::directory_iterator task(threads, gone), end; !gone && task != end; task.increment(gone)) {
    std::istringstream text(read_whole(task->path().native() + "/children"));
    for (std::uint32_t child = 0; text >> child;) out.push_back(child);
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
