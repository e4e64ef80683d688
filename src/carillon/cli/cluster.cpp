#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>
#include <grpcpp/security/credentials.h>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/clock.h"
#include "carillon/base/time.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/environment.h"
#include "carillon/cli/tls_options.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/cluster/coordinator/static_file.h"
#include "carillon/cluster/upgrade.h"
#include "carillon/coordinator/coordinator.h"
#include "carillon/transport/desk.h"

namespace carillon::cli {
namespace {

constexpr Duration answers_within = 500ms;
constexpr Duration leads_within = 2s;     // after a handover began, or a scheduler's drain
constexpr Duration drained_within = 60s;  // after a drain began
// A member may be missing from the list for so long. A member that stands still for longer than its lease
// (5 s) leaves the list, and registers anew once it runs.
constexpr Duration returns_within = 15s;
// How often an order to drain is given anew, where the leader knows nothing of it.
constexpr Duration tells_again_every = 500ms;

struct ClusterArguments {
  std::string cluster, who;
  bool json = false, undo = false, force = false;
  transport::TlsFiles tls;
};

// With --json, standard output has one object in any case.
int fail_cluster(std::string_view command, const ClusterArguments& arguments, const Error& error,
                 bool printed = false) {
  fmt::print(stderr, "carillon cluster {}: {}\n", command, error.message);
  if (arguments.json && !printed)
    fmt::print("{}\n", nlohmann::ordered_json{{"error", error.message}}.dump(
                           2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

// What the coordinator or the static file has.
struct RegisteredCluster {
  std::string name;
  std::vector<cluster::Member> members;  // by id
  std::optional<cluster::Epoch> epoch;
};

Result<RegisteredCluster> read_coordinator(const cluster::CoordinatorAddress& address) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<>> done;
  cluster::CoordinatorOptions options;
  options.lost_after = 2s;
  const auto found_at = address.kubernetes ? "Kubernetes" : "etcd";
  const auto coordinator =
      coordinator::open(address, {}, std::move(options), [&](const cluster::CoordinatorNews& news) {
        const std::lock_guard lock(mutex);
        if (done) return;
        if (const auto* lost = std::get_if<cluster::CoordinatorLost>(&news))
          done =
              fail(ErrorCode::unavailable,
                   lost->why +
                       "\n  Members serve without it. To ask them themselves, give --cluster "
                       "static:FILE, a file of the cluster's name and a scheduler's id, role and address.");
        else if (std::holds_alternative<cluster::CoordinatorBack>(news))
          done.emplace();
        changed.notify_all();
      });
  if (!coordinator) return std::unexpected(coordinator.error());
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done.has_value(); });
    if (!*done) return std::unexpected(done->error());
  }
  RegisteredCluster found{address.name, {}, (*coordinator)->epoch().epoch};
  for (auto& [id, member] : (*coordinator)->members()) found.members.push_back(member);
  if (found.members.empty() && !found.epoch)
    return fail(ErrorCode::not_found,
                fmt::format("{} knows no cluster {}: no member is registered, and nobody ever led", found_at,
                            address.name));
  return found;
}

Result<RegisteredCluster> read_static(const std::filesystem::path& file) {
  auto read = cluster::read_static_cluster(file);
  if (!read) return std::unexpected(std::move(read.error()));
  std::ranges::sort(read->members, {}, &cluster::Member::id);
  const auto leader = std::ranges::find(read->members, cluster::Role::scheduler, &cluster::Member::role);
  return RegisteredCluster{read->name, read->members,
                           cluster::Epoch{1, leader->id, cluster::static_incarnation}};
}

Result<RegisteredCluster> read_registered(const std::string& text) {
  const auto address = cluster::parse_coordinator_address(text);
  if (!address) return std::unexpected(address.error());
  return address->is_static() ? read_static(address->file) : read_coordinator(*address);
}

// The cluster as far as anybody tells.
struct ClusterState {
  struct Member {
    transport::Look::Member of;
    bool told = false;     // by the member that answered
    bool same_key = true;  // as the last leader, as far as is known
  };
  std::string name;
  std::optional<std::uint64_t> epoch;
  std::string leader;  // of that epoch; empty: nobody, or not known
  bool answered = false;
  std::optional<bool> leader_answers;  // none: it was not asked
  std::vector<Member> members;         // by id
  std::vector<std::string> reasons;    // why members that were asked gave no answer
};

using Credentials = std::shared_ptr<grpc::ChannelCredentials>;

// What all members are asked with.
Result<Credentials> credentials_for(const ClusterArguments& arguments, const std::string& cluster) {
  const auto tls = open_tls(arguments.tls);
  if (!tls) return std::unexpected(tls.error());
  return *tls != nullptr ? (*tls)->channel(cluster) : grpc::InsecureChannelCredentials();
}

// Each scheduler knows of its own drain alone. Returns those that do not lead, and answer.
std::set<std::string> ask_schedulers(ClusterState& seen, const Credentials& credentials) {
  std::vector<ClusterState::Member*> asked;
  std::vector<std::string> addresses;
  for (ClusterState::Member& member : seen.members)
    if (member.of.role == cluster::Role::scheduler && member.of.id != seen.leader &&
        (!member.told || member.of.alive)) {
      asked.push_back(&member);
      addresses.push_back(member.of.address);
    }
  const auto looks = transport::look(addresses, credentials, seen.name, answers_within);
  std::set<std::string> answer;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (!looks[i]) continue;
    answer.insert(asked[i]->of.id);
    const auto self = std::ranges::find(looks[i]->members, asked[i]->of.id, &transport::Look::Member::id);
    if (self != looks[i]->members.end()) asked[i]->of.drain = self->drain;
  }
  return answer;
}

