#include "carillon/cluster/upgrade.h"

#include <algorithm>

namespace carillon::cluster {
namespace {

std::string text_of(const std::vector<std::string>& ids) {
  std::string out;
  for (const std::string& id : ids) out += (out.empty() ? "" : ", ") + id;
  return out;
}

}  // namespace

UpgradeVerdict judge(const MemberBuild& member, const Protocols& binary) {
  if (!member.protocols)
    return {std::nullopt, member.id + " does not tell its version: it is not there, or too old to tell"};
  const std::string older = member.build.empty() ? " is too old to tell its version, and" : "";
  const auto both = settle({"this binary", binary}, {member.id, *member.protocols});
  if (!both)
    return {std::nullopt,
            (older.empty() ? "" : member.id + " is too old to tell its version: ") + both.error().message};
  return {*both, member.id + older + " speaks " + to_text(*member.protocols) +
                     ": with this binary protocol " + std::to_string(*both)};
}

std::string why_not_together(const std::vector<MemberBuild>& members, const Protocols& binary) {
  const auto apart = [&](const MemberBuild& member) { return !judge(member, binary).settles; };
  if (std::ranges::none_of(members, apart)) return {};
  const auto known = [&](const MemberBuild& member) { return member.protocols && apart(member); };
  return std::ranges::any_of(members, known)
             ? "Not all members go together with this binary: first bring the cluster to a build between"
             : "Not all members tell what they speak: ask again once they are there";
}

std::string name_of(UpgradeStep::Kind kind) {
  switch (kind) {
    case UpgradeStep::Kind::spares:
      return "spares";
    case UpgradeStep::Kind::handover:
      return "handover";
    case UpgradeStep::Kind::workers:
      return "workers";
    case UpgradeStep::Kind::frontends:
      return "frontends";
  }
  return "unknown";
}

std::vector<UpgradeStep> upgrade_order(const std::vector<MemberBuild>& members) {
  const auto all = [&](Role role, bool leads) {
    std::vector<std::string> ids;
    for (const MemberBuild& member : members)
      if (member.role == role && member.leads == leads) ids.push_back(member.id);
    std::ranges::sort(ids);
    return ids;
  };
  using Kind = UpgradeStep::Kind;
  std::vector<UpgradeStep> steps;
  const auto add = [&](Kind kind, std::vector<std::string> ids, const auto& says) {
    if (!ids.empty()) steps.push_back({kind, ids, says(text_of(ids))});
  };
  add(Kind::spares, all(Role::scheduler, false), [](const std::string& ids) {
    return "spare schedulers, one at a time: " + ids + ". Stop each, and start the new binary with its --id";
  });
  const bool spare = !steps.empty();
  add(Kind::handover, all(Role::scheduler, true), [&](const std::string& id) {
    return spare ? "the leader: carillon cluster drain " + id +
                       ", which hands the lead over. Stop it, and start the new binary"
                 : "the leader: " + id +
                       ". There is no spare: start one of the new binary first, or nobody decides meanwhile";
  });
  add(Kind::workers, all(Role::worker, false), [](const std::string& ids) {
    return "workers, one at a time: " + ids +
           ". carillon cluster drain each, stop it, start the new binary, and wait until status shows its "
           "devices";
  });
  add(Kind::frontends, all(Role::frontend, false), [](const std::string& ids) {
    return "frontends, one at a time: " + ids +
           ". carillon cluster drain each, wait until no client uses it, stop it, and start the new binary";
  });
  return steps;
}

}  // namespace carillon::cluster
