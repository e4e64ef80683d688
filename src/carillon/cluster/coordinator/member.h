#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/protocols.h"

namespace carillon::cluster {

enum class Role : std::uint8_t { frontend, scheduler, worker };
std::string_view name_of(Role role);
std::optional<Role> role_of(std::string_view name);

// A process of a cluster.
struct Member {
  std::string id;  // is_name()
  Role role = Role::worker;
  std::string address;                                 // HOST:PORT where other members reach it
  std::uint64_t incarnation = 0;                       // differs with every start of the process
  std::optional<Protocols> protocols = own_protocols;  // none: not known, as in a static file
  // Fingerprints of the keys whose beats the member hears. The first is the key that it signs with. Empty: a
  // member of an earlier version.
  std::vector<std::string> keys = {};
  std::string build = {};  // is_build(); empty: of an earlier version, or in a static file

  friend bool operator==(const Member&, const Member&) = default;
};

// Of a cluster's key (transport::fingerprint_of()): 16 hexadecimal digits.
bool is_fingerprint(std::string_view text);
inline constexpr std::size_t most_keys = 2;  // of a member: while a cluster changes its key

inline constexpr std::size_t longest_member = 1024;  // bytes of JSON

// What is stored of a member, and back. The text comes from outside: whatever is wrong with it is an error
// that names the field. Fields of later versions are passed over.
std::string to_json(const Member& member);
Result<Member> member_of(std::string_view json);

// The one value by which a leader is elected.
struct Epoch {
  std::uint64_t number = 0;
  std::string leader;  // a member's id
  std::uint64_t nonce = 0;
  std::string key = {};  // the fingerprint of the leader's; empty: of an earlier version

  friend bool operator==(const Epoch&, const Epoch&) = default;
};

std::string to_json(const Epoch& epoch);
Result<Epoch> epoch_of(std::string_view json);

}  // namespace carillon::cluster
