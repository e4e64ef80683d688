// One member of a cluster by command, for tests/test_coordinator.py and tests/test_kubernetes.py:
//
//   carillon_coordinator_probe ADDRESS [--id ID --incarnation N] [--ttl S] [--timeout S] [--ca FILE]
//   [--certificate FILE]
//   [--key FILE]
//
// Reads orders from standard input and writes news to standard output, one JSON object a line. Ends when its
// input does. Exit status 2: the options are wrong, and standard error says why.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "carillon/coordinator/coordinator.h"
#include "carillon/coordinator/etcd.h"

namespace {

using namespace carillon;
using nlohmann::json;

std::mutex printing;

void print(const json& line) {
  const std::lock_guard lock(printing);
  std::cout << line.dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
}

json json_of(const cluster::EpochRecord& record) {
  json value{{"revision", record.revision}};
  if (record.epoch) {
    value["epoch"] = record.epoch->number;
    value["leader"] = record.epoch->leader;
    value["nonce"] = record.epoch->nonce;
  }
  return value;
}

struct Teller {
  json operator()(const cluster::CoordinatorLost& news) const {
    return {{"news", "lost"}, {"why", news.why}};
  }
  json operator()(const cluster::CoordinatorBack&) const { return {{"news", "back"}}; }
  json operator()(const cluster::MemberSeen& news) const {
    return {{"news", "member"}, {"id", news.member.id}, {"incarnation", news.member.incarnation}};
  }
  json operator()(const cluster::MemberGone& news) const { return {{"news", "gone"}, {"id", news.id}}; }
  json operator()(const cluster::EpochSeen& news) const {
    return {{"news", "epoch"}, {"record", json_of(news.record)}};
  }
  json operator()(const cluster::ValueSeen& news) const {
    return {{"news", "value"}, {"key", news.key}, {"value", news.value ? json(*news.value) : json()}};
  }
  json operator()(const cluster::WriteDone& news) const {
    static const char* const outcomes[] = {"done", "differs", "unknown"};
    return {{"news", "write"},
            {"token", news.token},
            {"outcome", outcomes[static_cast<int>(news.outcome)]},
            {"record", json_of(news.current)},
            {"why", news.why}};
  }
  json operator()(const cluster::EpochRead& news) const {
    json told{{"news", "read"}, {"token", news.token}, {"why", news.why}};
    if (news.record) told["record"] = json_of(*news.record);
    return told;
  }
  json operator()(const cluster::Trouble& news) const { return {{"news", "trouble"}, {"what", news.what}}; }
  json operator()(const cluster::Registered&) const { return {{"news", "registered"}}; }
  json operator()(const cluster::Unregistered& news) const {
    return {{"news", "unregistered"}, {"why", news.why}};
  }
  json operator()(const cluster::IdTaken& news) const { return {{"news", "taken"}, {"why", news.why}}; }
};

int wrong(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 2;
}

void obey(coordinator::Coordinator& member, const json& order) {
  auto* const etcd = dynamic_cast<coordinator::Etcd*>(&member);
  const std::string what = order.at("do");
  const std::uint64_t token = order.value("token", std::uint64_t{0});
  Result<> sent;
  if (what == "compare_and_set") {
    sent = member.compare_and_set(
        token, order.at("revision"),
        {.number = order.at("epoch"), .leader = order.at("leader"), .nonce = order.at("nonce")});
  } else if (what == "set" && etcd != nullptr) {
    const json& value = order.at("value");
    sent = etcd->set(token, order.at("key"),
                     value.is_null() ? std::nullopt : std::optional(value.get<std::string>()));
  } else if (what == "read_epoch") {
    sent = member.read_epoch(token);
  } else if (what == "leave") {
    member.leave();
  } else {
    json members = json::object();
    for (const auto& [id, each] : member.members()) members[id] = each.incarnation;
    print({{"news", "copy"},
           {"up", member.up()},
           {"members", members},
           {"values", etcd != nullptr ? json(etcd->values()) : json::object()},
           {"record", json_of(member.epoch())}});
  }
  if (!sent) print({{"news", "refused"}, {"token", token}, {"why", sent.error().message}});
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const auto address = cluster::parse_coordinator_address(argc > 1 ? argv[1] : "");
  if (!address) return wrong(address.error().message);
  cluster::CoordinatorOptions client;
  if (const std::string& id = options["--id"]; !id.empty())
    client.self = cluster::Member{.id = id,
                                  .role = cluster::Role::worker,
                                  .address = "127.0.0.1:8100",
                                  .incarnation = std::stoull(options["--incarnation"])};
  if (const std::string& ttl = options["--ttl"]; !ttl.empty()) client.registration.ttl_s = std::stol(ttl);
  if (const std::string& timeout = options["--timeout"]; !timeout.empty())
    client.request_timeout = std::chrono::seconds{std::stol(timeout)};
  const coordinator::EtcdTls tls{options["--ca"], options["--certificate"], options["--key"]};
  auto member = coordinator::open(*address, tls, std::move(client), [](const cluster::CoordinatorNews& news) {
    print(std::visit(Teller{}, news));
  });
  if (!member) return wrong(member.error().message);
  std::string line;
  while (std::getline(std::cin, line)) obey(**member, json::parse(line));
  member->reset();
  print({{"news", "ended"}});
  return 0;
}
