#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Where a training script's iterations end, told by signals that the script gives without knowing (Salus, section
// 2.3.2: jobs switch between iterations). Pure: no clock, no thread, no allocation.
namespace carillon::share::client {

// The outermost of each: a backward within a step (LBFGS's closure), or a step within a backward, is no signal.
enum class Signal : std::uint32_t {
  next = 0,      // a data loader is asked for its next batch
  backward = 1,  // a backward has returned
  step = 2,      // an optimizer has stepped
  manual = 3     // the script says itself that an iteration ended; from then on nothing else is heeded
};

// The signals of a script repeat. Once two periods were alike, the boundary is where the least memory is live; of
// places that differ by little, after a step rather than before a batch, and rather before a batch than after a
// backward. While no period is known each step is taken for one. A wrong choice is safe where it is used: it costs
// a copy of what is live.
//
//   BoundaryChooser chooser;
//   if (chooser.on(Signal::step, id_of_optimizer, live_bytes)) ...   // an iteration ended
class BoundaryChooser {
 public:
  // `which` tells sources of one kind apart. True: an iteration ends here.
  bool on(Signal signal, std::uint64_t which, std::uint64_t live);
  // A period is known, and the last signal was of it.
  bool certain() const { return period_ != 0; }

  static constexpr std::size_t longest_period = 64;

 private:
  struct Seen {
    Signal signal{};
    std::uint64_t which = 0;
    std::uint64_t live = 0;
  };
  static constexpr std::size_t kept = 256;  // a power of two, more than three of the longest period

  const Seen& back(std::size_t ago) const { return seen_[(count_ - 1 - ago) % kept]; }
  bool same(std::size_t a, std::size_t b) const;
  bool steps_within(std::size_t period) const;
  bool learn();
  std::size_t trough(std::size_t period) const;
  void heed_step();

  std::array<Seen, kept> seen_{};
  std::uint64_t count_ = 0;
  std::size_t period_ = 0;    // 0: none known
  std::size_t to_go_ = 0;     // signals until the next boundary, where a period is known
  std::uint64_t since_step_ = 0, since_boundary_ = 0;
  std::uint64_t gap_ = 0, gap_before_ = 0;  // signals from step to step, the last two
  bool stepped_ = false, stepless_ = false, manual_ = false;
};

}  // namespace carillon::share::client
