#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/etcd_messages.h"
#include "carillon/cluster/coordinator/member.h"

namespace carillon::cluster {

// What a registration tells.
struct Registered {};
struct Unregistered {  // it is being registered anew
  std::string why;
};
// The id is in use. Registration goes on once the other member has gone.
struct IdTaken {
  std::string why;
};
using RegistrationNews = std::variant<Registered, Unregistered, IdTaken>;

struct RegistrationOptions {
  std::int64_t ttl_s = 5;  // of the lease; etcd makes it longer where it is below its shortest
  Duration retry = std::chrono::milliseconds{500};
};

// Keeps one member registered: a lease, a key with that lease, and renewals. One request is out at a time.
// The key is written only where there is none, or over one of this very incarnation.
class Registration {
 public:
  Registration(std::string key, Member self, const RegistrationOptions& options)
      : key_(std::move(key)), self_(std::move(self)), options_(options) {}

  // What is to be sent now, if anything. It must then be answered, failed or forgotten.
  std::optional<etcd::Body> next(TimePoint now);
  TimePoint due() const;  // when next() has something at the latest

  void answered(const etcd::TxnAnswer& answer, TimePoint now);
  void answered(const etcd::LeaseAnswer& answer, TimePoint now);
  void failed(const etcd::Failure& failure, TimePoint now);
  void forgotten();  // no answer will come, and it may have been carried out

  // What became of the key, as the copy of all keys has it; `kv` has its value, or none.
  void seen(std::int64_t revision, const etcd::KeyValue* kv, TimePoint now);

  // etcd has lost what it had: its revisions count from before.
  void set_back();

  // Gives the lease back, and ends; Unregistered tells when.
  void leave() { leaving_ = true; }

  bool registered() const { return registered_at_ != 0; }
  // What etcd has while this member is registered.
  etcd::KeyAt held() const { return {key_, registered_at_}; }
  std::vector<RegistrationNews> take_news() { return std::exchange(news_, {}); }

 private:
  enum class Out : std::uint8_t { none, grant, put, renew, revoke };

  void lease_lost(const std::string& why, TimePoint now);
  void lose(const std::string& why, TimePoint now);
  void taken_by(const etcd::KeyValue& kv, TimePoint now);
  bool is_ours(const etcd::KeyValue& kv) const;

  const std::string key_;
  const Member self_;
  const RegistrationOptions options_;
  Out out_ = Out::none;
  bool leaving_ = false, left_ = false;
  std::int64_t lease_ = 0;          // 0: none
  Duration renew_every_{0};         // a third of what etcd granted
  TimePoint renew_at_, retry_at_;   // no renewal, or nothing else, before
  std::int64_t over_ = 0;           // the key is written where it has this mod_revision
  std::int64_t registered_at_ = 0;  // the revision of the key that we wrote; 0: we are not registered
  std::int64_t gone_at_ = 0;        // the last revision at which the key was seen to be deleted
  std::string taken_;               // what was told last of the id being in use
  std::vector<RegistrationNews> news_;
};

}  // namespace carillon::cluster
