#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/host/memory.h"
#include "carillon/worker/host_model.h"

namespace carillon::worker {

// The I/O cache as the host sees it. Where the host reaches the device's bytes, these are the cache.
// Elsewhere the cache has a mirror in the host's memory, which the device gives (DeviceMemory::host_io()) or
// the system. Rows are gathered in the cache, go to the device with in(), and come back with out(). Whoever
// has a piece of the cache calls these for it, from any thread, and they return when it is done. `memory`
// outlives it.
class HostIo {
 public:
  // Error: the system does not give the mirror's memory.
  static Result<HostIo> make(engine::DeviceMemory& memory, std::vector<std::string>& notes) {
    HostIo io(memory);
    if (memory.access(memory.io(0)) != nullptr) return io;
    if (io.at_ = memory.host_io(); io.at_ != nullptr) return io;
    auto mirror = engine::Arena::take(memory.io_size(), "I/O cache on the host", notes);
    if (!mirror) return std::unexpected(mirror.error());
    io.mirror_ = std::move(*mirror);
    io.at_ = io.mirror_.data();
    return io;
  }

  std::byte* at(std::uint64_t offset) const {
    return mirrored() ? at_ + offset : memory_->access(memory_->io(offset));
  }
  void in(std::uint64_t offset, std::uint64_t bytes) const {
    if (mirrored() && bytes > 0) memory_->copy_in(memory_->io(offset), {at(offset), bytes});
  }
  void out(std::uint64_t offset, std::uint64_t bytes) const {
    if (mirrored() && bytes > 0) memory_->copy_out({at(offset), bytes}, memory_->io(offset));
  }

  // What a run at `offset` gives, each tensor by itself: nobody writes what lies between them.
  void outputs(std::uint64_t offset, const PlanLayout& layout) const {
    if (!mirrored()) return;
    for (const TensorPlace& place : layout.outputs)
      out(offset + place.offset, place.row_bytes * static_cast<std::uint64_t>(layout.batch));
  }

  // Whether the host cannot reach the device's memory.
  bool mirrored() const { return at_ != nullptr; }

 private:
  explicit HostIo(engine::DeviceMemory& memory) : memory_(&memory) {}

  engine::DeviceMemory* memory_;
  engine::Arena mirror_;     // where the device has no memory of the host for it
  std::byte* at_ = nullptr;  // the mirror
};

}  // namespace carillon::worker
