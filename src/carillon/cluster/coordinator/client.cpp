#include "carillon/cluster/coordinator/client.h"

#include <algorithm>
#include <set>

#include "carillon/base/assert.h"
#include "carillon/base/mix.h"
#include "carillon/cluster/coordinator/address.h"

namespace carillon::cluster {
namespace {

// The first key after all that begin with `prefix`, which ends with '/'.
std::string after(std::string prefix) {
  ++prefix.back();
  return prefix;
}

}  // namespace

CoordinatorClient::CoordinatorClient(CoordinatorOptions options, TimePoint now)
    : options_(std::move(options)),
      prefix_("/carillon/" + options_.name + "/"),
      epoch_key_(prefix_ + "epoch"),
      members_prefix_(prefix_ + "members/"),
      values_prefix_(prefix_ + "values/"),
      next_at_(now),
      heard_(now) {
  CARILLON_ASSERT(!options_.endpoints.empty() && is_name(options_.name));
  if (!options_.self) return;
  CARILLON_ASSERT(member_of(to_json(*options_.self)) == *options_.self);
  registration_.emplace(members_prefix_ + options_.self->id, *options_.self, options_.registration);
}

std::uint64_t CoordinatorClient::send(Pending pending, etcd::Body body) {
  requests_.push_back({.id = ++last_id_,
                       .endpoint = endpoint_,
                       .timeout = options_.request_timeout,
                       .body = std::move(body)});
  pending.endpoint = endpoint_;
  pending.seen = revision_;
  pending_.emplace(last_id_, std::move(pending));
  return last_id_;
}

void CoordinatorClient::connect() {
  link_ = Link::reading;
  if (whole_)
    send({Kind::read},
         etcd::Range{.key = prefix_,
                     .range_end = after(prefix_),
                     .limit = static_cast<std::int64_t>(options_.most_members + options_.most_values + 1)});
  else
    send({Kind::probe}, etcd::Range{.key = epoch_key_, .range_end = "", .limit = 1});
}

// To the next endpoint: at once, until all have failed; then after a wait.
void CoordinatorClient::disconnect(const std::string& why, TimePoint now) {
  why_ = at(endpoint_) + ": " + why;
  if (watch_ != 0)
    requests_.push_back({.id = watch_, .endpoint = endpoint_, .timeout = {}, .body = etcd::WatchCancel{}});
  watch_ = 0;
  // The callers' requests stay pending: each is told of the outcome, or that the outcome is unknown.
  std::erase_if(pending_, [](const auto& each) { return !is_callers(each.second.kind); });
  if (registration_) registration_->forgotten();
  link_ = Link::waiting;
  endpoint_ = (endpoint_ + 1) % options_.endpoints.size();
  const std::size_t rounds = ++failures_ / options_.endpoints.size();
  Duration wait{0};
  if (rounds > 0) {
    wait =
        std::min(options_.longest_wait, options_.first_wait * (1 << std::min<std::size_t>(rounds - 1, 16)));
    wait = wait / 2 + Duration{static_cast<Duration::rep>(mix(options_.seed + failures_) %
                                                          static_cast<std::uint64_t>(wait.count() / 2 + 1))};
  }
  next_at_ = now + wait;
}

bool CoordinatorClient::is_callers(Kind kind) {
  return kind == Kind::compare_and_set || kind == Kind::read_epoch || kind == Kind::set;
}

// Whether an answer is of the etcd that we know, and not older than what it said before.
bool CoordinatorClient::believes(const etcd::Header& header, const Pending& pending, TimePoint now) {
  const bool watch = pending.kind == Kind::watch;  // whose end by a compaction has no revision
  if (header.cluster_id == 0 || (header.revision <= 0 && !watch)) {
    disconnect("what answers there is no etcd", now);
  } else if (cluster_id_ != 0 && header.cluster_id != cluster_id_) {
    disconnect("it belongs to another cluster of etcd than the one first spoken to", now);
  } else if (header.revision < pending.seen && pending.kind != Kind::read && !watch) {
    whole_ = true;
    if (registration_) registration_->set_back();
    disconnect("it has lost what it had; all is read anew", now);
  } else {
    cluster_id_ = header.cluster_id;
    if (link_ == Link::open) heard_ = now;
    return true;
  }
  return false;
}

void CoordinatorClient::answered(std::uint64_t id, const etcd::Answer& answer, TimePoint now) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // of a link that was given up
  const Pending pending = found->second;
  if (pending.kind != Kind::watch) pending_.erase(found);
  const bool callers = is_callers(pending.kind);
  if (callers) --calls_;
  const etcd::Header& header = std::visit(
      [](const auto& each) -> const auto& { return each.header; }, answer);
  const auto* const txn = std::get_if<etcd::TxnAnswer>(&answer);
  const auto* const lease = std::get_if<etcd::LeaseAnswer>(&answer);
  const auto* const range = std::get_if<etcd::RangeAnswer>(&answer);
  const auto* const watch = std::get_if<etcd::WatchAnswer>(&answer);
  if (!believes(header, pending, now)) {
    if (callers) call_failed(pending, why_);
  } else if (callers && txn != nullptr) {
    settle(pending, *txn);
  } else if (callers && range != nullptr) {
    news_.emplace_back(
        EpochRead{pending.token, range->kvs.empty() ? EpochRecord{} : record_of(range->kvs.front()), {}});
  } else if (pending.kind == Kind::registration && txn != nullptr) {
    registration_->answered(*txn, now);
  } else if (pending.kind == Kind::registration && lease != nullptr) {
    registration_->answered(*lease, now);
  } else if (pending.kind == Kind::watch && watch != nullptr) {
    watched(*watch, now);
  } else if (range != nullptr && link_ == Link::reading) {
    if (pending.kind == Kind::read) load(*range, now);
    link_ = Link::opening;
    next_at_ = now + options_.request_timeout;
    watch_ =
        send({Kind::watch},
             etcd::WatchCreate{.key = prefix_, .range_end = after(prefix_), .start_revision = revision_ + 1});
  } else if (range != nullptr) {
    failures_ = 0;
    next_at_ = now + options_.probe_every;
  }
  go_on(now);
}

