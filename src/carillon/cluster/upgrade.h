#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/protocols.h"

namespace carillon::cluster {

// A member of a cluster that runs, as far as it is known.
struct MemberBuild {
  std::string id;
  Role role = Role::worker;
  bool leads = false;
  std::optional<Protocols> protocols = std::nullopt;  // none: not known
  std::string build = {};                             // empty: not told
};

// Whether a member goes together with another build.
struct UpgradeVerdict {
  std::optional<std::uint32_t> settles;  // the protocol that both speak; none: they do not go together
  std::string says;                      // for people
};
// `binary`: what the other build speaks.
UpgradeVerdict judge(const MemberBuild& member, const Protocols& binary);
// Why not all go together with the other build, and what would be right. Empty: all go together with it.
std::string why_not_together(const std::vector<MemberBuild>& members, const Protocols& binary);

// A step of an upgrade: its members are replaced one at a time. `says` is for people.
struct UpgradeStep {
  enum class Kind : std::uint8_t { spares, handover, workers, frontends };
  Kind kind{};
  std::vector<std::string> members;  // by id
  std::string says;
};
std::string name_of(UpgradeStep::Kind kind);
// Steps without members are left out.
std::vector<UpgradeStep> upgrade_order(const std::vector<MemberBuild>& members);

}  // namespace carillon::cluster
