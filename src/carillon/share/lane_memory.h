#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "carillon/base/bytes.h"
#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"
#include "carillon/share/protocol.h"

// What the broker needs of a lane's memory, whosever it is: the host's (memory.h) or a GPU's (cuda/lanes.h).
namespace carillon::share {

// One lane's. Jobs get it by descriptors: one for all of it, or one for each of its pieces.
class LaneMemory {
 public:
  LaneMemory() = default;
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;
  virtual ~LaneMemory() = default;

  // resource_exhausted where there is no memory for it; it is then as it was.
  virtual Result<> resize(Bytes size) = 0;
  // All of it, though jobs may have it mapped.
  virtual void give_back() = 0;

  // -1: it comes in pieces.
  virtual int whole() const { return -1; }
  // By place: what never was, and never will be, another piece's number.
  virtual std::span<const std::uint64_t> pieces() const { return {}; }
  // For a job, to be closed once sent.
  virtual Result<Descriptor> piece(std::size_t) const {
    return fail(ErrorCode::internal, "a lane without pieces");
  }
};

class LaneSource {
 public:
  virtual ~LaneSource() = default;
  // `number` is in no other lane's name.
  virtual Result<std::unique_ptr<LaneMemory>> make(std::uint32_t number) = 0;
  // The device as people name it; empty: the host.
  virtual std::string_view name() const = 0;
  // How the line in /proc/PID/maps begins that a job has which has a lane's memory, or may have it.
  virtual std::string_view in_maps() const = 0;
  // What a job is told after its welcome.
  virtual std::optional<DeviceIs> device() const { return std::nullopt; }
};

}  // namespace carillon::share
