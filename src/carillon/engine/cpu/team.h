#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include "carillon/base/processors.h"
#include "carillon/engine/cpu/team_width.h"
#include "carillon/engine/engine.h"

namespace carillon::engine::cpu {

// While it lives its thread takes denormals for zeros, and makes none. Afterwards the thread is as before:
// code of others that it runs may hold whole numbers in vectors of floats, where small ones are denormals
// (OpenVINO's Where, by AVX2).
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  const std::uint64_t before_;
};

// Where kernels that were made for `parts` parts run. oneDNN takes the number from the arena that it is
// called in, when a primitive is made and again when it runs, so both must be done in an arena of the same
// number. Each part is a task of its own, between two of which a run can be stopped, as the arena has a slot
// for each part, however few threads there are. No thread but those that are sent here comes in.
class Arena {
 public:
  // >= 1. What runs here flushes denormals.
  explicit Arena(int parts);

  int parts() const { return parts_; }
  // Runs `work` here, on the calling thread.
  template <typename Work>
  void execute(const Work& work) {
    arena_.execute(work);
  }

 private:
  friend class CpuTeam;
  int parts_;
  tbb::task_arena arena_;
  // What helpers in the arena wait for, and run parts meanwhile. A team that gets narrower goes over to the
  // other, so that helpers leave the first even where runs follow each other without a gap.
  std::array<tbb::task_group, 2> stay_;
};

// Arenas by their number of parts, each made when it is first asked for.
class Arenas {
 public:
  Arena& of(int parts);

 private:
  std::map<int, std::unique_ptr<Arena>> arenas_;
};

// Inside an arena: calls body(i) for each i of [0, count), a part of them in each of the arena's parts.
template <typename Body>
void in_parts(std::int64_t count, const Body& body) {
  tbb::parallel_for(std::int64_t{0}, count, body, tbb::static_partitioner{});
}

// The calling thread, and helpers that wait until they may take parts of its kernels. A helper that has
// nothing to do looks for work for `spin`, then sleeps. One run at a time.
class CpuTeam final : public Team {
 public:
  // Between the kernels and runs that follow each other the helpers stay awake: going to sleep and being
  // woken costs more than most gaps last (measured: README.md).
  static constexpr Duration spin = std::chrono::microseconds{20};

  // Throws std::system_error where a thread cannot be had.
  explicit CpuTeam(const TeamOptions& options, std::shared_ptr<const UsableProcessors> processors = nullptr);
  ~CpuTeam() override;
  CpuTeam(const CpuTeam&) = delete;
  CpuTeam& operator=(const CpuTeam&) = delete;

  int width() const override { return static_cast<int>(helpers_.size()) + 1; }
  int active() const override { return active_.load(std::memory_order_relaxed); }
  void threads(std::vector<pid_t>& out) const override;
  // Whether it is as wide as there are processors (CpuOptions::processors).
  bool adapts() const { return processors_ != nullptr && !helpers_.empty(); }
  // In front of a run: as many threads as are best now take part from here on; how many. With no run under
  // way. All of them, of one that does not adapt. A helper that the system suspended on its way into a wider
  // run may take part in one more.
  int adapt();
  // The most that adapt() chooses from now.
  int most() const { return most_; }
  // Behind a run of that many threads: see TeamWidth::ran().
  void ran(Duration took, Duration usual, TimePoint at) {
    ++told_;
    chosen_.ran(took, usual, at);
  }
  std::uint64_t told() const { return told_; }  // of so many runs
  // The team's arena for so many parts, as long as the team. Allocates where it is the first asked for. From
  // any thread.
  Arena& arena(int parts);
  // Runs `work` on the calling thread in `arena`, one of the team's, where helpers take parts of what it
  // divides. When it returns no helper is in any of them. `work` must not throw.
  template <typename Work>
  void run(Arena& arena, const Work& work) {
    if (active_.load(std::memory_order_relaxed) == 1 || arena.parts() == 1) return arena.execute(work);
    const tbb::task_handle open = arena.stay_[stays_.load(std::memory_order_relaxed)].defer([] {});
    call(&arena);
    arena.execute(work);
    where_.store(nullptr, std::memory_order_release);
  }

 private:
  bool room_for(int threads) const;
  void call(Arena* arena);
  void help(int number);
  void end();

  std::mutex mutex_;  // of arenas_
  Arenas arenas_;
  std::atomic<Arena*> where_{nullptr};  // that helpers may enter
  std::atomic<int> calls_{0};           // goes up with each
  std::atomic<bool> ending_{false};
  std::vector<std::atomic<pid_t>> numbers_;  // of the helpers, by the system; 0 for one that has not begun
  std::atomic<std::size_t> stays_{0};        // which of an arena's `stay_`
  std::atomic<int> active_{1};               // threads that take part: helpers from this number on sleep
  std::shared_ptr<const UsableProcessors> processors_;
  int most_ = 1;
  TeamWidth chosen_{1};
  std::uint64_t told_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace carillon::engine::cpu
