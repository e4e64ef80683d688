#include <utility>

#include "carillon/controller/testing/fakes.h"
#include "carillon/roles/testing/cluster_world.h"

namespace carillon::roles::testing::inside {

// --- clients

void World::arrive() {
  if (now_ >= calls_until_) return;
  plan(now_ + from_ns(asks_.exponential(gap_)), What::arrive, 0, 0);
  Host& h = *hosts_[schedulers_ + asks_.below(frontends_)];
  const std::uint64_t which = asks_.below(1'000'000), fill = asks_.below(200), other = asks_.below(8),
                      leaves = asks_.below(10);
  const int count = static_cast<int>(1 + asks_.below(3));
  const Duration patience =
      (options.faults ? 2ms : 10ms) + Duration{static_cast<std::int64_t>(asks_.below(80'000'000))};
  const Duration leaves_after{static_cast<std::int64_t>(asks_.below(5'000'000))};
  if (!h.up || h.frontend->names.empty() || h.paused) return;
  auto name = h.frontend->names.begin();
  std::advance(name, static_cast<std::ptrdiff_t>(which % h.frontend->names.size()));
  const bool rest = now_ >= rest_at_;
  const Duration within = rest ? options.rest_patience : patience;
  const TimePoint here = now(h);
  auto call =
      controller::testing::call_of(name->second, count, here, here + within, static_cast<unsigned>(fill));
  if (options.faults && !rest && other < 2) {
    call->cls = other == 0 ? Class::real_time : Class::best_effort;
    call->class_given = true;
  }
  const std::uint64_t ticket = calls_.size();
  calls_.push_back({.frontend = h.index, .life = h.life, .rest = rest, .deadline = now_ + within});
  ++figures.calls;
  h.frontend->core->submit(
      ticket, std::move(call),
      [this, ticket](InferAnswer answer) {
        Call& of = calls_[ticket];
        if (ending_ || of.life != hosts_[of.frontend]->life) return;  // it dies
        if (++of.answers > 1) broken(fmt::format("call {} is answered twice", ticket));
        figures.latest = std::max(figures.latest, now_ - of.deadline);
        if (!answer.status) {
          // A leader that stood still, or whose clock stepped, has seen its messages take as long. It plans
          // with that for a while.
          const Host* const leader = leading();
          const bool stalled = leader != nullptr && leader->scheduler->deaf >= options.rest_patience / 2;
          if (of.rest && (stalled || figures.steps > 0))
            ++figures.excused;
          else if (of.rest)
            broken(fmt::format("call {} at rest has no answer in time: {}", ticket,
                               answer.status.error().message));
          return;
        }
        ++figures.on_time;
        if (!controller::testing::is_right(*answer.call))
          broken(fmt::format("call {} has a wrong answer", ticket));
      },
      here);
  if (options.faults && !rest && leaves == 0) plan(now_ + leaves_after, What::cancel_call, h, ticket);
  rearm_core(h);
}

// --- faults

void World::draw_faults() {
  using Kind = Fault::What;
  for (std::uint64_t n = 2 + random.below(8); n > 0; --n) {
    Fault fault{.what = static_cast<Kind>(random.below(13))};
    const TimePoint at = faults_from + part(faults_for - 100ms);
    // Leaders are worth more than their number.
    fault.one = static_cast<std::uint16_t>(random.below(hosts_.size()));
    if (random.below(3) == 0) fault.one = static_cast<std::uint16_t>(random.below(schedulers_));
    do fault.other = static_cast<std::uint16_t>(random.below(hosts_.size()));
    while (fault.other == fault.one);
    fault.lasts = random.below(2) == 0 ? part(40ms) : part(300ms);
    if (fault.what == Kind::step && random.below(2) == 0) continue;
    if (fault.what == Kind::alone) {
      const std::uint64_t ways = random.below(3);
      fault.out = ways != 1;
      fault.in = ways != 2;
    }
    plan(at, What::fault, 0, 0, faults_.size());
    // A process that starts again has its id once the lease of the one before is over.
    const bool dies = fault.what == Kind::crash || fault.what == Kind::reboot;
    const TimePoint over = at + (dies ? std::max<Duration>(fault.lasts, lease + 300ms) : fault.lasts);
    rest_at_ = std::max(rest_at_, over + 1s);
    faults_.push_back(fault);
  }
}

Host* World::leading() {
  for (std::size_t i = 0; i < schedulers_; ++i)
    if (hosts_[i]->up && hosts_[i]->scheduler->leader != nullptr && hosts_[i]->member->leads())
      return hosts_[i].get();
  return nullptr;
}

void World::begin(const Fault& fault) {
  using Kind = Fault::What;
  Host& h = *hosts_[fault.one];
  const auto index = static_cast<std::uint64_t>(&fault - faults_.data());
  constexpr const char* names[] = {"crash",  "reboot", "pause",     "freeze",    "step",
                                   "cut",    "alone",  "etcd_gone", "etcd_slow", "etcd_cut",
                                   "device", "stream", "handover"};
  trace("fault: {} of {} ({}), {:.1f} ms", names[static_cast<std::size_t>(fault.what)], h.id,
        hosts_[fault.other]->id, to_ms(fault.lasts));
  const auto ends = [&] { plan(now_ + fault.lasts, What::mend, 0, 0, index); };
  switch (fault.what) {
    case Kind::crash:
    case Kind::reboot:
      if (!h.up) return;
      ++figures.crashes;
      crash(h, fault.what == Kind::reboot);
      plan(now_ + fault.lasts, What::restart, h.index, h.life);
      return;
    case Kind::pause:
    case Kind::freeze:
      if (!h.up || h.paused) return;
      ++figures.pauses;
      h.paused = true;
      h.frozen = fault.what == Kind::freeze && !options.one_clock;
      h.paused_at = now_;
      return ends();
    case Kind::step:
      if (!h.up || h.paused || options.one_clock) return;
      ++figures.steps;
      h.clocks.back().step(1us + fault.lasts * (fault.lasts.count() % 2 == 0 ? 1 : 5));
      h.stepped_at = now_;
      rearm_core(h);
      return rearm_etcd(h);
    case Kind::cut:
      ++figures.cuts;
      set_cut(fault.one, fault.other, true);
      return ends();
    case Kind::alone:
      ++figures.cuts;
      for (std::size_t i = 0; i < hosts_.size(); ++i) {
        if (i == fault.one) continue;
        if (fault.out) set_cut(fault.one, i, true);
        if (fault.in) set_cut(i, fault.one, true);
      }
      if (fault.out && fault.in) ++h.from_etcd_cut;
      return ends();
    case Kind::etcd_gone:
      ++figures.coordinator;
      ++etcd_gone_;
      return ends();
    case Kind::etcd_slow:
      ++figures.coordinator;
      ++etcd_slow_;
      return ends();
    case Kind::etcd_cut:
      ++figures.coordinator;
      ++h.from_etcd_cut;
      return ends();
    case Kind::device: {
      Host& w = *hosts_[schedulers_ + frontends_ + fault.one % workers_];
      if (!w.up || w.paused) return;
      ++figures.devices;
      const auto d = static_cast<std::uint32_t>(fault.other % 2);
      w.worker->core->on_result({.id = {},
                                 .status = ledger::ActionStatus::failed,
                                 .times = {},
                                 .error = "it broke",
                                 .device_lost = true,
                                 .life = w.worker->devices[d]->life,
                                 .device = DeviceId{d}},
                                now(w));
      return rearm_core(w);
    }
    case Kind::stream: {
      std::vector<std::uint32_t> open;
      for (std::uint32_t id = 0; id < streams_.size(); ++id)
        if (streams_[id].follower_open && !streams_[id].follower_over) open.push_back(id);
      if (open.empty()) return;
      ++figures.breaks;
      return break_stream(open[random.below(open.size())]);
    }
    case Kind::handover: {
      Host* const leader = leading();
      if (leader == nullptr || leader->paused) return;
      hosts::MemberCore::Output out;
      if (leader->member->hand_over("", out)) ++figures.handovers;
      carry_out(*leader, out);
      return publish(*leader);
    }
  }
}

void World::mend(const Fault& fault) {
  using Kind = Fault::What;
  Host& h = *hosts_[fault.one];
  trace("mended: fault of {}", h.id);
  const auto was_deaf = [&](Duration lasted) {
    if (h.scheduler && h.scheduler->leader != nullptr)
      h.scheduler->deaf = std::max(h.scheduler->deaf, lasted);
  };
  switch (fault.what) {
    case Kind::pause:
    case Kind::freeze:
      if (!h.up || !h.paused) return;
      was_deaf(now_ - h.paused_at);
      return resume(h);
    case Kind::cut:
      return set_cut(fault.one, fault.other, false);
    case Kind::alone:
      if (fault.in) was_deaf(fault.lasts);
      for (std::size_t i = 0; i < hosts_.size(); ++i) {
        if (i == fault.one) continue;
        if (fault.out) set_cut(fault.one, i, false);
        if (fault.in) set_cut(i, fault.one, false);
      }
      if (fault.out && fault.in) --h.from_etcd_cut;
      return tell_watches();
    case Kind::etcd_gone:
      --etcd_gone_;
      return tell_watches();
    case Kind::etcd_slow:
      --etcd_slow_;
      return;
    case Kind::etcd_cut:
      --h.from_etcd_cut;
      return tell_watches();
    case Kind::crash:
    case Kind::reboot:
    case Kind::step:
    case Kind::device:
    case Kind::stream:
    case Kind::handover:
      return;
  }
}

// Streams over a link that is cut wait, and some break meanwhile.
void World::set_cut(std::size_t from, std::size_t to, bool is) {
  int& count = cut(from, to);
  count += is ? 1 : -1;
  if (!is) {
    if (count == 0) release_held(from, to);
    return;
  }
  for (std::uint32_t id = 0; id < streams_.size(); ++id) {
    const Stream& s = streams_[id];
    if (s.follower_over && s.scheduler_over) continue;
    const bool crosses =
        (s.follower == from && s.scheduler == to) || (s.follower == to && s.scheduler == from);
    if (crosses && random.below(4) == 0) break_stream(id);
  }
}

void World::release_held(std::size_t from, std::size_t to) {
  TimePoint last = now_;
  for (Held& held : std::exchange(held_, {})) {  // what is released may be held anew, on its way back
    if (held.from != from || held.to != to) {
      held_.push_back(held);
      continue;
    }
    // In their order, as streams want it.
    last = std::max(last + 1ns, now_ + way(from, to));
    if (held.event.what == What::frame) {
      const Parcel& parcel = parcels_[static_cast<std::uint32_t>(held.event.detail)];
      Stream& s = streams_[parcel.stream];
      TimePoint& before = parcel.to_follower ? s.last_to_follower : s.last_to_scheduler;
      last = before = std::max(before, last);
    }
    if (held.event.what == What::row_ask && random.below(2) == 0) {
      release(held.event);  // its connection broke
      continue;
    }
    held.event.at = last.time_since_epoch().count();
    held.event.order = order_++;
    calendar_.add(held.event);
  }
}

// --- rest

// Nothing goes amiss by itself any more.
void World::be_calm() {
  calm_ = true;
  mishaps = etcd_loss_ = twice_ = 0;
  loss_ = std::min(loss_, 0.001);
  for (const auto& h : hosts_)
    if (h->worker)
      for (const auto& device : h->worker->devices) device->mishaps = 0;
}

void World::check_rest() {
  std::size_t leaders = 0;
  for (std::size_t i = 0; i < schedulers_; ++i)
    leaders += hosts_[i]->up && hosts_[i]->scheduler->leader != nullptr ? 1 : 0;
  Host* const leader = leading();
  if (leaders != 1 || leader == nullptr) return broken(fmt::format("{} schedulers lead at rest", leaders));
  const std::uint64_t epoch = leader->scheduler->epoch;
  for (const auto& h : hosts_) {
    if (!h->up) return broken(h->id + " is not up at rest");
    if (h->member->epoch() != epoch || h->member->leader() != leader->id)
      return broken(fmt::format("{} does not know at rest that {} leads epoch {}", h->id, leader->id, epoch));
    if (!h->scheduler && (h->leader == none || h->epoch != epoch))
      return broken(fmt::format("{} has no stream to the leader at rest", h->id));
  }
  for (const auto& h : hosts_)
    if (h->worker)
      for (std::uint32_t d = 0; d < 2; ++d) {
        const auto devices = leader->scheduler->leader->devices();
        const auto known = std::ranges::find_if(
            devices, [&](const auto& each) { return each.worker == h->id && each.number == DeviceId{d}; });
        if (known == devices.end() || !known->alive)
          return broken(fmt::format("device {} of {} is not alive to the leader at rest", d, h->id));
      }
}

void World::check_end() {
  for (const auto& h : hosts_)
    if (h->frontend) {
      if (h->frontend->core->open_calls() > 0 || h->frontend->offering->open_rows() > 0)
        return broken(fmt::format("{} has {} calls and {} rows at the end", h->id,
                                  h->frontend->core->open_calls(), h->frontend->offering->open_rows()));
      if (h->frontend->rows.used() > 0) return broken("a row can still be pulled at the end");
    }
  for (std::size_t i = 0; i < schedulers_; ++i)
    if (const Leader* const leader = hosts_[i]->scheduler ? hosts_[i]->scheduler->leader.get() : nullptr;
        leader != nullptr && leader->rows_open() > 0)
      return broken(fmt::format("the leader has {} rows at the end", leader->rows_open()));
  for (std::size_t ticket = 0; ticket < calls_.size(); ++ticket) {
    const Call& call = calls_[ticket];
    if (call.answers == 1) continue;
    if (call.life == hosts_[call.frontend]->life) return broken(fmt::format("call {} has no answer", ticket));
    ++figures.orphans;
  }
}

}  // namespace carillon::roles::testing::inside