void CoordinatorClient::failed(std::uint64_t id, const etcd::Failure& failure, TimePoint now) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const Pending pending = found->second;
  const Kind kind = pending.kind;
  pending_.erase(found);
  if (id == watch_) watch_ = 0;
  const bool ours = kind == Kind::registration;
  if (is_callers(kind)) {
    --calls_;
    call_failed(pending, at(pending.endpoint) + ": " + failure.text);
  } else if (ours) {
    registration_->failed(failure, now);
  }
  // Writes may be refused where reads are not. A write may also have been sent by a link before this one.
  if (kind == Kind::read || kind == Kind::probe || kind == Kind::watch ||
      (ours && failure.kind == etcd::Failure::Kind::unreachable))
    disconnect(failure.text, now);
  else if (failure.kind == etcd::Failure::Kind::refused)
    trouble(at(pending.endpoint) + " does not write: " + failure.text);
  go_on(now);
}

void CoordinatorClient::tick(TimePoint now) {
  if (link_ == Link::opening && now >= next_at_) disconnect("no watch began in time", now);
  go_on(now);
}

// What is due by now.
void CoordinatorClient::go_on(TimePoint now) {
  if (link_ == Link::waiting && now >= next_at_) connect();
  if (link_ == Link::open) {
    if (now >= next_at_) {
      send({Kind::probe}, etcd::Range{.key = epoch_key_, .range_end = "", .limit = 1});
      next_at_ = TimePoint::max();
    }
    if (registration_)
      if (auto body = registration_->next(now)) send({Kind::registration}, std::move(*body));
  } else if (up_ != false && now >= heard_ + options_.lost_after) {
    up_ = false;
    news_.emplace_back(CoordinatorLost{why_.empty() ? at(endpoint_) + ": no answer" : why_});
  }
  if (registration_)
    for (RegistrationNews& each : registration_->take_news())
      std::visit([&](auto& told) { news_.emplace_back(std::move(told)); }, each);
}

TimePoint CoordinatorClient::due() const {
  TimePoint due = link_ == Link::reading ? TimePoint::max() : next_at_;
  if (link_ == Link::open && registration_) due = std::min(due, registration_->due());
  if (link_ != Link::open && up_ != false) due = std::min(due, heard_ + options_.lost_after);
  return due;
}

