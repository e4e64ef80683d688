#include "carillon/cluster/coordinator/member.h"

#include <array>
#include <limits>
#include <utility>

#include "carillon/cluster/coordinator/address.h"
#include "carillon/profile/json_fields.h"

namespace carillon::cluster {
namespace {

using nlohmann::json;
using profile::JsonFields;

constexpr std::array<std::pair<Role, std::string_view>, 3> role_names{
    {{Role::frontend, "frontend"}, {Role::scheduler, "scheduler"}, {Role::worker, "worker"}}};

// Any number of 64 bits, which JsonFields' are not.
std::uint64_t bits(JsonFields& fields, const json& object, const std::string& place,
                   const std::string& name) {
  const json* value = fields.field(object, place, name, true);
  if (value == nullptr) return 0;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  fields.wrong(JsonFields::at(place, name),
               "is " + JsonFields::shown(*value) + ", but should be a whole number of 64 bits");
  return 0;
}

std::string id(JsonFields& fields, const json& object, const std::string& place, const std::string& name) {
  const std::string text = fields.text(object, place, name, true);
  if (!fields.failed() && !is_name(text))
    fields.wrong(JsonFields::at(place, name),
                 "is " + JsonFields::shown(text) + ", but should be " + std::string(name_rule));
  return text;
}

std::string fingerprint(JsonFields& fields, const json& value, const std::string& place) {
  if (value.is_string() && is_fingerprint(value.get<std::string>())) return value.get<std::string>();
  fields.wrong(place, "is " + JsonFields::shown(value) + ", but should be 16 hexadecimal digits");
  return {};
}

Result<json> document(std::string_view text, std::string_view what) {
  if (text.size() > longest_member)
    return invalid(std::string(what) + ": has " + std::to_string(text.size()) + " bytes, but at most " +
                   std::to_string(longest_member) + " are taken");
  return profile::parse_json_strictly(text, what, {.depth = 4, .values = 100});
}

}  // namespace

std::string_view name_of(Role role) {
  for (const auto& [each, name] : role_names)
    if (each == role) return name;
  return "unknown";
}

std::optional<Role> role_of(std::string_view name) {
  for (const auto& [role, each] : role_names)
    if (each == name) return role;
  return std::nullopt;
}

bool is_fingerprint(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string to_json(const Member& member) {
  nlohmann::ordered_json out{{"id", member.id},
                             {"role", name_of(member.role)},
                             {"address", member.address},
                             {"incarnation", member.incarnation}};
  // Earlier builds read `protocol` alone.
  const Protocols protocols = member.protocols.value_or(own_protocols);
  out["protocol"] = protocols.newest;
  if (protocols.oldest != protocols.newest) out["oldest_protocol"] = protocols.oldest;
  if (!member.keys.empty()) out["keys"] = member.keys;
  if (!member.build.empty()) out["build"] = member.build;
  return out.dump();
}

Result<Member> member_of(std::string_view text) {
  const auto read = document(text, "stored member");
  if (!read) return std::unexpected(read.error());
  JsonFields fields("stored member");
  Member member;
  member.id = id(fields, *read, "", "id");
  const std::string role = fields.text(*read, "", "role", true);
  if (const auto known = role_of(role))
    member.role = *known;
  else
    fields.wrong("role", "is " + JsonFields::shown(role) + ", but should be frontend, scheduler or worker");
  member.address = fields.text(*read, "", "address", true);
  if (const auto checked = check_endpoint(member.address); !checked)
    fields.wrong("address", checked.error().message);
  member.incarnation = bits(fields, *read, "", "incarnation");
  Protocols protocols;
  protocols.newest = static_cast<std::uint32_t>(
      fields.integer(*read, "", "protocol", 1, std::numeric_limits<std::int32_t>::max()));
  protocols.oldest = static_cast<std::uint32_t>(
      fields.integer(*read, "", "oldest_protocol", 1, protocols.newest, protocols.newest));
  member.protocols = protocols;
  const json& keys = fields.array(*read, "", "keys", false);
  if (keys.size() > most_keys)
    fields.wrong("keys", "has " + std::to_string(keys.size()) + " of them, but at most " +
                             std::to_string(most_keys) + " are taken");
  for (const json& key : keys)
    if (!fields.failed()) member.keys.push_back(fingerprint(fields, key, "keys"));
  if (!fields.failed() && fields.field(*read, "", "build", false) != nullptr) {
    member.build = fields.text(*read, "", "build", true);
    if (!fields.failed() && !is_build(member.build))
      fields.wrong("build", "is " + JsonFields::shown(member.build) + ", but should be up to " +
                                std::to_string(longest_build) + " printable characters");
  }
  if (fields.failed()) return fields.error();
  return member;
}

std::string to_json(const Epoch& epoch) {
  nlohmann::ordered_json out{{"epoch", epoch.number}, {"leader", epoch.leader}, {"nonce", epoch.nonce}};
  if (!epoch.key.empty()) out["key"] = epoch.key;
  return out.dump();
}

Result<Epoch> epoch_of(std::string_view text) {
  const auto read = document(text, "stored epoch");
  if (!read) return std::unexpected(read.error());
  JsonFields fields("stored epoch");
  Epoch epoch{.number = bits(fields, *read, "", "epoch"),
              .leader = id(fields, *read, "", "leader"),
              .nonce = bits(fields, *read, "", "nonce")};
  if (const json* key = fields.field(*read, "", "key", false)) epoch.key = fingerprint(fields, *key, "key");
  if (fields.failed()) return fields.error();
  return epoch;
}

}  // namespace carillon::cluster
