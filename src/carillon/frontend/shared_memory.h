#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/frontend/descriptor.h"
#include "carillon/frontend/keys.h"
#include "carillon/frontend/parameters.h"

namespace carillon::frontend {

// What a client registered: `byte_size` bytes from `offset` of the shared memory object `key`.
struct RegionInfo {
  std::string name;
  std::string key;
  std::uint64_t offset = 0;
  std::uint64_t byte_size = 0;
  std::string owner = {};  // the name of the key that registered it; empty: there are no keys

  friend bool operator==(const RegionInfo&, const RegionInfo&) = default;
};

// A registered region. It holds the object open, so that requests may go on with it when it is unregistered.
//
// The object is never mapped: its owner may cut it at any time, and whoever touches a mapping behind the end
// dies of SIGBUS. What is read may change while it is read, so it is copied once and checked afterwards. Safe
// from any thread.
class SharedRegion {
 public:
  SharedRegion(RegionInfo info, Descriptor object) : info_(std::move(info)), object_(std::move(object)) {}

  const RegionInfo& info() const { return info_; }

  // Copy between memory and the region at `offset`. Require that the span lies within the region. Error
  // (invalid_argument): the object has become shorter, or the system's reason.
  Result<> read(std::size_t offset, std::span<std::byte> to) const;
  Result<> write(std::size_t offset, std::span<const std::byte> from) const;

 private:
  const RegionInfo info_;
  const Descriptor object_;
};

// A part of a region, within its bounds.
struct SharedPart {
  std::shared_ptr<const SharedRegion> region;
  std::size_t offset = 0;  // within the region
  std::size_t bytes = 0;

  Result<> read(std::span<std::byte> to) const { return region->read(offset, to); }
  Result<> write(std::span<const std::byte> from) const { return region->write(offset, from); }
};

// The regions of POSIX shared memory that clients lend (Triton's system shared memory extension). Whoever can
// reach the server can have it read and write any object of /dev/shm that its user may. Safe from any thread.
class SharedMemory {
 public:
  static constexpr std::size_t longest_name = 256;  // bytes

  // `most`: regions at a time; each holds a descriptor.
  explicit SharedMemory(std::size_t most) : most_(most) {}

  // Opens the object as shm_open() does. Errors: invalid_argument for a name that is empty, long, taken or
  // not UTF-8, a key that is not a plain name in /dev/shm (perhaps with a '/' before it), an object that is
  // no regular file, a region that is empty or ends behind the object; not_found: no such object;
  // resource_exhausted: as many regions as there may be.
  Result<> add(RegionInfo region);
  // Nothing happens where there is no such region. Requests that use it go on with it.
  void remove(std::string_view name);
  void remove_all();

  // name empty: all, in name order. Error (not_found): no such region.
  Result<std::vector<RegionInfo>> status(std::string_view name) const;

  // For the holder of `key` (null: there are no keys). Errors (invalid_argument): no such region, or none
  // that this key may name, which is told alike; or the part is not within it.
  Result<SharedPart> part(std::string_view name, std::uint64_t offset, std::uint64_t bytes,
                          const Key* key = nullptr) const;

 private:
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const SharedRegion>, std::less<>> regions_;
};

// The parameters of a tensor that say where in shared memory it is: shared_memory_region,
// shared_memory_byte_size and shared_memory_offset (0 where it is not given).
class SharedParameters {
 public:
  static bool heeds(std::string_view name);
  // Requires heeds(name). Error (invalid_argument): a value of the wrong kind. A text is referred to.
  Result<> set(std::string_view name, const ParameterValue& value);

  bool given() const { return region_ || bytes_ || offset_; }
  // Requires given(). Errors (invalid_argument): region or byte size are missing, and SharedMemory::part's;
  // no regions at all where `regions` is null.
  Result<SharedPart> find(const SharedMemory* regions, const Key* key = nullptr) const;

 private:
  std::optional<std::string_view> region_;
  std::optional<std::uint64_t> bytes_;
  std::optional<std::uint64_t> offset_;
};

}  // namespace carillon::frontend
