#include "carillon/roles/scheduler_host.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include "carillon/base/assert.h"
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

// Whoever asks for a drain waits so long for the thread that decides.
constexpr Duration answers_within = std::chrono::milliseconds{300};

// Messages of a peer that wait to be decided on. Frontends have credit for far fewer, and workers report what
// they were ordered.
constexpr std::size_t most_waiting = 1U << 16;

// The leader is asked so often how many devices the load needs, and has so long to answer.
constexpr Duration asks_every = std::chrono::seconds{1},
                   leader_answers_within = std::chrono::milliseconds{500};

// Those that are there.
std::set<std::string> workers_of(const std::vector<hosts::MemberCore::Peer>& peers) {
  std::set<std::string> workers;
  for (const auto& peer : peers)
    if (peer.there && peer.member.role == cluster::Role::worker) workers.insert(peer.member.id);
  return workers;
}

}  // namespace

SchedulerHost::SchedulerHost(transport::Hello self, Options options, const Clock& clock)
    : self_(std::move(self)), options_(std::move(options)), clock_(clock), turns_(clock) {}

Result<std::unique_ptr<SchedulerHost>> SchedulerHost::open(const MemberArguments& arguments, Options options,
                                                           const Clock& clock) {
  auto member = member_options(arguments);
  if (!member) return std::unexpected(member.error());
  std::unique_ptr<SchedulerHost> made(new SchedulerHost({.cluster = member->cluster,
                                                         .id = member->self.id,
                                                         .role = cluster::Role::scheduler,
                                                         .incarnation = member->self.incarnation,
                                                         .protocols = arguments.protocols,
                                                         .build = arguments.build},
                                                        std::move(options), clock));
  // Streams come only to a scheduler that knows its peers' clocks.
  auto membership = hosts::Membership::open(
      *std::move(member), arguments.coordinator, {},
      [to = made.get()](const hosts::Membership::State& state) {
        to->troubles_.look(state);
        to->tell(Changed{state.leads, state.epoch, workers_of(state.peers), state.leader.value_or("")});
      });
  if (!membership) return std::unexpected(membership.error());
  made->membership_ = std::move(*membership);
  made->self_.incarnation = made->membership_->self().incarnation;
  auto listener = transport::StreamListener::open(
      arguments.listen,
      arguments.tls != nullptr ? arguments.tls->server() : grpc::InsecureServerCredentials(), made->self_,
      *made, {}, made.get());
  if (!listener) return in_context("--listen", listener.error());
  made->listener_ = std::move(*listener);
  made->thread_ = std::thread([to = made.get()] { to->run(); });
  made->credentials_ = arguments.tls != nullptr ? arguments.tls->channel(made->membership_->cluster())
                                                : grpc::InsecureChannelCredentials();
  made->asking_ = std::thread([to = made.get()] { to->ask_leader(); });
  return made;
}

SchedulerHost::~SchedulerHost() {
  {
    const std::lock_guard lock(wanted_mutex_);
    asks_no_more_ = true;
    asks_.notify_all();
  }
  if (asking_.joinable()) asking_.join();
  if (membership_ != nullptr) membership_->leave(leaves_within);  // it leads until then
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    turns_.nudge();
  }
  if (thread_.joinable()) thread_.join();
  listener_.reset();
  membership_.reset();
}

// --- Threads of streams and of the membership

void SchedulerHost::tell(News news) {
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(news));
  turns_.nudge();
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
  peers_.emplace(stream.get(), Speaker{.id = peer});
  news_.emplace_back(Opened{peer, stream});
  turns_.nudge();
}

void SchedulerHost::heard(transport::Stream& stream, transport::Frame frame) {
  std::unique_lock lock(mutex_);
  const auto found = peers_.find(&stream);
  if (found == peers_.end() || ending_) return;
  std::size_t& waiting = found->second.waiting;
  waiting += frame.messages.size();
  if (waiting > most_waiting) {
    lock.unlock();
    return stream.close({ErrorCode::resource_exhausted, "says more than the scheduler can take"});
  }
  Heard heard{found->second.id, &stream, std::move(frame)};
  if (stream.peer().role == cluster::Role::frontend)
    offers_.push_back(std::move(heard));
  else
    news_.emplace_back(std::move(heard));
  if (turns_.take()) take_turn(lock);
}

void SchedulerHost::ended(transport::Stream& stream, const Error& why) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(&stream);
  if (found == peers_.end()) return;
  news_.emplace_back(Ended{found->second.id, why.message});
  peers_.erase(found);
  turns_.nudge();
}

transport::Look SchedulerHost::look() {
  transport::Look out = hosts::look_of(membership_->state(), membership_->self());
  const std::lock_guard lock(mutex_);
  for (transport::Look::Member& member : out.members)
    if (const auto found = devices_.find(member.id); found != devices_.end()) member.devices = found->second;
  for (transport::Look::Member& member : out.members)
    if (const auto found = drains_.find(member.id); found != drains_.end())
      member.drain = found->second > 0 ? transport::Look::Drain::drains : transport::Look::Drain::drained;
  // A static file tells nothing of what members speak; they do themselves.
  for (const auto& [stream, speaker] : peers_) {
    const auto member = std::ranges::find(out.members, stream->peer().id, &transport::Look::Member::id);
    if (member == out.members.end() || member->protocols) continue;
    member->protocols = stream->peer().protocols;
    member->build = stream->peer().build;
  }
  out.wanted = own_wanted();
  if (options_.division && out.leads) out.division = options_.division(true);
  return out;
}

