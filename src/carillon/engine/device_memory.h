#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon::engine {

// Addresses on the device for one model's weights: while nothing is mapped, any access is a fault.
struct WeightRange {
  std::byte* data = nullptr;  // aligned to 2 MiB; nullptr where there are no pages
  std::uint64_t pages = 0;
};

// A device's memory: pages for weights, all of one size, which move behind the ranges of whatever model
// is loaded (Clockwork, section 5.2), a block for inputs and outputs, and one for workspaces. Who has which
// part is not its business (device/). map() and unmap() may be called by several threads at once, for
// different ranges and pages; nothing is allocated but in make and reserve().
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::uint64_t pages() const = 0;
  virtual Bytes page() const { return page_size; }
  virtual Bytes io_size() const = 0;
  virtual Bytes workspace_size() const = 0;

  // Takes no memory. Error: no address space.
  virtual Result<WeightRange> reserve(std::uint64_t pages) = 0;
  virtual void release(const WeightRange& range) = 0;  // not mapped

  // Puts pages[i] behind the i-th page of `range`; they hold what their last user left, and may take their
  // memory when they are first written. Error: the system refuses, and then nothing is mapped.
  virtual Result<> map(const WeightRange& range, std::span<const std::uint32_t> pages) = 0;
  // Takes the pages that map() put there away again. Any access to the range is a fault from here on.
  virtual void unmap(const WeightRange& range, std::span<const std::uint32_t> pages) = 0;

  // Device addresses, aligned to 64 bytes where `offset` is.
  virtual std::byte* io(std::uint64_t offset) const = 0;
  virtual std::byte* workspace(std::uint64_t offset) const = 0;

  // From here on no access to this part of the workspace waits for memory; what runs use of it stays as it
  // is. Error (resource_exhausted): there is not enough.
  virtual Result<> prepare_workspace(std::uint64_t /*offset*/, Bytes /*size*/) { return {}; }

  // Between the host and any address above. Blocks until it is done, or the device is lost: health() tells
  // then.
  virtual void copy_in(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void copy_out(std::span<std::byte> to, const std::byte* from) = 0;
  // An error (unavailable) once the device is lost: what was copied last may not have been.
  virtual Result<> health() const { return {}; }
  // Memory of the host as large as the block for inputs and outputs, between which and that block
  // copies are the fastest that there are, and wait for no LOAD's. Taken when it is first asked for, by one
  // thread; as long as this lives. nullptr: there is none, or the system does not give it.
  virtual std::byte* host_io() { return nullptr; }
  // Where the host itself may read and write these bytes; nullptr where it cannot.
  virtual std::byte* access(std::byte* device) const = 0;
};

}  // namespace carillon::engine
