#include "carillon/engine/cuda/memory/ipc_memory.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/driver/context.h"

namespace carillon::engine::cuda {
namespace {

constexpr std::uint64_t piece_of_copy = std::uint64_t{1} << 20;
static_assert(sizeof(IpcHandle) == sizeof(MemoryHandle));

class IpcImporter final : public MemoryImporter, public std::enable_shared_from_this<IpcImporter> {
 public:
  IpcImporter(std::shared_ptr<const Driver> driver, DeviceNumber device)
      : owned_(std::move(driver)), driver_(*owned_), device_(device) {}
  ~IpcImporter() override {
    if (context_ == nullptr) return;
    {
      const InContext here(driver_, context_);
      for (Way* const way : {&in_, &out_}) {
        if (way->stream != nullptr) driver_.stream_destroy(way->stream);
        if (way->pinned != nullptr) driver_.host_free(way->pinned);
      }
    }
    driver_.context_release(device_);
  }

  Result<std::unique_ptr<const ImportedMemory>> open(const MemoryHandle& handle) override;

  // Of what open() gave: any thread.
  Result<> copy_out(std::span<std::byte> to, Address from) {
    const std::lock_guard lock(out_.mutex);
    const InContext here(driver_, context_);
    for (std::uint64_t at = 0; at < to.size(); at += piece_of_copy) {
      const std::uint64_t bytes = std::min<std::uint64_t>(piece_of_copy, to.size() - at);
      Status status = driver_.copy_out(out_.pinned, from + at, bytes, out_.stream);
      if (status == done) status = driver_.stream_synchronize(out_.stream);
      if (status != done) return not_copied(status, "from");
      std::memcpy(to.data() + at, out_.pinned, bytes);
    }
    return {};
  }
  Result<> copy_in(Address to, std::span<const std::byte> from) {
    const std::lock_guard lock(in_.mutex);
    const InContext here(driver_, context_);
    for (std::uint64_t at = 0; at < from.size(); at += piece_of_copy) {
      const std::uint64_t bytes = std::min<std::uint64_t>(piece_of_copy, from.size() - at);
      std::memcpy(in_.pinned, from.data() + at, bytes);
      Status status = driver_.copy_in(to + at, in_.pinned, bytes, in_.stream);
      if (status == done) status = driver_.stream_synchronize(in_.stream);
      if (status != done) return not_copied(status, "to");
    }
    return {};
  }
  void close(Address at) {
    const InContext here(driver_, context_);
    driver_.ipc_close(at);
  }

 private:
  // One way of the bus.
  struct Way {
    std::mutex mutex;
    Stream stream = nullptr;
    void* pinned = nullptr;
  };

  Result<> not_copied(Status status, const char* which) const {
    return fail(ErrorCode::unavailable, std::string("the CUDA device does not copy ") + which +
                                            " a client's memory: " + name_of(driver_, status));
  }
  // Where one step fails the next call goes on with it.
  Result<> prepare() {
    Status status = done;
    if (context_ == nullptr) status = driver_.context_retain(&context_, device_);
    if (status != done) {
      context_ = nullptr;
      return not_prepared(status);
    }
    const InContext here(driver_, context_);
    for (Way* const way : {&in_, &out_}) {
      if (status == done && way->pinned == nullptr) {
        status = driver_.host_allocate(&way->pinned, piece_of_copy, host_is_mapped);
        if (status != done) way->pinned = nullptr;
      }
      if (status == done && way->stream == nullptr) {
        status = driver_.stream_create(&way->stream, stream_beside_the_default, 0);
        if (status != done) way->stream = nullptr;
      }
    }
    return status == done ? Result<>() : not_prepared(status);
  }
  Result<> not_prepared(Status status) const {
    return fail(status == out_of_memory ? ErrorCode::resource_exhausted : ErrorCode::unavailable,
                "the CUDA device cannot open a client's memory now: " + name_of(driver_, status));
  }

  const std::shared_ptr<const Driver> owned_;
  const Driver& driver_;
  const DeviceNumber device_;
  std::mutex opening_;
  Context context_ = nullptr;  // does not change once memory was opened, as do the ways
  Way in_, out_;
};

class IpcMemory final : public ImportedMemory {
 public:
  IpcMemory(std::shared_ptr<IpcImporter> importer, Address at, std::uint64_t bytes)
      : importer_(std::move(importer)), at_(at), bytes_(bytes) {}
  ~IpcMemory() override { importer_->close(at_); }
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  std::uint64_t bytes() const override { return bytes_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset <= bytes_ && to.size() <= bytes_ - offset);
    return importer_->copy_out(to, at_ + offset);
  }
  Result<> write(std::uint64_t offset, std::span<const std::byte> from) const override {
    CARILLON_ASSERT(offset <= bytes_ && from.size() <= bytes_ - offset);
    return importer_->copy_in(at_ + offset, from);
  }

 private:
  const std::shared_ptr<IpcImporter> importer_;
  const Address at_;
  const std::uint64_t bytes_;
};

Result<std::unique_ptr<const ImportedMemory>> IpcImporter::open(const MemoryHandle& handle) {
  const std::lock_guard lock(opening_);
  if (auto ready = prepare(); !ready) return std::unexpected(ready.error());
  const InContext here(driver_, context_);
  IpcHandle raw;
  std::memcpy(raw.bytes, handle.data(), sizeof raw.bytes);
  Address at = 0;
  Status status = driver_.ipc_open(&at, raw, peers_as_needed);
  if (is_lost(status)) return std::unexpected(not_prepared(status).error());
  if (status == out_of_memory)
    return fail(ErrorCode::resource_exhausted,
                "the memory cannot be opened on the CUDA device: " + name_of(driver_, status));
  if (status != done)
    return invalid("the handle opens no memory on the CUDA device: " + name_of(driver_, status) +
                   "; it must be what cudaIpcGetMemHandle gives another process on this machine, for memory "
                   "of cudaMalloc that it has not freed");
  // How much there is the driver knows; whoever registers it may say anything.
  Address base = 0;
  std::size_t bytes = 0;
  status = driver_.address_range(&base, &bytes, at);
  if (status != done || base > at || at - base > bytes) {
    driver_.ipc_close(at);
    return fail(is_lost(status) ? ErrorCode::unavailable : ErrorCode::invalid_argument,
                "the CUDA driver does not tell how large the memory is: " + name_of(driver_, status));
  }
  return std::make_unique<const IpcMemory>(shared_from_this(), at, bytes - (at - base));
}

}  // namespace

std::shared_ptr<MemoryImporter> make_importer(std::shared_ptr<const Driver> driver, DeviceNumber device) {
  return std::make_shared<IpcImporter>(std::move(driver), device);
}

}  // namespace carillon::engine::cuda
