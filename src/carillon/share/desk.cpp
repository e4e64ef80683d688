#include "carillon/share/desk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::share {

using device::IterationEnded;
using device::JobCommand;
using device::JobId;
using device::JobMemory;
using device::JobReason;
using device::LaneId;
using device::no_lane;

namespace {

constexpr Duration share_span = std::chrono::seconds(5);

std::string who(const Peer& peer) {
  return "pid " + std::to_string(peer.pid);
}

std::string ran(std::uint64_t iterations, Duration attained) {
  return std::to_string(iterations) + " iterations, " + std::to_string(attained.count() / 1'000'000) +
         " ms of the device";
}

}  // namespace

struct Desk::Client {
  enum class State : std::uint8_t {
    fresh,     // has not said who it is
    attached,  // a job
    leaving    // thrown out, or without its socket: its process is waited for
  };
  // What it had run at a time.
  struct Mark {
    TimePoint at;
    Duration attained{0};
  };

  ClientId id;
  Peer peer;
  State state = State::fresh;
  std::string unwelcome;  // fresh: why it will be turned away
  HelloSaid hello;
  JobId job;
  LaneId lane = no_lane;
  std::uint32_t told_number = 0;  // the lane's memory that it knows; 0: none
  Bytes told_size;
  bool granted = false;   // it is to run
  bool inside = false;    // and was let: from then on it is in its lane until it says otherwise
  bool recalled = false;  // and is to stop
  bool to_hold = false;   // which it is told once it has seen its grant
  std::uint64_t iterations_then = 0;  // at the grant
  bool frozen = false;
  bool admitted = false;
  bool ready = false;  // for its first iteration
  std::optional<JobMemory> asks;
  bool must_end = false;  // leaving: it was evicted
  bool killed = false;
  TimePoint came, recalled_at, frozen_at;
  TimePoint started;  // its turn
  // By its page when it was recalled: once, so that a page which says something else all the time keeps nobody awake.
  Window expected;
  bool follower_roused = false;
  std::uint64_t stops = 0;  // that were heard of
  TimePoint counted_at;    // from when on what it runs is not counted yet
  Duration frozen_for{0};  // since then
  TimePoint due = TimePoint::max();
  Counters counters;
  Duration attained{0};
  Mark older, newer;

  std::string label() const {
    return "job " + std::to_string(job.value) + " (" + (hello.name.empty() ? "" : hello.name + ", ") + who(peer) + ")";
  }
  void mark(TimePoint now) {
    if (now - newer.at < share_span) return;
    older = newer;
    newer = {now, attained};
  }
  double share(TimePoint now) const {
    const Duration span = now - older.at;
    return span <= Duration{0} ? 0 : std::min(1.0, to_seconds(attained - older.attained) / to_seconds(span));
  }
};

Desk::Desk(std::unique_ptr<device::JobSharing> core, DeskOptions options, Hands& hands)
    : options_(std::move(options)), hands_(hands), core_(std::move(core)) {
  events_.reserve(256);
  commands_.reserve(1024);
  running_.reserve(256);
}

Desk::~Desk() = default;

// --- Clients come and go.

void Desk::came(ClientId client, Peer peer, TimePoint now) {
  if (clients_.size() <= client.index()) clients_.resize(client.index() + 1);
  CARILLON_ASSERT(clients_[client.index()] == nullptr);
  clients_[client.index()] = std::make_unique<Client>();
  Client& fresh = *clients_[client.index()];
  fresh.id = client;
  fresh.peer = peer;
  fresh.came = now;
  // It is told once it has said something: whoever writes to a socket that is closed may not read what lies in it.
  if (peer.pid == 0)
    fresh.unwelcome = "its process cannot be seen from the broker: it is in another container";
  else if (!options_.any_user && peer.uid != options_.uid)
    fresh.unwelcome = "the broker is user " + std::to_string(options_.uid) + "'s, and takes no jobs of user " +
                      std::to_string(peer.uid) + " (option --any-user of 'carillon share')";
  due(fresh, saturating_add(now, options_.to_say_hello));
}

