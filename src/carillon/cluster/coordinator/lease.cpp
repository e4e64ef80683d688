#include "carillon/cluster/coordinator/lease.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "carillon/cluster/coordinator/address.h"
#include "carillon/profile/json_fields.h"

namespace carillon::cluster::kubernetes {
namespace {

using nlohmann::json;

constexpr profile::JsonLimits lease_limits{.depth = 40, .values = 2'000'000};
constexpr std::size_t longest_message = 300;
constexpr std::string_view member_annotation = "carillon/member", epoch_annotation = "carillon/epoch";

// The value at a path of objects; null where there is none.
template <typename... Names>
const json& value_at(const json& object, std::string_view name, const Names&... more) {
  static const json none;
  if (!object.is_object()) return none;
  const auto found = object.find(std::string(name));
  if (found == object.end()) return none;
  if constexpr (sizeof...(more) == 0)
    return *found;
  else
    return value_at(*found, more...);
}

std::string string_at(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::optional<std::int64_t> number_at(const json& value) {
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>()))
    return std::nullopt;
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

// Without what could write on a terminal, and not too long.
std::string printable(std::string text) {
  if (text.size() > longest_message) text = text.substr(0, longest_message - 3) + "...";
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

Result<std::int64_t> revision_in(const json& object, std::string_view what) {
  const std::string text = string_at(value_at(object, "metadata", "resourceVersion"));
  std::int64_t revision = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), revision);
  if (error != std::errc{} || end != text.data() + text.size() || revision <= 0)
    return invalid(std::string(what) + " has the resourceVersion '" + printable(text.substr(0, 40)) +
                   "', which is no number");
  return revision;
}

Result<Lease> lease_in(const json& object) {
  Lease lease;
  lease.name = string_at(value_at(object, "metadata", "name"));
  if (!is_dns_name(lease.name, true))
    return invalid("a Lease is called '" + printable(lease.name.substr(0, 40)) + "'");
  const auto revision = revision_in(object, "Lease '" + lease.name + "'");
  if (!revision) return std::unexpected(revision.error());
  lease.revision = *revision;
  lease.cluster = string_at(value_at(object, "metadata", "labels", cluster_label));
  lease.holder = string_at(value_at(object, "spec", "holderIdentity"));
  lease.transitions = number_at(value_at(object, "spec", "leaseTransitions"));
  lease.duration_s = number_at(value_at(object, "spec", "leaseDurationSeconds"));
  lease.member = string_at(value_at(object, "metadata", "annotations", member_annotation));
  lease.epoch = string_at(value_at(object, "metadata", "annotations", epoch_annotation));
  return lease;
}

nlohmann::ordered_json lease_body(const LeasePlace& place, const std::string& name, std::string_view role,
                                  std::int64_t revision) {
  nlohmann::ordered_json metadata{{"name", name}, {"namespace", place.name_space}};
  if (revision != 0) metadata["resourceVersion"] = std::to_string(revision);
  metadata["labels"] = {{cluster_label, place.cluster}, {role_label, role}};
  metadata["annotations"] = nlohmann::ordered_json::object();
  return {{"apiVersion", "coordination.k8s.io/v1"},
          {"kind", "Lease"},
          {"metadata", std::move(metadata)},
          {"spec", nlohmann::ordered_json::object()}};
}

}  // namespace

