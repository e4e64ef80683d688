#include "carillon/roles/follower.h"

#include <algorithm>
#include <random>
#include <utility>

#include <grpcpp/security/credentials.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include "carillon/base/clock.h"
#include "carillon/transport/resolve.h"
#include "carillon/transport/times.h"

namespace carillon::roles {
namespace {

constexpr Duration look_for_troubles = std::chrono::seconds{1};
constexpr int looks_without_leader = 2;

}  // namespace

Result<hosts::MemberOptions> member_options(const MemberArguments& arguments) {
  if (!cluster::is_name(arguments.id))
    return invalid("--id '" + arguments.id + "': an id is " + std::string(cluster::name_rule));
  if (auto there = cluster::check_endpoint(arguments.listen); !there)
    return in_context("--listen", there.error());
  const auto [host, port] = transport::split(arguments.listen);
  if (host == "0.0.0.0" || host == "::")
    return invalid("--listen '" + arguments.listen +
                   "': the others are told this address, so it must be one at which they reach this host");
  std::random_device dice;
  return hosts::MemberOptions{.cluster = arguments.coordinator.name,
                              .key = arguments.key,
                              .other_key = arguments.other_key,
                              .self = {.id = arguments.id,
                                       .role = arguments.role,
                                       .address = arguments.listen,
                                       .incarnation = (std::uint64_t{dice()} << 32U) | dice(),
                                       .protocols = arguments.protocols,
                                       .build = arguments.build}};
}

void Troubles::look(const hosts::Membership::State& state) {
  if (state.trouble == told_) return;
  told_ = state.trouble;
  if (!told_.empty()) spdlog::warn("cluster: {}", told_);
}

Follower::Follower(transport::Hello self, FollowerHandlers& handlers)
    : self_(std::move(self)), handlers_(handlers) {}

Result<std::unique_ptr<Follower>> Follower::open(const MemberArguments& arguments,
                                                 FollowerHandlers& handlers) {
  auto options = member_options(arguments);
  if (!options) return std::unexpected(options.error());
  std::unique_ptr<Follower> made(new Follower({.cluster = options->cluster,
                                               .id = options->self.id,
                                               .role = options->self.role,
                                               .incarnation = options->self.incarnation,
                                               .protocols = arguments.protocols,
                                               .build = arguments.build},
                                              handlers));
  auto membership = hosts::Membership::open(*std::move(options), arguments.coordinator, {},
                                            [to = made.get()](const auto& state) { to->changed(state); });
  if (!membership) return std::unexpected(membership.error());
  made->membership_ = std::move(*membership);
  made->credentials_ = arguments.tls != nullptr ? arguments.tls->channel(made->membership_->cluster())
                                                : grpc::InsecureChannelCredentials();
  made->self_.incarnation = made->membership_->self().incarnation;
  made->thread_ = std::thread([to = made.get()] { to->dial(); });
  return made;
}

Follower::~Follower() {
  {
    const std::lock_guard lock(dialing_);
    ending_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();  // and with it all streams
  if (membership_ != nullptr) membership_->leave(leaves_within);
  membership_.reset();
}

// --- Streams to all schedulers that are registered

void Follower::changed(const hosts::Membership::State& state) {
  troubles_.look(state);
  std::vector<std::string> wanted;
  for (const auto& peer : state.peers)
    if (peer.member.role == cluster::Role::scheduler) wanted.push_back(peer.member.address);
  std::ranges::sort(wanted);
  const std::lock_guard lock(dialing_);
  if (wanted == wanted_) return;
  wanted_ = std::move(wanted);
  wake_.notify_one();
}

void Follower::dial() {
  pthread_setname_np(pthread_self(), "carillon-dial");
  std::unique_lock lock(dialing_);
  std::vector<std::string> had;
  while (true) {
    if (!wake_.wait_for(lock, look_for_troubles, [&] { return ending_ || had != wanted_; })) {
      lock.unlock();
      tell_troubles();
      tell_without_leader();
      lock.lock();
      continue;
    }
    had = ending_ ? std::vector<std::string>{} : wanted_;
    const bool over = ending_;
    lock.unlock();
    std::erase_if(dialers_, [&](const auto& each) { return std::ranges::count(had, each.first) == 0; });
    for (const std::string& address : had)
      if (!dialers_.contains(address))
        dialers_.emplace(address,
                         transport::StreamDialer::open(address, credentials_, self_, *this,
                                                       {.longest_pause = std::chrono::milliseconds{200}}));
    if (over) return;
    lock.lock();
  }
}

// Of schedulers that cannot be reached for longer than it takes to look twice: each reason once.
void Follower::tell_troubles() {
  std::map<std::string, Trouble> now;
  for (const auto& [address, dialer] : dialers_) {
    if (dialer->is_open()) continue;
    const Trouble before = dialing_troubles_[address];
    Trouble& trouble = now[address] = {.seen = dialer->last_error(), .told = before.told};
    if (trouble.seen.empty() || trouble.seen != before.seen || trouble.seen == trouble.told) continue;
    trouble.told = trouble.seen;
    spdlog::warn("no stream to the scheduler at {}: {}", address, trouble.seen);
  }
  dialing_troubles_ = std::move(now);
}

// Perhaps the name of the cluster is wrong.
void Follower::tell_without_leader() {
  {
    const std::lock_guard lock(mutex_);
    if (leader_ != nullptr) {
      without_leader_ = 0;
      return;
    }
  }
  const hosts::Membership::State state = membership_->state();
  if (without_leader_ >= looks_without_leader || !state.trouble.empty() ||
      ++without_leader_ < looks_without_leader)
    return;
  std::string schedulers;
  for (const auto& peer : state.peers)
    if (peer.member.role == cluster::Role::scheduler)
      schedulers += (schedulers.empty() ? "" : ", ") + peer.member.id;
  spdlog::warn("no scheduler leads cluster '{}'; {}", membership_->cluster(),
               schedulers.empty() ? "none is registered" : "registered: " + schedulers);
}

Result<> Follower::greets(const transport::Hello& peer) {
  if (peer.cluster != self_.cluster)
    return invalid("it is of cluster '" + peer.cluster + "', not of '" + self_.cluster + "'");
  if (peer.role != cluster::Role::scheduler) return invalid("it is no scheduler");
  return {};
}

void Follower::opened(const std::shared_ptr<transport::Stream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.emplace(stream.get(), stream);
}

void Follower::ended(transport::Stream& stream, const Error& why) {
  const std::lock_guard lock(mutex_);
  streams_.erase(&stream);
  if (leader_ != &stream) return;
  leader_ = nullptr;
  spdlog::warn("the leader has gone: {}", why.message);
  handlers_.leader_left();
}

bool Follower::to_our_time(const transport::Hello& from, transport::Message& message) {
  const auto clock = membership_->clock_of(from.id, from.incarnation);
  return clock && transport::to_our_time(message, *clock, SteadyClock().now());
}

void Follower::heard(transport::Stream& stream, transport::Frame frame) {
  const std::lock_guard lock(mutex_);
  const auto known = streams_.find(&stream);
  if (known == streams_.end() || frame.messages.empty()) return;
  if (!membership_->obeys(frame.epoch)) {
    ++stale_;
    return;
  }
  const bool leads = std::holds_alternative<transport::Leads>(frame.messages.front());
  if (!leads && (leader_ != &stream || frame.epoch != epoch_)) {
    ++stale_;
    return;
  }
  const auto clock = membership_->clock_of(stream.peer().id, stream.peer().incarnation);
  const TimePoint now = SteadyClock().now();
  for (transport::Message& message : frame.messages)
    if (!clock || !transport::to_our_time(message, *clock, now))
      return stream.close({ErrorCode::unavailable, "the difference of the clocks is not known"});
  if (leads) {
    leader_ = &stream;
    epoch_ = frame.epoch;
    spdlog::info("'{}' leads, epoch {}", stream.peer().id, frame.epoch);
    handlers_.leads(known->second, frame.epoch, self_);
  }
  handlers_.heard(std::move(frame.messages));
}

}  // namespace carillon::roles
