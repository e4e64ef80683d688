// One process of a cluster by command, for tests/test_hosts.py:
//
//   carillon_hosts_probe ADDRESS ID ROLE LISTEN [KEY]
//
// Writes what it knows to standard output whenever that changes, one JSON object a line, with the time by
// CLOCK_MONOTONIC; reads orders {"do": "state"} and {"do": "hand_over", "to": ID} from standard input, and
// ends when its input does. Answers people at the same address by TCP (transport/desk.h): each worker has two
// devices, and a worker's drain is only told. Exit status 2: standard error says what is wrong.
#include <cstdio>
#include <iostream>
#include <mutex>
#include <random>
#include <set>
#include <string>

#include <grpcpp/security/server_credentials.h>
#include <nlohmann/json.hpp>

#include "carillon/base/clock.h"
#include "carillon/hosts/look.h"
#include "carillon/hosts/membership.h"
#include "carillon/transport/stream.h"

namespace {

using namespace carillon;
using nlohmann::json;

std::mutex printing;

void print(json line) {
  line["at_ns"] = SteadyClock().now().time_since_epoch().count();
  const std::lock_guard lock(printing);
  std::cout << line.dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
}

void show(const hosts::Membership::State& state) {
  json there = json::array();
  json clocks = json::object();
  for (const hosts::MemberCore::Peer& peer : state.peers) {
    if (peer.there) there.push_back(peer.member.id);
    if (peer.clock)
      clocks[peer.member.id] = {{"offset_ns", peer.clock->offset.count()},
                                {"bound_ns", peer.clock->bound.count()}};
  }
  print({{"news", "state"},
         {"leads", state.leads},
         {"epoch", state.epoch},
         {"leader", state.leader ? json(*state.leader) : json()},
         {"there", there},
         {"clocks", clocks},
         {"refused", state.counters.refused},
         {"unknown", state.counters.unknown},
         {"trouble", state.trouble}});
}

class Desk final : public transport::Desk {
 public:
  explicit Desk(hosts::Membership& membership) : membership_(membership) {}
  transport::Look look() override {
    transport::Look look = hosts::look_of(membership_.state(), membership_.self());
    for (transport::Look::Member& member : look.members)
      if (member.role == cluster::Role::worker) {
        member.devices = 2;
        const std::lock_guard lock(mutex_);
        if (drained_.contains(member.id)) member.drain = transport::Look::Drain::drained;
      }
    return look;
  }
  Result<> hand_over(const std::string& to) override { return membership_.hand_over(to); }
  Result<> drain(const std::string& id, bool undo) override {
    if (id == membership_.self().id) return membership_.drain(undo);
    const transport::Look known = look();
    if (!known.leads) return fail(ErrorCode::unavailable, known.id + " does not lead");
    for (const transport::Look::Member& member : known.members)
      if (member.id == id && member.role == cluster::Role::worker) {
        print({{"news", "drain"}, {"id", id}, {"undo", undo}});
        const std::lock_guard lock(mutex_);
        if (undo)
          drained_.erase(id);
        else
          drained_.insert(id);
        return {};
      }
    return invalid(id + " is no worker of the cluster");
  }

 private:
  hosts::Membership& membership_;
  std::mutex mutex_;
  std::set<std::string> drained_;
};

class NoStreams final : public transport::StreamOwner {
 public:
  Result<> greets(const transport::Hello&) override {
    return fail(ErrorCode::unsupported, "the probe has no streams");
  }
  void opened(const std::shared_ptr<transport::Stream>&) override {}
  void heard(transport::Stream&, transport::Frame) override {}
  void ended(transport::Stream&, const Error&) override {}
};

int wrong(const std::string& what) {
  std::fprintf(stderr, "carillon_hosts_probe: %s\n", what.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return wrong("ADDRESS ID ROLE LISTEN [KEY]");
  const auto address = cluster::parse_coordinator_address(argv[1]);
  if (!address) return wrong(address.error().message);
  const auto role = cluster::role_of(argv[3]);
  if (!role) return wrong("no role");
  std::random_device dice;
  auto membership =
      hosts::Membership::open({.cluster = address->name,
                               .key = argc > 5 ? argv[5] : "secret",
                               .self = {.id = argv[2],
                                        .role = *role,
                                        .address = argv[4],
                                        .incarnation = (std::uint64_t{dice()} << 32U) | dice()}},
                              *address, {}, show);
  if (!membership) return wrong(membership.error().message);
  Desk desk(**membership);
  NoStreams owner;
  const cluster::Member& self = (*membership)->self();
  auto listener = transport::StreamListener::open(
      self.address, grpc::InsecureServerCredentials(),
      {(*membership)->cluster(), self.id, self.role, self.incarnation}, owner, {}, &desk);
  if (!listener) return wrong(listener.error().message);
  std::string line;
  while (std::getline(std::cin, line)) {
    const json order = json::parse(line);
    if (order.at("do") == "state") show((*membership)->state());
    if (order.at("do") == "hand_over") {
      const auto done = (*membership)->hand_over(order.at("to"));
      print({{"news", "handover"}, {"why", done ? "" : done.error().message}});
    }
  }
  listener->reset();
  membership->reset();
  print({{"news", "ended"}});
  return 0;
}
