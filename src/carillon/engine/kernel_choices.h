#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "carillon/base/result.h"

namespace carillon::engine {

// Names of ways, by what decides how long they take: operator, shapes, types, layouts, attributes, what is
// fused, number of parts. Of one machine; shared by all models of a process, and with a file by all processes
// that name it. A choice only says which of the right ways is taken, so a wrong one costs time and nothing
// else. From any thread.
class KernelChoices {
 public:
  static constexpr std::size_t most = 16384;  // any more are measured and not kept
  static constexpr std::size_t longest_key = 1024, longest_name = 512;
  static constexpr std::uintmax_t largest_file = 8 << 20;

  // In memory alone.
  KernelChoices() = default;
  // What `file` has; it need not exist. `header`, its first line, says what the choices are of: format,
  // device, libraries. Nothing of one that is damaged, too large or another's, which save() replaces.
  // `problem` says so then, or that nothing can be written where it is.
  KernelChoices(std::filesystem::path file, std::string header, std::string* problem = nullptr);

  std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, const std::string& name);
  std::size_t size() const;
  // How many were kept since the object was made: each is one that was measured.
  std::uint64_t measured() const;
  // Writes the file anew, where there is one and something was kept since; whole or not at all.
  Result<> save();

 private:
  Result<> read();

  std::filesystem::path file_;
  std::string header_;
  std::mutex saving_;         // held while the file is written
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::string> names_;
  std::uint64_t measured_ = 0, saved_ = 0;
};

}  // namespace carillon::engine