ClusterState see(const RegisteredCluster& registered, const Credentials& credentials) {
  ClusterState seen{.name = registered.name};
  std::map<std::string, ClusterState::Member> members;
  for (const cluster::Member& member : registered.members)
    members[member.id] = {.of = {member.id, member.role, member.address, false, 0, std::nullopt},
                          .same_key = !registered.epoch || registered.epoch->key.empty() ||
                                      member.keys.empty() ||
                                      std::ranges::count(member.keys, registered.epoch->key) > 0};
  for (const cluster::Member& member : registered.members) {
    members[member.id].of.protocols = member.protocols;
    members[member.id].of.build = member.build;
  }
  if (registered.epoch) {
    seen.epoch = registered.epoch->number;
    seen.leader = registered.epoch->leader;
  }
  std::optional<transport::Look> best;
  std::map<std::string, bool> answered;  // of those that were asked
  const auto ask = [&](const auto& whom) {
    std::vector<const cluster::Member*> asked;
    std::vector<std::string> addresses;
    for (const cluster::Member& member : registered.members)
      if (whom(member.id)) {
        asked.push_back(&member);
        addresses.push_back(member.address);
      }
    auto looks = transport::look(addresses, credentials, registered.name, answers_within);
    for (std::size_t i = 0; i < looks.size(); ++i) {
      answered[asked[i]->id] = looks[i].has_value();
      if (!looks[i]) {
        seen.reasons.push_back(
            fmt::format("{} at {}: {}", asked[i]->id, asked[i]->address, looks[i].error().message));
        continue;
      }
      const bool leads = looks[i]->leader == asked[i]->id;
      if (!best || looks[i]->epoch > best->epoch || (leads && looks[i]->epoch == best->epoch))
        best = std::move(*looks[i]);
    }
  };
  const std::string registered_leader = seen.leader;
  ask([&](const std::string& id) { return id == registered_leader; });
  if (!best)
    ask([&](const std::string& id) { return id != registered_leader; });
  else if (const std::string since = best->leader; since != registered_leader)
    ask([&](const std::string& id) { return id == since; });
  if (best) {
    seen.answered = true;
    if (best->epoch >= seen.epoch.value_or(0)) {
      seen.epoch = best->epoch;
      seen.leader = best->leader;
    }
    for (transport::Look::Member& member : best->members) {
      ClusterState::Member& seen_member = members[member.id];
      if (!member.protocols) {  // a leader of an earlier version passes none on
        member.protocols = seen_member.of.protocols;
        member.build = seen_member.of.build;
      }
      seen_member.of = std::move(member);
      seen_member.told = true;
    }
  }
  if (const auto found = answered.find(seen.leader); found != answered.end())
    seen.leader_answers = found->second;
  for (auto& [id, member] : members) seen.members.push_back(std::move(member));
  return seen;
}

