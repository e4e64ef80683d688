#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/etcd_messages.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/coordinator/registration.h"

namespace carillon::cluster {

// The epoch as etcd has it. `revision` 0: there is none yet. `epoch` none with another revision: what is
// stored is no epoch.
struct EpochRecord {
  std::optional<Epoch> epoch;
  std::int64_t revision = 0;

  friend bool operator==(const EpochRecord&, const EpochRecord&) = default;
};

// What the client tells, beside RegistrationNews. Members, epoch and values change one at a time: in the
// order of etcd's revisions, but where all was read anew.
struct CoordinatorLost {  // what is known stays known
  std::string why;
};
struct CoordinatorBack {};  // also the first time: the copy is whole
struct MemberSeen {         // new, or changed
  Member member;
};
struct MemberGone {
  std::string id;
};
struct EpochSeen {  // of a higher revision than before, unless etcd lost what it had
  EpochRecord record;
};
struct ValueSeen {
  std::string key;
  std::optional<std::string> value;  // none: it was deleted
};
// What became of compare_and_set() or set(). It may be told before or after the change itself is.
struct WriteDone {
  enum class Outcome : std::uint8_t {
    done,
    differs,  // of compare_and_set(): not done, as the epoch is `current`
    unknown,  // it may have been done, or may be yet
  };
  std::uint64_t token = 0;
  Outcome outcome = Outcome::unknown;
  EpochRecord current;  // of compare_and_set(), unless unknown
  std::string why;      // where unknown
};
// The answer to read_epoch(): what etcd had after it was asked.
struct EpochRead {
  std::uint64_t token = 0;
  std::optional<EpochRecord> record;  // none: etcd did not answer
  std::string why;                    // then
};
// Something that an operator should know; not told twice in a row.
struct Trouble {
  std::string what;
};
using CoordinatorNews =
    std::variant<CoordinatorLost, CoordinatorBack, MemberSeen, MemberGone, EpochSeen, ValueSeen, WriteDone,
                 EpochRead, Trouble, Registered, Unregistered, IdTaken>;

struct CoordinatorOptions {
  std::string name;                    // of the cluster
  std::vector<std::string> endpoints;  // at least one; for errors
  std::optional<Member> self;          // who is registered, if anybody; with all that member_of() asks for
  RegistrationOptions registration;
  Duration request_timeout = std::chrono::seconds{1};
  Duration probe_every = std::chrono::seconds{1};  // how often a quiet etcd is asked something
  Duration lost_after = std::chrono::seconds{3};   // after the last answer; it is tried without end
  Duration first_wait = std::chrono::milliseconds{50}, longest_wait = std::chrono::seconds{2};
  std::uint64_t seed = 0;  // members that draw different waits do not all come at once
  std::size_t most_members = 4096, most_values = 1024, longest_value = 4096, most_calls = 16;
};

// The client of etcd, without sockets: answers, failures and times go in, requests and news come out. It
// keeps a copy of the cluster's members, epoch and small values, keeps its own member registered, and goes
// from one endpoint of etcd to the next where one fails.
//
// After each call, take_requests() and take_news() are to be emptied, and tick() called at due(). Every
// request but WatchCancel is to be answered or failed within its timeout. Not thread-safe.
class CoordinatorClient {
 public:
  CoordinatorClient(CoordinatorOptions options, TimePoint now);

  void answered(std::uint64_t id, const etcd::Answer& answer, TimePoint now);
  void failed(std::uint64_t id, const etcd::Failure& failure, TimePoint now);
  void tick(TimePoint now);
  TimePoint due() const;
  std::vector<etcd::Request> take_requests() { return std::exchange(requests_, {}); }
  std::vector<CoordinatorNews> take_news() { return std::exchange(news_, {}); }

  // Sets the epoch if it is still that of `revision` (EpochRecord), and this client's own member, if it has
  // one, is still registered. So a claim that etcd gets late, from a member that was cut off, changes
  // nothing. A WriteDone with this `token` tells what became of it. Error (unavailable, resource_exhausted):
  // nothing was or will be sent.
  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const Epoch& epoch, TimePoint now);
  // Reads the epoch from etcd, not from the copy. An EpochRead with this `token` is the answer. Errors as
  // above.
  Result<> read_epoch(std::uint64_t token, TimePoint now);
  // Sets a small value, or deletes it. As above; error invalid_argument, too.
  Result<> set(std::uint64_t token, const std::string& key, std::optional<std::string> value, TimePoint now);
  // Registers no more, and gives the id free; Unregistered tells when.
  void leave(TimePoint now);

  bool up() const { return up_ == true; }
  bool registered() const { return registration_ && registration_->registered(); }
  const std::map<std::string, Member>& members() const { return members_; }
  const std::map<std::string, std::string>& values() const { return values_; }
  const EpochRecord& epoch() const { return epoch_; }

 private:
  enum class Link : std::uint8_t { waiting, reading, opening, open };
  enum class Kind : std::uint8_t { read, probe, watch, registration, compare_and_set, read_epoch, set };
  struct Pending {
    Kind kind = Kind::read;
    std::size_t endpoint = 0;
    std::int64_t seen = 0;    // the revision that we had when it was sent
    std::uint64_t token = 0;  // of the caller's requests
    Epoch epoch;              // of compare_and_set
  };

  std::uint64_t send(Pending pending, etcd::Body body);
  static bool is_callers(Kind kind);
  Result<> call(Pending pending, etcd::Body body, TimePoint now);
  void call_failed(const Pending& pending, const std::string& why);
  EpochRecord record_of(const etcd::KeyValue& kv);
  void connect();
  void disconnect(const std::string& why, TimePoint now);
  bool believes(const etcd::Header& header, const Pending& pending, TimePoint now);
  void watched(const etcd::WatchAnswer& answer, TimePoint now);
  void load(const etcd::RangeAnswer& answer, TimePoint now);
  void apply(std::int64_t revision, const std::string& key, const etcd::KeyValue* kv, TimePoint now);
  void apply_member(const std::string& id, const etcd::KeyValue* kv);
  void apply_value(const std::string& key, const etcd::KeyValue* kv);
  void settle(const Pending& pending, const etcd::TxnAnswer& answer);
  void go_on(TimePoint now);
  void trouble(std::string what);
  std::string at(std::size_t endpoint) const { return "etcd at " + options_.endpoints[endpoint]; }

  const CoordinatorOptions options_;
  const std::string prefix_, epoch_key_, members_prefix_, values_prefix_;
  std::optional<Registration> registration_;

  std::map<std::string, Member> members_;
  std::map<std::string, std::string> values_;
  EpochRecord epoch_;
  std::int64_t revision_ = 0;     // the copy has all changes up to this one
  bool whole_ = true;             // all is to be read next, not only what changed since
  bool left_out_ = false;         // there are more members or values than are kept
  std::uint64_t cluster_id_ = 0;  // of etcd; 0: not known yet

  Link link_ = Link::waiting;
  std::size_t endpoint_ = 0;
  std::size_t failures_ = 0;  // of links, in a row
  TimePoint next_at_;         // waiting: when to connect; opening: the end of it; open: when to probe
  TimePoint heard_;           // the last answer of an open link
  std::optional<bool> up_;    // as told
  std::string why_;           // the last link failed
  std::string trouble_;       // told last

  std::uint64_t last_id_ = 0, watch_ = 0;  // 0: no watch
  std::map<std::uint64_t, Pending> pending_;
  std::size_t calls_ = 0;  // of them, the caller's
  std::vector<etcd::Request> requests_;
  std::vector<CoordinatorNews> news_;
};

}  // namespace carillon::cluster
