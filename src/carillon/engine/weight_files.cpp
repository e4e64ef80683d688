#include "carillon/engine/weight_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "carillon/base/assert.h"
#include "carillon/base/file_digest.h"

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view suffix = ".weights", note_suffix = ".note";
constexpr std::string_view partial = ".partial";
// A file that is not whole and was not written to for so long is of a process that ended.
constexpr std::chrono::seconds abandoned_after = std::chrono::hours{1};

std::unexpected<Error> failed(const fs::path& path, const std::string& what, int error) {
  return fail(ErrorCode::unavailable,
              path.string() + ": " + what + ": " + std::generic_category().message(error));
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

// With the end of its line.
constexpr std::size_t checksum_length = 33;
std::string checksum_text(std::string_view text) {
  return to_text(digest_of_text(text)) + "\n";
}

std::string name_of(std::uint64_t size, const std::vector<std::uint64_t>& checksums) {
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(checksums.data(), checksums.size() * sizeof checksums[0], size);
  return to_text(FileDigest{hash.high64, hash.low64}) + "-" + std::to_string(size) + std::string(suffix);
}

// An error where somebody else could put files there.
Result<> check_owner(const fs::path& directory, int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return failed(directory, "cannot be looked at", errno);
  if (status.st_uid != ::geteuid())
    return invalid(directory.string() + ": belongs to user " + std::to_string(status.st_uid) +
                   ", and this process is user " + std::to_string(::geteuid()) +
                   "'s: weights are kept only where nobody else can write");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return invalid(directory.string() + ": others than its owner may write there; chmod go-w it");
  return {};
}

// The same of the directory above, in which others could put another in its place.
Result<> check_above(const fs::path& directory) {
  const fs::path above = directory.has_parent_path() ? directory.parent_path() : fs::path(".");
  struct stat status {};
  if (::stat(above.c_str(), &status) != 0) return failed(above, "cannot be looked at", errno);
  const bool safe = (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (status.st_mode & S_ISVTX) != 0;
  return safe ? Result<>()
              : invalid(above.string() + ": others than its owner may write there; chmod go-w it");
}

struct Entry {
  std::string name;
  std::uint64_t size = 0;
  timespec used{};
};

std::chrono::seconds seconds_since(const timespec& time) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::chrono::seconds{now.tv_sec - time.tv_sec};
}

// The regular files of a directory that is open.
std::vector<Entry> entries_of(int directory) {
  std::vector<Entry> out;
  Descriptor again(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const listing = again.open() ? ::fdopendir(again.number()) : nullptr;
  if (listing == nullptr) return out;
  (void)again.release();  // closedir() closes it
  while (const dirent* const entry = ::readdir(listing)) {
    struct stat status {};
    if (::fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
      continue;
    out.push_back({entry->d_name, static_cast<std::uint64_t>(status.st_size), status.st_mtim});
  }
  ::closedir(listing);
  return out;
}

// How many tensors are moved, over all stores: each is a mapping.
std::atomic<std::uint64_t> mappings = 0;
std::uint64_t most_mappings() {
  static const std::uint64_t most = [] {
    std::uint64_t allowed = 65530;
    std::ifstream("/proc/sys/vm/max_map_count") >> allowed;
    return allowed / 4;  // pages for weights need mappings as well
  }();
  return most;
}

}  // namespace

Result<> WeightFile::whole() const {
  if (!damaged_.load(std::memory_order_relaxed)) return {};
  return fail(ErrorCode::unavailable, path_.string() + ": is damaged; load the model again");
}

Result<> WeightFile::read_piece(std::uint64_t index, std::span<std::byte> to) const {
  if (const auto error = read_at(file_.number(), index * piece, to)) {
    if (*error != 0) return failed(path_, "cannot be read", *error);
    damaged_ = true;
    return fail(ErrorCode::unavailable, path_.string() + ": is shorter than it was");
  }
  if (checksum(to) == checksums_[index]) return {};
  damaged_ = true;
  return fail(ErrorCode::unavailable, path_.string() + ": is damaged at byte " +
                                          std::to_string(index * piece) +
                                          ": its checksum is another; load the model again");
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
  CARILLON_ASSERT(!options.directory.empty());
  std::error_code error;
  options.directory = fs::absolute(options.directory, error);
  const fs::path& directory = options.directory;
  fs::path made;
  for (const fs::path& part : directory) {
    made /= part;
    if (part.empty() || ::mkdir(made.c_str(), S_IRWXU) == 0) continue;
    const int why = errno;
    if (fs::is_directory(made, error)) continue;
    if (fs::exists(made, error)) return invalid(made.string() + ": is not a directory");
    return failed(made, "cannot be made", why);
  }
  Descriptor open(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!open.open()) return failed(directory, "cannot be opened", errno);
  if (auto ok = check_owner(directory, open.number()); !ok) return std::unexpected(ok.error());
  if (auto ok = check_above(directory); !ok) return std::unexpected(ok.error());
  if (::faccessat(open.number(), ".", W_OK | X_OK, 0) != 0)
    return failed(directory, "cannot be written", errno);
  // Half of all descriptors are for clients.
  rlimit descriptors{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_max != RLIM_INFINITY;
  const std::size_t most_open = known ? descriptors.rlim_max / 2 : std::size_t{1} << 20;
  for (const Entry& entry : entries_of(open.number()))
    if ((entry.name.ends_with(partial) && seconds_since(entry.used) > abandoned_after) ||
        (entry.name.ends_with(note_suffix) && seconds_since(entry.used) > note_age))
      ::unlinkat(open.number(), entry.name.c_str(), 0);
  return std::shared_ptr<WeightFiles>(new WeightFiles(std::move(options), std::move(open), most_open));
}

std::shared_ptr<const WeightFile> WeightFiles::made(const std::string& name, Descriptor file,
                                                    std::uint64_t size, WeightFile::Checksums checksums) {
  (void)::flock(file.number(), LOCK_SH);
  auto out = std::shared_ptr<const WeightFile>(
      new WeightFile(directory() / name, std::move(file), Bytes{size}, std::move(checksums)));
  open_[name] = out;
  return out;
}

// A file of that name, if it holds these bytes; what is damaged is deleted.
std::shared_ptr<const WeightFile> WeightFiles::find(const std::string& name, std::span<const std::byte> bytes,
                                                    WeightFile::Checksums& checksums) {
  if (const auto known = open_.find(name); known != open_.end())
    if (auto file = known->second.lock(); file != nullptr && file->whole()) {
      struct stat status {};
      if (::fstatat(directory_.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return file;
    }
  Descriptor file(::openat(directory_.number(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open() && errno == ENOENT) return nullptr;
  struct stat status {};
  bool good = file.open() && ::fstat(file.number(), &status) == 0 && S_ISREG(status.st_mode) &&
              status.st_size == static_cast<off_t>(bytes.size());
  std::vector<std::byte> read(std::min<std::size_t>(WeightFile::piece, bytes.size()));
  for (std::size_t i = 0; good && i < checksums.size(); ++i) {
    const std::uint64_t from = i * WeightFile::piece;
    const std::span to = std::span(read).first(std::min<std::size_t>(read.size(), bytes.size() - from));
    good = !read_at(file.number(), from, to) && checksum(to) == checksums[i];
  }
  if (!good) {
    ::unlinkat(directory_.number(), name.c_str(), 0);
    return nullptr;
  }
  (void)::futimens(file.number(), nullptr);  // it was used
  return made(name, std::move(file), bytes.size(), std::move(checksums));
}

// Deletes files that were not used for the longest time, but none that a process has open: as many as it
// takes for `size` more to be below the limit, or all.
Result<> WeightFiles::make_room(std::uint64_t size, bool all) {
  std::vector<Entry> found;
  std::uint64_t sum = nameless_;
  for (Entry& entry : entries_of(directory_.number())) {
    if (!entry.name.ends_with(suffix)) continue;
    sum += entry.size;
    found.push_back(std::move(entry));
  }
  const auto enough = [&] { return sum <= options_.limit.count && size <= options_.limit.count - sum; };
  if (all || !enough()) {
    std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
    std::ranges::sort(found, {}, [](const Entry& each) {
      return std::tuple(each.used.tv_sec, each.used.tv_nsec, each.name);
    });
    for (const Entry& each : found) {
      if (!all && enough()) break;
      if (open_.contains(each.name)) continue;
      const Descriptor file(
          ::openat(directory_.number(), each.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (!file.open() || ::flock(file.number(), LOCK_EX | LOCK_NB) != 0) continue;
      if (::unlinkat(directory_.number(), each.name.c_str(), 0) == 0) sum -= each.size;
    }
  }
  if (enough()) return {};
  return fail(ErrorCode::resource_exhausted, directory().string() + ": " + to_text(Bytes{sum}) +
                                                 " are in use, and " + to_text(Bytes{size}) +
                                                 " more are above the limit of " + to_text(options_.limit));
}

Result<> WeightFiles::enough_descriptors() {
  if (open_.size() < most_open_) return {};
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  if (open_.size() < most_open_) return {};
  return fail(ErrorCode::resource_exhausted,
              directory().string() + ": " + std::to_string(open_.size()) +
                  " files are open, half of what the process may have (ulimit -Hn)");
}

// An empty file with room for `size` bytes; where the disk has none, files that nobody has open go.
Result<WeightFiles::Fresh> WeightFiles::make_file(std::uint64_t size, bool nameless, bool others_go) {
  Fresh fresh;
  if (nameless)
    fresh.file =
        Descriptor(::openat(directory_.number(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fresh.file.open()) {
    // Some file systems make none without a name. Names of other processes, and of one that ended, differ.
    std::array<char, 32> random{};
    for (int tries = 0; !fresh.file.open() && tries < 100; ++tries) {
      std::uint64_t number = 0;
      if (::getentropy(&number, sizeof number) != 0) break;
      std::snprintf(random.data(), random.size(), "%016llx", static_cast<unsigned long long>(number));
      fresh.name = random.data() + std::string(partial);
      fresh.file =
          Descriptor(::openat(directory_.number(), fresh.name.c_str(),
                              O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
      if (!fresh.file.open() && errno != EEXIST) break;
    }
    if (!fresh.file.open()) return failed(directory(), "no file can be made there", errno);
    if (nameless) ::unlinkat(directory_.number(), std::exchange(fresh.name, {}).c_str(), 0);
  }
  for (const bool again : {false, true}) {
    if (::fallocate(fresh.file.number(), 0, 0, static_cast<off_t>(size)) == 0 || errno == EOPNOTSUPP ||
        errno == ENOSYS)
      return fresh;
    const int why = errno;
    if (others_go && !again && (why == ENOSPC || why == EDQUOT)) {
      (void)make_room(size, true);
      continue;
    }
    if (!fresh.name.empty()) ::unlinkat(directory_.number(), fresh.name.c_str(), 0);
    return failed(directory(), to_text(Bytes{size}) + " cannot be had there", why);
  }
  CARILLON_ASSERT(false);
}

Result<Descriptor> WeightFiles::write(const std::string& name, std::span<const std::byte> bytes,
                                      bool others_go) {
  auto fresh = make_file(bytes.size(), false, others_go);
  if (!fresh) return std::unexpected(fresh.error());
  int error = 0;
  for (std::span<const std::byte> left = bytes; error == 0 && !left.empty();) {
    const ssize_t put = ::write(fresh->file.number(), left.data(), left.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      error = put < 0 ? errno : EIO;
    else
      left = left.subspan(static_cast<std::size_t>(put));
  }
  if (error == 0 &&
      ::renameat(directory_.number(), fresh->name.c_str(), directory_.number(), name.c_str()) != 0)
    error = errno;
  if (error != 0) {
    ::unlinkat(directory_.number(), fresh->name.c_str(), 0);
    return failed(directory() / name, "cannot be written", error);
  }
  return std::move(fresh->file);
}

Result<std::shared_ptr<const WeightFile>> WeightFiles::keep(std::span<const std::byte> bytes) {
  WeightFile::Checksums checksums(pieces_of(bytes.size()));
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    const std::uint64_t from = i * WeightFile::piece;
    checksums[i] =
        checksum(bytes.subspan(from, std::min<std::size_t>(WeightFile::piece, bytes.size() - from)));
  }
  const std::string name = name_of(bytes.size(), checksums);
  const std::lock_guard lock(mutex_);
  if (auto enough = enough_descriptors(); !enough) return std::unexpected(enough.error());
  if (auto known = find(name, bytes, checksums)) return known;
  if (auto room = make_room(bytes.size()); !room) return std::unexpected(room.error());
  auto file = write(name, bytes);
  if (!file) return std::unexpected(file.error());
  return made(name, *std::move(file), bytes.size(), std::move(checksums));
}

// Its checksum stands in front of it, as text.
void WeightFiles::put_note(const std::string& name, std::string_view text) {
  if (text.size() > longest_note) return;
  const std::string whole = checksum_text(text) + std::string(text);
  const std::lock_guard lock(mutex_);
  (void)write(name + std::string(note_suffix), std::as_bytes(std::span(whole)), false);
}

std::optional<std::string> WeightFiles::note(const std::string& name) {
  const Descriptor file(::openat(directory_.number(), (name + std::string(note_suffix)).c_str(),
                                 O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.open() || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (seconds_since(status.st_mtim) > note_age) return std::nullopt;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < checksum_length || size > checksum_length + longest_note) return std::nullopt;
  std::string whole(size, '\0');
  if (read_at(file.number(), 0, std::as_writable_bytes(std::span(whole)))) return std::nullopt;
  std::string text = whole.substr(checksum_length);
  if (whole.substr(0, checksum_length) != checksum_text(text)) return std::nullopt;
  return text;
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

std::unique_ptr<const MovedTensors> WeightFiles::move(std::vector<graph::SharedTensor> tensors) {
  std::erase_if(tensors,
                [](const graph::SharedTensor& tensor) { return tensor->pages() < smallest_moved.count; });
  std::ranges::sort(tensors);
  const auto same = std::ranges::unique(tensors);
  tensors.erase(same.begin(), same.end());
  std::uint64_t size = 0, counted = 0;
  for (const graph::SharedTensor& tensor : tensors) size += tensor->pages();
  if (size == 0) return nullptr;
  const std::uint64_t count = tensors.size();
  const auto moved = [&]() -> Result<> {
    Result<Fresh> fresh = Fresh();
    {
      const std::lock_guard lock(mutex_);
      if (mappings + count > most_mappings())
        return fail(ErrorCode::resource_exhausted,
                    "a quarter of vm.max_map_count is in use by constants; make it larger");
      if (auto room = make_room(size); !room) return room;
      fresh = make_file(size, true);
      if (!fresh) return std::unexpected(fresh.error());
      nameless_ += counted = size;
      mappings += count;
    }
    // All of it is written before any of it is mapped: a mapping has no way to tell of an error.
    std::uint64_t offset = 0;
    for (const graph::SharedTensor& tensor : tensors) {
      if (auto ok = tensor->write_to(fresh->file.number(), offset); !ok)
        return in_context(directory().string() + ": constants cannot be written", ok.error());
      offset += tensor->pages();
    }
    if (::fdatasync(fresh->file.number()) != 0)
      return failed(directory(), "constants cannot be written", errno);
    offset = 0;
    for (const graph::SharedTensor& tensor : tensors) {
      if (auto ok = tensor->move_to(fresh->file.number(), offset); !ok)
        return in_context(directory().string() + ": constants cannot be mapped", ok.error());
      offset += tensor->pages();
    }
    return {};
  }();
  tell(moved ? nullptr : &moved.error());
  // What was moved before the failure goes with its tensors.
  auto out =
      std::unique_ptr<const MovedTensors>(new MovedTensors(shared_from_this(), std::move(tensors), counted));
  return moved ? std::move(out) : nullptr;
}

MovedTensors::~MovedTensors() {
  const std::lock_guard lock(store_->mutex_);
  store_->nameless_ -= size_;
  if (size_ > 0) mappings -= tensors_.size();
}

void MovedTensors::let_go() const {
  for (const graph::SharedTensor& tensor : tensors_) tensor->let_go();
}

}  // namespace carillon::engine
