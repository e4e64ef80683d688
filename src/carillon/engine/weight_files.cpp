#include "carillon/engine/weight_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "carillon/base/assert.h"

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view suffix = ".weights";
constexpr std::string_view partial = ".partial";
// A file that is not whole and was not written to for so long is of a process that ended.
constexpr auto abandoned_after = std::chrono::hours{1};

std::unexpected<Error> failed(const fs::path& path, const std::string& what, int error) {
  return fail(ErrorCode::unavailable, path.string() + ": " + what + ": " + std::generic_category().message(error));
}

std::uint64_t pieces_of(std::uint64_t size) {
  return (size + WeightFile::piece - 1) / WeightFile::piece;
}

// Reads all of `to`, or says 0 (the file ends before) or the error.
std::optional<int> read_at(int file, std::uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return std::nullopt;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string name_of(std::uint64_t size, const std::vector<std::uint64_t>& checksums) {
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(checksums.data(), checksums.size() * sizeof checksums[0], size);
  std::array<char, 33> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return digits.data() + ("-" + std::to_string(size)) + std::string(suffix);
}

// An error where somebody else could put weights into the directory.
Result<> check_directory(const fs::path& directory) {
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) return failed(directory, "cannot be looked at", errno);
  if (!S_ISDIR(status.st_mode)) return invalid(directory.string() + ": is not a directory");
  if (status.st_uid != ::geteuid())
    return invalid(directory.string() + ": belongs to user " + std::to_string(status.st_uid) +
                   ", and this process is user " + std::to_string(::geteuid()) +
                   "'s: weights are kept only where nobody else can write");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return invalid(directory.string() + ": others than its owner may write there; chmod go-w it");
  return {};
}

}  // namespace

Result<> WeightFile::read_piece(std::uint64_t index, std::span<std::byte> to) const {
  if (const auto error = read_at(file_.number(), index * piece, to)) {
    if (*error != 0) return failed(path_, "cannot be read", *error);
    return fail(ErrorCode::unavailable, path_.string() + ": is shorter than it was");
  }
  if (checksum(to) != checksums_[index])
    return fail(ErrorCode::unavailable,
                path_.string() + ": is damaged at byte " + std::to_string(index * piece) +
                    ": its checksum is another; delete it and load the model again");
  return {};
}

Result<> WeightFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  CARILLON_ASSERT(offset <= size_.count && to.size() <= size_.count - offset);
  std::vector<std::byte> whole;
  while (!to.empty()) {
    const std::uint64_t index = offset / piece, from = offset % piece;
    const std::uint64_t length = std::min(piece, size_.count - index * piece);
    const std::uint64_t wanted = std::min<std::uint64_t>(length - from, to.size());
    if (wanted == length) {
      if (auto read = read_piece(index, to.first(length)); !read) return read;
    } else {
      whole.resize(length);
      if (auto read = read_piece(index, whole); !read) return read;
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(from), wanted, to.begin());
    }
    offset += wanted;
    to = to.subspan(wanted);
  }
  return {};
}

Result<std::shared_ptr<WeightFiles>> WeightFiles::open(Options options) {
  const fs::path& directory = options.directory;
  CARILLON_ASSERT(!directory.empty());
  std::error_code error;
  if (!fs::exists(directory, error)) {
    fs::path made;
    for (const fs::path& part : directory) {
      made /= part;
      if (::mkdir(made.c_str(), S_IRWXU) == 0 || fs::is_directory(made, error)) continue;
      const int why = errno;
      if (fs::exists(made, error)) return invalid(made.string() + ": is not a directory");
      return failed(made, "cannot be made", why);
    }
  }
  if (auto ok = check_directory(directory); !ok) return std::unexpected(ok.error());
  if (::access(directory.c_str(), W_OK | X_OK) != 0) return failed(directory, "cannot be written", errno);
  auto files = std::shared_ptr<WeightFiles>(new WeightFiles(std::move(options)));
  for (const fs::directory_entry& entry : fs::directory_iterator(files->directory(), error)) {
    if (!entry.path().filename().string().ends_with(partial)) continue;
    const auto written = entry.last_write_time(error);
    if (!error && fs::file_time_type::clock::now() - written > abandoned_after) fs::remove(entry.path(), error);
  }
  return files;
}

std::shared_ptr<const WeightFile> WeightFiles::made(const std::string& name, Descriptor file, std::uint64_t size,
                                                    WeightFile::Checksums checksums) {
  auto out = std::shared_ptr<const WeightFile>(
      new WeightFile(directory() / name, std::move(file), Bytes{size}, std::move(checksums)));
  open_[name] = out;
  return out;
}

// A file of that name, if it holds these bytes; what is damaged is deleted.
std::shared_ptr<const WeightFile> WeightFiles::find(const std::string& name, std::span<const std::byte> bytes,
                                                    WeightFile::Checksums& checksums) {
  if (const auto known = open_.find(name); known != open_.end())
    if (auto file = known->second.lock()) {
      struct stat status{};
      if (::stat(file->path().c_str(), &status) == 0) return file;
    }
  const fs::path path = directory() / name;
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open()) return nullptr;
  struct stat status{};
  bool good = ::fstat(file.number(), &status) == 0 && S_ISREG(status.st_mode) &&
              status.st_size == static_cast<off_t>(bytes.size());
  std::vector<std::byte> read(std::min<std::size_t>(WeightFile::piece, bytes.size()));
  for (std::size_t i = 0; good && i < checksums.size(); ++i) {
    const std::uint64_t from = i * WeightFile::piece;
    const std::span to = std::span(read).first(std::min<std::size_t>(read.size(), bytes.size() - from));
    good = !read_at(file.number(), from, to) && checksum(to) == checksums[i];
  }
  if (!good) {
    ::unlink(path.c_str());
    return nullptr;
  }
  (void)::futimens(file.number(), nullptr);  // it was used
  return made(name, std::move(file), bytes.size(), std::move(checksums));
}

