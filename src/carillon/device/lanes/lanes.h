#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/slab.h"

namespace carillon::device {

using JobId = Id<struct JobTag, std::uint32_t>;
using LaneId = Id<struct LaneTag, std::uint32_t>;

inline constexpr LaneId no_lane{0xffffffffU};
// No size that is told may be larger, so that no sum of them overflows.
inline constexpr Bytes most_job_bytes{std::uint64_t{1} << 50};

// What a training job holds of a device's memory (Salus, section 2.3.2.1): what stays from iteration to
// iteration (parameters, optimizer state, the framework's own), and the most that an iteration takes besides
// and gives back by its end.
struct JobMemory {
  Bytes persistent;
  Bytes ephemeral;

  friend bool operator==(const JobMemory&, const JobMemory&) = default;
};

// A part of the ephemeral region, which all jobs of the lane use one after the other.
struct Lane {
  bool open = false;
  Bytes size;
  // Of its nearer edge from the end of the device's memory: lanes lie at that end, persistent memory at the
  // other (figure 2.6). Nothing where it has no place yet.
  std::optional<Bytes> offset;
  std::size_t jobs = 0;
  std::uint64_t opened = 0;  // in which order lanes were
  bool sealed = false;       // nobody else comes into it: who is in it stands still, and may never come out
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
// by Algorithm 2.1, and after every call equation 2.1 holds, but where the capacity fell (over()):
//   sum over jobs of persistent + sum over lanes of size <= capacity.
// Sizes are at most most_job_bytes, and are kept as told. Lanes are numbered from 0 on; a number is used
// again once its lane closed. Not thread-safe.
class Lanes {
 public:
  explicit Lanes(Bytes capacity) : capacity_(capacity) {}

  // Algorithm 2.1 to the letter: a lane of its own where that fits, else the smallest lane that is large
  // enough ("best match"), else, from the smallest on, the first lane that may grow; nothing where none may.
  // Changes nothing. Of equal lanes the one with the smaller number.
  std::optional<LanePlace> find(JobMemory needs) const;
  // As find(), but with one lane for all jobs, that which has been open for longest: for policies that run
  // one job at a time.
  std::optional<LanePlace> find_shared(JobMemory needs) const;
  // As find(), but only a lane of its own.
  std::optional<LanePlace> find_apart(JobMemory needs) const;

  // Puts a job that is not here into `place`, which find() or find_shared() gave for `needs` with nothing
  // changed since. The lane it is in. A lane that opened or grew may have no place yet: arrange().
  LaneId admit(JobId job, JobMemory needs, const LanePlace& place);
  // A job that is here goes; its lane closes where nobody is left in it.
  void remove(JobId job);
  // A job that is here needs something else now. False, with nothing changed, where equation 2.1 would not
  // hold. Its lane grows where the job needs more; it may have no place then.
  bool update(JobId job, JobMemory needs);
  // Moves a job that is here to another lane: what it holds stays.
  LaneId move(JobId job, const LanePlace& place);
  void seal(LaneId lane, bool sealed) { lanes_[lane.value].sealed = sealed; }
  // Makes a lane as small as the largest need of its jobs. Whether it was larger.
  bool fit(LaneId lane);
  // The most that update() would grant: of persistent memory with the ephemeral as it is, and the other way.
  JobMemory room_of(JobId job) const;
  // The same of a job that is not here.
  JobMemory room() const;

  // Lanes for which `pinned` is false move towards the end of the memory as far as they can
  // (section 2.3.3.1), and those without a place get one where there is one. `changed` is told of each whose
  // offset is another one, or none. Whether each has a place, and none is where persistent memory may be.
  bool arrange(const std::function<bool(LaneId)>& pinned, const std::function<void(LaneId)>& changed);
  bool arranged() const { return arranged_; }  // what arrange() said, and no lane opened or grew since
  // Whether the lane, which is itself pinned, may become so large where it is, once the others have moved,
  // and where persistent memory is so much in all.
  bool grows_in_place(LaneId lane, Bytes size, Bytes persistent,
                      const std::function<bool(LaneId)>& pinned) const;
  // In a contiguous memory: where the lanes end that cannot move now. Persistent memory grows no further.
  void pin_to(Bytes edge) { edge_ = edge; }
  Bytes edge() const { return edge_; }
  // Whether no gap lies before the lane, which has a place.
  bool gapless(LaneId lane) const;

  bool has(JobId job) const { return table_.find(job.value).has_value(); }
  LaneId lane_of(JobId job) const { return held(job).lane; }
  JobMemory memory_of(JobId job) const { return held(job).memory; }
  const Lane& lane(LaneId id) const { return lanes_[id.value]; }
  // Every lane's number is below it.
  std::size_t lanes() const { return lanes_.size(); }
  std::size_t lanes_open() const { return lanes_.used(); }
  Bytes capacity() const { return capacity_; }
  void set_capacity(Bytes capacity) { capacity_ = capacity; }
  Bytes persistent() const { return persistent_; }  // the sum over jobs
  Bytes ephemeral() const { return ephemeral_; }    // the sum over lanes
  // By how much equation 2.1 does not hold, since the capacity fell, or persistent memory is in a lane.
  Bytes over() const;

 private:
  struct Held {
    JobId job;
    JobMemory memory;
    LaneId lane = no_lane;
    // Its neighbours in its lane.
    std::uint32_t before = none_, after = none_;
  };
  static constexpr std::uint32_t none_ = 0xffffffffU;

  const Held& held(JobId job) const;
  bool fits(Bytes persistent, Bytes ephemeral) const;
  Bytes left(Bytes ephemeral) const;
  bool usable(std::uint32_t lane) const { return lanes_[lane].open && !lanes_[lane].sealed; }
  void resize(LaneId lane, Bytes size);
  Bytes largest_in(LaneId lane) const;

  Bytes capacity_, persistent_, ephemeral_, edge_;
  std::uint64_t opened_ = 0;
  Slab<Lane> lanes_;
  std::vector<std::uint32_t> first_;  // by lane: of its jobs, in held_
  Slab<Held> held_;
  IndexTable table_;  // to held_
  bool arranged_ = true;
  std::vector<LaneId> order_;  // of arrange()
  struct Taken {
    Bytes from, to;
  };
  std::vector<Taken> taken_;
};

}  // namespace carillon::device