bool is_dns_name(std::string_view text, bool dots) {
  const auto alone = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (text.size() > (dots ? 253 : 63)) return false;
  while (true) {
    const auto dot = dots ? text.find('.') : std::string_view::npos;
    const std::string_view part = text.substr(0, dot);
    if (part.empty() || !alone(part.front()) || !alone(part.back()) ||
        !std::ranges::all_of(part, [&](char c) { return alone(c) || c == '-'; }))
      return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

Result<Lease> lease_of(std::string_view text) {
  const auto read = profile::parse_json_strictly(text, "a Lease", lease_limits);
  if (!read) return std::unexpected(read.error());
  return lease_in(*read);
}

Result<LeaseList> lease_list_of(std::string_view text) {
  const auto read = profile::parse_json_strictly(text, "the list of Leases", lease_limits);
  if (!read) return std::unexpected(read.error());
  const auto revision = revision_in(*read, "the list of Leases");
  if (!revision) return std::unexpected(revision.error());
  LeaseList list{.revision = *revision, .items = {}};
  list.more = !string_at(value_at(*read, "metadata", "continue")).empty();
  const json& items = value_at(*read, "items");
  if (!items.is_array() && !items.is_null()) return invalid("the list of Leases has items that are no list");
  for (const json& item : items) {
    auto lease = lease_in(item);
    if (!lease) return std::unexpected(lease.error());
    list.items.push_back(*std::move(lease));
  }
  return list;
}

Result<LeaseEvent> lease_event_of(std::string_view line) {
  const auto read = profile::parse_json_strictly(line, "a line of the watch", lease_limits);
  if (!read) return std::unexpected(read.error());
  LeaseEvent event;
  const std::string type = string_at(value_at(*read, "type"));
  const json& object = value_at(*read, "object");
  if (type == "ERROR") {
    event.kind = LeaseEvent::Kind::error;
    event.code =
        static_cast<int>(std::clamp<std::int64_t>(number_at(value_at(object, "code")).value_or(0), 0, 999));
    event.message = printable(string_at(value_at(object, "message")));
    return event;
  }
  if (type == "BOOKMARK") {
    event.kind = LeaseEvent::Kind::bookmark;
    const auto revision = revision_in(object, "a bookmark of the watch");
    if (!revision) return std::unexpected(revision.error());
    event.lease.revision = *revision;
    return event;
  }
  if (type == "DELETED")
    event.kind = LeaseEvent::Kind::deleted;
  else if (type != "ADDED" && type != "MODIFIED")
    return invalid("a line of the watch is of the type '" + printable(type.substr(0, 40)) + "'");
  auto lease = lease_in(object);
  if (!lease) return std::unexpected(lease.error());
  event.lease = *std::move(lease);
  return event;
}

StatusWords status_of(std::string_view body) {
  const auto read = profile::parse_json_strictly(body, "a status", {.depth = 16, .values = 1000});
  if (!read) return {};
  return {printable(string_at(value_at(*read, "message"))),
          printable(string_at(value_at(*read, "details", "kind")))};
}

std::string member_lease(const LeasePlace& place, const Member& member, const std::optional<Epoch>& known,
                         std::int64_t duration_s, std::int64_t revision, const std::string& stamp) {
  auto lease = lease_body(place, place.cluster + "." + member.id, name_of(member.role), revision);
  lease["metadata"]["annotations"][std::string(member_annotation)] = to_json(member);
  if (known) lease["metadata"]["annotations"][std::string(epoch_annotation)] = to_json(*known);
  lease["spec"] = {{"holderIdentity", member.id + "/" + std::to_string(member.incarnation)},
                   {"leaseDurationSeconds", duration_s},
                   {"renewTime", stamp}};
  return lease.dump();
}

std::string epoch_lease(const LeasePlace& place, const Epoch& epoch, std::int64_t revision,
                        const std::string& stamp) {
  auto lease = lease_body(place, place.cluster, "epoch", revision);
  lease["metadata"]["annotations"][std::string(epoch_annotation)] = to_json(epoch);
  lease["spec"] = {
      {"holderIdentity", epoch.leader}, {"acquireTime", stamp}, {"leaseTransitions", epoch.number}};
  return lease.dump();
}

std::string delete_options(std::int64_t revision) {
  return nlohmann::ordered_json{{"apiVersion", "v1"},
                                {"kind", "DeleteOptions"},
                                {"preconditions", {{"resourceVersion", std::to_string(revision)}}}}
      .dump();
}

Result<StoredEpoch> stored_epoch(const Lease& lease) {
  if (!lease.transitions || *lease.transitions <= 0)
    return invalid("its leaseTransitions is no number of an epoch");
  if (!is_name(lease.holder))
    return invalid("its holderIdentity '" + printable(lease.holder.substr(0, 40)) + "' is no id of a member");
  StoredEpoch stored{.epoch = {.number = static_cast<std::uint64_t>(*lease.transitions),
                               .leader = lease.holder,
                               .nonce = 0}};
  const auto noted = epoch_of(lease.epoch);
  if (!noted || noted->leader != lease.holder) return stored;
  stored.epoch.nonce = noted->nonce;
  stored.epoch.key = noted->key;
  stored.whole = noted->number == stored.epoch.number;
  return stored;
}

}  // namespace carillon::cluster::kubernetes