std::string_view name_of(transport::Look::Drain drain) {
  switch (drain) {
    case transport::Look::Drain::none:
      return "no";
    case transport::Look::Drain::drains:
      return "drains";
    case transport::Look::Drain::drained:
      return "drained";
  }
  return "no";
}

double micros(Duration time) {
  return static_cast<double>(time.count()) / 1e3;
}

std::string to_json(const ClusterState& seen) {
  using nlohmann::ordered_json;
  const ordered_json null;
  ordered_json members = ordered_json::array();
  for (const auto& [of, told, same_key] : seen.members)
    members.push_back({{"id", of.id},
                       {"role", cluster::name_of(of.role)},
                       {"address", of.address},
                       {"alive", told ? ordered_json(of.alive) : null},
                       {"devices", of.devices},
                       {"offset_us", of.clock ? ordered_json(micros(of.clock->offset)) : null},
                       {"bound_us", of.clock ? ordered_json(micros(of.clock->bound)) : null},
                       {"same_key", same_key},
                       {"drain", told ? ordered_json(name_of(of.drain)) : null}});
  return ordered_json{{"name", seen.name},
                      {"epoch", seen.epoch ? ordered_json(*seen.epoch) : null},
                      {"leader", seen.leader.empty() ? null : ordered_json(seen.leader)},
                      {"leader_answers", seen.leader_answers ? ordered_json(*seen.leader_answers) : null},
                      {"members", members}}
      .dump(2);
}

std::string to_text(const ClusterState& seen) {
  std::string out = fmt::format("cluster {}: ", seen.name);
  if (!seen.epoch || seen.leader.empty())
    out += "nobody is known to lead\n";
  else
    out += fmt::format("epoch {} is of {}{}\n", *seen.epoch, seen.leader,
                       seen.leader_answers.value_or(true) ? "" : ", who does not answer");
  constexpr auto row = "{:<20} {:<10} {:<24} {:<6} {:>7} {:>12} {:>10}\n";
  out += fmt::format(row, "member", "role", "address", "alive", "devices", "offset us", "bound us");
  for (const auto& [of, told, same_key] : seen.members)
    out += fmt::format(row, of.id, cluster::name_of(of.role), of.address,
                       !told      ? "?"
                       : of.alive ? "yes"
                                  : "no",
                       of.devices, of.clock ? fmt::format("{:.1f}", micros(of.clock->offset)) : "-",
                       of.clock ? fmt::format("{:.1f}", micros(of.clock->bound)) : "-");
  for (const auto& [of, told, same_key] : seen.members)
    if (!same_key)
      out += fmt::format("{} has another --cluster-key than {}, and is not heard\n", of.id, seen.leader);
  for (const auto& [of, told, same_key] : seen.members)
    if (told && of.drain != transport::Look::Drain::none)
      out +=
          fmt::format("{} {}\n", of.id, of.drain == transport::Look::Drain::drains ? "drains" : "is drained");
  return out;
}

Error nobody_answers(const ClusterState& seen) {
  std::string why = "nobody answers";
  if (seen.members.empty()) why += ", as no member is registered";
  for (const std::string& reason : seen.reasons) why += "\n  " + reason;
  return {ErrorCode::unavailable, why};
}

int run_status(const ClusterArguments& arguments) {
  const auto registered = read_registered(arguments.cluster);
  if (!registered) return fail_cluster("status", arguments, registered.error());
  const auto credentials = credentials_for(arguments, registered->name);
  if (!credentials) return fail_cluster("status", arguments, credentials.error());
  ClusterState seen = see(*registered, *credentials);
  if (seen.answered) (void)ask_schedulers(seen, *credentials);
  fmt::print("{}{}", arguments.json ? to_json(seen) : to_text(seen), arguments.json ? "\n" : "");
  return seen.answered ? exit_success
                       : fail_cluster("status", arguments, nobody_answers(seen), arguments.json);
}

