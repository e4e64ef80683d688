#include "carillon/server/store.h"

#include <cstdlib>
#include <system_error>
#include <utility>

#include <pwd.h>
#include <unistd.h>

namespace carillon::server {
namespace {

namespace fs = std::filesystem;

// Of all files below a directory; 0 where there is none.
std::uint64_t size_below(const fs::path& directory) {
  std::uint64_t sum = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    std::error_code gone;
    if (const std::uint64_t size = entry.is_regular_file(gone) ? entry.file_size(gone) : 0; !gone) sum += size;
  }
  return sum;
}

// Half of what there is for it: others want the disk as well.
Bytes usual_limit(const fs::path& directory) {
  fs::path there = directory;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, error);
  return {((error ? 0 : space.available) + size_below(directory)) / 2};
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
    warn("there is no store for packed weights, which stay in memory: neither XDG_CACHE_HOME nor HOME is set; "
         "name one with --store");
    return nullptr;
  }
  auto files = engine::WeightFiles::open({.directory = *directory / "weights",
                                          .limit = limit ? *limit : usual_limit(*directory),
                                          .warn = warn});
  if (files) return files;
  const bool named = !arguments.directory.empty();
  if (named && files.error().code == ErrorCode::invalid_argument) return in_context("--store", files.error());
  warn("there is no store for packed weights, which stay in memory: " + files.error().message);
  return nullptr;
}

}  // namespace carillon::server
