#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"

namespace carillon::device {

using JobId = Id<struct JobTag, std::uint32_t>;
using LaneId = Id<struct LaneTag, std::uint32_t>;

inline constexpr LaneId no_lane{0xffffffffU};

// What a training job holds of a device's memory (Salus, section 2.3.2.1): what stays from iteration to
// iteration (parameters, optimizer state, the framework's own), and the most that an iteration takes besides
// and gives back by its end.
struct JobMemory {
  Bytes persistent;
  Bytes ephemeral;

  friend bool operator==(const JobMemory&, const JobMemory&) = default;
};

// A part of the ephemeral region, which all jobs of the lane use one after the other. Offsets count from the
// end of the device's memory downwards: lanes lie at that end, persistent memory at the other (figure 2.6).
struct Lane {
  LaneId id;
  Bytes offset;  // of its nearer edge from that end
  Bytes size;
  std::vector<JobId> jobs;  // in the order in which they came
};

// Where a job would go.
struct LanePlace {
  enum class Kind : std::uint8_t {
    open,  // a lane of its own
    join,  // `lane` as it is
    grow   // `lane`, which becomes as large as the job needs
  };
  Kind kind{};
  LaneId lane = no_lane;  // join and grow

  friend bool operator==(const LanePlace&, const LanePlace&) = default;
};

// Who holds what of one device's memory: jobs' persistent memory, and lanes. A pure ledger: places are found
// by Algorithm 2.1, and at every moment equation 2.1 holds,
//   sum over jobs of persistent + sum over lanes of size <= capacity.
// Sizes are as told, nothing is rounded here. Not thread-safe.
class Lanes {
 public:
  explicit Lanes(Bytes capacity) : capacity_(capacity) {}

  // Algorithm 2.1 to the letter: a lane of its own where that fits, else the smallest lane that is large
  // enough ("best match"), else, from the smallest on, the first lane that may grow; nothing where none may.
  // Changes nothing. Ties go to the older lane.
  std::optional<LanePlace> find(JobMemory needs) const;
  // As find(), but never a lane of its own: for policies that run one job at a time.
  std::optional<LanePlace> find_shared(JobMemory needs) const;

  // Puts a job that is not here into `place`, which find() or find_shared() returned for `needs` with nothing
  // changed since. The lane it is in.
  LaneId admit(JobId job, JobMemory needs, const LanePlace& place);
  // A job that is here goes; a lane that nobody uses any more closes, and one whose largest job went shrinks
  // to what the others need.
  void remove(JobId job);
  // A job that is here needs something else now. False, with nothing changed, where equation 2.1 would not
  // hold. Its lane grows or shrinks with the largest need of its jobs.
  bool update(JobId job, JobMemory needs);
  // The most that update() would grant of persistent and of ephemeral memory, the other as it is.
  JobMemory room_of(JobId job) const;

  // Closes the gaps between lanes: moves each lane for which `movable` is true towards the end of the memory
  // as far as it can go (auto defragmentation, section 2.3.3.1). Which moved, with their new places.
  template <typename Movable>
  std::vector<LaneId> defragment(Movable&& movable);
  // Where a lane of `size` finds contiguous room, after the lanes as they lie; at the end of all of them
  // where no gap takes it.
  // ...

  std::span<const Lane> lanes() const { return lanes_; }
  Bytes capacity() const { return capacity_; }
  // May leave equation 2.1 broken, where it shrinks: then over() is how much must go.
  void set_capacity(Bytes capacity) { capacity_ = capacity; }
  Bytes persistent() const { return persistent_; }
  Bytes ephemeral() const { return ephemeral_; }  // the sum of lanes' sizes
  Bytes over() const;

 private:
  Bytes capacity_, persistent_, ephemeral_;
  std::vector<Lane> lanes_;
};

}  // namespace carillon::device