// Tells the leader, and returns its address.
Result<std::string> tell_leader(const ClusterState& seen, const Credentials& credentials,
                                const transport::DeskOrder& what) {
  if (!seen.answered) return std::unexpected(nobody_answers(seen));
  const auto leader = std::ranges::find(seen.members, seen.leader,
                                        [](const ClusterState::Member& member) { return member.of.id; });
  if (seen.leader.empty() || leader == seen.members.end())
    return fail(ErrorCode::unavailable, "nobody leads whom an order could be given to");
  auto done = transport::order(leader->of.address, credentials, seen.name, what, answers_within);
  if (!done) return in_context("the leader " + seen.leader, std::move(done.error()));
  return leader->of.address;
}

int run_handover(const ClusterArguments& arguments) {
  const auto registered = read_registered(arguments.cluster);
  if (!registered) return fail_cluster("handover", arguments, registered.error());
  const auto credentials = credentials_for(arguments, registered->name);
  if (!credentials) return fail_cluster("handover", arguments, credentials.error());
  const ClusterState seen = see(*registered, *credentials);
  const auto address = tell_leader(seen, *credentials, transport::HandOver{arguments.who});
  if (!address) return fail_cluster("handover", arguments, address.error());
  // The one that led hears of the next epoch, too.
  const SteadyClock clock;
  for (const TimePoint end = clock.now() + leads_within; clock.now() < end;) {
    const auto look = transport::look({*address}, *credentials, seen.name, answers_within).front();
    if (look && look->epoch > *seen.epoch && !look->leader.empty()) {
      if (arguments.json)
        fmt::print(
            "{}\n",
            nlohmann::ordered_json{{"name", seen.name}, {"epoch", look->epoch}, {"leader", look->leader}}
                .dump(2));
      else
        fmt::print("{} leads epoch {}\n", look->leader, look->epoch);
      return exit_success;
    }
    std::this_thread::sleep_for(20ms);
  }
  return fail_cluster("handover", arguments,
                      {ErrorCode::deadline_exceeded,
                       fmt::format("nobody has taken over from {} within {} s", seen.leader,
                                   std::chrono::duration_cast<std::chrono::seconds>(leads_within).count())});
}

std::string upgrade_json(const ClusterState& seen, const std::vector<cluster::MemberBuild>& members,
                         const cluster::Protocols& binary, const std::string& apart) {
  using nlohmann::ordered_json;
  const ordered_json null;
  ordered_json judged = ordered_json::array(), steps = ordered_json::array();
  for (const cluster::MemberBuild& member : members) {
    const cluster::UpgradeVerdict verdict = cluster::judge(member, binary);
    judged.push_back({{"id", member.id},
                      {"role", cluster::name_of(member.role)},
                      {"build", member.build.empty() ? null : ordered_json(member.build)},
                      {"oldest_protocol", member.protocols ? ordered_json(member.protocols->oldest) : null},
                      {"newest_protocol", member.protocols ? ordered_json(member.protocols->newest) : null},
                      {"protocol", verdict.settles ? ordered_json(*verdict.settles) : null},
                      {"says", verdict.says}});
  }
  for (const cluster::UpgradeStep& step : cluster::upgrade_order(members))
    steps.push_back({{"step", cluster::name_of(step.kind)}, {"members", step.members}, {"says", step.says}});
  return ordered_json{{"name", seen.name},
                      {"build", CARILLON_VERSION},
                      {"oldest_protocol", binary.oldest},
                      {"newest_protocol", binary.newest},
                      {"together", apart.empty()},
                      {"members", judged},
                      {"order", steps}}
      .dump(2);
}