void Desk::said(ClientId id, const Result<Said>& said, TimePoint now) {
  Client* const client = find(id);
  if (client == nullptr || closed_) return;
  if (client->state == Client::State::leaving) return;  // it may not know yet
  if (!client->unwelcome.empty()) return turn_away(*client, client->unwelcome);
  if (!said) {
    ++totals_.bad_packets;
    return client->state == Client::State::fresh ? turn_away(*client, said.error().message)
                                                 : throw_out(*client, JobReason::bad_report, said.error().message, now);
  }
  if (client->state == Client::State::fresh) {
    if (const auto* words = std::get_if<HelloSaid>(&*said)) return hello(*client, *words, now);
    if (std::holds_alternative<QuerySaid>(*said)) {
      due(*client, saturating_add(now, options_.to_say_hello));
      return hands_.list(id, to_json(overview(now)));
    }
    ++totals_.bad_packets;
    return turn_away(*client, "the first packet is a hello, or a query");
  }
  if (const auto* words = std::get_if<StoppedSaid>(&*said)) {
    if (words->stops > 0 && words->stops <= client->stops) return;  // its page told
    client->stops = words->stops;
    return stopped(*client, *words, now);
  }
  if (const auto* words = std::get_if<AskSaid>(&*said)) return ask(*client, *words, now);
  if (std::holds_alternative<ByeSaid>(*said)) {
    client->inside = false;
    return part(*client, "ended", "is done after " + ran(client->counters.iterations, client->attained), now);
  }
  ++totals_.bad_packets;
  throw_out(*client, JobReason::bad_report, "it said a second hello, or a query, on its job's socket", now);
}

void Desk::hung_up(ClientId id, TimePoint now) {
  Client* const client = find(id);
  if (client == nullptr) return;
  if (client->state == Client::State::fresh) return release(*client, now);
  hands_.hang_up(id);
  if (client->state == Client::State::leaving) return;
  // Most often its process is ending; else it closed its socket, or became another program.
  if (client->inside) ++totals_.lost;
  part(*client, client->inside ? "lost" : "ended", "closed its socket after " + ran(client->counters.iterations, client->attained), now);
}

void Desk::ended(ClientId id, TimePoint now) {
  Client* const client = find(id);
  if (client == nullptr) return;
  client->inside = false;
  if (client->state == Client::State::attached)
    return part(*client, "ended", "its process ended after " + ran(client->counters.iterations, client->attained), now);
  release(*client, now);
}

// The job is no more: where it may still be in its lane, its process is waited for.
void Desk::part(Client& client, std::string_view event, std::string text, TimePoint now) {
  const JobId job = client.job;
  forget_job(client);
  if (event == "ended") ++totals_.ended;
  note(Note::Level::info, event, client, std::move(text));
  if (client.inside) {
    client.state = Client::State::leaving;
    ++leaving_;
    due(client, saturating_add(now, options_.to_end));
  } else {
    release(client, now);
  }
  tell(device::JobGone{job}, now);
}

void Desk::release(Client& client, TimePoint now) {
  const bool left = client.state == Client::State::leaving;
  const ClientId id = client.id;
  hands_.release(id);
  clients_[id.index()].reset();
  if (!left) return;
  --leaving_;
  // Who was granted the lane that it was in may run now.
  for (const auto& other : clients_)
    if (other != nullptr && other->granted && !other->inside && !blocked(*other)) start(*other, now);
}

void Desk::turn_away(Client& client, std::string_view why) {
  ++totals_.turned_away;
  hands_.say(client.id, bytes_of(refusal(Kind::refused, why)));
  note(Note::Level::warning, "turned_away", client, "is turned away: " + std::string(why));
  const ClientId id = client.id;
  hands_.release(id);
  clients_[id.index()].reset();
}

void Desk::throw_out(Client& client, JobReason reason, std::string_view why, TimePoint now) {
  const JobId job = client.job;
  expel(client, reason, why, {}, now);
  tell(device::JobGone{job}, now);
}

void Desk::expel(Client& client, JobReason reason, std::string_view why, const JobMemory& fits, TimePoint now) {
  forget_job(client);
  ++totals_.evicted[static_cast<std::size_t>(reason)];
  note(Note::Level::warning, "evicted", client,
       "evicted (" + std::string(name_of(reason)) + "): " + std::string(why) + "; after " +
           ran(client.counters.iterations, client.attained));
  hands_.say(client.id, bytes_of(refusal(Kind::evicted, why, fits)));
  hands_.lease(client.id, Lease::look);
  client.state = Client::State::leaving;
  client.must_end = true;
  ++leaving_;
  if (client.frozen) {  // it cannot end itself
    hands_.kill(client.id);
    client.killed = true;
    ++totals_.killed;
  } else {
    due(client, saturating_add(now, options_.to_end));
  }
}

void Desk::forget_job(Client& client) {
  clients_of_jobs_.erase(client.job);
  std::erase(running_, client.id);
  client.granted = false;
}

