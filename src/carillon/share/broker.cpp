#include "carillon/share/broker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/share/background.h"
#include "carillon/share/guard.h"
#include "carillon/share/lending.h"
#include "carillon/share/listener.h"
#include "carillon/share/memory.h"
#include "carillon/share/process.h"

namespace carillon::share {
namespace {

constexpr std::size_t listing_piece = std::size_t{32} * 1024;
constexpr int packets_a_turn = 16;  // of one client, before others have theirs
constexpr int most_accepts = 64;    // likewise of those that come

std::unexpected<Error> no_descriptor(const char* what) {
  return fail(ErrorCode::resource_exhausted, std::string(what) + ": " + std::strerror(errno));
}

std::size_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 30));
}

// Sends one packet, with descriptors where there are some, at most most_pieces. False: it was not taken whole.
bool send_packet(int socket, std::span<const std::byte> packet, std::span<const int> descriptors = {}) {
  // The kernel does not write to it.
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(most_pieces * sizeof(int))> control;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

// Closes a socket so that its other end reads what was sent: what lies unread here would be an error there.
void hang_up_softly(Descriptor& socket) {
  if (!socket.open()) return;
  shutdown(socket.number(), SHUT_RD);
  std::byte ignored[64];
  while (recv(socket.number(), ignored, sizeof ignored, MSG_DONTWAIT) > 0) {}
  socket.close();
}

// Of the scheduler of Linux 6.12 and later: this thread needs little time, but soon. Others pass over it.
void ask_for_short_slices() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } wanted{.size = 48, .policy = 0, .flags = 0, .nice = getpriority(PRIO_PROCESS, 0), .priority = 0,
           .runtime = 100'000, .deadline = 0, .period = 0};
  static_assert(sizeof wanted == 48);  // sched_attr of version 0
  syscall(SYS_sched_setattr, 0, &wanted, 0);
}

std::vector<std::byte> listing_packet(std::string_view text) {
  Header header;
  header.kind = Kind::listing;
  header.bytes = static_cast<std::uint32_t>(sizeof header + text.size());
  std::vector<std::byte> packet(header.bytes);
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, text.data(), text.size());
  return packet;
}

// A connection, by its ClientId.
struct Connection {
  std::uint32_t life = 0;  // events of an earlier one are passed over
  bool there = false;
  std::uint32_t pid = 0;
  Descriptor socket, process;
  Page page;
  StoppedTree stopped;
  std::deque<std::vector<std::byte>> listing;  // that is still to be sent
  // Pieces that it has, and of which lane memory.
  std::uint32_t pieces_of = 0;
  device::LaneId pieces_in;
  std::vector<std::uint64_t> pieces;
};

