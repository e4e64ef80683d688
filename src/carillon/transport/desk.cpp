#include "carillon/transport/desk.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "hosts.grpc.pb.h"
#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include "carillon/cluster/coordinator/address.h"
#include "carillon/graph/text.h"
#include "carillon/transport/tls.h"

namespace carillon::transport {
namespace {

// Of a reply, whose members' names and addresses are bounded.
constexpr int longest_reply = 4 << 20;
constexpr std::size_t longest_words = 4096;  // of an error

constexpr std::uint32_t most_devices = 1'000'000;  // that an answer may tell of

hosts::Role role_on_the_wire(cluster::Role role) {
  switch (role) {
    case cluster::Role::frontend:
      return hosts::ROLE_FRONTEND;
    case cluster::Role::scheduler:
      return hosts::ROLE_SCHEDULER;
    case cluster::Role::worker:
      return hosts::ROLE_WORKER;
  }
  return hosts::ROLE_UNKNOWN;
}
std::optional<cluster::Role> role_heard(hosts::Role role) {
  for (const auto each : {cluster::Role::frontend, cluster::Role::scheduler, cluster::Role::worker})
    if (role_on_the_wire(each) == role) return each;
  return std::nullopt;
}

void set_error(const Error& from, hosts::Error& out) {
  out.set_code(static_cast<std::uint32_t>(from.code));
  out.set_message(from.message);
}
// Of a reply that has one.
Error error_heard(const hosts::Error& from) {
  const bool known = from.code() <= static_cast<std::uint32_t>(ErrorCode::internal);
  return {known ? static_cast<ErrorCode>(from.code()) : ErrorCode::internal,
          graph::printable(from.message(), longest_words)};
}

hosts::LookReply reply_of(const Look& look) {
  hosts::LookReply reply;
  reply.set_id(look.id);
  reply.set_leads(look.leads);
  reply.set_epoch(look.epoch);
  reply.set_leader(look.leader);
  for (const Look::Member& member : look.members) {
    hosts::SeenMember& seen = *reply.add_members();
    seen.set_id(member.id);
    seen.set_role(role_on_the_wire(member.role));
    seen.set_address(member.address);
    seen.set_alive(member.alive);
    seen.set_devices(member.devices);
    seen.set_drain(static_cast<std::uint32_t>(member.drain));
    if (member.protocols) {
      seen.set_oldest_protocol(member.protocols->oldest);
      seen.set_newest_protocol(member.protocols->newest);
    }
    seen.set_build(member.build);
    if (!member.clock) continue;
    seen.set_offset_ns(member.clock->offset.count());
    seen.set_bound_ns(member.clock->bound.count());
  }
  for (const provision::WantedFigures& each : look.wanted) {
    hosts::WantedDevices& wanted = *reply.add_wanted();
    wanted.set_subcluster(each.group);
    wanted.set_wanted(static_cast<std::uint32_t>(each.wanted));
    wanted.set_present(static_cast<std::uint32_t>(each.present));
    wanted.set_coming(static_cast<std::uint32_t>(each.coming));
    wanted.set_given_up(static_cast<std::uint32_t>(each.given_up));
    wanted.set_start_up_ns(each.start_up.count());
  }
  reply.set_division(look.division);
  return reply;
}

Result<Look> look_heard(const hosts::LookReply& reply) {
  if (reply.has_error()) return std::unexpected(error_heard(reply.error()));
  const auto wrong = [](std::string_view field) {
    return fail(ErrorCode::internal, fmt::format("its answer has a wrong {}", field));
  };
  if (!cluster::is_name(reply.id())) return wrong("id");
  if (!reply.leader().empty() && !cluster::is_name(reply.leader())) return wrong("leader");
  Look look{reply.id(), reply.leads(), reply.epoch(), reply.leader(), {}};
  for (const hosts::SeenMember& seen : reply.members()) {
    const auto role = role_heard(seen.role());
    if (!cluster::is_name(seen.id())) return wrong("members.id");
    if (!role) return wrong("members.role");
    if (!cluster::check_endpoint(seen.address())) return wrong("members.address");
    if (seen.bound_ns() < 0) return wrong("members.bound_ns");
    if (seen.drain() > static_cast<std::uint32_t>(Look::Drain::drained)) return wrong("members.drain");
    Look::Member member{seen.id(), *role, seen.address(), seen.alive(), seen.devices(), std::nullopt};
    member.drain = static_cast<Look::Drain>(seen.drain());
    if (seen.newest_protocol() > 0) {
      member.protocols = {seen.oldest_protocol(), seen.newest_protocol()};
      if (!member.protocols->is_range()) return wrong("members.oldest_protocol");
    }
    if (!cluster::is_build(seen.build())) return wrong("members.build");
    member.build = seen.build();
    if (seen.has_offset_ns())
      member.clock = {.offset = Duration{seen.offset_ns()}, .bound = Duration{seen.bound_ns()}};
    look.members.push_back(std::move(member));
  }
  for (const hosts::WantedDevices& each : reply.wanted()) {
    if (!cluster::is_name(each.subcluster())) return wrong("wanted.subcluster");
    if (each.wanted() < 1 ||
        std::max({each.wanted(), each.present(), each.coming(), each.given_up()}) > most_devices)
      return wrong("wanted");
    if (each.start_up_ns() < 0) return wrong("wanted.start_up_ns");
    look.wanted.push_back({.group = each.subcluster(),
                           .wanted = static_cast<int>(each.wanted()),
                           .present = static_cast<int>(each.present()),
                           .coming = static_cast<int>(each.coming()),
                           .given_up = static_cast<int>(each.given_up()),
                           .start_up = Duration{each.start_up_ns()}});
  }
  look.division = reply.division();
  return look;
}

Result<> carry_out(const hosts::OrderRequest& request, Desk& desk) {
  switch (request.what_case()) {
    case hosts::OrderRequest::kHandOverTo:
      if (!request.hand_over_to().empty() && !cluster::is_name(request.hand_over_to()))
        return invalid("hand_over_to is no id of a member");
      return desk.hand_over(request.hand_over_to());
    case hosts::OrderRequest::kDrain:
      if (!cluster::is_name(request.drain())) return invalid("drain is no id of a member");
      return desk.drain(request.drain(), false);
    case hosts::OrderRequest::kUndoDrain:
      if (!cluster::is_name(request.undo_drain())) return invalid("undo_drain is no id of a member");
      return desk.drain(request.undo_drain(), true);
    case hosts::OrderRequest::WHAT_NOT_SET:
      break;
  }
  return fail(ErrorCode::unsupported, "the order is none that this member knows");
}

Error error_of(const grpc::Status& status, Duration within) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {ErrorCode::deadline_exceeded,
              fmt::format("no answer within {} ms",
                          std::chrono::duration_cast<std::chrono::milliseconds>(within).count())};
    case grpc::StatusCode::UNIMPLEMENTED:
      return {ErrorCode::unsupported, status.error_message()};
    default:
      return {ErrorCode::unavailable, explained(status.error_message())};
  }
}

