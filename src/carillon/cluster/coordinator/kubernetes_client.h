#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/client.h"
#include "carillon/cluster/coordinator/kubernetes_messages.h"
#include "carillon/cluster/coordinator/lease.h"
#include "carillon/cluster/coordinator/lease_registration.h"

namespace carillon::cluster {

// Where the client's Leases are, and words for people.
struct KubernetesPlace {
  std::string name_space;
  std::string server;                  // "https://10.96.0.1:443"
  std::string credentials;             // "the token of FILE"
  std::function<std::string()> stamp;  // the wall clock, as a Lease has it: for people alone
};

// The client of a Kubernetes API server, without sockets: it does what CoordinatorClient does with etcd, by
// Leases (lease.h). Answers, lines of the watch, failures and times go in; requests and news come out.
//
// The epoch's number never goes back while any process, or any Lease of a member, knows it: a Lease of the
// epoch that was deleted, or edited to less, is passed over, and the leader writes it again. A claim is over
// the resourceVersion of what stands there, or creates.
//
// A member is gone when its Lease is deleted, or has not changed for as long as it says, on this process's
// clock. No time that a Lease has written in it counts. While this process cannot renew its own Lease no
// other's runs out: an API server that takes no writes takes nobody's.
//
// The epoch and the member are different objects, so that a claim cannot be bound to the claimer's Lease, as
// it is in etcd. A claim that the API server gets late, from a member that was cut off, may end the epoch of
// a leader that is well; no epoch has two leaders by it.
//
// Used as CoordinatorClient is. Small values are not kept. Not thread-safe.
class KubernetesClient {
 public:
  // `options.endpoints` is not used. Every id must be a DNS name (kubernetes::is_dns_name()).
  KubernetesClient(CoordinatorOptions options, KubernetesPlace place, TimePoint now);

  void answered(std::uint64_t id, const kubernetes::Answer& answer, TimePoint now);
  void line(std::uint64_t id, std::string_view text, TimePoint now);  // of a watch
  void failed(std::uint64_t id, const kubernetes::Failure& failure, TimePoint now);
  void tick(TimePoint now);
  TimePoint due() const;
  std::vector<kubernetes::Request> take_requests() { return std::exchange(requests_, {}); }
  std::vector<CoordinatorNews> take_news() { return std::exchange(news_, {}); }

  // As CoordinatorClient's.
  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const Epoch& epoch, TimePoint now);
  Result<> read_epoch(std::uint64_t token, TimePoint now);
  void leave(TimePoint now);

  bool up() const { return up_ == true; }
  bool registered() const { return registration_ && registration_->registered(); }
  const std::map<std::string, Member>& members() const { return members_; }
  EpochRecord epoch() const { return told_; }

 private:
  enum class Link : std::uint8_t { waiting, listing, opening, open };
  enum class Kind : std::uint8_t {
    list,
    watch,
    registration,
    claim,
    claim_read,  // of a claim that met a conflict
    read_epoch,
    restore,
    restore_read,
    sweep,
  };
  struct Pending {
    Kind kind = Kind::list;
    const char* verb = "";    // as a Role names it
    std::uint64_t token = 0;  // of the caller's requests
    Epoch epoch;              // of a claim
    bool creates = false;
    kubernetes::LeaseRegistration::Op op = kubernetes::LeaseRegistration::Op::read;
    std::string id;         // of a member that is swept
    std::int64_t seen = 0;  // all changes up to this one were known when it was sent
    int tries = 0;          // before this one, of a claim or a read
    kubernetes::Call call;  // of a claim or a read, as it was sent
  };
  struct Seen {
    std::int64_t revision = 0;
    TimePoint changed_at;
    Duration lasts{0};
    bool alive = false;  // it is among the members
  };

