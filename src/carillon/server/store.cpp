#include "carillon/server/store.h"

#include <cstdlib>
#include <system_error>
#include <utility>

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/processors.h"
#include "carillon/engine/cpu/candidates.h"

namespace carillon::server {
namespace {

namespace fs = std::filesystem;

// Of the files in a directory; 0 where there is none.
std::uint64_t size_in(const fs::path& directory) {
  std::uint64_t sum = 0;
  std::error_code error, gone;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (const std::uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0; !gone) sum += size;
  return sum;
}

// Half of what there is for it: others want the disk as well.
Bytes usual_limit(const fs::path& directory) {
  fs::path there = directory;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, error);
  return {((error ? 0 : space.available) + size_in(directory)) / 2};
}

}  // namespace

std::optional<fs::path> usual_store() {
  const auto absolute = [](const char* text) -> std::optional<fs::path> {
    if (text == nullptr || !fs::path(text).is_absolute()) return std::nullopt;
    return fs::path(text);
  };
  if (const auto cache = absolute(std::getenv("XDG_CACHE_HOME"))) return *cache / "carillon";
  if (const auto home = absolute(std::getenv("HOME"))) return *home / ".cache" / "carillon";
  const passwd* const user = ::getpwuid(::geteuid());
  if (user == nullptr) return std::nullopt;
  if (const auto home = absolute(user->pw_dir)) return *home / ".cache" / "carillon";
  return std::nullopt;
}

Result<std::shared_ptr<engine::WeightFiles>> open_store(const StoreArguments& arguments,
                                                        std::function<void(const std::string&)> warn) {
  std::optional<Bytes> limit;
  if (!arguments.limit.empty()) {
    const auto read = parse_bytes(arguments.limit);
    if (!read) return in_context("--store-limit", read.error());
    limit = *read;
  }
  if (arguments.none) return nullptr;
  std::optional<fs::path> directory = fs::path(arguments.directory);
  if (directory->empty()) directory = usual_store();
  if (!directory) {
    warn(
        "there is no store for packed weights, which stay in memory: neither XDG_CACHE_HOME nor HOME is set; "
        "name one with --store");
    return nullptr;
  }
  const fs::path weights = fs::absolute(*directory) / "weights";
  auto files = engine::WeightFiles::open(
      {.directory = weights, .limit = limit ? *limit : usual_limit(weights), .warn = warn});
  if (files) return files;
  if (!arguments.directory.empty()) return in_context("--store", files.error());
  warn("there is no store for packed weights, which stay in memory: " + files.error().message);
  return nullptr;
}

std::optional<std::string> machine_text() {
  struct stat program {};
  if (::stat("/proc/self/exe", &program) != 0) return std::nullopt;
  std::string out = engine::cpu::choices_header() + "; " + to_text(processor_limits()) + "; processors";
  for (const int processor : allowed_processors()) out += " " + std::to_string(processor);
  return out + "; program of " + std::to_string(program.st_size) + " bytes, " +
         std::to_string(program.st_mtim.tv_sec) + "." + std::to_string(program.st_mtim.tv_nsec);
}

}  // namespace carillon::server
