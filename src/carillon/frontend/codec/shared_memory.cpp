#include "carillon/frontend/codec/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/net/descriptor.h"

namespace carillon::frontend {
namespace {

// A name from outside may be any length.
std::string cut_name(std::string_view name) {
  constexpr std::size_t longest = 128;
  return "'" + std::string(name.substr(0, longest)) + (name.size() > longest ? "...'" : "'");
}

std::string system_reason(int error) {
  return std::generic_category().message(error);
}

std::string region_text(const RegionInfo& info) {
  return "shared memory region " + cut_name(info.name) + " (key " + cut_name(info.key) + ")";
}

Result<> check_key(std::string_view key) {
  constexpr std::size_t longest = 255;  // of a file's name
  std::string_view plain = key;
  if (plain.starts_with('/')) plain.remove_prefix(1);
  if (plain.empty() || plain.size() > longest || plain == "." || plain == ".." ||
      plain.find('/') != std::string_view::npos || plain.find('\0') != std::string_view::npos)
    return invalid(
        "shared memory key " + cut_name(key) +
        " is not a name in /dev/shm; it must be 1 to 255 bytes without '/' but for one that it may "
        "begin with");
  return {};
}

Result<> check_region(const RegionInfo& region, const Descriptor& object) {
  struct stat status {};
  if (fstat(object.number(), &status) != 0)
    return invalid(region_text(region) + " cannot be looked at: " + system_reason(errno));
  if (!S_ISREG(status.st_mode)) return invalid(region_text(region) + " is no shared memory but another file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (region.byte_size == 0 || region.offset > size || region.byte_size > size - region.offset)
    return invalid(region_text(region) + " has offset " + std::to_string(region.offset) + " and byte size " +
                   std::to_string(region.byte_size) + "; the object has " + std::to_string(size) +
                   " bytes, and a region at least one of them");
  return {};
}

// An object in /dev/shm.
class SystemRegion final : public SharedRegion {
 public:
  SystemRegion(RegionInfo info, Descriptor object) : info_(std::move(info)), object_(std::move(object)) {}

  std::uint64_t byte_size() const override { return info_.byte_size; }
  bool on_device() const override { return false; }
  Result<> read(std::size_t offset, std::span<std::byte> to) const override;
  Result<> write(std::size_t offset, std::span<const std::byte> from) const override;

 private:
  const RegionInfo info_;
  const Descriptor object_;
};

std::string device_region_text(const DeviceRegionInfo& info) {
  return "shared memory region " + cut_name(info.name) + " on CUDA device " + std::to_string(info.device);
}

class DeviceRegion final : public SharedRegion {
 public:
  DeviceRegion(DeviceRegionInfo info, std::unique_ptr<const engine::ImportedMemory> memory)
      : info_(std::move(info)), memory_(std::move(memory)) {}

  std::uint64_t byte_size() const override { return info_.byte_size; }
  bool on_device() const override { return true; }
  Result<> read(std::size_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset <= info_.byte_size && to.size() <= info_.byte_size - offset);
    return told(memory_->read(offset, to));
  }
  Result<> write(std::size_t offset, std::span<const std::byte> from) const override {
    CARILLON_ASSERT(offset <= info_.byte_size && from.size() <= info_.byte_size - offset);
    return told(memory_->write(offset, from));
  }

 private:
  Result<> told(Result<> copied) const {
    if (copied) return copied;
    return in_context(device_region_text(info_), copied.error());
  }

  const DeviceRegionInfo info_;
  const std::unique_ptr<const engine::ImportedMemory> memory_;
};

Result<> check_name(std::string_view name) {
  if (name.empty() || name.size() > SharedMemory::longest_name)
    return invalid("the name of a shared memory region has " + std::to_string(name.size()) +
                   " bytes; it must have 1 to " + std::to_string(SharedMemory::longest_name));
  // The protocol's texts are UTF-8, and clients fail on a status in which one is not.
  if (!simdjson::validate_utf8(name.data(), name.size()))
    return invalid("the name of a shared memory region must be UTF-8");
  return {};
}

// "0", "0 and 2", "0, 1 and 2"
std::string numbers_of(const MemoryImporters& importers) {
  std::string text;
  std::size_t left = importers.size();
  for (const auto& [device, importer] : importers) {
    text += (text.empty() ? "" : left == 1 ? " and " : ", ") + std::to_string(device);
    --left;
  }
  return text;
}

}  // namespace

Result<> SystemRegion::read(std::size_t offset, std::span<std::byte> to) const {
  CARILLON_ASSERT(offset <= info_.byte_size && to.size() <= info_.byte_size - offset);
  auto at = static_cast<off_t>(info_.offset + offset);
  while (!to.empty()) {
    const ssize_t n = pread(object_.number(), to.data(), to.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid(region_text(info_) + " cannot be read: " + system_reason(errno));
    if (n == 0)
      return invalid(region_text(info_) + " has become shorter since it was registered: it ends at byte " +
                     std::to_string(at) + " of its object");
    to = to.subspan(static_cast<std::size_t>(n));
    at += n;
  }
  return {};
}

Result<> SystemRegion::write(std::size_t offset, std::span<const std::byte> from) const {
  CARILLON_ASSERT(offset <= info_.byte_size && from.size() <= info_.byte_size - offset);
  // Writing behind the end would make the object longer again, which its owner did not ask for.
  struct stat status {};
  const std::uint64_t end = info_.offset + offset + from.size();
  if (fstat(object_.number(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < end)
    return invalid(region_text(info_) + " has become shorter since it was registered: it has " +
                   std::to_string(status.st_size) + " bytes of the " + std::to_string(end) + " needed");
  auto at = static_cast<off_t>(info_.offset + offset);
  while (!from.empty()) {
    const ssize_t n = pwrite(object_.number(), from.data(), from.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return invalid(region_text(info_) + " cannot be written: " + system_reason(n < 0 ? errno : ENOSPC));
    from = from.subspan(static_cast<std::size_t>(n));
    at += n;
  }
  return {};
}

const std::string& SharedMemory::Entry::owner() const {
  return std::visit([](const auto& of) -> const std::string& { return of.owner; }, info);
}

Result<> SharedMemory::insert(std::string name, Entry entry) {
  const std::lock_guard lock(mutex_);
  if (regions_.contains(name))
    return invalid("shared memory region " + cut_name(name) +
                   " is registered already; unregister it first, or take another name");
  if (regions_.size() >= most_)
    return fail(ErrorCode::resource_exhausted, "there are " + std::to_string(regions_.size()) +
                                                   " shared memory regions, as many as there may be");
  regions_.emplace(std::move(name), std::move(entry));
  return {};
}

Result<> SharedMemory::add(RegionInfo region) {
  if (auto good = check_name(region.name); !good) return good;
  if (!simdjson::validate_utf8(region.key)) return invalid("the key of a shared memory region must be UTF-8");
  if (auto good = check_key(region.key); !good) return good;
  // Without O_NONBLOCK the opening of a pipe would wait for who knows how long. It follows no symbolic link.
  Descriptor object(shm_open(region.key.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK, 0));
  if (!object.open()) {
    const int error = errno;
    return fail(error == ENOENT ? ErrorCode::not_found : ErrorCode::invalid_argument,
                region_text(region) + " cannot be opened in /dev/shm: " + system_reason(error));
  }
  if (auto good = check_region(region, object); !good) return good;
  std::string name = region.name;
  RegionInfo info = region;
  return insert(std::move(name),
                {.info = std::move(info),
                 .region = std::make_shared<const SystemRegion>(std::move(region), std::move(object))});
}

Result<> SharedMemory::add_on_device(DeviceRegionInfo region, std::span<const std::byte> handle) {
  if (importers_.empty())
    return fail(ErrorCode::unsupported,
                "this server has no CUDA shared memory: it serves from no CUDA device; use system shared "
                "memory");
  if (auto good = check_name(region.name); !good) return good;
  const std::string what = device_region_text(region);
  engine::MemoryHandle raw{};
  if (handle.size() != raw.size())
    return invalid(what + " has a raw_handle of " + std::to_string(handle.size()) +
                   " bytes; a cudaIpcMemHandle_t has " + std::to_string(raw.size()));
  if (region.byte_size == 0) return invalid(what + " has byte size 0; a region has at least one byte");
  const auto importer = importers_.find(region.device);
  if (importer == importers_.end())
    return invalid(what + ": device_id " + std::to_string(region.device) +
                   " is no CUDA device of this server; it has " + numbers_of(importers_));
  std::ranges::copy(handle, raw.begin());
  auto memory = importer->second->open(raw);
  if (!memory) return in_context(what, memory.error());
  if (region.byte_size > (*memory)->bytes())
    return invalid(what + " has byte size " + std::to_string(region.byte_size) +
                   "; the memory that its handle opens has " + std::to_string((*memory)->bytes()) + " bytes");
  std::string name = region.name;
  DeviceRegionInfo info = region;
  return insert(std::move(name),
                {.info = std::move(info),
                 .region = std::make_shared<const DeviceRegion>(std::move(region), std::move(*memory))});
}

void SharedMemory::remove(std::string_view name, RegionKind kind) {
  Entry last;  // closed behind the lock
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(name);
  if (it == regions_.end() || it->second.region->on_device() != (kind == RegionKind::device)) return;
  last = std::move(it->second);
  regions_.erase(it);
}

void SharedMemory::remove_all(RegionKind kind) {
  std::vector<Entry> all;
  const std::lock_guard lock(mutex_);
  for (auto it = regions_.begin(); it != regions_.end();) {
    if (it->second.region->on_device() != (kind == RegionKind::device)) {
      ++it;
      continue;
    }
    all.push_back(std::move(it->second));
    it = regions_.erase(it);
  }
}

template <typename Info>
Result<std::vector<Info>> SharedMemory::listed(std::string_view name, const char* what) const {
  std::vector<Info> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [each, entry] : regions_)
    if (const auto* const info = std::get_if<Info>(&entry.info);
        info != nullptr && (name.empty() || each == name))
      found.push_back(*info);
  if (found.empty() && !name.empty())
    return fail(ErrorCode::not_found, std::string("no ") + what + " " + cut_name(name) + " is registered");
  return found;
}

Result<std::vector<RegionInfo>> SharedMemory::status(std::string_view name) const {
  return listed<RegionInfo>(name, "shared memory region");
}

Result<std::vector<DeviceRegionInfo>> SharedMemory::device_status(std::string_view name) const {
  return listed<DeviceRegionInfo>(name, "CUDA shared memory region");
}

Result<SharedPart> SharedMemory::part(std::string_view name, std::uint64_t offset, std::uint64_t bytes,
                                      const Key* key) const {
  std::shared_ptr<const SharedRegion> region;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = regions_.find(name);
        it != regions_.end() && (key == nullptr || key->may_name(name, it->second.owner())))
      region = it->second.region;
  }
  if (!region)
    return invalid("no shared memory region " + cut_name(name) + " is registered" +
                   (key != nullptr ? " that key '" + key->name + "' may name" : std::string()));
  const std::uint64_t size = region->byte_size();
  if (offset > size || bytes > size - offset)
    return invalid("shared_memory_offset " + std::to_string(offset) + " and shared_memory_byte_size " +
                   std::to_string(bytes) + " lead out of shared memory region " + cut_name(name) + " of " +
                   std::to_string(size) + " bytes");
  return SharedPart{.region = std::move(region),
                    .offset = static_cast<std::size_t>(offset),
                    .bytes = static_cast<std::size_t>(bytes)};
}

bool SharedParameters::heeds(std::string_view name) {
  return name == "shared_memory_region" || name == "shared_memory_byte_size" ||
         name == "shared_memory_offset";
}

Result<> SharedParameters::set(std::string_view name, const ParameterValue& value) {
  CARILLON_ASSERT(heeds(name));
  if (name == "shared_memory_region") {
    const auto* text = std::get_if<std::string_view>(&value);
    if (text == nullptr)
      return invalid("parameter 'shared_memory_region' must be text: the name of a registered region");
    region_ = *text;
    return {};
  }
  const auto count = as_count(name, value);
  if (!count) return std::unexpected(count.error());
  (name == "shared_memory_offset" ? offset_ : bytes_) = *count;
  return {};
}

Result<SharedPart> SharedParameters::find(const SharedMemory* regions, const Key* key) const {
  if (!region_)
    return invalid(
        "shared_memory_byte_size or shared_memory_offset is given without shared_memory_region, which says "
        "where");
  if (!bytes_)
    return invalid("shared_memory_region is given without shared_memory_byte_size, which says how much");
  if (regions == nullptr) return invalid("no shared memory region " + cut_name(*region_) + " is registered");
  return regions->part(*region_, offset_.value_or(0), *bytes_, key);
}

}  // namespace carillon::frontend
