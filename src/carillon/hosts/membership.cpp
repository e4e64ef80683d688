#include "carillon/hosts/membership.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "carillon/base/clock.h"
#include "carillon/cluster/coordinator/static_file.h"
#include "carillon/hosts/static_news.h"
#include "carillon/transport/resolve.h"

namespace carillon::hosts {
namespace {

namespace asio = boost::asio;
using asio::ip::udp;

// Datagrams that are read before others get their turn.
constexpr int most_at_once = 4096;

}  // namespace

class Membership::Loop {
 public:
  Loop(MemberOptions options, Changed changed)
      : cluster(options.cluster),
        self(options.self),
        tick_every_(options.election.witness.tick_every),
        core_(std::move(options)),
        changed_(std::move(changed)) {}

  Result<> open() {
    const auto endpoint = transport::resolve<udp>(self.address);
    if (!endpoint) return std::unexpected(endpoint.error());
    boost::system::error_code error;
    socket_.open(endpoint->protocol(), error);
    if (!error) socket_.non_blocking(true, error);
    if (!error) socket_.bind(*endpoint, error);
    if (error)
      return fail(ErrorCode::unavailable,
                  fmt::format("cannot use {} for UDP: {}", self.address, error.message()));
    return {};
  }
  // Without a coordinator in a static cluster.
  void start(std::unique_ptr<coordinator::Coordinator> coordinator) {
    coordinator_ = std::move(coordinator);
    thread_ = std::thread([this] {
      await();
      arm(Duration{0});
      context_.run();
    });
  }
  ~Loop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
    coordinator_.reset();  // which the thread used; until here it may tell, and nobody hears it
  }

  // On the coordinator's thread, or before the start.
  void tell(const cluster::CoordinatorNews& news) {
    std::optional<std::pair<std::string, udp::endpoint>> found;
    std::string trouble;
    if (const auto* seen = std::get_if<cluster::MemberSeen>(&news)) {
      if (auto endpoint = transport::resolve<udp>(seen->member.address))
        found.emplace(seen->member.address, *endpoint);
      else
        trouble = fmt::format("member {}: {}", seen->member.id, endpoint.error().message);
    } else if (const auto* lost = std::get_if<cluster::CoordinatorLost>(&news)) {
      trouble = lost->why;
    } else if (const auto* taken = std::get_if<cluster::IdTaken>(&news)) {
      trouble = taken->why;
    } else if (const auto* other = std::get_if<cluster::Trouble>(&news)) {
      trouble = other->what;
    } else if (const auto* ended = std::get_if<cluster::Unregistered>(&news); ended != nullptr && !leaving_) {
      // As after a stop of this process, or of its host, for longer than its lease.
      trouble = fmt::format("no member for the moment: {}. It registers anew", ended->why);
    }
    const bool registered = std::holds_alternative<cluster::Registered>(news);
    const bool unregistered = std::holds_alternative<cluster::Unregistered>(news);
    asio::post(context_, [this, news, registered, unregistered, found = std::move(found),
                          trouble = std::move(trouble)] {
      const std::lock_guard lock(mutex_);
      if (found) endpoints_.insert_or_assign(found->first, found->second);
      if (!trouble.empty()) trouble_ = trouble;
      if (unregistered) unregistered_ = trouble;
      // Said again the next time.
      if (registered && trouble_ == std::exchange(unregistered_, {})) trouble_.clear();
      MemberCore::Output out;
      core_.coordinator_said(news, out);
      if (std::string wrong = core_.trouble(); wrong != members_trouble_) {
        members_trouble_ = std::move(wrong);
        if (!members_trouble_.empty()) trouble_ = members_trouble_;
      }
      carry_out(out);
      publish();
    });
  }

