#include "carillon/roles/scheduler_host.h"

#include <algorithm>
#include <set>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include "carillon/hosts/look.h"
#include "carillon/transport/times.h"

namespace carillon::roles {
namespace {

// How long a new leader waits for the workers that are there to tell of their devices. A device that begins
// anew ends its run before, and a kernel may take some milliseconds.
constexpr Duration wait_for_workers = std::chrono::milliseconds{100};

// If the leader's own link is cut, all workers go missing, one up to 7 ms after the other. (A host speaks
// every 5 ms, and this one looks every 2.) Nobody is left before the others would be missed, too.
constexpr Duration others_follow = std::chrono::milliseconds{15};

// Those that are there.
std::set<std::string> workers_of(const std::vector<hosts::MemberCore::Peer>& peers) {
  std::set<std::string> workers;
  for (const auto& peer : peers)
    if (peer.there && peer.member.role == cluster::Role::worker) workers.insert(peer.member.id);
  return workers;
}

}  // namespace

SchedulerHost::SchedulerHost(transport::Hello self, Options options, const Clock& clock)
    : self_(std::move(self)), options_(std::move(options)), clock_(clock) {}

Result<std::unique_ptr<SchedulerHost>> SchedulerHost::open(const MemberArguments& arguments, Options options,
                                                           const Clock& clock) {
  auto member = member_options(arguments);
  if (!member) return std::unexpected(member.error());
  std::unique_ptr<SchedulerHost> made(new SchedulerHost({.cluster = member->cluster,
                                                         .id = member->self.id,
                                                         .role = cluster::Role::scheduler,
                                                         .incarnation = member->self.incarnation},
                                                        std::move(options), clock));
  // Streams come only to a scheduler that knows its peers' clocks.
  auto membership =
      hosts::Membership::open(*std::move(member), arguments.coordinator, {},
                              [to = made.get()](const hosts::Membership::State& state) {
                                to->troubles_.look(state);
                                to->tell(Changed{state.leads, state.epoch, workers_of(state.peers)});
                              });
  if (!membership) return std::unexpected(membership.error());
  made->membership_ = std::move(*membership);
  auto listener = transport::StreamListener::open(arguments.listen, grpc::InsecureServerCredentials(),
                                                  made->self_, *made, {}, made.get());
  if (!listener) return in_context("--listen", listener.error());
  made->listener_ = std::move(*listener);
  made->thread_ = std::thread([to = made.get()] { to->run(); });
  return made;
}

SchedulerHost::~SchedulerHost() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  listener_.reset();
  membership_.reset();
}

// --- Threads of streams and of the membership

void SchedulerHost::tell(News news) {
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(news));
  wake_.notify_one();
}

Result<> SchedulerHost::greets(const transport::Hello& peer) {
  if (peer.cluster != self_.cluster)
    return invalid("this is cluster '" + self_.cluster + "', not '" + peer.cluster + "'");
  // Whoever has the id of a member that runs is not registered.
  const auto members = membership_->state().peers;
  const auto known = std::ranges::find(members, peer.id, [](const auto& each) { return each.member.id; });
  if (known == members.end() || known->member.incarnation != peer.incarnation ||
      known->member.role != peer.role)
    return fail(ErrorCode::unavailable, "'" + peer.id +
                                            "' is not registered so, or not yet: a member that runs may "
                                            "have this --id");
  if (peer.role == cluster::Role::scheduler) return invalid("schedulers have no streams to each other");
  return {};
}

void SchedulerHost::opened(const std::shared_ptr<transport::Stream>& stream) {
  const std::lock_guard lock(mutex_);
  const PeerId peer = next_peer_++;
  peers_.emplace(stream.get(), peer);
  news_.push_back(Opened{peer, stream});
  wake_.notify_one();
}

void SchedulerHost::heard(transport::Stream& stream, transport::Frame frame) {
  const std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(&stream); found != peers_.end()) {
    news_.push_back(Heard{found->second, std::move(frame)});
    wake_.notify_one();
  }
}

void SchedulerHost::ended(transport::Stream& stream, const Error& why) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(&stream);
  if (found == peers_.end()) return;
  news_.push_back(Ended{found->second, why.message});
  peers_.erase(found);
  wake_.notify_one();
}

transport::Look SchedulerHost::look() {
  transport::Look out = hosts::look_of(membership_->state(), membership_->self());
  const std::lock_guard lock(mutex_);
  for (transport::Look::Member& member : out.members)
    if (const auto found = devices_.find(member.id); found != devices_.end()) member.devices = found->second;
  return out;
}

Result<> SchedulerHost::drain(const std::string&) {
  return fail(ErrorCode::unsupported,
              "this version cannot drain a worker: stop it, and its requests run elsewhere");
}

// --- The thread that decides

void SchedulerHost::count_devices() {
  const std::size_t alive = leader_ != nullptr ? leader_->dispatch().devices_alive() : 0;
  if (alive == counted_) return;
  counted_ = alive;
  leave_missing(clock_.now());
  std::map<std::string, std::uint32_t> devices;
  if (leader_ != nullptr)
    for (const Leader::DeviceView& device : leader_->devices())
      devices[device.worker] += device.alive ? 1 : 0;
  const std::lock_guard lock(mutex_);
  devices_ = std::move(devices);
}

