#pragma once

#include <cstdint>

#include "carillon/ledger/ledger.h"

namespace carillon::schedule::parts {

// INFERs of a request that may fail, come too late, or be lost with their device: perhaps it is what breaks
// devices. A device whose clock is off refuses at once, so this has to end some time.
inline constexpr std::uint32_t most_failures = 3, most_late = 10, most_lost = 3;

inline bool tried_enough(const ledger::Ledger::Tries& tries) {
  return tries.failed >= most_failures || tries.late >= most_late || tries.lost >= most_lost;
}

}  // namespace carillon::schedule::parts
