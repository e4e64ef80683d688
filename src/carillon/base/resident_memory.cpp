#include "carillon/base/resident_memory.h"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace carillon {
namespace {

namespace fs = std::filesystem;

std::optional<pid_t> process_number(const fs::path& folder) {
  const std::string name = folder.filename().string();
  pid_t out = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return out;
}

// "PID (NAME) STATE PARENT ...", where NAME may hold anything.
std::optional<pid_t> parent_of(const fs::path& folder) {
  std::ifstream in(folder / "stat");
  std::string line;
  std::getline(in, line);
  const std::size_t behind = line.rfind(") ");
  if (behind == std::string::npos || behind + 4 >= line.size()) return std::nullopt;
  const std::string_view rest = std::string_view(line).substr(behind + 4);
  pid_t out = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), out).ec != std::errc{}) return std::nullopt;
  return out;
}

}  // namespace

Bytes resident_memory(pid_t process, const fs::path& root) {
  std::ifstream in(root / "proc" / std::to_string(process) / "statm");
  std::uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return in ? Bytes{resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))} : Bytes{};
}

Bytes resident_of_tree(pid_t process, const fs::path& root) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (fs::directory_iterator at(root / "proc", error), end; !error && at != end; at.increment(error))
    if (const auto number = process_number(at->path()))
      if (const auto parent = parent_of(at->path())) children.emplace(*parent, *number);
  Bytes sum;
  for (std::vector<pid_t> left{process}; !left.empty();) {
    const pid_t next = left.back();
    left.pop_back();
    sum = sum + resident_memory(next, root);
    for (auto [at, end] = children.equal_range(next); at != end; ++at) left.push_back(at->second);
    children.erase(next);  // whatever a process says, nobody counts twice
  }
  return sum;
}

}  // namespace carillon