void SchedulerHost::run() {
  pthread_setname_np(pthread_self(), "carillon-lead");
  std::vector<News> news;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (news_.empty()) {
      const TimePoint at =
          std::min(look_for_missing_, leader_ != nullptr ? leader_->wake_at() : TimePoint::max());
      const TimePoint now = clock_.now();
      if (at > now) {
        // At most a minute, so that no sum of times overflows.
        wake_.wait_for(lock, std::min<Duration>(at == TimePoint::max() ? Duration::max() : at - now,
                                                std::chrono::minutes{1}));
        continue;
      }
    }
    std::swap(news, news_);
    lock.unlock();
    for (News& each : news) std::visit([this](auto& what) { on(what); }, each);
    news.clear();
    if (leader_ != nullptr)
      if (const TimePoint now = clock_.now(); leader_->wake_at() <= now) leader_->wake(now);
    if (look_for_missing_ != TimePoint::max()) leave_missing(clock_.now());
    count_devices();
    lock.lock();
  }
  lock.unlock();
  leader_.reset();
  streams_.clear();
}

void SchedulerHost::on(Changed& news) {
  const bool leads = news.leads;
  there_ = std::move(news.workers);
  seen_.insert(there_.begin(), there_.end());
  const TimePoint now = clock_.now();
  std::erase_if(missing_, [&](const auto& each) { return there_.contains(each.first); });
  for (const std::string& id : seen_)
    if (!there_.contains(id)) missing_.try_emplace(id, now);
  leave_missing(now);
  if (leader_ != nullptr && (!leads || news.epoch != epoch_)) {
    spdlog::warn("leads no more, since epoch {}", news.epoch);
    leader_.reset();
  }
  if (!leads || leader_ != nullptr) return;
  epoch_ = news.epoch;
  spdlog::info("leads, epoch {}", epoch_);
  leader_ = std::make_unique<Leader>(options_.make_scheduler(), options_.leader, static_cast<Out&>(*this));
  leader_->start(clock_.now());
  leader_->await_workers(workers_of(membership_->state().peers), clock_.now() + wait_for_workers);
  const auto streams = streams_;  // joining may end one
  for (const auto& [peer, stream] : streams) join(peer, stream);
}

// A worker of which nothing is heard any more is dead, or cut off. Its stream may take seconds to end. What
// it had runs elsewhere, if another worker has a device; else that worker is waited for.
void SchedulerHost::leave_missing(TimePoint now) {
  look_for_missing_ = TimePoint::max();
  const auto serves = [&](const Leader::DeviceView& device) {
    return device.alive && there_.contains(device.worker);
  };
  if (leader_ == nullptr || missing_.empty() || std::ranges::none_of(leader_->devices(), serves)) return;
  const auto streams = streams_;  // leaving may end one
  for (const auto& [peer, stream] : streams) {
    const auto found = missing_.find(stream->peer().id);
    if (found == missing_.end() || stream->peer().role != cluster::Role::worker) continue;
    if (const TimePoint at = found->second + others_follow; at > now) {
      look_for_missing_ = std::min(look_for_missing_, at);
      continue;
    }
    seen_.erase(found->first);
    missing_.erase(found);
    Ended ended{peer, "nothing was heard of it for a while"};
    stream->close({ErrorCode::unavailable, ended.why});
    on(ended);
  }
}

void SchedulerHost::on(Opened& news) {
  streams_.emplace(news.peer, news.stream);
  if (leader_ != nullptr) join(news.peer, news.stream);
}

// What it says could not be understood before its clock is known: it comes again.
void SchedulerHost::join(PeerId peer, const std::shared_ptr<transport::Stream>& stream) {
  const auto clock = membership_->clock_of(stream->peer().id, stream->peer().incarnation);
  if (!clock || !clock->settled())
    return stream->close({ErrorCode::unavailable, "the difference of the clocks is not known yet"});
  leader_->joined(peer, stream->peer(), clock_.now());
}

void SchedulerHost::on(Ended& news) {
  if (streams_.erase(news.peer) == 0 || leader_ == nullptr) return;
  leader_->left(news.peer, news.why, clock_.now());
}

void SchedulerHost::on(Heard& news) {
  const auto stream = streams_.find(news.peer);
  if (leader_ == nullptr || stream == streams_.end() || news.frame.epoch != epoch_) return;
  const transport::Hello& peer = stream->second->peer();
  const auto clock = membership_->clock_of(peer.id, peer.incarnation);
  const TimePoint now = clock_.now();
  for (transport::Message& message : news.frame.messages)
    if (!clock || !transport::to_our_time(message, *clock, now))
      return stream->second->close({ErrorCode::unavailable, "its clock has jumped"});
  leader_->heard(news.peer, std::move(news.frame.messages), now);
}

void SchedulerHost::send(PeerId peer, transport::Message message) {
  if (const auto stream = streams_.find(peer); stream != streams_.end())
    (void)stream->second->send(epoch_, std::move(message));
}

void SchedulerHost::end(PeerId peer, std::string why) {
  if (const auto stream = streams_.find(peer); stream != streams_.end())
    stream->second->close({ErrorCode::unavailable, std::move(why)});
}

}  // namespace carillon::roles
