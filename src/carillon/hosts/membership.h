#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/coordinator/coordinator.h"
#include "carillon/hosts/member_core.h"

namespace carillon::hosts {

// This process as a member of a cluster, live: a MemberCore with a UDP socket, a thread, and a
// coordinator or a static file. Safe from any thread.
class Membership {
 public:
  struct State {
    bool leads = false;
    std::uint64_t epoch = 0;
    std::optional<std::string> leader;
    std::vector<MemberCore::Peer> peers;
    MemberCounters counters;
    std::string trouble;  // the last that the coordinator told, or of keys and protocols; empty: none
    bool drains = false;  // this scheduler: MemberCore::drain()
  };
  // Called from the thread whenever `leads`, `epoch`, `leader`, `trouble`, or who is there has changed. Must
  // not wait, nor call this object.
  using Changed = std::function<void(const State&)>;

  // The address of `options.self` is where others reach this process, by UDP here: an IP address and a port.
  // Does not wait for the coordinator. Errors name what was wrong: the address cannot be bound, the TLS
  // files, the static file, or what the coordinator needs.
  //
  // In a cluster of a static file nobody is elected: its scheduler leads epoch 1 whenever it runs. The name
  // of the cluster is the file's then, and the incarnation is cluster::static_incarnation.
  static Result<std::unique_ptr<Membership>> open(MemberOptions options,
                                                  const cluster::CoordinatorAddress& coordinator,
                                                  const coordinator::EtcdTls& tls, Changed changed);
  // Ends at once. The member stays registered until its lease ends, unless it left.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  State state() const;
  // For metrics: takes some time, as histograms are copied.
  MemberFigures figures() const;
  // To convert the times of a member's frames by (transport/times.h): the clock as it was at the last step,
  // which waits for no step. See MemberCore::clock_of().
  std::optional<cluster::PeerClock> clock_of(std::string_view id, std::uint64_t incarnation) const;
  // See MemberCore::obeys().
  bool obeys(std::uint64_t epoch);
  // Of the cluster, and this process: of a static file what the file says.
  const std::string& cluster() const;
  const cluster::Member& self() const;
  // Begins a handover to another scheduler, or where `to` is empty to any that is there; `changed` tells of
  // the new leader.
  Result<> hand_over(const std::string& to);
  // See MemberCore::drain().
  Result<> drain(bool undo);
  // Registers no more, and waits until the coordinator knows, `within` at most: then another process may have
  // the id.
  void leave(Duration within);

 private:
  class Loop;
  explicit Membership(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::hosts