  static bool is_callers(Kind kind);
  void send(Pending pending, std::string method, const std::string& name, std::string body = {});
  void connect(TimePoint now);
  void open_watch(TimePoint now);
  void disconnect(const std::string& why, TimePoint now);
  void heard(TimePoint now);
  void refused(const Pending& pending, const kubernetes::Answer& answer, TimePoint now);
  void listed(const kubernetes::Answer& answer, TimePoint now);
  void watch_began(const kubernetes::Answer& answer, TimePoint now);
  void registration_answered(const Pending& pending, const kubernetes::Answer& answer, TimePoint now);
  void call_answered(const Pending& pending, const kubernetes::Answer& answer, TimePoint now);
  void call_failed(const Pending& pending, const std::string& why);
  bool tried_again(const Pending& pending, const kubernetes::Answer& answer);
  void send_claim(Pending pending, std::int64_t revision);
  void apply(const kubernetes::Lease& lease, TimePoint now);
  void apply_gone(const std::string& name, std::int64_t revision, TimePoint now);
  void apply_member(const std::string& id, const kubernetes::Lease& lease, TimePoint now);
  void member_gone(const std::string& id);
  void apply_epoch(const kubernetes::Lease& lease);
  void epoch_gone(std::int64_t revision);
  void learn(const Epoch& epoch);
  void tell_epoch();
  EpochRecord record() const;
  void listen_anew(TimePoint now);
  void expire(TimePoint now);
  void send_registration(TimePoint now);
  void restore(TimePoint now);
  void sweep(TimePoint now);
  void awake(TimePoint now);
  void go_on(TimePoint now);
  Duration lost_after() const;
  bool leads() const;
  bool may_send(TimePoint now) const { return now >= throttled_until_; }
  Result<> can_call(TimePoint now) const;
  void trouble(std::string what);
  std::string id_of(const std::string& name) const;  // empty: it is no member's Lease
  std::string at() const { return "Kubernetes at " + place_.server; }
  std::string epoch_words() const;

  const CoordinatorOptions options_;
  const KubernetesPlace place_;
  const std::string path_;  // of the Leases
  std::optional<kubernetes::LeaseRegistration> registration_;

  std::map<std::string, Member> members_;
  std::map<std::string, Seen> seen_;  // all Leases of members, by id
  std::int64_t revision_ = 0;         // the copy has all changes up to this one
  bool whole_ = true;                 // all is to be listed next, not only what changed since
  bool left_out_ = false;             // there are more members than are kept

  std::optional<Epoch> highest_;      // that anything ever said here
  std::int64_t stored_revision_ = 0;  // of the Lease of the epoch; 0: there is none
  std::int64_t stored_gone_at_ = 0;   // at which it was deleted
  bool stored_well_ = false;          // it says `highest_`
  EpochRecord told_;

  Link link_ = Link::waiting;
  std::uint64_t watch_ = 0;   // 0: none
  std::size_t failures_ = 0;  // of links, in a row
  TimePoint next_at_;         // waiting: when to connect; opening: the end of it
  TimePoint opened_at_;       // open: since when
  TimePoint heard_;           // the last answer, or line
  bool listens_anew_ = true;  // when the watch begins, all Leases hold anew
  TimePoint awaited_;         // by due(): when this client was to be called at the latest
  TimePoint throttled_until_ = TimePoint::min();
  std::optional<bool> up_;  // as told
  std::string why_;         // the last link failed
  std::string trouble_;     // told last

  // This process's own renewal must be seen over the watch, too.
  std::int64_t wants_to_see_ = 0;  // a revision; 0: nothing
  TimePoint sees_by_;
  bool renews_ = true;  // own renewals come through

  bool restoring_ = false, sweeping_ = false;
  TimePoint restore_at_ = TimePoint::min(), sweep_at_ = TimePoint::min();

  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, Pending> pending_;
  std::size_t calls_ = 0;  // of them, the caller's
  std::vector<kubernetes::Request> requests_;
  std::vector<CoordinatorNews> news_;
};

}  // namespace carillon::cluster
