#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "carillon/base/time.h"

// What the client of etcd asks and is told, as plain structs. Field names are etcd's.
namespace carillon::cluster::etcd {

struct KeyValue {
  std::string key;
  std::string value;
  std::int64_t mod_revision = 0;  // 0: there is no such key
  std::int64_t lease = 0;
};

struct Range {
  std::string key;
  std::string range_end;   // exclusive; empty: the one key
  std::int64_t limit = 0;  // 0: none
};
struct KeyAt {
  std::string key;
  std::int64_t mod_revision = 0;  // 0: there is no such key
};
// Writes the key if its mod_revision is as said (0: there is no such key) or nothing is said, and `also` is
// as said; else reads the key.
struct Txn {
  std::string key;
  std::optional<std::int64_t> mod_revision;
  std::optional<std::string> value;  // none: deletes
  std::int64_t lease = 0;
  std::optional<KeyAt> also = std::nullopt;
};
struct LeaseGrant {
  std::int64_t ttl_s = 0;
};
struct LeaseKeepAlive {
  std::int64_t id = 0;
};
struct LeaseRevoke {
  std::int64_t id = 0;
};
// Answered by any number of WatchAnswer until it fails, or is ended by WatchCancel.
struct WatchCreate {
  std::string key;
  std::string range_end;
  std::int64_t start_revision = 0;
};
struct WatchCancel {};  // of the request with this id; has no answer

using Body = std::variant<Range, Txn, LeaseGrant, LeaseKeepAlive, LeaseRevoke, WatchCreate, WatchCancel>;

struct Request {
  std::uint64_t id = 0;
  std::size_t endpoint = 0;  // by the order of the address
  Duration timeout{0};       // after which it fails; of a watch, until it is created
  Body body;
};

struct Header {
  std::uint64_t cluster_id = 0;
  std::int64_t revision = 0;
};
struct RangeAnswer {
  Header header;
  std::vector<KeyValue> kvs;
  bool more = false;
};
struct TxnAnswer {
  Header header;
  bool succeeded = false;
  std::vector<KeyValue> kvs;  // where it did not succeed
};
struct LeaseAnswer {  // of a grant, a renewal or a revocation
  Header header;
  std::int64_t id = 0;
  std::int64_t ttl_s = 0;
};
struct WatchEvent {
  bool deleted = false;
  KeyValue kv;
};
struct WatchAnswer {
  Header header;
  bool created = false;
  bool canceled = false;
  std::int64_t compact_revision = 0;
  std::string cancel_reason;
  std::vector<WatchEvent> events;
};
using Answer = std::variant<RangeAnswer, TxnAnswer, LeaseAnswer, WatchAnswer>;

// Why there is no answer. The request may have been carried out, or may be yet: etcd says "no space" also of
// the write that filled the space.
struct Failure {
  enum class Kind : std::uint8_t {
    unreachable,  // no answer in time, or none at all
    not_found,    // the lease is not known
    refused,      // etcd answered that it does not do this now
  };
  Kind kind = Kind::unreachable;
  std::string text;
};

}  // namespace carillon::cluster::etcd
