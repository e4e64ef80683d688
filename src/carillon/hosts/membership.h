#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/coordinator/etcd.h"
#include "carillon/hosts/member_core.h"

namespace carillon::hosts {

// This process as a member of a cluster, live: a MemberCore with a UDP socket, a thread and etcd. Safe from
// any thread.
class Membership {
 public:
  struct State {
    bool leads = false;
    std::uint64_t epoch = 0;
    std::optional<std::string> leader;
    std::vector<MemberCore::Peer> peers;
    MemberCounters counters;
    std::string trouble;  // the last that the coordinator told; empty: none
  };
  // Called from the thread whenever `leads`, `epoch`, `leader`, or who is there has changed. Must not wait,
  // nor call this object.
  using Changed = std::function<void(const State&)>;

  // The address of `options.self` is where others reach this process, by UDP here: an IP address and a port.
  // Does not wait for etcd. Errors name what was wrong: the address cannot be bound, the TLS
  // files, or `coordinator` is a static file (unsupported).
  static Result<std::unique_ptr<Membership>> open(MemberOptions options,
                                                  const cluster::CoordinatorAddress& coordinator,
                                                  const coordinator::EtcdTls& tls, Changed changed);
  // Ends at once. The member stays registered until its lease ends, unless it left.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  State state() const;
  // See MemberCore::obeys().
  bool obeys(std::uint64_t epoch);
  // Begins a handover to another scheduler; `changed` tells of the new leader.
  Result<> hand_over(const std::string& to);
  // Registers no more.
  void leave();

 private:
  class Loop;
  explicit Membership(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::hosts
