#include "carillon/cluster/coordinator/static_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <toml++/toml.h>

#include "carillon/base/files.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/workload/section.h"

namespace carillon::cluster {
namespace {

using workload::Section;

constexpr std::size_t most_named = 16;  // members, in an error

Member read_member(Section& section) {
  Member member{.protocols = std::nullopt};
  member.id = section.text("id", "");
  const std::string role_text = section.text("role", "");
  member.address = section.text("address", "");
  section.done();  // "adress" is what is wrong, and not that there is no address
  if (!is_name(member.id))
    section.wrong(section.find("id"), "a member needs an id: " + std::string(name_rule));
  const auto role = role_of(role_text);
  if (!role)
    section.wrong(section.find("role"), "a member needs a role: \"frontend\", \"scheduler\" or \"worker\"");
  member.role = *role;
  if (const auto checked = check_endpoint(member.address); !checked)
    section.wrong(section.find("address"), "a member needs an address: " + checked.error().message);
  member.incarnation = static_incarnation;
  return member;
}

StaticCluster read_cluster(Section& root) {
  StaticCluster cluster;
  cluster.name = root.text("name", "");
  if (!is_name(cluster.name))
    root.wrong(root.find("name"), "the file needs the name of the cluster: " + std::string(name_rule));
  const toml::node* list = root.find("member");
  if (list == nullptr || !list->is_array_of_tables())
    root.wrong(list, "there must be [[member]] tables, one for each process of the cluster");
  root.done();
  if (list->as_array()->size() > most_static_members)
    root.wrong(list, "there are more than " + std::to_string(most_static_members) + " members");
  std::map<std::string, std::string> ids, addresses;  // with the lines of the members that have them
  std::optional<std::string> scheduler;
  for (const toml::node& node : *list->as_array()) {
    Section section(*node.as_table(), "member", root.file());
    Member member = read_member(section);
    const std::string line = "line " + std::to_string(node.source().begin.line);
    for (const auto& [key, value, seen] :
         {std::tuple{"id", member.id, &ids}, std::tuple{"address", member.address, &addresses}})
      if (const auto [other, fresh] = seen->emplace(value, line); !fresh)
        section.wrong(section.find(key), std::string(key) + " \"" + value + "\" is that of the member in " +
                                             other->second + ", too; each member has its own");
    if (member.role == Role::scheduler) {
      if (scheduler)
        section.wrong(section.find("role"), "there is a scheduler in " + *scheduler +
                                                " already; a static file has no failover, which needs etcd");
      scheduler = line;
    }
    cluster.members.push_back(std::move(member));
  }
  if (!scheduler) root.wrong(list, "no member has the role scheduler; there must be exactly one");
  return cluster;
}

}  // namespace

Result<StaticCluster> parse_static_cluster(std::string_view text, const std::filesystem::path& file) {
  try {
    const toml::table table = toml::parse(text, file.string());
    Section root(table, "", file);
    return read_cluster(root);
  } catch (const toml::parse_error& error) {
    return invalid(workload::place_of(file, error.source()) + ": " + std::string(error.description()));
  } catch (const workload::Problem& problem) {
    return invalid(problem.message);
  }
}

Result<StaticCluster> read_static_cluster(const std::filesystem::path& file) {
  const auto text = read_file("the file of the cluster", file);
  if (!text) return std::unexpected(text.error());
  return parse_static_cluster(*text, file);
}

Result<> check_self(const StaticCluster& cluster, const Member& self, const std::filesystem::path& file) {
  const auto found = std::ranges::find(cluster.members, self.id, &Member::id);
  if (found == cluster.members.end()) {
    std::string ids;
    for (std::size_t i = 0; i < std::min(cluster.members.size(), most_named); ++i)
      ids += (i == 0 ? "" : ", ") + cluster.members[i].id;
    if (cluster.members.size() > most_named) ids += ", ...";
    return invalid(file.string() + " has no member '" + self.id + "'; it has " + ids);
  }
  const auto differs = [&](std::string_view field, std::string_view there, std::string_view here) {
    return invalid(file.string() + ": the " + std::string(field) + " of member \"" + self.id + "\" is \"" +
                   std::string(there) + "\", and this process has \"" + std::string(here) + "\"");
  };
  if (found->role != self.role) return differs("role", name_of(found->role), name_of(self.role));
  if (found->address != self.address) return differs("address", found->address, self.address);
  return {};
}

}  // namespace carillon::cluster
