#include "carillon/engine/cuda/memory/ipc_memory.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/memory/copy_way.h"

namespace carillon::engine::cuda {
namespace {

static_assert(sizeof(IpcHandle) == sizeof(MemoryHandle));

class IpcImporter final : public MemoryImporter, public std::enable_shared_from_this<IpcImporter> {
 public:
  IpcImporter(std::shared_ptr<const Driver> driver, DeviceNumber device)
      : owned_(std::move(driver)), driver_(*owned_), device_(device) {}
  ~IpcImporter() override {
    if (context_ == nullptr) return;
    {
      const InContext here(driver_, context_);
      for (CopyWay* const way : {&in_, &out_}) way->give_back();
    }
    driver_.context_release(device_);
  }

  Result<std::unique_ptr<const ImportedMemory>> open(const MemoryHandle& handle) override;

  // Of what open() gave: any thread.
  Result<> copy_out(std::span<std::byte> to, Address from) {
    const InContext here(driver_, context_);
    const Status status = out_.out(to, from);
    return status == done ? Result<>() : not_copied(status, "from");
  }
  Result<> copy_in(Address to, std::span<const std::byte> from) {
    const InContext here(driver_, context_);
    const Status status = in_.in(to, from);
    return status == done ? Result<>() : not_copied(status, "to");
  }
  void close(Address at) {
    const InContext here(driver_, context_);
    driver_.ipc_close(at);
  }

 private:
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
    const char* what = nullptr;
    for (CopyWay* const way : {&in_, &out_})
      if (status == done) status = way->prepare(what);
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
  CopyWay in_{driver_}, out_{driver_};
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