// --- What jobs say.

void Desk::hello(Client& client, const HelloSaid& said, TimePoint now) {
  if (!options_.device.empty() && !said.on_cuda)
    return turn_away(client, "the broker's lanes are memory of " + options_.device +
                                 ", which the job cannot use: its torch finds no CUDA device, or it has no "
                                 "libcarillon_cuda.so; 'carillon share --device cpu' takes such jobs");
  client.hello = said;
  client.job = JobId{next_job_++};
  client.due = TimePoint::max();
  if (said.before) {
    client.counters = *said.before;
    client.attained = said.before->busy;
  }
  client.older = client.newer = {now, client.attained};
  if (!hands_.welcome(client.id, client.job, options_.capacity, client.counters))
    return turn_away(client, "there is no memory or descriptor left for it");
  client.state = Client::State::attached;
  clients_of_jobs_.emplace(client.job, client.id);
  ++(said.before ? totals_.again : totals_.came);
  const auto size = [](const std::optional<Bytes>& bytes) { return bytes ? to_text(*bytes) : "not known"; };
  note(Note::Level::info, "came", client,
       (said.before ? "is here again after " + ran(client.counters.iterations, client.attained) : std::string("is here")) +
           "; persistent memory " + size(said.persistent) + ", ephemeral " + size(said.ephemeral));
  tell(device::JobCame{client.job,
                       {.persistent = said.persistent,
                        .ephemeral = said.ephemeral,
                        .remaining = said.remaining,
                        .weight = said.weight}},
       now);
}

std::optional<IterationEnded> Desk::progress(Client& client, const Counters& counters,
                                             std::optional<Duration> remaining, TimePoint now) {
  if (counters.iterations < client.counters.iterations || counters.busy < client.counters.busy) {
    throw_out(client, JobReason::bad_report, "its counters went back", now);
    return std::nullopt;
  }
  const std::uint64_t iterations = counters.iterations - client.counters.iterations;
  // It cannot have been busy for longer than it was let.
  const Duration most = std::max(Duration{0}, now - client.counted_at - client.frozen_for);
  const Duration busy = std::min(counters.busy - client.counters.busy, most);
  client.counters.iterations = counters.iterations;
  client.counters.busy = counters.busy;
  // 0 is not known yet, as far as there is anything known at all.
  const auto known = [](Bytes said, Bytes before, const std::optional<Bytes>& hello, Bytes assumed) {
    return said.count > 0 ? said : before.count > 0 ? before : hello.value_or(assumed);
  };
  client.counters.memory = {known(counters.memory.persistent, client.counters.memory.persistent,
                                  client.hello.persistent, options_.assumed.persistent),
                            known(counters.memory.ephemeral, client.counters.memory.ephemeral, client.hello.ephemeral,
                                  options_.assumed.ephemeral)};
  client.attained += busy;
  client.counted_at = now;
  client.frozen_for = Duration{0};
  client.mark(now);
  return IterationEnded{
      .job = client.job,
      .stopped = false,
      .iterations = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(iterations, std::numeric_limits<std::uint32_t>::max())),
      .busy = busy,
      .memory = client.counters.memory,
      .remaining = remaining};
}

// It waits for a grant, and has run nothing since it was last heard of.
IterationEnded Desk::first_of(const Client& client) {
  return {.job = client.job,
          .stopped = true,
          .iterations = 0,
          .busy = {},
          .memory = client.counters.memory,
          .remaining = {}};
}

void Desk::stopped(Client& client, const StoppedSaid& said, TimePoint now) {
  if (!client.inside && client.ready)
    return throw_out(client, JobReason::bad_report, "it said that it stopped, and did not run", now);
  auto told = progress(client, said.counters, said.remaining, now);
  if (!told) return;
  if (!client.inside) {  // it is ready
    client.ready = true;
    if (client.admitted) tell(first_of(client), now);
    return;
  }
  if (client.recalled) totals_.until_stop.add(now - client.recalled_at);
  if (!client.recalled || client.to_hold) hands_.lease(client.id, Lease::hold);
  client.to_hold = false;
  client.granted = client.inside = client.recalled = false;
  std::erase(running_, client.id);
  told->stopped = true;
  tell(*told, now);
}

