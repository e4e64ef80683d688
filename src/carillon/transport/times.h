#pragma once

#include "carillon/base/time.h"
#include "carillon/cluster/clock/peer_clock.h"
#include "carillon/transport/messages.h"

namespace carillon::transport {

// Converts the times of a message that a peer sent to our clock, at our time `now`. A window becomes what is
// certain to be inside of the peer's; one of which nothing is certain ends before all times, so that its
// order is too late. A deadline is as early as the clocks' bound allows. Other times are off by the bound at
// most. False where the peer's clock is not settled: the message is as it was.
bool to_our_time(Message& message, const cluster::PeerClock& clock, TimePoint now);

}  // namespace carillon::transport