Result<> SchedulerHost::drain(const std::string& id, bool undo) {
  if (id == self_.id) {
    auto drained = membership_->drain(undo);
    if (drained)
      spdlog::info(undo ? "drains no more: it may lead" : "drains: it does not claim the lead any more");
    return drained;
  }
  const auto answer = std::make_shared<std::promise<Result<>>>();
  tell(DrainOrder{id, undo, answer});
  return answered(*answer, "may drain '" + id + "' yet");
}

Result<bool> SchedulerHost::divide(const schedule::GroupsOfModels& division) {
  CARILLON_ASSERT(options_.make_subclusters != nullptr);
  const auto answer = std::make_shared<std::promise<Result<bool>>>();
  tell(DivideOrder{division, answer});
  return answered(*answer, "may divide the models yet");
}

// Of an order that the deciding thread has been told.
template <typename T>
Result<T> SchedulerHost::answered(std::promise<Result<T>>& answer, const std::string& what) const {
  auto told = answer.get_future();
  if (told.wait_for(answers_within) != std::future_status::ready)
    return fail(ErrorCode::unavailable, self_.id + " has no time to answer: it " + what);
  return told.get();
}

// --- Turns

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

void SchedulerHost::show_drains() {
  const std::pair now =
      leader_ != nullptr ? std::pair(epoch_, leader_->drains_version()) : std::pair{0UL, 0UL};
  if (now == shown_) return;
  shown_ = now;
  auto drains = leader_ != nullptr ? leader_->drains() : std::map<std::string, std::uint32_t>{};
  const std::lock_guard lock(mutex_);
  drains_ = std::move(drains);
}

void SchedulerHost::look_at_demand() {
  const TimePoint at = clock_.now();
  demand_at_ = at + provision::CountedDemand::looks_every;
  auto figures = leader_->look_at_demand(at);
  const std::lock_guard lock(wanted_mutex_);
  wanted_.counted(std::move(figures), at);
}

// On a thread of its own: the next leader begins with what this one told.
void SchedulerHost::ask_leader() {
  pthread_setname_np(pthread_self(), "carillon-wanted");
  std::unique_lock lock(wanted_mutex_);
  while (!asks_.wait_for(lock, asks_every, [&] { return asks_no_more_; })) {
    lock.unlock();
    const hosts::Membership::State state = membership_->state();
    const auto leader = std::ranges::find(state.peers, state.leader.value_or(""),
                                          [](const auto& each) { return each.member.id; });
    std::optional<transport::Look> look;
    if (!state.leads && leader != state.peers.end() && leader->there)
      if (auto answer = transport::look({leader->member.address}, credentials_, membership_->cluster(),
                                        leader_answers_within)
                            .front();
          answer && answer->leads)
        look = *std::move(answer);
    if (look) compare_division(*look);
    lock.lock();
    if (look) wanted_.told(look->id, std::move(look->wanted), clock_.now());
  }
}

// If this scheduler took the lead, its own file of groups would count.
void SchedulerHost::compare_division(const transport::Look& leader) {
  if (leader.division == 0) return;  // it has no groups, or does not tell
  const std::uint64_t own = options_.division ? options_.division(false) : 0;
  const std::pair other{leader.id, leader.division};
  if (own == leader.division) {
    other_division_ = {};
    return;
  }
  if (std::exchange(other_division_, other) == other) return;
  options_.warn("partition: the groups of '" + leader.id + "', which leads, are in force; " + self_.id +
                (own == 0 ? " has no --partition" : " has others") +
                ", which would be in force if it led: give all schedulers the same --partition");
}

Result<std::vector<provision::WantedFigures>> SchedulerHost::wanted() const {
  const std::lock_guard lock(wanted_mutex_);
  return wanted_.wanted(clock_.now());
}

std::vector<provision::WantedFigures> SchedulerHost::own_wanted() const {
  const std::lock_guard lock(wanted_mutex_);
  return wanted_.own();
}

ClusterFigures SchedulerHost::figures() const {
  ClusterFigures figures{.member = membership_->figures(),
                         .reoffered = reoffered_.load(std::memory_order_relaxed)};
  if (options_.make_subclusters != nullptr && figures.member.leads)
    figures.moving = moving_.load(std::memory_order_relaxed);
  return figures;
}

