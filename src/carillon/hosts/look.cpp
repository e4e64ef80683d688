#include "carillon/hosts/look.h"

#include <algorithm>

namespace carillon::hosts {

transport::Look look_of(const Membership::State& state, const cluster::Member& self) {
  transport::Look look{self.id, state.leads, state.epoch, state.leader.value_or(""), {}};
  look.members.push_back(
      {self.id, self.role, self.address, true, 0, cluster::PeerClock::Difference{Duration{0}, Duration{0}}});
  look.members.back().protocols = self.protocols;
  look.members.back().build = self.build;
  if (state.drains)
    look.members.back().drain =
        state.leader == self.id ? transport::Look::Drain::drains : transport::Look::Drain::drained;
  for (const MemberCore::Peer& peer : state.peers) {
    look.members.push_back(
        {peer.member.id, peer.member.role, peer.member.address, peer.there, 0, peer.clock});
    look.members.back().protocols = peer.member.protocols;
    look.members.back().build = peer.member.build;
  }
  std::ranges::sort(look.members, {}, &transport::Look::Member::id);
  return look;
}

}  // namespace carillon::hosts
