#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/etcd_messages.h"

namespace carillon::cluster::testing {

// What etcd does with requests, as far as the client sends them: one store, whichever endpoint is asked.
class EtcdModel {
 public:
  struct Change {
    std::int64_t revision = 0;
    etcd::WatchEvent event;
  };

  // Of all but WatchCreate and WatchCancel.
  std::variant<etcd::Answer, etcd::Failure> carry_out(const etcd::Body& body, TimePoint now) {
    expire(now);
    if (const auto* range = std::get_if<etcd::Range>(&body)) return etcd::Answer{read(*range)};
    if (const auto* txn = std::get_if<etcd::Txn>(&body)) return carry_out(*txn);
    if (const auto* grant = std::get_if<etcd::LeaseGrant>(&body)) {
      leases[++last_lease_] = {now + std::chrono::seconds{grant->ttl_s}, grant->ttl_s};
      return etcd::Answer{etcd::LeaseAnswer{header(), last_lease_, grant->ttl_s}};
    }
    if (const auto* renew = std::get_if<etcd::LeaseKeepAlive>(&body)) {
      const auto found = leases.find(renew->id);
      if (found == leases.end()) return etcd::Answer{etcd::LeaseAnswer{header(), renew->id, 0}};
      found->second.ends = now + std::chrono::seconds{found->second.ttl_s};
      return etcd::Answer{etcd::LeaseAnswer{header(), renew->id, found->second.ttl_s}};
    }
    const std::int64_t id = std::get<etcd::LeaseRevoke>(body).id;
    if (!leases.contains(id))
      return etcd::Failure{etcd::Failure::Kind::not_found, "requested lease not found"};
    end_lease(id);
    return etcd::Answer{etcd::LeaseAnswer{header(), id, 0}};
  }

  void put(const std::string& key, const std::string& value, std::int64_t lease = 0) {
    const etcd::KeyValue kv{.key = key, .value = value, .mod_revision = ++revision, .lease = lease};
    store[key] = kv;
    history.push_back({revision, {false, kv}});
  }
  // Deletes in one revision whatever of `keys` is there.
  void erase(const std::vector<std::string>& keys) {
    bool any = false;
    for (const std::string& key : keys) {
      if (store.erase(key) == 0) continue;
      if (!std::exchange(any, true)) ++revision;
      history.push_back({revision, {true, {.key = key, .value = "", .mod_revision = revision}}});
    }
  }
  void end_lease(std::int64_t id) {
    leases.erase(id);
    std::vector<std::string> keys;
    for (const auto& [key, kv] : store)
      if (kv.lease == id) keys.push_back(key);
    erase(keys);
  }
  void expire(TimePoint now) {
    std::vector<std::int64_t> over;
    for (const auto& [id, lease] : leases)
      if (lease.ends < now) over.push_back(id);
    for (const std::int64_t id : over) end_lease(id);
  }
  void compact() {
    compacted = revision;
    std::erase_if(history, [&](const Change& change) { return change.revision < compacted; });
  }

  etcd::Header header() const { return {cluster_id, revision}; }
  etcd::RangeAnswer read(const etcd::Range& range) const {
    etcd::RangeAnswer answer{.header = header(), .kvs = {}, .more = false};
    for (const auto& [key, kv] : store) {
      if (range.range_end.empty() ? key != range.key : key < range.key || key >= range.range_end) continue;
      answer.more = range.limit > 0 && answer.kvs.size() == static_cast<std::size_t>(range.limit);
      if (answer.more) break;
      answer.kvs.push_back(kv);
    }
    return answer;
  }

  struct Lease {
    TimePoint ends;
    std::int64_t ttl_s = 0;
  };
  std::uint64_t cluster_id = 7;
  std::int64_t revision = 1, compacted = 0;
  std::map<std::string, etcd::KeyValue> store;
  std::map<std::int64_t, Lease> leases;
  std::vector<Change> history;  // from `compacted` on

 private:
  std::variant<etcd::Answer, etcd::Failure> carry_out(const etcd::Txn& txn) {
    const auto is_at = [&](const std::string& key, std::int64_t mod_revision) {
      const auto found = store.find(key);
      return mod_revision == (found == store.end() ? 0 : found->second.mod_revision);
    };
    if ((txn.mod_revision && !is_at(txn.key, *txn.mod_revision)) ||
        (txn.also && !is_at(txn.also->key, txn.also->mod_revision)))
      return etcd::Answer{
          etcd::TxnAnswer{header(), false, read({.key = txn.key, .range_end = "", .limit = 0}).kvs}};
    if (txn.lease != 0 && !leases.contains(txn.lease))
      return etcd::Failure{etcd::Failure::Kind::not_found, "requested lease not found"};
    if (txn.value)
      put(txn.key, *txn.value, txn.lease);
    else
      erase({txn.key});
    return etcd::Answer{etcd::TxnAnswer{header(), true, {}}};
  }

  std::int64_t last_lease_ = 100;
};

}  // namespace carillon::cluster::testing
