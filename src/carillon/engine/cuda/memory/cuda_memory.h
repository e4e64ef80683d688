#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/memory/copy_way.h"
#include "carillon/engine/device_memory.h"

namespace carillon::engine::cuda {

// A CUDA device's memory, taken once: pages of 16 MiB, each a piece of physical memory of its own
// (cuMemCreate), which are mapped behind the addresses of whatever model is loaded, and a block each for
// inputs and outputs and for workspaces. The host reaches none of it (access()); what copy_in() and
// copy_out() move goes by way of pinned memory, in pieces, each way by a stream of its own; what lies in
// pinned memory itself (cuMemHostAlloc) goes straight, and what lies in host_io() by streams of its own.
//
// Thread-safe as DeviceMemory says. A call whose driver answers that the device is lost fails with
// `unavailable`; copies, which cannot fail, then leave `to` as it was, and lost() is true from then on.
class CudaMemory final : public DeviceMemory {
 public:
  struct Sizes {
    std::uint64_t pages = 1;
    Bytes io, workspace;  // rounded up to whole granules (2 MiB)
  };
  // `device` is of find_device(). Errors: resource_exhausted, with what was
  // wanted, what the device has and what others hold of it; unavailable.
  static Result<std::unique_ptr<CudaMemory>> make(std::shared_ptr<const Driver> driver, DeviceNumber device,
                                                  const Sizes& sizes);
  // The same with a driver that outlives the memory.
  static Result<std::unique_ptr<CudaMemory>> make(const Driver& driver, DeviceNumber device,
                                                  const Sizes& sizes) {
    return make(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &driver), device, sizes);
  }
  ~CudaMemory() override;  // no range is mapped any more
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::uint64_t pages() const override { return handles_.size(); }
  Bytes io_size() const override { return {io_.bytes}; }
  Bytes workspace_size() const override { return {workspace_.bytes}; }
  Result<WeightRange> reserve(std::uint64_t pages) override;
  void release(const WeightRange& range) override;
  Result<> map(const WeightRange& range, std::span<const std::uint32_t> pages) override;
  void unmap(const WeightRange& range, std::span<const std::uint32_t> pages) override;
  std::byte* io(std::uint64_t offset) const override { return pointer(io_.at) + offset; }
  std::byte* workspace(std::uint64_t offset) const override { return pointer(workspace_.at) + offset; }
  void copy_in(std::byte* to, std::span<const std::byte> from) override;
  void copy_out(std::span<std::byte> to, const std::byte* from) override;
  std::byte* host_io() override;
  std::byte* access(std::byte*) const override { return nullptr; }

  Result<> health() const override;
  bool lost() const { return lost_; }

 private:
  // Addresses with memory of their own behind them for good.
  struct Block {
    Address at = 0;
    std::uint64_t bytes = 0;
    Handle handle = 0;
  };
  CudaMemory(std::shared_ptr<const Driver> driver, DeviceNumber device)
      : owned_(std::move(driver)), driver_(*owned_), device_(device) {}
  Result<> prepare(const Sizes& sizes);
  Result<> take(Block& block, std::uint64_t bytes, const char* what);
  void give_back(Block& block);
  bool is_pinned(std::span<const std::byte> bytes) const;
  bool in_host_io(std::span<const std::byte> bytes) const;
  Result<> failed(Status status, const std::string& what) const;
  static std::byte* pointer(Address at) { return reinterpret_cast<std::byte*>(at); }
  static Address address(const std::byte* at) { return reinterpret_cast<Address>(at); }

  std::shared_ptr<const Driver> owned_;
  const Driver& driver_;
  DeviceNumber device_;
  Context context_ = nullptr;
  std::uint64_t granule_ = 0;
  std::vector<Handle> handles_;  // by page
  Block io_, workspace_;
  CopyWay in_{driver_}, out_{driver_};
  // Of what lies in host_io(): its copies wait for no others.
  CopyWay io_in_{driver_}, io_out_{driver_};
  std::span<std::byte> host_io_;
  mutable std::atomic<bool> lost_ = false;
};

}  // namespace carillon::engine::cuda