std::string upgrade_text(const ClusterState& seen, const std::vector<cluster::MemberBuild>& members,
                         const cluster::Protocols& binary, const std::string& apart) {
  std::string out = fmt::format("cluster {}: this binary is carillon {}, and speaks {}\n", seen.name,
                                CARILLON_VERSION, to_text(binary));
  constexpr auto row = "{:<20} {:<10} {:<12} {:<8} {}\n";
  out += fmt::format(row, "member", "role", "build", "together", "why");
  for (const cluster::MemberBuild& member : members) {
    const cluster::UpgradeVerdict verdict = cluster::judge(member, binary);
    out += fmt::format(row, member.id, cluster::name_of(member.role),
                       member.build.empty() ? "not told" : member.build, verdict.settles ? "yes" : "no",
                       verdict.says);
  }
  if (!apart.empty()) return out + apart + "\n";
  out += "All members go together with this binary. The order:\n";
  int number = 0;
  for (const cluster::UpgradeStep& step : cluster::upgrade_order(members))
    out += fmt::format("{}. {}\n", ++number, step.says);
  return out;
}

int run_upgrade_check(const ClusterArguments& arguments) {
  const auto binary = protocols_of_environment();
  if (!binary) return fail_cluster("upgrade-check", arguments, binary.error());
  const auto registered = read_registered(arguments.cluster);
  if (!registered) return fail_cluster("upgrade-check", arguments, registered.error());
  const auto credentials = credentials_for(arguments, registered->name);
  if (!credentials) return fail_cluster("upgrade-check", arguments, credentials.error());
  const ClusterState seen = see(*registered, *credentials);
  if (!seen.answered) return fail_cluster("upgrade-check", arguments, nobody_answers(seen));
  std::vector<cluster::MemberBuild> members;
  for (const ClusterState::Member& member : seen.members)
    members.push_back(
        {member.of.id, member.of.role, member.of.id == seen.leader, member.of.protocols, member.of.build});
  const std::string apart = cluster::why_not_together(members, *binary);
  fmt::print("{}{}", (arguments.json ? upgrade_json : upgrade_text)(seen, members, *binary, apart),
             arguments.json ? "\n" : "");
  return apart.empty() ? exit_success : exit_failure;
}

// Whether another scheduler could take the lead if the leader went.
Result<> can_drain(const ClusterState& seen, const std::set<std::string>& spares,
                   const ClusterState::Member& spare) {
  const auto takes_over = [&](const ClusterState::Member& member) {
    return member.of.id != spare.of.id && spares.contains(member.of.id) &&
           member.of.drain == transport::Look::Drain::none;
  };
  if (std::ranges::any_of(seen.members, takes_over)) return {};
  return fail(ErrorCode::unavailable, spare.of.id + " is the last spare: if it drains, nobody leads when " +
                                          (seen.leader.empty() ? "the leader" : seen.leader) +
                                          " goes. --force drains it all the same");
}

// A scheduler is told itself, all others by way of the leader. Returns the address of who was told.
Result<std::string> tell_drain(const ClusterState& seen, const Credentials& credentials,
                               const ClusterState::Member* member, const transport::DrainMember& order) {
  if (seen.answered && member == nullptr)
    return invalid(fmt::format("'{}' is no member of the cluster", order.id));
  if (!seen.answered || member->of.role != cluster::Role::scheduler)
    return tell_leader(seen, credentials, order);
  auto done = transport::order(member->of.address, credentials, seen.name, order, answers_within);
  if (!done) return in_context("scheduler " + order.id, std::move(done.error()));
  return member->of.address;
}

// Two drains at once may each have found the other's scheduler to be a spare.
Result<> still_spared(const RegisteredCluster& registered, const Credentials& credentials,
                      const std::string& id) {
  ClusterState seen = see(registered, credentials);
  const std::set<std::string> spares = ask_schedulers(seen, credentials);
  const auto self =
      std::ranges::find(seen.members, id, [](const ClusterState::Member& each) { return each.of.id; });
  if (!seen.answered || self == seen.members.end() || id == seen.leader) return {};
  auto can = can_drain(seen, spares, *self);
  if (can) return can;
  return fail(
      ErrorCode::unavailable,
      can.error().message + ". The other spares have been drained meanwhile, and " + id + " is not drained");
}

