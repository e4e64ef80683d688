#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/member.h"

// Leases (coordination.k8s.io/v1) as a cluster uses them: one, called as the cluster is, has the epoch; one
// of each member, CLUSTER.ID, has the member.
namespace carillon::cluster::kubernetes {

// Of a cluster, and with `dots` of a member's id: lower-case letters, digits and '-', 1 to 63 of them, with a
// letter or digit at both ends; with `dots` any number of these with dots between.
bool is_dns_name(std::string_view text, bool dots);
inline constexpr std::string_view dns_name_rule =
    "lower-case letters, digits and '-', with a letter or digit at both ends, at most 63 in all";

inline constexpr std::string_view cluster_label = "carillon/cluster", role_label = "carillon/role";

struct Lease {
  std::string name;
  std::int64_t revision = 0;  // resourceVersion, which must be a number; grows with every change
  std::string cluster;        // by its label
  std::string holder;         // spec.holderIdentity
  std::optional<std::int64_t> transitions, duration_s;
  std::string member, epoch;  // annotations: JSON of Member and Epoch

  friend bool operator==(const Lease&, const Lease&) = default;
};

// The text comes from outside. Fields of other kinds than expected count as not there, but for name and
// resourceVersion.
Result<Lease> lease_of(std::string_view json);

struct LeaseList {
  std::int64_t revision = 0;
  std::vector<Lease> items;
  bool more = false;
};
Result<LeaseList> lease_list_of(std::string_view json);

struct LeaseEvent {
  enum class Kind : std::uint8_t { put, deleted, bookmark, error };
  Kind kind = Kind::put;
  Lease lease;          // of a bookmark the revision alone
  int code = 0;         // of an error
  std::string message;  // of an error
};
Result<LeaseEvent> lease_event_of(std::string_view line);

// What a Status says, printable; empty: the text is none. `kind`: of what it is about, such as "namespaces".
struct StatusWords {
  std::string message, kind;
};
StatusWords status_of(std::string_view body);

// What is to be written: `revision` 0 creates. `stamp`: the wall clock, for people alone.
struct LeasePlace {
  std::string name_space, cluster;
};
std::string member_lease(const LeasePlace& place, const Member& member, const std::optional<Epoch>& known,
                         std::int64_t duration_s, std::int64_t revision, const std::string& stamp);
std::string epoch_lease(const LeasePlace& place, const Epoch& epoch, std::int64_t revision,
                        const std::string& stamp);
std::string delete_options(std::int64_t revision);

// What the Lease of the epoch says. Number and leader are those of its spec, which people see and edit. The
// nonce and the key, in the annotation, are believed if they are that leader's; else nobody has that nonce.
// Error: it says no epoch.
struct StoredEpoch {
  Epoch epoch;
  bool whole = false;  // spec and annotation agree
};
Result<StoredEpoch> stored_epoch(const Lease& lease);

}  // namespace carillon::cluster::kubernetes