void Desk::ask(Client& client, const AskSaid& said, TimePoint now) {
  if (client.asks || (client.ready && !client.inside))
    return throw_out(client, JobReason::bad_report, "it asked for memory, and waits already", now);
  client.asks = said.memory;
  if (!client.admitted) return;
  const ClientId id = client.id;
  tell(device::MemoryAsked{client.job, said.memory}, now);
  answer(id, now);
}

void Desk::answer(ClientId id, TimePoint now) {
  Client* const client = find(id);
  if (client == nullptr || client->state != Client::State::attached || !client->asks) return;
  client->asks.reset();
  client->told_number = 0;  // it waits for an answer, changed or not
  if (!show_lane(*client)) throw_out(*client, JobReason::bad_report, "it does not read what the broker says", now);
}

// --- What is decided.

void Desk::tell(const device::JobEvent& event, TimePoint now) {
  events_.push_back(event);
  if (!telling_) tell_all(now);
}

void Desk::tell_all(TimePoint now) {
  telling_ = true;
  // Carrying out may lead to more of them: a job that does not take its packets is gone.
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const device::JobEvent event = events_[i];
    commands_.clear();
    core_wake_ = core_->on(event, now, commands_);
    for (std::size_t k = 0; k < commands_.size(); ++k) carry_out(commands_[k], now);
  }
  events_.clear();
  telling_ = false;
  while (!answers_.empty()) {
    const ClientId id = answers_.back();
    answers_.pop_back();
    answer(id, now);
  }
}

void Desk::carry_out(const JobCommand& command, TimePoint now) {
  Client* const client = of(command.job);
  switch (command.kind) {
    case JobCommand::Kind::admit:
      if (client == nullptr) return;
      client->lane = command.lane;
      if (!client->admitted) {
        client->admitted = true;
        if (client->asks) {
          answers_.push_back(client->id);
          tell(device::MemoryAsked{client->job, *client->asks}, now);
        }
        if (client->ready) tell(first_of(*client), now);
      }
      return note(Note::Level::info, "admitted", *client, "has lane " + std::to_string(command.lane.value));
    case JobCommand::Kind::open: {
      const auto [lane, is_new] = lanes_.try_emplace(command.lane);
      if (is_new) lane->second.number = next_lane_++;
      lane->second.size = command.size;
      if (hands_.size_lane(command.lane, command.size)) return;
      std::vector<ClientId> within;
      for (const auto& [job, id] : clients_of_jobs_)
        if (find(id)->lane == command.lane) within.push_back(id);
      for (const ClientId id : within)
        throw_out(*find(id), JobReason::no_memory, "the machine has no memory for its lane", now);
      return;
    }
    case JobCommand::Kind::move: return;  // memory of this kind lies nowhere in particular
    case JobCommand::Kind::close:
      lanes_.erase(command.lane);
      return hands_.close_lane(command.lane);
    case JobCommand::Kind::grant:
      if (client != nullptr) {
        client->lane = command.lane;
        grant(*client, now);
      }
      return;
    case JobCommand::Kind::recall:
      if (client != nullptr) recall(*client, now);
      return;
    case JobCommand::Kind::freeze: {
      if (client == nullptr || client->frozen) return;
      const Duration took = hands_.freeze(client->id);
      totals_.freezing.add(took);
      ++totals_.freezes;
      client->frozen = true;
      client->frozen_at = now;
      if (!wanted_)
        note(Note::Level::warning, "hangs", *client,
             "hangs: no iteration ended for " + std::to_string((now - client->counted_at).count() / 1'000'000) +
                 " ms; it is frozen, and holds its lane");
      return;
    }
    case JobCommand::Kind::thaw:
      if (client == nullptr || !client->frozen) return;
      hands_.thaw(client->id);
      ++totals_.thaws;
      client->frozen = false;
      client->frozen_for += now - client->frozen_at;
      return;
    case JobCommand::Kind::refuse: {
      if (client == nullptr) return;
      ++totals_.refused;
      const std::string why = in_words(command.reason, command.fits);
      forget_job(*client);
      note(Note::Level::warning, "refused", *client, "refused (" + std::string(name_of(command.reason)) + "): " + why);
      hands_.say(client->id, bytes_of(refusal(Kind::refused, why, command.fits)));
      hands_.lease(client->id, Lease::look);
      return release(*client, now);
    }
    case JobCommand::Kind::evict:
      if (client != nullptr)
        expel(*client, command.reason, in_words(command.reason, command.fits), command.fits, now);
      return;
  }
}