// Whoever leads now is given the order. Returns the leader's address.
Result<std::string> tell_anew(const ClusterArguments& arguments, const Credentials& credentials,
                              const transport::DrainMember& order) {
  const auto registered = read_registered(arguments.cluster);
  if (!registered) return std::unexpected(registered.error());
  return tell_leader(see(*registered, credentials), credentials, order);
}

int run_drain(const ClusterArguments& arguments) {
  using Drain = transport::Look::Drain;
  const auto registered = read_registered(arguments.cluster);
  if (!registered) return fail_cluster("drain", arguments, registered.error());
  const auto credentials = credentials_for(arguments, registered->name);
  if (!credentials) return fail_cluster("drain", arguments, credentials.error());
  ClusterState seen = see(*registered, *credentials);
  const auto found = std::ranges::find(seen.members, arguments.who,
                                       [](const ClusterState::Member& each) { return each.of.id; });
  const ClusterState::Member* const who = found == seen.members.end() ? nullptr : &*found;
  bool takes_spare = false;
  if (who != nullptr && seen.answered && who->of.role == cluster::Role::scheduler &&
      who->of.id != seen.leader && !arguments.undo && !arguments.force) {
    const std::set<std::string> spares = ask_schedulers(seen, *credentials);
    takes_spare = who->of.drain == Drain::none;
    if (takes_spare)
      if (auto can = can_drain(seen, spares, *who); !can)
        return fail_cluster("drain", arguments, can.error());
  }
  const transport::DrainMember order{arguments.who, arguments.undo};
  auto address = tell_drain(seen, *credentials, who, order);
  if (!address) return fail_cluster("drain", arguments, address.error());
  const bool schedules = who->of.role == cluster::Role::scheduler;
  const bool leads = !arguments.undo && schedules;
  if (takes_spare)
    if (auto alone = still_spared(*registered, *credentials, arguments.who); !alone) {
      (void)tell_drain(seen, *credentials, who, {arguments.who, true});
      return fail_cluster("drain", arguments, alone.error());
    }
  const Duration within = leads ? leads_within : drained_within;
  const Drain wanted = arguments.undo ? Drain::none : Drain::drained;
  const SteadyClock clock;
  std::string why = "nothing was heard of it since";
  TimePoint there_at = clock.now(), tell_at = clock.now() + tells_again_every;
  for (const TimePoint end = clock.now() + within; clock.now() < end;) {
    const auto look = transport::look({*address}, *credentials, seen.name, answers_within).front();
    const auto find = [&] {
      return std::ranges::find(look->members, arguments.who, &transport::Look::Member::id);
    };
    bool unknown = true;  // to whoever leads now
    if (!look) {
      why = look.error().message;
    } else if (find() == look->members.end()) {
      if (clock.now() - there_at > returns_within)
        return fail_cluster("drain", arguments,
                            {ErrorCode::unavailable, arguments.who + " is a member no more"});
      why = arguments.who + " is not registered for the moment";
    } else if (const Drain drain = find()->drain; drain == wanted && (schedules || look->leads)) {
      if (arguments.json)
        fmt::print(
            "{}\n",
            nlohmann::ordered_json{{"name", seen.name}, {"id", arguments.who}, {"drain", name_of(drain)}}
                .dump(2));
      else
        fmt::print("{} {}\n", arguments.who, arguments.undo ? "drains no more" : "is drained");
      return exit_success;
    } else {
      there_at = clock.now();
      unknown = !look->leads || (drain == Drain::none) != arguments.undo;
      why = look->leads || schedules ? fmt::format("its drain is: {}", name_of(drain))
                                     : look->id + " leads no more";
    }
    // The order was given to a leader that has gone, or the member has come anew since.
    if (unknown && !schedules && clock.now() >= tell_at) {
      tell_at = clock.now() + tells_again_every;
      if (auto told = tell_anew(arguments, *credentials, order); told)
        address = *std::move(told);
      else
        why = told.error().message;
    }
    std::this_thread::sleep_for(20ms);
  }
  if (leads) {
    // Else nobody would be left who may lead.
    (void)tell_drain(seen, *credentials, who, {arguments.who, true});
    why += "; no other scheduler took over, so that it may lead as before";
  }
  return fail_cluster(
      "drain", arguments,
      {ErrorCode::deadline_exceeded,
       fmt::format("{} is not {} within {} s: {}", arguments.who, arguments.undo ? "as before" : "drained",
                   std::chrono::duration_cast<std::chrono::seconds>(within).count(), why)});
}

}  // namespace