class LiveBroker final : public Broker, private Hands {
 public:
  LiveBroker(BrokerOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  ~LiveBroker() override = default;

  Result<> prepare();

  void run() override;
  void stop() override {
    stop_ = true;
    ring();
  }
  void want_device() override {
    post([this] { desk_->want_device(clock_.now()); });
  }
  void free_device(TimePoint until) override {
    post([this, until] { desk_->free_device(until, clock_.now()); });
  }
  void leisure(std::optional<TimePoint> free_until) override {
    if (lending_ && lending_->told(free_until, clock_.now())) ring();
  }
  std::optional<Overview> overview(Duration longest) override;
  std::size_t most_clients() const override { return most_clients_; }

 private:
  // What an event is of; with the client's id and life.
  enum class Source : std::uint8_t { listener, timer, bell, socket, process };
  static std::uint64_t key(Source source, ClientId client = {}, std::uint32_t life = 0) {
    return std::uint64_t{static_cast<std::uint8_t>(source)} << 56 | std::uint64_t{life & 0xffffffU} << 32 |
           client.value;
  }

  void post(std::move_only_function<void()> work);
  void ring() const {
    const std::uint64_t one = 1;
    // A full counter rings all the same.
    [[maybe_unused]] const auto written = ::write(bell_.number(), &one, sizeof one);
  }
  bool watch(int descriptor, std::uint32_t events, std::uint64_t what) const;

  void on(const epoll_event& event);
  void accept_all();
  bool accept_one();
  void read(ClientId id, Connection& client);
  void send_listing(ClientId id, Connection& client);
  void do_posted();
  void look_at_lending();
  int wait(std::span<epoll_event> events);
  int listen(std::span<epoll_event> events, TimePoint until);
  void set_timer(TimePoint next);
  void write_notes();
  Connection& at(ClientId id) { return clients_[id.index()]; }

  // --- Hands
  bool welcome(ClientId id, device::JobId job, Bytes capacity, const Counters& so_far) override;
  bool say(ClientId id, std::span<const std::byte> packet) override {
    return at(id).socket.open() && send_packet(at(id).socket.number(), packet);
  }
  bool give_lane(ClientId id, device::LaneId lane, std::uint32_t number, Bytes size) override;
  static bool give_pieces(Connection& client, std::uint32_t number, const LaneMemory& memory);
  void list(ClientId id, std::string text) override;
  void lease(ClientId id, Lease lease) override;
  Counters counters(ClientId id) override { return at(id).page.counters(); }
  std::optional<TimePoint> next_boundary(ClientId id) override { return at(id).page.next_boundary(); }
  void listen(ClientId id, bool listens) override { at(id).page.listen(listens); }
  std::optional<StoppedSaid> stopped(ClientId id, std::uint64_t before) override { return at(id).page.stopped(before); }
  void rouse(ClientId id, TimePoint until) override { at(id).page.rouse(until); }
  bool entered(ClientId id) override { return at(id).page.entered(); }
  Duration freeze(ClientId id) override;
  void thaw(ClientId id) override { at(id).stopped.go_on(); }
  void kill(ClientId id) override { send_signal(at(id).process, SIGKILL); }
  bool in_lanes(ClientId id) override { return shares_file(at(id).pid, options_.lanes->in_maps()); }
  void hang_up(ClientId id) override { at(id).socket.close(); }
  void release(ClientId id) override;
  bool size_lane(device::LaneId lane, Bytes size) override;
  void close_lane(device::LaneId lane) override;
  void note(Note note) override { notes_.push_back(std::move(note)); }

  BrokerOptions options_;
  const Clock& clock_;
  std::optional<Listener> listener_;
  Guard guard_;  // outlives those whom it lets go on
  Descriptor epoll_, timer_, bell_;
  Descriptor spare_;  // given up for a moment to tell somebody that there are no more
  std::size_t most_clients_ = 0;
  std::vector<Connection> clients_;  // never grows beyond most_clients_ once prepared
  std::vector<ClientId> free_;
  std::unordered_map<device::LaneId, std::unique_ptr<LaneMemory>> lanes_;
  std::uint32_t lanes_made_ = 0;
  std::optional<Desk> desk_;
  std::optional<Lending> lending_;
  TimePoint look_at_lending_ = TimePoint::max();
  std::vector<Note> notes_;
  std::optional<TimePoint> stopped_at_;  // while the packet that says so is dealt with
  TimePoint timer_set_ = TimePoint::max();
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<std::move_only_function<void()>> posted_;
};

Result<> LiveBroker::prepare() {
  options_.jobs.contiguous = false;  // memory files lie nowhere, nor do pieces of a GPU's memory
  if (options_.lanes == nullptr) options_.lanes = std::make_shared<HostLanes>();
  auto core = device::make_job_sharing(options_.policy, options_.jobs);
  if (!core) return std::unexpected(core.error());
  const auto uid = static_cast<std::uint32_t>(geteuid());
  if (options_.any_user && uid != 0)
    return invalid("jobs of any user can be stopped by root alone, and this broker is user " + std::to_string(uid) +
                   "'s");
  if (options_.polls < Duration{0} || options_.polls > 10ms)
    return invalid("the broker is to poll for " + std::to_string(to_us(options_.polls)) +
                   " us, but should for 0 to 10,000");
  if (options_.most_clients < 1 || options_.most_clients > 65536)
    return invalid("most_clients is " + std::to_string(options_.most_clients) + ", but should be in 1..65536");
  // Each has a socket, a process and perhaps a lane; and what is stopped has a descriptor a process.
  const std::size_t limit = descriptor_limit();
  if (limit < 64 + 4) return fail(ErrorCode::resource_exhausted, "this process may open " + std::to_string(limit) +
                                                                     " files, too few for a broker (ulimit -n)");
  most_clients_ = std::min(options_.most_clients, (limit - 64) / 4);
  auto guard = Guard::start();
  if (!guard) return std::unexpected(guard.error());
  guard_ = std::move(*guard);
  clients_.resize(most_clients_);
  for (Connection& client : clients_) client.stopped.guard_by(&guard_);
  for (std::size_t i = most_clients_; i > 0; --i) free_.push_back({static_cast<std::uint32_t>(i - 1)});

  auto listener = Listener::open(options_.socket, options_.any_user);
  if (!listener) return std::unexpected(listener.error());
  listener_.emplace(std::move(*listener));
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  timer_ = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  bell_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  spare_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (!epoll_.open() || !timer_.open() || !bell_.open() || !spare_.open()) return no_descriptor("the broker");
  if (!watch(listener_->number(), EPOLLIN, key(Source::listener)) || !watch(timer_.number(), EPOLLIN, key(Source::timer)) ||
      !watch(bell_.number(), EPOLLIN, key(Source::bell)))
    return no_descriptor("the broker");
  desk_.emplace(std::move(*core),
                DeskOptions{.policy = options_.policy,
                            .capacity = options_.jobs.capacity,
                            .assumed = options_.jobs.assumed,
                            .uid = uid,
                            .any_user = options_.any_user,
                            .device = std::string(options_.lanes->name()),
                            .listens = std::min(options_.polls, options_.jobs.quantum / 100)},
                static_cast<Hands&>(*this));
  if (options_.lent_after) {
    lending_.emplace(*options_.lent_after);
    desk_->want_device(clock_.now());
  }
  return {};
}

bool LiveBroker::watch(int descriptor, std::uint32_t events, std::uint64_t what) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  return epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

// --- The loop

void LiveBroker::run() {
  ask_for_short_slices();
  std::array<epoll_event, 64> events{};
  while (!stop_) {
    const int count = wait(events);
    CARILLON_ASSERT(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) on(events[static_cast<std::size_t>(i)]);
    look_at_lending();
    write_notes();
  }
  do_posted();
  desk_->close(options_.release_at_end);
  if (lending_)
    for (const Connection& client : clients_)
      if (client.there) set_background(client.pid, false);
  write_notes();
}

void LiveBroker::look_at_lending() {
  if (!lending_) return;
  const TimePoint now = clock_.now();
  const Lending::Look look = lending_->look(desk_->jobs() > 0, now);
  look_at_lending_ = look.next;
  if (look.change == Lending::Change::take_back) desk_->want_device(now);
  if (look.change == Lending::Change::lend) desk_->free_device(look.until, now);
}

void LiveBroker::on(const epoll_event& event) {
  const auto source = static_cast<Source>(event.data.u64 >> 56);
  const ClientId id{static_cast<std::uint32_t>(event.data.u64)};
  switch (source) {
    case Source::listener: return accept_all();
    case Source::timer: {
      std::uint64_t times = 0;
      if (::read(timer_.number(), &times, sizeof times) < 0) return;
      timer_set_ = TimePoint::max();
      return desk_->wake(clock_.now());
    }
    case Source::bell: {
      std::uint64_t rings = 0;
      [[maybe_unused]] const auto taken = ::read(bell_.number(), &rings, sizeof rings);
      return do_posted();
    }
    case Source::socket:
    case Source::process: break;
  }
  Connection& client = at(id);
  if (!client.there || (client.life & 0xffffffU) != (event.data.u64 >> 32 & 0xffffffU)) return;
  if (source == Source::process) {
    epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, client.process.number(), nullptr);
    return desk_->ended(id, clock_.now());
  }
  if (!client.socket.open()) return;
  if (!client.listing.empty() && (event.events & EPOLLOUT) != 0) return send_listing(id, client);
  read(id, client);
}