  State state() const {
    const std::lock_guard lock(mutex_);
    return state_now();
  }
  MemberFigures figures() const {
    const std::lock_guard lock(mutex_);
    return core_.figures(clock_.now());
  }
  std::optional<cluster::PeerClock> clock_of(std::string_view id, std::uint64_t incarnation) const {
    const std::lock_guard lock(clocks_mutex_);
    const auto found = clocks_.find(id);
    if (found == clocks_.end() || found->second.first != incarnation) return std::nullopt;
    return found->second.second;
  }
  bool obeys(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    return core_.obeys(epoch);
  }
  Result<> hand_over(const std::string& to) {
    const std::lock_guard lock(mutex_);
    MemberCore::Output out;
    auto done = core_.hand_over(to, out);
    carry_out(out);
    return done;
  }
  Result<> drain(bool undo) {
    const std::lock_guard lock(mutex_);
    MemberCore::Output out;
    auto done = core_.drain(undo, out);
    carry_out(out);
    return done;
  }
  void leave(Duration within) {
    if (!coordinator_) return;
    leaving_ = true;
    coordinator_->leave();
    const SteadyClock clock;
    const auto registered = [&] {
      const auto members = coordinator_->members();
      const auto found = members.find(self.id);
      return found != members.end() && found->second.incarnation == self.incarnation;
    };
    for (const TimePoint end = clock.now() + within; coordinator_->up() && registered() && clock.now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }

  const std::string cluster;
  const cluster::Member self;

 private:
  void arm(Duration pause) {
    timer_.expires_after(pause);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      step();
      arm(tick_every_);
    });
  }
  void await() {
    socket_.async_wait(udp::socket::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      step();
      await();
    });
  }
  void step() {
    const std::lock_guard lock(mutex_);
    MemberCore::Output out;
    // After a stall nothing is decided before all that waits was heard.
    while (!core_.tick(clock_.now(), out)) read(out);
    read(out);
    carry_out(out);
    publish();
  }

  // All below with the mutex.
  void read(MemberCore::Output& out) {
    std::array<char, transport::longest_datagram + 1> bytes{};
    for (int i = 0; i < most_at_once; ++i) {
      udp::endpoint from;
      boost::system::error_code error;
      const std::size_t size = socket_.receive_from(asio::buffer(bytes), from, 0, error);
      if (error == asio::error::would_block || error == asio::error::try_again) return;
      // A port where nobody listens makes an error of an earlier datagram of ours.
      if (!error) core_.heard({bytes.data(), size}, clock_.now(), out);
    }
  }
  void carry_out(MemberCore::Output& out) {
    for (const auto& [address, bytes] : out.datagrams) {
      const auto to = endpoints_.find(address);
      if (to == endpoints_.end()) continue;
      boost::system::error_code error;  // it may be lost anyway
      socket_.send_to(asio::buffer(bytes), to->second, 0, error);
    }
    for (const std::string& id : out.clocks) {
      const auto clock = core_.clock_of(id);
      const std::lock_guard lock(clocks_mutex_);
      if (clock)
        clocks_.insert_or_assign(id, std::pair(*core_.incarnation_of(id), *clock));
      else
        clocks_.erase(id);
    }
    if (!out.claim && !out.read) return;
    const std::uint64_t token = core_.request_token();
    if (!coordinator_ || !(out.read ? coordinator_->read_epoch(token)
                                    : coordinator_->compare_and_set(token, out.claim_over, *out.claim)))
      core_.request_failed();
  }
  State state_now() const {
    return {.leads = core_.leads(),
            .epoch = core_.epoch(),
            .leader = core_.leader(),
            .peers = core_.peers(clock_.now()),
            .counters = core_.counters(),
            .trouble = trouble_,
            .drains = core_.drains()};
  }
  void publish() {
    if (core_.version() == published_ && trouble_ == published_trouble_) return;
    published_ = core_.version();
    published_trouble_ = trouble_;
    if (changed_) changed_(state_now());
  }

  const Duration tick_every_;
  const SteadyClock clock_;
  mutable std::mutex mutex_;
  MemberCore core_;
  const Changed changed_;
  std::uint64_t published_ = 0;  // the core's version
  std::string members_trouble_, trouble_, published_trouble_;
  std::string unregistered_;  // the trouble, while this process is not registered any more
  std::atomic<bool> leaving_{false};
  std::map<std::string, udp::endpoint> endpoints_;  // by the address as it is registered
  // Readers of a clock wait for no step.
  mutable std::mutex clocks_mutex_;
  std::map<std::string, std::pair<std::uint64_t, cluster::PeerClock>, std::less<>> clocks_;
  asio::io_context context_{1};
  udp::socket socket_{context_};
  asio::steady_timer timer_{context_};
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::thread thread_;
};

Membership::Membership(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Membership::~Membership() = default;

Result<std::unique_ptr<Membership>> Membership::open(MemberOptions options,
                                                     const cluster::CoordinatorAddress& coordinator,
                                                     const coordinator::EtcdTls& tls, Changed changed) {
  const bool is_static = coordinator.is_static();
  std::vector<cluster::CoordinatorNews> news;
  if (is_static) {
    const auto read = cluster::read_static_cluster(coordinator.file);
    if (!read) return std::unexpected(read.error());
    if (auto checked = cluster::check_self(*read, options.self, coordinator.file); !checked)
      return std::unexpected(std::move(checked.error()));
    options.cluster = read->name;
    options.self.incarnation = cluster::static_incarnation;
    news = news_of(*read);
  } else {
    options.self.keys = fingerprints_of(options);
    if (coordinator.kubernetes)
      options.epoch_place =
          fmt::format("Lease '{}' in namespace '{}'", coordinator.name, coordinator.kubernetes->name_space);
  }
  auto loop = std::make_unique<Loop>(std::move(options), std::move(changed));
  if (auto opened = loop->open(); !opened) return std::unexpected(std::move(opened.error()));
  for (const cluster::CoordinatorNews& each : news) loop->tell(each);
  if (is_static) {
    loop->start(nullptr);
    return std::unique_ptr<Membership>(new Membership(std::move(loop)));
  }
  cluster::CoordinatorOptions client;
  client.self = loop->self;
  client.seed = loop->self.incarnation;
  Loop& told = *loop;
  auto opened = coordinator::open(coordinator, tls, std::move(client),
                                  [&told](const cluster::CoordinatorNews& each) { told.tell(each); });
  if (!opened) return std::unexpected(std::move(opened.error()));
  loop->start(std::move(*opened));
  return std::unique_ptr<Membership>(new Membership(std::move(loop)));
}

Membership::State Membership::state() const {
  return loop_->state();
}
MemberFigures Membership::figures() const {
  return loop_->figures();
}
std::optional<cluster::PeerClock> Membership::clock_of(std::string_view id, std::uint64_t incarnation) const {
  return loop_->clock_of(id, incarnation);
}
bool Membership::obeys(std::uint64_t epoch) {
  return loop_->obeys(epoch);
}
const std::string& Membership::cluster() const {
  return loop_->cluster;
}
const cluster::Member& Membership::self() const {
  return loop_->self;
}
Result<> Membership::hand_over(const std::string& to) {
  return loop_->hand_over(to);
}
Result<> Membership::drain(bool undo) {
  return loop_->drain(undo);
}
void Membership::leave(Duration within) {
  loop_->leave(within);
}

}  // namespace carillon::hosts
