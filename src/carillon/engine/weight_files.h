#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine {

class WeightFiles;

// The packed weights of one model, in a file that is open: it can be read even after somebody deleted it.
// From any thread.
class WeightFile {
 public:
  // What is read is checked piece by piece, by a checksum each.
  static constexpr std::uint64_t piece = 1 << 20;

  Bytes size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Reads bytes [offset, offset + to.size()); needs offset + to.size() <= size(). Whole pieces are read to
  // where they go, others by way of a piece of memory. Error (unavailable): the file cannot be read, is
  // shorter than it was, or holds other bytes than it did; the message names it.
  Result<> read(std::uint64_t offset, std::span<std::byte> to) const;
  // The error of a read that found the file damaged: no later one can succeed.
  Result<> whole() const;

 private:
  friend class WeightFiles;
  using Checksums = std::vector<std::uint64_t>;
  WeightFile(std::filesystem::path path, Descriptor file, Bytes size, Checksums checksums)
      : path_(std::move(path)), file_(std::move(file)), size_(size), checksums_(std::move(checksums)) {}
  Result<> read_piece(std::uint64_t index, std::span<std::byte> to) const;

  std::filesystem::path path_;
  Descriptor file_;  // with a shared lock: who makes room leaves the file
  Bytes size_;
  Checksums checksums_;  // XXH3, of each piece
  mutable std::atomic<bool> damaged_ = false;
};

// Large constants of one model that are seldom read. They lie in a file without a name, and not in memory.
// Their bytes count for the store's limit as long as this object lives. The file goes with the last tensor in
// it.
class MovedTensors {
 public:
  ~MovedTensors();
  MovedTensors(const MovedTensors&) = delete;
  MovedTensors& operator=(const MovedTensors&) = delete;
  // Gives back the memory of tensors that were read. From any thread, also while others read.
  void let_go() const;

 private:
  friend class WeightFiles;
  MovedTensors(std::shared_ptr<WeightFiles> store, std::vector<graph::SharedTensor> tensors,
               std::uint64_t size)
      : store_(std::move(store)), tensors_(std::move(tensors)), size_(size) {}

  std::shared_ptr<WeightFiles> store_;
  std::vector<graph::SharedTensor> tensors_;
  std::uint64_t size_;
};

// A directory of packed weights, so that a host's memory need not hold what a device's has already. Files
// with weights are named by what is in them: models with the same weights share one, and so do servers that
// share the directory, one after the other or at once. Any file may be deleted at any time. The directory
// lies on a local disk: moved constants are mapped, and a mapping has no way to tell of an error. From any
// thread.
class WeightFiles : public std::enable_shared_from_this<WeightFiles> {
 public:
  // Fewer bytes than these are not worth a descriptor and a system call at each LOAD.
  static constexpr Bytes smallest = kib(64);
  // Smaller tensors stay in memory: each that is moved is a mapping, of which a process has some 65,000.
  static constexpr Bytes smallest_moved = kib(256);

  struct Options {
    std::filesystem::path directory;
    Bytes limit;  // of all files; those that were not used for the longest time go first
    // Hears when weights cannot be kept, and why: once, until some could be again. From any thread.
    std::function<void(const std::string&)> warn{};
  };
  // Makes the directory, for its owner alone, where there is none. Errors: it is no directory, or somebody
  // else than the process's user may write there or in the directory above (invalid_argument); it cannot be
  // made or written (unavailable).
  static Result<std::shared_ptr<WeightFiles>> open(Options options);

  // The bytes in a file. A file that is there already is used if it holds them all. Else a new one is
  // written, which appears whole or not at all. Error: there is no room on the disk or below the limit, or no
  // more descriptors.
  Result<std::shared_ptr<const WeightFile>> keep(std::span<const std::byte> bytes);
  // The same where that is worth it and succeeds; else nullptr, and warn() has heard why.
  std::shared_ptr<const WeightFile> try_keep(std::span<const std::byte> bytes);
  // Moves those of `tensors` that are large out of memory; one that comes twice counts once. nullptr where
  // there are none, or they cannot be moved, and warn() has heard why.
  std::unique_ptr<const MovedTensors> move(std::vector<graph::SharedTensor> tensors);

  // A short text beside the weights, under a name of hexadecimal digits. It takes the place of the one that
  // had the name. Where there is no room for it without others it is left out: a note saves work, and nobody
  // depends on it.
  static constexpr std::size_t longest_note = 1 << 20;  // longer ones are left out
  // Older ones are none, and go when a store is opened: what they say may have been true for a moment alone.
  static constexpr std::chrono::seconds note_age = std::chrono::days{7};
  void put_note(const std::string& name, std::string_view text);
  // Nothing where there is none, or its checksum is another.
  std::optional<std::string> note(const std::string& name);

  const std::filesystem::path& directory() const { return options_.directory; }
  Bytes limit() const { return options_.limit; }

 private:
  friend class MovedTensors;
  WeightFiles(Options options, Descriptor directory, std::size_t most_open)
      : options_(std::move(options)), directory_(std::move(directory)), most_open_(most_open) {}
  std::shared_ptr<const WeightFile> find(const std::string& name, std::span<const std::byte> bytes,
                                         WeightFile::Checksums& checksums);
  Result<> make_room(std::uint64_t size, bool all = false);
  Result<> enough_descriptors();
  struct Fresh {
    Descriptor file;
    std::string name;  // empty: it has none
  };
  Result<Fresh> make_file(std::uint64_t size, bool nameless, bool others_go = true);
  // A file of that name with these bytes, whole or not at all.
  Result<Descriptor> write(const std::string& name, std::span<const std::byte> bytes, bool others_go = true);
  std::shared_ptr<const WeightFile> made(const std::string& name, Descriptor file, std::uint64_t size,
                                         WeightFile::Checksums checksums);
  void tell(const Error* error);

  Options options_;
  Descriptor directory_;
  std::size_t most_open_;
  std::mutex mutex_;  // of what follows, and held while files are made and deleted
  std::map<std::string, std::weak_ptr<const WeightFile>> open_;  // by name
  std::uint64_t nameless_ = 0;                                   // bytes of files without a name
  bool warned_ = false;
};

}  // namespace carillon::engine