// Deletes files that were not used for the longest time, but none that this process has open.
Result<> WeightFiles::make_room(std::uint64_t size) {
  struct Found {
    fs::file_time_type used;
    std::string name;
    std::uint64_t size = 0;
  };
  std::vector<Found> found;
  std::uint64_t sum = nameless_;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory(), error)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(suffix)) continue;
    std::error_code gone;
    const std::uint64_t bytes = entry.file_size(gone);
    const auto used = entry.last_write_time(gone);
    if (gone) continue;
    sum += bytes;
    const auto known = open_.find(name);
    if (known == open_.end() || known->second.expired()) found.push_back({used, name, bytes});
  }
  std::ranges::sort(found, {}, [](const Found& each) { return std::pair(each.used, each.name); });
  for (const Found& each : found) {
    if (sum + size <= options_.limit.count) break;
    if (fs::remove(directory() / each.name, error)) sum -= each.size;
    open_.erase(each.name);
  }
  if (sum + size <= options_.limit.count) return {};
  return fail(ErrorCode::resource_exhausted,
              directory().string() + ": " + to_text(Bytes{sum}) + " are in use, and " + to_text(Bytes{size}) +
                  " more are above the limit of " + to_text(options_.limit));
}

Result<std::shared_ptr<const WeightFile>> WeightFiles::write(const std::string& name,
                                                             std::span<const std::byte> bytes,
                                                             WeightFile::Checksums checksums) {
  const fs::path path = directory() / name;
  fs::path beside = path;
  beside += "." + std::to_string(::getpid()) + "." + std::to_string(written_++) + std::string(partial);
  Descriptor file(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file.open()) return failed(beside, "cannot be made", errno);
  int error = 0;
  for (std::span<const std::byte> left = bytes; error == 0 && !left.empty();) {
    const ssize_t put = ::write(file.number(), left.data(), left.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      error = put < 0 ? errno : EIO;
    else
      left = left.subspan(static_cast<std::size_t>(put));
  }
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(beside.c_str());
    return failed(path, "cannot be written", error);
  }
  return made(name, std::move(file), bytes.size(), std::move(checksums));
}

Result<std::shared_ptr<const WeightFile>> WeightFiles::keep(std::span<const std::byte> bytes) {
  WeightFile::Checksums checksums(pieces_of(bytes.size()));
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    const std::uint64_t from = i * WeightFile::piece;
    checksums[i] = checksum(bytes.subspan(from, std::min<std::size_t>(WeightFile::piece, bytes.size() - from)));
  }
  const std::string name = name_of(bytes.size(), checksums);
  const std::lock_guard lock(mutex_);
  if (auto known = find(name, bytes, checksums)) return known;
  if (auto room = make_room(bytes.size()); !room) return std::unexpected(room.error());
  return write(name, bytes, std::move(checksums));
}

std::shared_ptr<const WeightFile> WeightFiles::try_keep(std::span<const std::byte> bytes) {
  if (bytes.size() < smallest.count) return nullptr;
  auto kept = keep(bytes);
  tell(kept ? nullptr : &kept.error());
  return kept ? *kept : nullptr;
}

// What became of the last try; nullptr: it succeeded.
void WeightFiles::tell(const Error* error) {
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    known = std::exchange(warned_, error != nullptr);
  }
  if (error != nullptr && !known && options_.warn)
    options_.warn("weights stay in memory, as the store does not take them: " + error->message);
}

Result<Descriptor> WeightFiles::make_nameless() {
  Descriptor file(::open(directory().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.open()) return file;
  // Some file systems make none without a name.
  fs::path path = directory() / ("constants." + std::to_string(::getpid()) + "." + std::to_string(written_++));
  path += partial;
  file = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file.open()) return failed(path, "cannot be made", errno);
  ::unlink(path.c_str());
  return file;
}

std::unique_ptr<const MovedTensors> WeightFiles::move(std::vector<graph::SharedTensor> tensors) {
  std::erase_if(tensors, [](const graph::SharedTensor& tensor) { return tensor->pages() == 0; });
  std::ranges::sort(tensors);
  const auto same = std::ranges::unique(tensors);
  tensors.erase(same.begin(), same.end());
  std::uint64_t size = 0;
  for (const graph::SharedTensor& tensor : tensors) size += tensor->pages();
  if (size == 0) return nullptr;
  std::uint64_t counted = 0;
  const auto moved = [&]() -> Result<> {
    Result<Descriptor> file = Descriptor();
    {
      const std::lock_guard lock(mutex_);
      if (auto room = make_room(size); !room) return room;
      file = make_nameless();
      if (!file) return std::unexpected(file.error());
      nameless_ += size;
      counted = size;
    }
    std::uint64_t offset = 0;
    for (const graph::SharedTensor& tensor : tensors) {
      if (auto ok = tensor->move_to(file->number(), offset); !ok)
        return in_context(directory().string() + ": constants cannot be written", ok.error());
      offset += tensor->pages();
    }
    return {};
  }();
  tell(moved ? nullptr : &moved.error());
  // What was moved before the failure goes with its tensors.
  auto out = std::unique_ptr<const MovedTensors>(new MovedTensors(shared_from_this(), std::move(tensors), counted));
  return moved ? std::move(out) : nullptr;
}

MovedTensors::~MovedTensors() {
  const std::lock_guard lock(store_->mutex_);
  store_->nameless_ -= size_;
}

void MovedTensors::let_go() const {
  for (const graph::SharedTensor& tensor : tensors_) tensor->let_go();
}

}  // namespace carillon::engine