// A job that may still be in the lane, and is none any more, holds it until its process is dead.
bool Desk::blocked(const Client& client) const {
  if (leaving_ == 0) return false;
  const auto lane = lanes_.find(client.lane);
  if (lane == lanes_.end()) return false;
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& other) {
    return other != nullptr && other->state == Client::State::leaving && other->inside &&
           other->told_number == lane->second.number;
  });
}

void Desk::grant(Client& client, TimePoint now) {
  ++totals_.grants;
  client.granted = true;
  client.recalled = false;
  if (!blocked(client)) start(client, now);
}

void Desk::start(Client& client, TimePoint now) {
  if (!show_lane(client))
    return throw_out(client, JobReason::bad_report, "it does not read what the broker says", now);
  client.inside = true;
  client.iterations_then = client.counters.iterations;
  client.counted_at = client.started = now;
  client.frozen_for = Duration{0};
  hands_.lease(client.id, Lease::run);
  running_.push_back(client.id);
  if (next_look_ == TimePoint::max()) next_look_ = now + options_.look_every;
}

bool Desk::show_lane(Client& client) {
  const auto lane = lanes_.find(client.lane);
  const LaneMemory memory = lane == lanes_.end() ? LaneMemory{} : lane->second;
  if (memory.number > 0 && client.told_number == memory.number && client.told_size == memory.size) return true;
  client.told_number = memory.number;
  client.told_size = memory.size;
  return hands_.give_lane(client.id, client.lane, memory.number, memory.size);
}

void Desk::recall(Client& client, TimePoint now) {
  ++totals_.recalls;
  if (!client.inside) {  // the lane was not free yet, so it never began
    client.granted = false;
    return tell(first_of(client), now);
  }
  client.recalled = true;
  client.recalled_at = now;
  client.expected = {};
  if (const auto at = hands_.next_boundary(client.id); at && options_.listens > Duration{0}) {
    const Duration margin = std::clamp((*at - client.started) / 100, options_.listens, std::max(options_.listens, Duration{1ms}));
    client.expected = {*at - margin, *at + margin};
  }
  client.follower_roused = false;
  hold(client, now);
}

// One that wakes up late would take a grant that was taken back meanwhile for none, and never say that it stopped.
void Desk::hold(Client& client, TimePoint now) {
  client.to_hold = !hands_.entered(client.id) && hands_.counters(client.id).iterations == client.iterations_then;
  if (client.to_hold)
    due(client, now + 500us);
  else
    hands_.lease(client.id, Lease::hold);
}

// --- Time.

void Desk::look(TimePoint now) {
  telling_ = true;  // nobody starts or stops while they are looked at
  for (std::size_t i = 0; i < running_.size();) {
    const ClientId id = running_[i];
    look_at(*find(id), now);
    if (i < running_.size() && running_[i] == id) ++i;
  }
  tell_all(now);
}

void Desk::look_at(Client& client, TimePoint now) {
  if (client.frozen) return;
  const Counters counters = hands_.counters(client.id);
  if (counters.iterations == client.counters.iterations && counters.busy == client.counters.busy) return;
  if (const auto told = progress(client, counters, std::nullopt, now)) tell(*told, now);
}

void Desk::wake(TimePoint now) {
  if (closed_) return;
  if (now >= next_look_) {
    look(now);
    const auto every = clients_of_jobs_.size() > 1 ? options_.look_every : options_.look_every * 25;
    next_look_ = running_.empty() ? TimePoint::max() : now + every;
  }
  if (now >= core_wake_) tell(device::JobWake{}, now);
  if (now < next_due_) return;
  next_due_ = TimePoint::max();
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i] != nullptr && clients_[i]->due <= now) overdue(*clients_[i], now);
    if (clients_[i] != nullptr) next_due_ = std::min(next_due_, clients_[i]->due);
  }
}

void Desk::overdue(Client& client, TimePoint now) {
  client.due = TimePoint::max();
  if (client.state == Client::State::attached) {
    if (client.to_hold) hold(client, now);
    return;
  }
  if (client.state == Client::State::fresh) return turn_away(client, "it said nothing that was asked for, for too long");
  if (!client.must_end && !hands_.in_lanes(client.id)) return release(client, now);  // another program by now
  hands_.kill(client.id);
  client.killed = true;
  ++totals_.killed;
  note(Note::Level::warning, "killed", client, "killed: it did not end by itself");
}

TimePoint Desk::next() const {
  return closed_ ? TimePoint::max() : std::min({core_wake_, next_look_, next_due_});
}

