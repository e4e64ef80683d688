#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/statistics.h"
#include "carillon/base/time.h"
#include "carillon/cluster/clock/peer_clock.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/election/election.h"
#include "carillon/cluster/election/silence.h"
#include "carillon/transport/datagram.h"

namespace carillon::hosts {

struct MemberOptions {
  std::string cluster;  // its name, and the key of its datagrams
  std::string key;
  std::optional<std::string> other_key = std::nullopt;  // that is read, too
  // What an operator deletes so that another key may lead; empty: the key of etcd.
  std::string epoch_place = {};
  cluster::Member self;  // with an incarnation drawn at random
  cluster::election::ElectionOptions election{};
  cluster::PeerClockOptions clock{};
  // Another host of whom nothing was heard for so long, without stalls of one's own, is not there.
  Duration gone_after = std::chrono::milliseconds{30};
  // How often a host speaks to each other host at least.
  Duration speak_every = std::chrono::milliseconds{5};
};

// Of the keys that a process with these options reads; see cluster::Member::keys.
std::vector<std::string> fingerprints_of(const MemberOptions& options);

struct MemberCounters {
  std::uint64_t heard = 0;    // datagrams of members
  std::uint64_t refused = 0;  // with another key, or broken
  std::uint64_t unknown = 0;  // of hosts that are not registered, or of other incarnations of them
  std::uint64_t clock_jumps = 0;
  std::uint64_t leader_changes = 0;  // later epochs whose leader became known, after the first
};

// What a process counts and measures of its cluster, for metrics.
struct MemberFigures {
  cluster::Role role{};  // of this process
  bool leads = false;
  std::uint64_t epoch = 0;
  std::uint64_t leader_changes = 0;           // as MemberCounters
  std::uint64_t beats = 0, beats_missed = 0;  // of leaders, as election::WitnessCounters
  // From a datagram to its echo, without the time that the other member kept it, by the other's role.
  std::map<cluster::Role, LatencyHistogram> round_trips;
  struct Clock {
    std::string id;
    Duration bound{0};  // as PeerClock::Difference
  };
  std::vector<Clock> clocks;  // of members that are there and whose clocks are settled, by id
};

// One process as a member of a cluster: who leads, who is there, and how other hosts' clocks run. Datagrams,
// the coordinator's news and times go in; datagrams and a wish to the coordinator come out. The caller ticks
// every 2 ms at most (election::WitnessOptions::tick_every), and before it passes on what waits in its
// socket.
//
// A scheduler that has not the key of the last leader claims no epoch: else schedulers of two keys, which do
// not hear each other, would take the lead from each other for ever. The key's fingerprint stands beside the
// epoch, and a claim is over the revision at which it was read. Members with another key are no part of the
// election. Once the epoch is deleted by hand, they begin anew, as processes that start then.
//
// Nor does a scheduler hear members that share no protocol with it (cluster/protocols.h). While they
// outnumber the members that it goes together with, itself included, the scheduler claims no epoch. So an old
// build that joins a cluster leaves its leader alone. If both are as many, the scheduler claims no epoch
// while the last leader is registered and shares no protocol with it.
//
// All hosts speak to all others: as a leader's beats need, and so that each knows who is there and has
// samples of each clock. Not thread-safe. Each call costs O(members).
class MemberCore {
 public:
  explicit MemberCore(MemberOptions options);

  struct Datagram {
    std::string address;  // HOST:PORT of the member
    std::string bytes;
  };
  // What is to be done next. `claim`: sets the coordinator's epoch if it is still that of `claim_over`.
  // `read`: asks the coordinator for its epoch. At most one of both; the answer has request_token().
  struct Output {
    std::vector<Datagram> datagrams;
    std::optional<cluster::Epoch> claim;
    std::int64_t claim_over = 0;  // a revision
    bool read = false;
    std::vector<std::string> clocks;  // members whose clock_of() has changed
  };

  // False after a stall of this process: the caller passes on all that waits, and ticks again at once.
  bool tick(TimePoint now, Output& out);
  void heard(std::string_view bytes, TimePoint now, Output& out);
  void coordinator_said(const cluster::CoordinatorNews& news, Output& out);
  // The request to the coordinator could not be sent.
  void request_failed();
  std::uint64_t request_token() const { return token_; }

  // Whether this process may act as the leader of epoch().
  bool leads() const { return election_ && election_->leads(); }
  std::uint64_t epoch() const { return witness().epoch().value; }
  // Its id, as far as it is known.
  std::optional<std::string> leader() const;
  // Whether what a leader of that epoch has ordered is to be done.
  bool obeys(std::uint64_t epoch);
  // See Election::hand_over(). `to` empty: the first other scheduler, by id, that is there.
  Result<> hand_over(const std::string& to, Output& out);