void SchedulerHost::run() {
  pthread_setname_np(pthread_self(), "carillon-lead");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!turns_.take()) {
      turns_.sleep(lock);
    } else if (const TimePoint at = wake_at(); news_.empty() && offers_.empty() && at > clock_.now()) {
      turns_.give_back();
      turns_.sleep(lock, at);
    } else {
      take_turn(lock);
    }
  }
  while (!turns_.take()) turns_.sleep(lock);
  const std::vector<News> news = std::move(news_);
  lock.unlock();
  const auto refuse = [&](const auto& order) {
    order.answer->set_value(fail(ErrorCode::unavailable, self_.id + " ends"));
  };
  for (const News& each : news) {
    if (const auto* order = std::get_if<DrainOrder>(&each)) refuse(*order);
    if (const auto* order = std::get_if<DivideOrder>(&each)) refuse(*order);
  }
  leader_.reset();
  streams_.clear();
}

// With the turn and the lock.
void SchedulerHost::take_turn(std::unique_lock<std::mutex>& lock) {
  std::swap(taken_, news_);
  std::optional<Heard> offers;
  if (!offers_.empty()) {
    offers = std::move(offers_.front());
    offers_.pop_front();
    taken(*offers);
  }
  for (const News& each : taken_)
    if (const auto* const heard = std::get_if<Heard>(&each)) taken(*heard);
  lock.unlock();
  for (News& each : taken_) std::visit([this](auto& what) { on(what); }, each);
  taken_.clear();
  if (offers) on(*offers);
  if (leader_ != nullptr)
    if (const TimePoint now = clock_.now(); leader_->wake_at() <= now) leader_->wake(now);
  if (look_for_missing_ != TimePoint::max()) leave_missing(clock_.now());
  count_devices();
  show_drains();
  if (demand_at_ <= clock_.now()) look_at_demand();
  for (const auto& stream : said_) stream->flush();
  said_.clear();
  reoffered_.store(reoffered_before_ + (leader_ != nullptr ? leader_->reoffered() : 0),
                   std::memory_order_relaxed);
  moving_.store(leader_ != nullptr ? leader_->moving() : 0, std::memory_order_relaxed);
  const TimePoint next = wake_at();
  lock.lock();
  turns_.give_back(ending_ || !news_.empty() || !offers_.empty(), next);
}

void SchedulerHost::taken(const Heard& heard) {
  if (const auto from = peers_.find(heard.from); from != peers_.end() && from->second.id == heard.peer)
    from->second.waiting -= heard.frame.messages.size();
}

TimePoint SchedulerHost::wake_at() const {
  if (leader_ == nullptr) return look_for_missing_;
  return std::min({look_for_missing_, demand_at_, leader_->wake_at()});
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
  tell_unheard();
  if (leader_ != nullptr && (!leads || news.epoch != epoch_)) {
    spdlog::warn("leads no more, since epoch {}", news.epoch);
    reoffered_before_ += leader_->reoffered();
    leader_.reset();
    demand_at_ = TimePoint::max();
  }
  LeaderOptions options = options_.leader;
  {
    const std::lock_guard lock(wanted_mutex_);
    wanted_.leads(leads, news.leader);
    options.wanted_before = wanted_.last();
  }
  if (!leads && !news.leader.empty() && std::exchange(told_epoch_, news.epoch) != news.epoch)
    spdlog::info("'{}' leads, epoch {}", news.leader, news.epoch);
  if (!leads || leader_ != nullptr) return;
  epoch_ = news.epoch;
  spdlog::info("leads, epoch {}", epoch_);
  std::unique_ptr<schedule::Scheduler> scheduler;
  if (options_.make_subclusters != nullptr) {
    auto subclusters = options_.make_subclusters();
    options.subclusters = subclusters.get();
    scheduler = std::move(subclusters);
  } else {
    scheduler = options_.make_scheduler();
  }
  leader_ = std::make_unique<Leader>(std::move(scheduler), std::move(options), static_cast<Out&>(*this));
  leader_->start(clock_.now());
  demand_at_ = clock_.now();
  leader_->await_workers(workers_of(membership_->state().peers), clock_.now() + wait_for_workers);
  const auto streams = streams_;  // joining may end one
  for (const auto& [peer, stream] : streams) join(peer, stream);
}

void SchedulerHost::tell_unheard() {
  if (leader_ == nullptr) return;
  std::set<std::string> workers;
  for (const auto& [id, since] : missing_) workers.insert(id);
  leader_->unheard(std::move(workers));
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

void SchedulerHost::on(DrainOrder& news) {
  news.answer->set_value(leader_ != nullptr ? leader_->drain(news.id, news.undo, clock_.now())
                                            : fail(ErrorCode::unavailable, self_.id + " does not lead"));
}

void SchedulerHost::on(DivideOrder& news) {
  if (leader_ != nullptr) leader_->divide(news.division, clock_.now());
  news.answer->set_value(leader_ != nullptr);
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
  const auto stream = streams_.find(peer);
  if (stream == streams_.end() || !stream->second->queue(epoch_, std::move(message))) return;
  if (std::ranges::find(said_, stream->second) == said_.end()) said_.push_back(stream->second);
}

void SchedulerHost::end(PeerId peer, std::string why) {
  const auto stream = streams_.find(peer);
  if (stream == streams_.end()) return;
  stream->second->flush();
  stream->second->close({ErrorCode::unavailable, std::move(why)});
}

}  // namespace carillon::roles