void CoordinatorClient::watched(const etcd::WatchAnswer& answer, TimePoint now) {
  if (answer.canceled) {
    whole_ |= answer.compact_revision > 0;
    watch_ = 0;
    return disconnect(whole_ ? "what changed meanwhile is compacted; all is read anew"
                             : "it ended the watch: " + answer.cancel_reason,
                      now);
  }
  if (answer.created && link_ == Link::opening) {
    link_ = Link::open;
    heard_ = now;
    next_at_ = now + options_.probe_every;
    if (!up()) news_.emplace_back(CoordinatorBack{});
    up_ = true;
  }
  std::int64_t last = revision_;
  for (const etcd::WatchEvent& event : answer.events) {
    if (event.kv.mod_revision <= revision_ || event.kv.mod_revision < last) {
      whole_ = true;
      trouble(at(endpoint_) + " told of a change that it had told of before");
      return disconnect("its changes are out of order; all is read anew", now);
    }
    last = event.kv.mod_revision;
    apply(last, event.kv.key, event.deleted ? nullptr : &event.kv, now);
  }
  revision_ = last;
  if (whole_) disconnect("there is room again for what was left out; all is read anew", now);
}

// The copy becomes what was read; what differs is told.
void CoordinatorClient::load(const etcd::RangeAnswer& answer, TimePoint now) {
  left_out_ = false;
  std::set<std::string> there;
  for (const etcd::KeyValue& kv : answer.kvs) there.insert(kv.key);
  const auto gone = [&](const std::string& prefix, const auto& held) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : held)
      if (!there.contains(prefix + key)) keys.push_back(prefix + key);
    return keys;
  };
  std::vector<std::string> keys = gone(members_prefix_, members_);
  std::ranges::move(gone(values_prefix_, values_), std::back_inserter(keys));
  if (!there.contains(epoch_key_) && epoch_.revision != 0) keys.push_back(epoch_key_);
  const std::string own = options_.self ? members_prefix_ + options_.self->id : std::string();
  if (options_.self && !there.contains(own) && std::ranges::find(keys, own) == keys.end())
    keys.push_back(own);
  for (const std::string& key : keys) apply(answer.header.revision, key, nullptr, now);
  for (const etcd::KeyValue& kv : answer.kvs) apply(answer.header.revision, kv.key, &kv, now);
  whole_ = false;
  revision_ = answer.header.revision;
  if (answer.more) {
    left_out_ = true;
    trouble("there are more members and values of cluster '" + options_.name + "' than are kept");
  }
}

// One key changed, or was deleted.
void CoordinatorClient::apply(std::int64_t revision, const std::string& key, const etcd::KeyValue* kv,
                              TimePoint now) {
  if (kv == nullptr && left_out_) whole_ = true;
  if (key == epoch_key_) {
    EpochRecord record = kv == nullptr ? EpochRecord{} : record_of(*kv);
    if (record == epoch_) return;
    epoch_ = record;
    news_.emplace_back(EpochSeen{std::move(record)});
  } else if (key.starts_with(members_prefix_)) {
    apply_member(key.substr(members_prefix_.size()), kv);
    if (registration_ && key.substr(members_prefix_.size()) == options_.self->id)
      registration_->seen(revision, kv, now);
  } else if (key.starts_with(values_prefix_)) {
    apply_value(key.substr(values_prefix_.size()), kv);
  }
}

EpochRecord CoordinatorClient::record_of(const etcd::KeyValue& kv) {
  EpochRecord record{.epoch = {}, .revision = kv.mod_revision};
  if (auto epoch = epoch_of(kv.value))
    record.epoch = std::move(*epoch);
  else
    trouble("key '" + epoch_key_ + "' of etcd: " + epoch.error().message);
  return record;
}

// A member that cannot be read is none.
void CoordinatorClient::apply_member(const std::string& id, const etcd::KeyValue* kv) {
  const auto held = members_.find(id);
  if (kv != nullptr) {
    auto member = member_of(kv->value);
    if (member && member->id != id) member = invalid("it says that its id is '" + member->id + "'");
    if (member && held == members_.end() && members_.size() == options_.most_members) {
      left_out_ = true;
      member = fail(ErrorCode::resource_exhausted,
                    "there are more than " + std::to_string(options_.most_members) + " members");
    }
    if (member) {
      if (held != members_.end() && held->second == *member) return;
      members_.insert_or_assign(id, *member);
      news_.emplace_back(MemberSeen{std::move(*member)});
      return;
    }
    trouble("key '" + members_prefix_ + id.substr(0, 64) +
            "' of etcd is passed over: " + member.error().message);
  }
  if (held == members_.end()) return;
  members_.erase(held);
  news_.emplace_back(MemberGone{id});
}