void add_cluster(CLI::App& program, int& status) {
  auto* const command =
      program.add_subcommand("cluster", "Ask a cluster of hosts how it is, or tell it what to do");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, int (*run)(const ClusterArguments&)) {
    auto* const made = command->add_subcommand(name, what);
    const auto arguments = std::make_shared<ClusterArguments>();
    made->add_option(
            "--cluster", arguments->cluster,
            "The cluster: etcd://HOST:PORT,HOST:PORT/NAME, etcds:// with TLS, kubernetes://NAMESPACE/NAME, "
            "or static:FILE")
        ->required();
    add_tls_options(*made, arguments->tls);
    made->add_flag("--json", arguments->json, "Print one JSON object");
    made->callback([arguments, run, &status] { status = run(*arguments); });
    return std::pair{made, arguments};
  };
  add("status", "Who leads, who is there, and how the clocks differ", run_status)
      .first->footer(
          "The leader is asked first. If it does not answer, all other members are. If nobody answers, the\n"
          "registered members are printed, nobody is known to be alive, and the exit status is 1.\n"
          "--json prints name, epoch, leader, leader_answers, and of each of the members:\n"
          "  id, role, address\n"
          "  alive                whether the member that answers hears it; null: not known\n"
          "  devices              0: none, or not told\n"
          "  offset_us, bound_us  its clock less that of the member that answers, and the most by which that "
          "is\n"
          "                       wrong; null: not known\n"
          "  same_key             false: its --cluster-key is another than the leader's, and nobody hears "
          "it\n"
          "  drain                no, drains or drained (carillon cluster drain); of a scheduler that gives "
          "no\n"
          "                       answer no; null: not known\n"
          "epoch, leader and leader_answers are null if nobody has led, leader_answers also if the leader is "
          "not\n"
          "registered.\n"
          "Example:\n"
          "  carillon cluster status --cluster etcd://10.0.0.1:2379/box --json");
  add("upgrade-check", "Whether all members go together with this binary, and the order to upgrade them in",
      run_upgrade_check)
      .first->footer(
          "Run it with the new binary before an upgrade. Two members go together if there is a protocol that "
          "both\n"
          "speak. The exit status is 0 if all members go together with this binary, else 1. --json prints "
          "name,\n"
          "build, oldest_protocol, newest_protocol (of this binary), together, and\n"
          "  members   of each id, role, build (null: too old to tell), oldest_protocol, newest_protocol "
          "(null: "
          "not\n"
          "            known), protocol (that it would speak with this binary; null: none), says\n"
          "  order     of each step its name (spares, handover, workers, frontends), members, says");
  const auto handover = add("handover", "Let another scheduler lead", run_handover);
  handover.first->add_option("TO", handover.second->who,
                             "The scheduler that shall lead; without it any that is there");
  const auto drain = add("drain", "Make a member ready to be stopped, and wait until it is", run_drain);
  drain.first->add_option("ID", drain.second->who, "The member")->required();
  drain.first->add_flag("--undo", drain.second->undo,
                        "All is as before; a new start of the member does it, too");
  drain.first->add_flag("--force", drain.second->force, "Drain the last spare scheduler, too");
  drain.first->footer(
      "A worker gets nothing new to do, and ends what it has. Models that it alone holds are loaded on "
      "other\n"
      "devices first, where these have room. Another worker must have a device, and each of its models. A\n"
      "frontend is not ready any more, so that load balancers leave it, and answers on. A scheduler hands "
      "the\n"
      "lead over, and claims it no more. The last spare is not drained without --force. --json prints name, "
      "id\n"
      "and drain, or error.");
}

}  // namespace carillon::cli