Window Desk::expected(TimePoint now) const {
  Window first;
  for (const ClientId id : running_) {
    const Client& client = *clients_[id.index()];
    if (client.recalled && !client.frozen && client.expected.until > now && client.expected.from < first.from)
      first = client.expected;
  }
  return first;
}

void Desk::listen(TimePoint until) {
  for (const ClientId id : running_) {
    Client& leaves = *clients_[id.index()];
    if (!leaves.recalled || leaves.frozen || leaves.expected.from >= until) continue;
    listened_to_.push_back(id);
    hands_.listen(id, true);
    if (std::exchange(leaves.follower_roused, true)) continue;
    const auto next = core_->next_after(leaves.job);
    const Client* const follows = next ? of(*next) : nullptr;
    if (follows != nullptr && follows->ready && !follows->granted) hands_.rouse(follows->id, until);
  }
}

bool Desk::hear(TimePoint now) {
  for (const ClientId id : listened_to_) {
    Client* const client = find(id);
    if (client == nullptr || !client->inside || !client->recalled || client->frozen) continue;
    const auto said = hands_.stopped(id, client->stops);
    if (!said) continue;
    client->stops = said->stops;
    stopped(*client, *said, now);
    return true;
  }
  return false;
}

void Desk::listen_no_more(TimePoint now) {
  for (const ClientId id : listened_to_)
    if (find(id) != nullptr) hands_.listen(id, false);
  while (hear(now)) {}
  listened_to_.clear();
}

void Desk::want_device(TimePoint now) {
  wanted_ = true;
  tell(device::DeviceWanted{}, now);
}

void Desk::free_device(TimePoint until, TimePoint now) {
  wanted_ = false;
  tell(device::DeviceFree{until}, now);
}

void Desk::close(bool alone) {
  closed_ = true;
  auto packet = packet_of<Ending>(Kind::ending);
  packet.alone = alone ? 1 : 0;
  for (const auto& [job, id] : clients_of_jobs_) {
    Client& client = *find(id);
    hands_.say(id, bytes_of(packet));
    hands_.lease(id, Lease::look);
    if (client.frozen) hands_.thaw(id);
    note(Note::Level::info, "left", client,
         (alone ? "goes on alone after " : "waits for another broker after ") +
             ran(client.counters.iterations, client.attained));
  }
}

// --- Looking at it.

Overview Desk::overview(TimePoint now) const {
  Overview out{.policy = options_.policy,
               .capacity = core_->lanes().capacity(),
               .persistent = core_->lanes().persistent(),
               .ephemeral = core_->lanes().ephemeral(),
               .device_wanted = wanted_,
               .jobs = {},
               .lanes = {},
               .totals = totals_};
  for (std::uint32_t i = 0; i < core_->lanes().lanes(); ++i)
    if (const device::Lane& lane = core_->lanes().lane({i}); lane.open)
      out.lanes.push_back({.id = {i}, .size = lane.size, .sealed = lane.sealed, .jobs = {}});
  for (const device::JobView& view : core_->jobs(now)) {
    for (LaneLine& lane : out.lanes)
      if (lane.id == view.lane) lane.jobs.push_back(view.job);
    const auto found = clients_of_jobs_.find(view.job);
    if (found == clients_of_jobs_.end()) continue;
    const Client& client = *clients_[found->second.index()];
    JobLine line{.view = view,
                 .pid = client.peer.pid,
                 .uid = client.peer.uid,
                 .name = client.hello.name,
                 .weight = client.hello.weight,
                 .share = client.share(now),
                 .here = now - client.came};
    line.view.attained += client.hello.before ? client.hello.before->busy : Duration{0};
    line.view.iterations = client.counters.iterations;
    out.jobs.push_back(std::move(line));
  }
  return out;
}

Desk::Client* Desk::find(ClientId id) {
  return id.index() < clients_.size() ? clients_[id.index()].get() : nullptr;
}

Desk::Client* Desk::of(JobId job) {
  const auto found = clients_of_jobs_.find(job);
  return found == clients_of_jobs_.end() ? nullptr : find(found->second);
}

void Desk::due(Client& client, TimePoint at) {
  client.due = at;
  next_due_ = std::min(next_due_, at);
}

void Desk::note(Note::Level level, std::string_view event, const Client& client, std::string text) {
  const bool is_job = client.job != JobId{};
  hands_.note({.level = level,
               .event = event,
               .job = client.job,
               .peer = client.peer,
               .name = client.hello.name,
               .text = (is_job ? client.label() : who(client.peer)) + " " + std::move(text)});
}

}  // namespace carillon::share
