#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "carillon/base/time.h"

namespace carillon::share {

// When a device that somebody else goes before is lent to jobs (Salus beside serving): whoever goes before
// says from when to when it cannot want the device, thousands of times a second; here that becomes few
// changes of who has it. Taken back at once; lent again once it was free for `rest`, as freezing and thawing
// cost time too: who waits for as long as these cost never pays more than twice what who knew the future
// would. And not for a time shorter than `rest`.
//
// told() is one thread's, look() and lent() another's; neither waits for the other.
class Lending {
 public:
  // What freezing and thawing a job of some threads costs together, rounded up; see docs/salus.md.
  static constexpr Duration usual_rest = std::chrono::microseconds{500};

  // It is not lent at first.
  explicit Lending(Duration rest = usual_rest) : rest_(rest) {}

  // None: it is wanted. True: look() is to be called soon. `now` never goes back.
  bool told(std::optional<TimePoint> free_until, TimePoint now);

  enum class Change : std::uint8_t { none, take_back, lend };
  struct Look {
    Change change{};
    TimePoint next = TimePoint::max();  // when to look again, unless told() says so before
    TimePoint until;                    // lend: as was told
  };
  // `anybody`: there are jobs. Without any it is not lent, and told() disturbs nobody.
  Look look(bool anybody, TimePoint now);
  bool lent() const { return phase_.load() == Phase::lent; }

 private:
  enum class Phase : std::uint8_t {
    quiet,     // nobody is there: told() is not heeded
    busy,      // wanted when last looked at: told() says when it is free
    settling,  // free, and not for long enough: look() comes by itself
    lent       // told() says when it is wanted
  };
  static constexpr std::int64_t wanted = -1;

  const Duration rest_;
  // Since when it is free, and until when; told()'s. The second is written before the first.
  std::atomic<std::int64_t> free_since_{wanted}, free_until_{0};
  std::atomic<Phase> phase_{Phase::quiet};
};

}  // namespace carillon::share