void LiveBroker::read(ClientId id, Connection& client) {
  std::array<std::byte, 1024> packet;
  const std::uint32_t life = client.life;
  for (int i = 0; i < packets_a_turn; ++i) {
    const ssize_t got = recv(client.socket.number(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const TimePoint now = clock_.now();
    if (got <= 0) return desk_->hung_up(id, now);
    const auto size = static_cast<std::size_t>(got);
    const Result<Said> said = size > packet.size()
                                  ? invalid("a packet has " + std::to_string(size) + " bytes, more than any of a job")
                                  : read_packet(std::span(packet).first(size));
    if (said && std::holds_alternative<StoppedSaid>(*said)) stopped_at_ = now;
    desk_->said(id, said, now);
    stopped_at_.reset();
    if (!client.there || client.life != life || !client.socket.open()) return;
  }
}

void LiveBroker::accept_all() {
  for (int i = 0; i < most_accepts && accept_one(); ++i) {}
}

bool LiveBroker::accept_one() {
  Descriptor socket(accept4(listener_->number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.open()) {
    if (errno != EMFILE && errno != ENFILE) return errno == ECONNABORTED || errno == EINTR;
    // Else it would be offered again and again.
    spare_.close();
    Descriptor turned_away(accept4(listener_->number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool more = turned_away.open();
    if (more)
      send_packet(turned_away.number(), bytes_of(refusal(Kind::refused, "the broker has no descriptor left for it")));
    hang_up_softly(turned_away);
    spare_ = Descriptor(eventfd(0, EFD_CLOEXEC));
    return more;
  }
  if (free_.empty()) {
    ++desk_->totals().turned_away;
    send_packet(socket.number(), bytes_of(refusal(Kind::refused, "the broker has " + std::to_string(most_clients_) +
                                                                     " clients already, and takes no more")));
    hang_up_softly(socket);
    return true;
  }
  ucred who{};
  socklen_t size = sizeof who;
  if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return true;
  const ClientId id = free_.back();
  Connection& client = at(id);
  ++client.life;
  client.pid = static_cast<std::uint32_t>(who.pid);
  client.process = peer_process(socket.number(), client.pid);
  // One that is gone already, or cannot be held, is none.
  if (!watch(socket.number(), EPOLLIN | EPOLLRDHUP, key(Source::socket, id, client.life)) ||
      (who.pid != 0 && (!client.process.open() ||
                        !watch(client.process.number(), EPOLLIN, key(Source::process, id, client.life))))) {
    client.process.close();
    return true;
  }
  free_.pop_back();
  client.there = true;
  client.socket = std::move(socket);
  desk_->came(id, {client.pid, static_cast<std::uint32_t>(who.uid)}, clock_.now());
  return true;
}

// For events. Around the time at which who was recalled should be out of its lane, it stays awake.
int LiveBroker::wait(std::span<epoll_event> events) {
  const TimePoint now = clock_.now();
  const Window expected = desk_->expected(now);
  const bool listens = now >= expected.from;
  set_timer(std::min({desk_->next(), look_at_lending_, listens ? TimePoint::max() : expected.from}));
  return listens ? listen(events, expected.until)
                 : epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), -1);
}

int LiveBroker::listen(std::span<epoll_event> events, TimePoint until) {
  desk_->listen(until);
  int count = 0;
  TimePoint now = clock_.now();
  for (bool heard = false; !heard && count == 0 && now < until; now = clock_.now()) {
    stopped_at_ = now;
    heard = desk_->hear(now);
    stopped_at_.reset();
    if (!heard) count = epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), 0);
  }
  desk_->listen_no_more(now);
  return count;
}

void LiveBroker::set_timer(TimePoint next) {
  if (next == timer_set_) return;
  timer_set_ = next;
  itimerspec when{};
  if (next != TimePoint::max()) {
    const std::int64_t ns = std::max<std::int64_t>(next.time_since_epoch().count(), 1);
    when.it_value.tv_sec = ns / 1'000'000'000;
    when.it_value.tv_nsec = ns % 1'000'000'000;
  }
  timerfd_settime(timer_.number(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void LiveBroker::write_notes() {
  if (options_.log)
    for (const Note& note : notes_) options_.log(note);
  notes_.clear();
}

// --- Other threads

void LiveBroker::post(std::move_only_function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  ring();
}

void LiveBroker::do_posted() {
  std::vector<std::move_only_function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (auto& each : work) each();
}

std::optional<Overview> LiveBroker::overview(Duration longest) {
  auto answer = std::make_shared<std::promise<Overview>>();
  auto future = answer->get_future();
  post([this, answer] { answer->set_value(desk_->overview(clock_.now())); });
  if (future.wait_for(longest) != std::future_status::ready) return std::nullopt;
  return future.get();
}

// --- Hands

bool LiveBroker::welcome(ClientId id, device::JobId job, Bytes capacity, const Counters& so_far) {
  Connection& client = at(id);
  Descriptor file;
  auto page = Page::make(so_far, file);
  if (!page) return false;
  client.page = std::move(*page);
  if (lending_) set_background(client.pid, true);
  auto packet = packet_of<Welcome>(Kind::welcome);
  packet.job = job.value;
  packet.capacity = capacity.count;
  const auto device = options_.lanes->device();
  packet.memory = device ? device->memory : 0;
  if (!send_packet(client.socket.number(), bytes_of(packet), std::array{file.number()})) return false;
  return !device || send_packet(client.socket.number(), bytes_of(*device));
}

bool LiveBroker::give_lane(ClientId id, device::LaneId lane, std::uint32_t number, Bytes size) {
  auto packet = packet_of<LaneIs>(Kind::lane);
  packet.lane = number;
  packet.size = size.count;
  Connection& client = at(id);
  if (!client.socket.open()) return false;
  const auto found = lanes_.find(lane);
  if (number == 0 || found == lanes_.end()) return send_packet(client.socket.number(), bytes_of(packet));
  const LaneMemory& memory = *found->second;
  if (memory.whole() >= 0) return send_packet(client.socket.number(), bytes_of(packet), std::array{memory.whole()});
  client.pieces_in = lane;
  return give_pieces(client, number, memory) && send_packet(client.socket.number(), bytes_of(packet));
}

// Those that it does not have yet.
bool LiveBroker::give_pieces(Connection& client, std::uint32_t number, const LaneMemory& memory) {
  if (client.pieces_of != number) client.pieces.clear();
  client.pieces_of = number;
  client.pieces.resize(memory.pieces().size());
  for (std::size_t i = 0; i < client.pieces.size();) {
    auto packet = packet_of<Pieces>(Kind::pieces);
    packet.lane = number;
    packet.first = static_cast<std::uint32_t>(i);
    std::vector<Descriptor> held;
    std::vector<int> numbers;
    for (; i < client.pieces.size() && numbers.size() < most_pieces && client.pieces[i] != memory.pieces()[i]; ++i) {
      auto piece = memory.piece(i);
      if (!piece) return false;
      numbers.push_back(piece->number());
      held.push_back(std::move(*piece));
      client.pieces[i] = memory.pieces()[i];
    }
    packet.count = static_cast<std::uint32_t>(numbers.size());
    if (numbers.empty())
      ++i;
    else if (!send_packet(client.socket.number(), bytes_of(packet), numbers))
      return false;
  }
  return true;
}

void LiveBroker::list(ClientId id, std::string text) {
  Connection& client = at(id);
  for (std::string_view rest = text; !rest.empty();) {
    client.listing.push_back(listing_packet(rest.substr(0, listing_piece)));
    rest.remove_prefix(std::min(rest.size(), listing_piece));
  }
  epoll_event event{};
  event.events = EPOLLOUT;
  event.data.u64 = key(Source::socket, id, client.life);
  epoll_ctl(epoll_.number(), EPOLL_CTL_MOD, client.socket.number(), &event);
}

void LiveBroker::send_listing(ClientId id, Connection& client) {
  while (!client.listing.empty()) {
    if (!send_packet(client.socket.number(), client.listing.front())) {
      if (errno == EAGAIN || errno == ENOBUFS) return;
      break;
    }
    client.listing.pop_front();
  }
  client.listing.clear();
  desk_->hung_up(id, clock_.now());
}

void LiveBroker::lease(ClientId id, Lease lease) {
  at(id).page.set(lease);
  if (lease == Lease::run && stopped_at_) desk_->totals().hand_over.add(clock_.now() - *stopped_at_);
}

Duration LiveBroker::freeze(ClientId id) {
  const TimePoint before = clock_.now();
  at(id).stopped.stop(at(id).pid, at(id).process);
  return clock_.now() - before;
}

void LiveBroker::release(ClientId id) {
  Connection& client = at(id);
  client.stopped.forget();  // what descends from it goes on, where it is dead itself
  hang_up_softly(client.socket);
  client.process.close();
  client.page = Page();
  client.listing.clear();
  client.pieces_of = 0;
  client.pieces.clear();
  client.there = false;
  free_.push_back(id);
}

bool LiveBroker::size_lane(device::LaneId lane, Bytes size) {
  auto file = lanes_.find(lane);
  if (file == lanes_.end()) {
    auto made = options_.lanes->make(++lanes_made_);
    if (!made) return false;
    file = lanes_.emplace(lane, std::move(*made)).first;
  }
  return file->second->resize(size).has_value();
}

void LiveBroker::close_lane(device::LaneId lane) {
  const auto file = lanes_.find(lane);
  if (file == lanes_.end()) return;
  // Those that have pieces of it mapped, and are held, look at their sockets once a second.
  for (Connection& client : clients_)
    if (client.there && client.pieces_of != 0 && client.pieces_in == lane) {
      client.pieces_of = 0;
      client.pieces.clear();
      if (client.socket.open()) send_packet(client.socket.number(), bytes_of(packet_of<LaneIs>(Kind::lane)));
    }
  file->second->give_back();  // some job may have it mapped until it has another
  lanes_.erase(file);
}

}  // namespace

Result<std::unique_ptr<Broker>> Broker::start(BrokerOptions options, const Clock& clock) {
  auto broker = std::make_unique<LiveBroker>(std::move(options), clock);
  if (auto ready = broker->prepare(); !ready) return std::unexpected(ready.error());
  return broker;
}

std::string default_socket(const std::function<const char*(const char* name)>& value, std::uint32_t uid) {
  if (const char* const path = value(socket_variable); path != nullptr && *path != '\0') return path;
  const char* const runtime = value("XDG_RUNTIME_DIR");
  const std::string folder =
      runtime != nullptr && *runtime == '/' ? std::string(runtime) + "/carillon" : "/tmp/carillon-" + std::to_string(uid);
  return folder + "/share.sock";
}

Result<std::string> ask_for_list(const std::string& path, Duration longest) {
  const auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.open()) return no_descriptor("a socket");
  if (connect(socket.number(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail(ErrorCode::unavailable, "no broker listens at " + path + " (" + std::strerror(errno) +
                                            "); 'carillon share' starts one");
  Header query;
  query.kind = Kind::query;
  query.bytes = sizeof query;
  if (!send_packet(socket.number(), bytes_of(query)))
    return fail(ErrorCode::unavailable, "the broker at " + path + " hung up");
  std::string text;
  std::vector<std::byte> packet(most_packet);
  const auto ms = static_cast<int>(std::min<std::int64_t>(longest.count() / 1'000'000, 1'000'000));
  for (;;) {
    pollfd ready{socket.number(), POLLIN, 0};
    if (poll(&ready, 1, ms) <= 0)
      return fail(ErrorCode::deadline_exceeded, "the broker at " + path + " says nothing");
    const ssize_t got = recv(socket.number(), packet.data(), packet.size(), 0);
    if (got <= 0) break;
    Header header;
    if (static_cast<std::size_t>(got) < sizeof header) break;
    std::memcpy(&header, packet.data(), sizeof header);
    if (header.kind == Kind::refused && static_cast<std::size_t>(got) == sizeof(Refused)) {
      Refused refused;
      std::memcpy(&refused, packet.data(), sizeof refused);
      refused.why[sizeof refused.why - 1] = '\0';
      return fail(ErrorCode::unavailable, "the broker at " + path + " refuses: " + refused.why);
    }
    if (header.kind != Kind::listing) break;
    text.append(reinterpret_cast<const char*>(packet.data()) + sizeof header,
                static_cast<std::size_t>(got) - sizeof header);
  }
  if (text.empty()) return fail(ErrorCode::unavailable, "the broker at " + path + " hung up");
  return text;
}

}  // namespace carillon::share