void CoordinatorClient::apply_value(const std::string& key, const etcd::KeyValue* kv) {
  const auto held = values_.find(key);
  if (kv != nullptr) {
    const bool full = held == values_.end() && values_.size() == options_.most_values;
    if (!full && is_name(key) && kv->value.size() <= options_.longest_value) {
      if (held != values_.end() && held->second == kv->value) return;
      values_.insert_or_assign(key, kv->value);
      news_.emplace_back(ValueSeen{key, kv->value});
      return;
    }
    left_out_ |= full;
    trouble("key '" + values_prefix_ + key.substr(0, 64) + "' of etcd is passed over: " +
            (full ? "there are more than " + std::to_string(options_.most_values) + " values"
                  : "a value has a name of " + std::string(name_rule) + ", and at most " +
                        std::to_string(options_.longest_value) + " bytes"));
  }
  if (held == values_.end()) return;
  values_.erase(held);
  news_.emplace_back(ValueSeen{key, std::nullopt});
}

Result<> CoordinatorClient::call(Pending pending, etcd::Body body, TimePoint now) {
  if (link_ != Link::open)
    return fail(ErrorCode::unavailable,
                "no coordinator: " + (why_.empty() ? at(endpoint_) + ": no answer yet" : why_));
  if (calls_ == options_.most_calls)
    return fail(ErrorCode::resource_exhausted,
                "the coordinator has not yet answered " + std::to_string(options_.most_calls) + " requests");
  ++calls_;
  send(std::move(pending), std::move(body));
  go_on(now);
  return {};
}

Result<> CoordinatorClient::compare_and_set(std::uint64_t token, std::int64_t revision, const Epoch& epoch,
                                            TimePoint now) {
  CARILLON_ASSERT(is_name(epoch.leader));
  if (registration_ && !registration_->registered())
    return fail(ErrorCode::unavailable, "member '" + options_.self->id + "' is not registered");
  etcd::Txn txn{.key = epoch_key_, .mod_revision = revision, .value = to_json(epoch), .lease = 0};
  if (registration_) txn.also = registration_->held();
  return call({.kind = Kind::compare_and_set, .token = token, .epoch = epoch}, std::move(txn), now);
}

Result<> CoordinatorClient::read_epoch(std::uint64_t token, TimePoint now) {
  return call({.kind = Kind::read_epoch, .token = token},
              etcd::Range{.key = epoch_key_, .range_end = "", .limit = 1}, now);
}

Result<> CoordinatorClient::set(std::uint64_t token, const std::string& key, std::optional<std::string> value,
                                TimePoint now) {
  if (!is_name(key))
    return invalid("key '" + key.substr(0, 64) + "' of a value must be " + std::string(name_rule));
  if (value && value->size() > options_.longest_value)
    return invalid("value '" + key + "' has " + std::to_string(value->size()) + " bytes, but at most " +
                   std::to_string(options_.longest_value) + " are kept");
  return call(
      {.kind = Kind::set, .token = token},
      etcd::Txn{.key = values_prefix_ + key, .mod_revision = {}, .value = std::move(value), .lease = 0}, now);
}

void CoordinatorClient::settle(const Pending& pending, const etcd::TxnAnswer& answer) {
  WriteDone done{.token = pending.token, .outcome = WriteDone::Outcome::done};
  if (answer.succeeded) {
    trouble_.clear();
    if (pending.kind == Kind::compare_and_set) done.current = {pending.epoch, answer.header.revision};
  } else {
    done.outcome = WriteDone::Outcome::differs;
    if (!answer.kvs.empty()) done.current = record_of(answer.kvs.front());
  }
  news_.emplace_back(std::move(done));
}

// Nothing is known of what became of it.
void CoordinatorClient::call_failed(const Pending& pending, const std::string& why) {
  if (pending.kind == Kind::read_epoch)
    news_.emplace_back(EpochRead{pending.token, std::nullopt, why});
  else
    news_.emplace_back(WriteDone{.token = pending.token, .why = why});
}

void CoordinatorClient::leave(TimePoint now) {
  if (registration_) registration_->leave();
  go_on(now);
}

void CoordinatorClient::trouble(std::string what) {
  if (what == trouble_) return;
  trouble_ = what;
  news_.emplace_back(Trouble{std::move(what)});
}

}  // namespace carillon::cluster