  // This scheduler claims no epoch any more, and hands over one that it leads. `undo`: it may lead again.
  // Errors: as hand_over(), and nothing is changed then.
  Result<> drain(bool undo, Output& out);
  bool drains() const { return drains_; }

  struct Peer {
    cluster::Member member;
    bool there = false;
    std::optional<cluster::PeerClock::Difference> clock;  // its time less ours; none: not settled
  };
  std::vector<Peer> peers(TimePoint now) const;  // by id, without this process
  // Goes up when leads(), epoch(), leader() or who is there has changed.
  std::uint64_t version() const { return version_; }
  // None of a member that is not known. It may not be settled.
  std::optional<cluster::PeerClock> clock_of(std::string_view id) const;
  // The same of that process of the member alone: a later one may be on a host that was started anew, with
  // another clock, and be heard over a stream before the coordinator tells of it.
  std::optional<cluster::PeerClock> clock_of(std::string_view id, std::uint64_t incarnation) const;
  // Of the process that clock_of() is about.
  std::optional<std::uint64_t> incarnation_of(std::string_view id) const;
  // What is wrong with members' keys and protocols, this process's first; empty: nothing.
  std::string trouble() const;
  const MemberCounters& counters() const { return counters_; }
  MemberFigures figures(TimePoint now) const;
  const cluster::election::Election* election() const { return election_ ? &*election_ : nullptr; }

 private:
  struct Known {
    cluster::Member member;
    cluster::PeerClock clock;
    cluster::election::Silence silence;
    std::optional<transport::Datagram::Echo> last;  // of it
    bool heard = false;                             // ever
    bool there = false;
    TimePoint spoken_at = TimePoint::min();
    Result<std::uint32_t> protocol = 0;  // that it is spoken to in; an error: both do not go together
  };
  const cluster::election::Witness& witness() const { return election_ ? election_->witness() : witness_; }
  void on(const cluster::CoordinatorBack&, Output& out);
  void on(const cluster::CoordinatorLost&, Output&) { up_ = false; }
  void on(const cluster::MemberSeen& seen, Output& out);
  void on(const cluster::MemberGone& gone, Output& out);
  void on(const cluster::EpochSeen& seen, Output& out);
  void on(const cluster::WriteDone& done, Output& out);
  void on(const cluster::EpochRead& read, Output& out);
  // For people, and values that others use.
  void on(const cluster::ValueSeen&, Output&) {}
  void on(const cluster::Trouble&, Output&) {}
  void on(const cluster::Registered&, Output&);
  void on(const cluster::Unregistered&, Output&) {}
  void on(const cluster::IdTaken&, Output&) { id_taken_ = true; }
  void begin_anew();
  void let_claim();
  // The last leader had none of this process's keys.
  bool is_stranger() const;
  bool is_stranger(const cluster::Member& member) const;
  Result<std::uint32_t> settle_with(const cluster::Member& member) const;
  bool is_outnumbered() const;
  bool judge(Known& known);
  void look();
  Known* find(cluster::election::MemberId id);
  void say(Known& to, const std::optional<cluster::election::Message>& message, Output& out);
  void pass_on(cluster::election::Output& from, Output& out);
  void members_changed();
  void epoch_is(const cluster::EpochRecord& record, Output& out);

  const MemberOptions options_;
  const transport::DatagramCodec codec_;
  const std::vector<std::string> keys_;  // fingerprints
  std::map<std::string, Known, std::less<>> known_;
  std::string last_heir_;                       // to whom the lead was handed over last, by nobody's choice
  std::map<std::uint64_t, std::string> names_;  // by MemberId; the leader's, too, when it went
  std::optional<cluster::election::Election> election_;  // of a scheduler
  cluster::election::Witness witness_;                   // of others
  cluster::EpochRecord record_;                          // the coordinator's, as last heard
  std::int64_t deleted_ = 0;                             // the revision of an epoch that was deleted
  bool up_ = false;                                      // the coordinator
  bool drains_ = false;
  bool id_taken_ = false;  // by another process: this one must not lead in the other's name
  std::uint64_t token_ = 0;
  TimePoint now_;
  struct Lead {
    bool leads = false;
    std::uint64_t epoch = 0;
    std::optional<std::string> leader;
    friend bool operator==(const Lead&, const Lead&) = default;
  };
  Lead lead_;                    // as version_ counts it
  std::uint64_t led_epoch_ = 0;  // the last whose leader was known
  std::uint64_t version_ = 0;
  MemberCounters counters_;
  std::map<cluster::Role, LatencyHistogram> round_trips_;
};

// The same for all hosts: the number by which the election knows a member.
cluster::election::MemberId number_of(std::string_view id);

}  // namespace carillon::hosts
