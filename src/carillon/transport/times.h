#pragma once

#include "carillon/base/time.h"
#include "carillon/cluster/clock/peer_clock.h"
#include "carillon/transport/messages.h"

namespace carillon::transport {

// Converts the times of a peer's message to our clock, at our time `now`. A window shrinks to the part that
// is certainly inside the peer's. If no part is certain, the window ends before all times, and its order is
// too late. A deadline is as early as the clocks' bound allows. Other times are off by the bound at most; a
// row's trace adds the bound to its own.
// False where the peer's clock is not settled: the message is as it was.
bool to_our_time(Message& message, const cluster::PeerClock& clock, TimePoint now);

}  // namespace carillon::transport
