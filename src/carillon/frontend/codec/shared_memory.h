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
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/imported_memory.h"
#include "carillon/frontend/access/keys.h"
#include "carillon/frontend/codec/parameters.h"

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

// The same of memory on a device: `byte_size` bytes from the start of what its handle opens.
struct DeviceRegionInfo {
  std::string name;
  std::int64_t device = 0;  // CUDA's number of it
  std::uint64_t byte_size = 0;
  std::string owner = {};

  friend bool operator==(const DeviceRegionInfo&, const DeviceRegionInfo&) = default;
};

// A registered region, open as long as this lives, so that requests may go on with it when it is
// unregistered. What is read may change while it is read, so it is copied once and checked afterwards. Safe
// from any thread.
class SharedRegion {
 public:
  virtual ~SharedRegion() = default;

  virtual std::uint64_t byte_size() const = 0;
  // Whether a device copies, and whoever asks waits for it: no thread that has others to serve does.
  virtual bool on_device() const = 0;
  // Copy between memory and the region at `offset`. Require that the span lies within the region. Errors:
  // invalid_argument: the object has become shorter, or the system's reason; unavailable: the device's.
  virtual Result<> read(std::size_t offset, std::span<std::byte> to) const = 0;
  virtual Result<> write(std::size_t offset, std::span<const std::byte> from) const = 0;
};

// A part of a region, within its bounds.
struct SharedPart {
  std::shared_ptr<const SharedRegion> region;
  std::size_t offset = 0;  // within the region
  std::size_t bytes = 0;

  Result<> read(std::span<std::byte> to) const { return region->read(offset, to); }
  Result<> write(std::span<const std::byte> from) const { return region->write(offset, from); }
};

// Devices on which regions may lie, by CUDA's numbers of them.
using MemoryImporters = std::map<std::int64_t, std::shared_ptr<engine::MemoryImporter>>;

enum class RegionKind : std::uint8_t { system, device };

// The regions that clients lend: of POSIX shared memory (Triton's system shared memory extension), and of
// devices (its CUDA shared memory extension). A name is one of either kind. Whoever can reach the server can
// have it read and write any object of /dev/shm that its user may, and any memory on a device of which he has
// a handle. Safe from any thread.
//
// System's objects are never mapped: whose an object is may cut it at any time, and whoever touches a mapping
// behind the end dies of SIGBUS.
class SharedMemory {
 public:
  static constexpr std::size_t longest_name = 256;  // bytes

  // `most`: regions at a time; each of the system's holds a descriptor.
  explicit SharedMemory(std::size_t most, MemoryImporters importers = {})
      : most_(most), importers_(std::move(importers)) {}

  // Whether regions may lie on devices.
  bool has_devices() const { return !importers_.empty(); }

  // Opens the object as shm_open() does. Errors: invalid_argument for a name that is empty, long, taken or
  // not UTF-8, a key that is not a plain name in /dev/shm (perhaps with a '/' before it), an object that is
  // no regular file, a region that is empty or ends behind the object; not_found: no such object;
  // resource_exhausted: as many regions as there may be.
  Result<> add(RegionInfo region);
  // Opens the memory that `handle` stands for, which takes its time. Errors: unsupported: there are no
  // devices; invalid_argument for the name, as above, a device that there is not, a handle of another length
  // or of no memory, a region that is empty or larger than the memory; and as above, and MemoryImporter's.
  Result<> add_on_device(DeviceRegionInfo region, std::span<const std::byte> handle);
  // Nothing happens where there is no such region of this kind. Requests that use it go on with it; where
  // there are none, memory on a device is closed when this returns.
  void remove(std::string_view name, RegionKind kind = RegionKind::system);
  void remove_all(RegionKind kind = RegionKind::system);

  // name empty: all of the kind, in name order. Error (not_found): no such region.
  Result<std::vector<RegionInfo>> status(std::string_view name) const;
  Result<std::vector<DeviceRegionInfo>> device_status(std::string_view name) const;

  // For the holder of `key` (null: there are no keys). Errors (invalid_argument): no such region, or none
  // that this key may name, which is told alike; or the part is not within it.
  Result<SharedPart> part(std::string_view name, std::uint64_t offset, std::uint64_t bytes,
                          const Key* key = nullptr) const;

 private:
  struct Entry {
    std::variant<RegionInfo, DeviceRegionInfo> info;
    std::shared_ptr<const SharedRegion> region;

    const std::string& owner() const;
  };

  Result<> insert(std::string name, Entry entry);
  template <typename Info>
  Result<std::vector<Info>> listed(std::string_view name, const char* what) const;

  const std::size_t most_;
  const MemoryImporters importers_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> regions_;
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
