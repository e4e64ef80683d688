#pragma once

#include "carillon/cluster/coordinator/member.h"
#include "carillon/hosts/membership.h"
#include "carillon/transport/desk.h"

namespace carillon::hosts {

// What the process `self` tells people of its cluster (transport::Desk). It does not know members' devices.
transport::Look look_of(const Membership::State& state, const cluster::Member& self);

}  // namespace carillon::hosts
