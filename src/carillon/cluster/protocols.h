#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::cluster {

// The versions of the protocol between members of a cluster that a process speaks: `oldest` to `newest`. One
// number is for all that members tell each other: streams' frames, datagrams, and rows.
//
// The rule: two members go together if there is a version that both speak, and they speak the newest such
// version. A build speaks the version before its newest, too. So a cluster can be upgraded member by member,
// one version at a time.
//
// - A hello is written in its speaker's oldest version, and all versions can read it. So members that do not
//   go together can say why.
// - Rows: before a worker pulls rows from a frontend, the leader tells it which versions the frontend speaks.
// - A datagram is written in the version that the receiver's registration allows. A static file has no
//   registrations. Then the version is that of the receiver's last datagram, and before the first such
//   datagram the sender's oldest.
// - Answers to people (transport/desk.h) have no version: fields are added to them, and none is changed.
struct Protocols {
  std::uint32_t oldest = 1, newest = 1;
  bool has(std::uint32_t version) const { return oldest <= version && version <= newest; }
  bool is_range() const { return 1 <= oldest && oldest <= newest; }  // what others tell may be none
  friend bool operator==(const Protocols&, const Protocols&) = default;
};

// Of this build. `newest` goes up when older builds would misread or refuse a new build's messages. A field
// that older builds may skip needs no new version. `oldest` follows one behind.
inline constexpr Protocols own_protocols{.oldest = 1, .newest = 1};

// "protocol 1", or "protocols 1 to 2".
std::string to_text(const Protocols& protocols);
// Such as "1-2", or "2". Errors name the text.
Result<Protocols> parse_protocols(std::string_view text);

// A member, or whatever an error shall call it.
struct Speaker {
  std::string_view name;
  Protocols speaks;
};
// The version that both speak to each other. Without one the error names both, what each speaks, and which of
// them is to be upgraded.
Result<std::uint32_t> settle(const Speaker& self, const Speaker& peer);

inline constexpr std::size_t longest_build = 64;
// What a member may call its build: up to 64 printable characters of ASCII, or nothing.
bool is_build(std::string_view text);

}  // namespace carillon::cluster