// A call of one member.
template <typename Request, typename Reply>
struct Call {
  Call(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
       Duration within) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(longest_reply);
    stub = hosts::Hosts::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(within));
  }
  std::unique_ptr<hosts::Hosts::Stub> stub;
  grpc::ClientContext context;
  Request request;
  Reply reply;
  grpc::Status status;
};

}  // namespace

std::vector<Result<Look>> look(const std::vector<std::string>& addresses,
                               const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                               const std::string& cluster, Duration within) {
  using One = Call<hosts::LookRequest, hosts::LookReply>;
  std::vector<std::unique_ptr<One>> calls;
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t left = addresses.size();
  for (const std::string& address : addresses) {
    One& call = *calls.emplace_back(std::make_unique<One>(address, credentials, within));
    call.request.set_cluster(cluster);
    call.stub->async()->Look(&call.context, &call.request, &call.reply, [&](grpc::Status status) {
      const std::lock_guard lock(mutex);
      call.status = std::move(status);
      if (--left == 0) ended.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return left == 0; });
  }
  std::vector<Result<Look>> looks;
  for (const auto& call : calls)
    looks.push_back(call->status.ok() ? look_heard(call->reply)
                                      : std::unexpected(error_of(call->status, within)));
  return looks;
}

Result<> order(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
               const std::string& cluster, const DeskOrder& what, Duration within) {
  Call<hosts::OrderRequest, hosts::OrderReply> call(address, credentials, within);
  call.request.set_cluster(cluster);
  if (const auto* handover = std::get_if<HandOver>(&what))
    call.request.set_hand_over_to(handover->to);
  else if (const auto& drain = std::get<DrainMember>(what); drain.undo)
    call.request.set_undo_drain(drain.id);
  else
    call.request.set_drain(drain.id);
  const grpc::Status status = call.stub->Order(&call.context, call.request, &call.reply);
  if (!status.ok()) return std::unexpected(error_of(status, within));
  if (call.reply.has_error()) return std::unexpected(error_heard(call.reply.error()));
  return {};
}

std::optional<DeskCall> desk_call_of(std::string_view method) {
  if (method == "/carillon.hosts.Hosts/Look") return DeskCall::look;
  if (method == "/carillon.hosts.Hosts/Order") return DeskCall::order;
  return std::nullopt;
}

std::string reply_to(DeskCall call, std::string_view request, Desk& desk, std::string_view cluster,
                     const std::optional<Identity>& asker) {
  const auto refused = [&](bool parsed, const std::string& of) -> std::optional<Error> {
    if (!parsed) return Error{ErrorCode::invalid_argument, "the request is broken"};
    if (of != cluster)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("this member is of cluster {}, and not of {}", cluster,
                               cluster::is_name(of) ? of : "what was asked for")};
    if (asker && asker->cluster != cluster)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the certificate is that of {}, and this member is of cluster {}",
                               to_text(*asker), cluster)};
    if (asker && call == DeskCall::order && asker->role && *asker->role != cluster::Role::scheduler)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the certificate is that of {}, and only schedulers and admins may order",
                               to_text(*asker))};
    return std::nullopt;
  };
  const auto size = static_cast<int>(request.size());
  switch (call) {
    case DeskCall::look: {
      hosts::LookRequest asked;
      const bool parsed = asked.ParseFromArray(request.data(), size);
      hosts::LookReply reply;
      if (const auto error = refused(parsed, asked.cluster()))
        set_error(*error, *reply.mutable_error());
      else
        reply = reply_of(desk.look());
      return reply.SerializeAsString();
    }
    case DeskCall::order: {
      hosts::OrderRequest asked;
      const bool parsed = asked.ParseFromArray(request.data(), size);
      hosts::OrderReply reply;
      if (const auto error = refused(parsed, asked.cluster()))
        set_error(*error, *reply.mutable_error());
      else if (const auto done = carry_out(asked, desk); !done)
        set_error(done.error(), *reply.mutable_error());
      return reply.SerializeAsString();
    }
  }
  return {};
}

}  // namespace carillon::transport
