#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "carillon/base/result.h"

// Memory on a device that another process has allocated and lends to this one.
namespace carillon::engine {

// By what it is opened: what cudaIpcGetMemHandle gives that other process.
using MemoryHandle = std::array<std::byte, 64>;

// Such memory, open for as long as this lives. Safe from any thread; copies wait for the device.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  // Of the whole allocation: what is reached is its device's business, not what whoever lends it says.
  virtual std::uint64_t bytes() const = 0;
  // Copy between memory of the host and this, at `offset`. Require that the span lies within bytes(). Error
  // (unavailable): the device does not do it, with its words; it may be lost then.
  virtual Result<> read(std::uint64_t offset, std::span<std::byte> to) const = 0;
  virtual Result<> write(std::uint64_t offset, std::span<const std::byte> from) const = 0;
};

// A device that can open it. Safe from any thread; what it opened may outlive it.
class MemoryImporter {
 public:
  virtual ~MemoryImporter() = default;
  // Errors: invalid_argument: there is no such memory, with the device's words; resource_exhausted: no memory
  // for the copies; unavailable: the device does not answer.
  virtual Result<std::unique_ptr<const ImportedMemory>> open(const MemoryHandle& handle) = 0;
};

}  // namespace carillon::engine
