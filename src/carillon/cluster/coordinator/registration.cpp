#include "carillon/cluster/coordinator/registration.h"

#include <algorithm>

namespace carillon::cluster {

std::optional<etcd::Body> Registration::next(TimePoint now) {
  if (out_ != Out::none) return std::nullopt;
  if (leaving_) {
    if (lease_ == 0) {
      if (!std::exchange(left_, true)) lose("it left", now);
      return std::nullopt;
    }
    if (now < retry_at_) return std::nullopt;
    out_ = Out::revoke;
    return etcd::LeaseRevoke{.id = lease_};
  }
  if (lease_ != 0 && now >= renew_at_) {
    out_ = Out::renew;
    renew_at_ = now + renew_every_;
    return etcd::LeaseKeepAlive{.id = lease_};
  }
  if (registered() || now < retry_at_) return std::nullopt;
  if (lease_ == 0) {
    out_ = Out::grant;
    return etcd::LeaseGrant{.ttl_s = options_.ttl_s};
  }
  out_ = Out::put;
  return etcd::Txn{.key = key_, .mod_revision = over_, .value = to_json(self_), .lease = lease_};
}

TimePoint Registration::due() const {
  if (out_ != Out::none) return TimePoint::max();
  if (leaving_) return left_ ? TimePoint::max() : lease_ == 0 ? TimePoint::min() : retry_at_;
  return std::min(lease_ == 0 ? TimePoint::max() : renew_at_, registered() ? TimePoint::max() : retry_at_);
}

void Registration::answered(const etcd::TxnAnswer& answer, TimePoint now) {
  out_ = Out::none;
  if (answer.succeeded) {
    taken_.clear();
    over_ = 0;
    // The watch may have told of its end before.
    if (gone_at_ > answer.header.revision) return;
    registered_at_ = answer.header.revision;
    news_.emplace_back(Registered{});
  } else if (answer.kvs.empty()) {
    over_ = 0;  // gone meanwhile
  } else if (const etcd::KeyValue& kv = answer.kvs.front(); is_ours(kv)) {
    over_ = kv.mod_revision;  // of a former lease, or its answer was lost
  } else {
    taken_by(kv, now);
  }
}

void Registration::answered(const etcd::LeaseAnswer& answer, TimePoint now) {
  if (std::exchange(out_, Out::none) == Out::revoke) {
    lease_ = 0;
    return;
  }
  if (answer.ttl_s <= 0 || answer.id <= 0) {
    lease_lost("etcd does not know its lease any more", now);
  } else {
    lease_ = answer.id;
    renew_every_ = Duration{std::chrono::seconds{std::min<std::int64_t>(answer.ttl_s, 3600)}} / 3;
    renew_at_ = now + renew_every_;
  }
}

void Registration::failed(const etcd::Failure& failure, TimePoint now) {
  const Out what = std::exchange(out_, Out::none);
  if (failure.kind == etcd::Failure::Kind::not_found) {
    if (what != Out::revoke) return lease_lost(failure.text, now);
    lease_ = 0;  // it is over already
    return;
  }
  (what == Out::renew ? renew_at_ : retry_at_) = now + options_.retry;
}

void Registration::forgotten() {
  if (std::exchange(out_, Out::none) == Out::renew) renew_at_ = TimePoint::min();
}

void Registration::set_back() {
  if (registered()) registered_at_ = -1;
  gone_at_ = over_ = 0;
}

void Registration::seen(std::int64_t revision, const etcd::KeyValue* kv, TimePoint now) {
  if (kv == nullptr) {
    gone_at_ = revision;
    over_ = 0;
    if (registered() && registered_at_ < revision) return lose("its key in etcd is gone", now);
    if (!registered()) retry_at_ = now;
  } else if (registered() && registered_at_ < revision) {
    if (is_ours(*kv)) {
      registered_at_ = kv->mod_revision;  // etcd's count may have begun anew
      return;
    }
    lose("another member has taken its key in etcd", now);
    taken_by(*kv, now);
  }
}

void Registration::lease_lost(const std::string& why, TimePoint now) {
  lease_ = 0;
  retry_at_ = now + options_.retry;
  if (registered()) lose(why, now);
}

void Registration::lose(const std::string& why, TimePoint now) {
  registered_at_ = 0;
  retry_at_ = now;
  news_.emplace_back(Unregistered{why});
}

void Registration::taken_by(const etcd::KeyValue& kv, TimePoint now) {
  over_ = 0;
  retry_at_ = now + options_.retry;
  const auto other = member_of(kv.value);
  std::string why = "id '" + self_.id + "' is in use by " +
                    (other ? "another process, at " + other->address + " (incarnation " +
                                 std::to_string(other->incarnation) + ")"
                           : "a key of etcd that is no member's: " + other.error().message) +
                    (kv.lease == 0 ? "; it has no lease, so delete the key '" + key_ + "' by hand"
                                   : "; it is free once that process has gone");
  if (why == taken_) return;
  taken_ = why;
  news_.emplace_back(IdTaken{std::move(why)});
}

bool Registration::is_ours(const etcd::KeyValue& kv) const {
  const auto other = member_of(kv.value);
  return other && other->id == self_.id && other->incarnation == self_.incarnation;
}

}  // namespace carillon::cluster
