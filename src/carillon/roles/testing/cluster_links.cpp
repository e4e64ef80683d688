#include "carillon/roles/testing/cluster_world.h"
#include "carillon/transport/times.h"

namespace carillon::roles::testing::inside {

// --- membership

void World::send_datagram(Host& from, const std::string& address, std::string bytes) {
  const Host& to = host_at(address);
  if (cut(from.index, to.index) > 0) return;
  for (int copies = chance(twice_) ? 2 : 1; copies > 0; --copies) {
    if (chance(loss_)) continue;
    const std::uint32_t place = datagrams_.take();
    datagrams_[place] = {copies > 1 ? bytes : std::move(bytes), from.index, from.life};
    plan(now_ + way(from.index, to.index), What::datagram, to.index, 0, place);
  }
}

void World::member_step(Host& h) {
  const TimePoint here = now(h);
  hosts::MemberCore::Output out;
  const auto read = [&] {
    for (const std::uint32_t place : h.inbox) {
      const Datagram& datagram = datagrams_[place];
      const std::size_t before = out.clocks.size();
      h.member->heard(datagram.bytes, here, out);
      if (out.clocks.size() > before)
        if (const auto clock = h.member->clock_of(out.clocks.back()); clock && clock->settled())
          check_clock(h, *hosts_[datagram.from], datagram.life, *clock);
      datagrams_.give_back(place);
    }
    h.inbox.clear();
  };
  while (!h.member->tick(here, out)) read();
  read();
  carry_out(h, out);
  if (h.member->leads()) leads(h, h.member->epoch());
  publish(h);
}

void World::carry_out(Host& h, hosts::MemberCore::Output& out) {
  for (auto& [address, bytes] : out.datagrams) send_datagram(h, address, std::move(bytes));
  if (!out.claim && !out.read) return;
  const TimePoint here = now(h);
  const std::uint64_t token = h.member->request_token();
  if (out.read ? !h.etcd->read_epoch(token, here)
               : !h.etcd->compare_and_set(token, out.claim_over, *out.claim, here))
    h.member->request_failed();
  out.claim.reset();
  out.read = false;
  pump(h);
}

void World::publish(Host& h) {
  if (h.member->version() == h.published) return;
  h.published = h.member->version();
  if (!h.scheduler) return follow(h);
  Changed change{h.member->leads(), h.member->epoch(), {}};
  for (const auto& peer : h.member->peers(now(h)))
    if (peer.there && peer.member.role == Role::worker) change.workers.insert(peer.member.id);
  h.scheduler->news.push_back(std::move(change));
  plan(now_ + part(30us), What::changed, h);
}

void World::check_clock(const Host& here, const Host& of, std::uint32_t life,
                        const cluster::PeerClock& clock) {
  if (options.one_clock || unsure(here) || unsure(of)) return;
  const TimePoint ours = now(here);
  const auto said = clock.at(ours);
  const Duration right = of.clocks[life].shows(now_) - ours;
  ++figures.bounds;
  if (std::chrono::abs(right - said->offset) > said->bound)
    broken(fmt::format("{} takes the clock of {} for {} ns before its own, within {} ns; it is {} ns before",
                       here.id, of.id, said->offset.count(), said->bound.count(), right.count()));
}

bool World::clock_known(const Host& here, const Host& of, std::uint32_t life) const {
  const auto clock = here.member->clock_of(of.id, incarnation_of(of, life));
  return clock && clock->settled();
}

// A message of the host `of`, by our clock.
bool World::convert(const Host& here, const Host& of, std::uint32_t life, Message& message) {
  if (options.one_clock) return true;
  const auto clock = options.plant == ClusterPlant::old_clock
                         ? here.member->clock_of(of.id)
                         : here.member->clock_of(of.id, incarnation_of(of, life));
  if (!clock) return false;
  const TimePoint ours = now(here);
  const auto window_of = [](Message& m) -> Window* {
    if (auto* load = std::get_if<ledger::Load>(&m)) return &load->window;
    if (auto* infer = std::get_if<transport::Infer>(&m)) return &infer->order.window;
    return nullptr;
  };
  Window before{};
  if (const Window* const window = window_of(message)) before = *window;
  if (!transport::to_our_time(message, *clock, ours)) return false;
  check_clock(here, of, life, *clock);
  if (options.plant == ClusterPlant::no_bound)
    if (Window* const window = window_of(message)) {
      const Duration offset = clock->at(ours)->offset;
      *window = before;
      if (before.earliest != TimePoint::min()) window->earliest = saturating_add(before.earliest, -offset);
      if (before.latest != TimePoint::max()) window->latest = saturating_add(before.latest, -offset);
    }
  return true;
}

void World::leads(const Host& h, std::uint64_t epoch) {
  const auto [led, first] = led_.try_emplace(epoch, h.index, h.life);
  if (first) trace("{} leads epoch {}", h.id, epoch);
  if (led->second != std::pair(h.index, h.life))
    broken(fmt::format("{} leads epoch {}, which {} or an earlier process of it led", h.id, epoch,
                       hosts_[led->second.first]->id));
}

// An action of `order` begins on a device of the host.
void World::begins(Host& h, const Ordered& order) {
  ++figures.actions;
  if (order.epoch < h.worker->accepted)
    return broken(fmt::format("an order of epoch {} begins at {}, which has accepted epoch {}", order.epoch,
                              h.id, h.worker->accepted));
  if (order.term != h.worker->term)
    return broken(fmt::format("{} begins what was ordered before its leader's last word", h.id));
  const Host& leader = *hosts_[order.leader];
  if (unsure(h) || unsure(leader)) return;
  const TimePoint theirs = leader.clocks[order.leader_life].shows(now_);
  if (!order.window.contains(theirs))
    broken(fmt::format(
        "an order begins at {} {} ns before its window, or {} ns after it, by the clock of {}", h.id,
        order.window.earliest == TimePoint::min() ? 0 : (order.window.earliest - theirs).count(),
        order.window.latest == TimePoint::max() ? 0 : (theirs - order.window.latest).count(), leader.id));
}

// --- etcd

void World::pump(Host& h) {
  for (;;) {
    auto requests = h.etcd->take_requests();
    auto news = h.etcd->take_news();
    if (requests.empty() && news.empty()) break;
    for (etcd::Request& request : requests) etcd_send(h, std::move(request));
    hosts::MemberCore::Output out;
    for (const cluster::CoordinatorNews& each : news) {
      h.member->coordinator_said(each, out);
      carry_out(h, out);
      out = {};
    }
  }
  if (h.member->leads()) leads(h, h.member->epoch());
  publish(h);
  rearm_etcd(h);
}

void World::etcd_send(Host& h, etcd::Request request) {
  if (std::holds_alternative<etcd::WatchCancel>(request.body)) {
    std::erase_if(h.watches, [&](const Watch& watch) { return watch.id == request.id; });
    return;
  }
  if (const auto* create = std::get_if<etcd::WatchCreate>(&request.body)) {
    h.watches.push_back({request.id, create->key, create->range_end, create->start_revision});
    plan(now_ + 2 * etcd_way(), What::etcd_watch, h, request.id);
    return;
  }
  const std::uint32_t place = etcd_calls_.take();
  EtcdCall& call = etcd_calls_[place];
  call = {.host = h.index, .life = h.life, .request = std::move(request), .uses = 1, .answer = {}};
  plan(h.clock().when(now(h) + call.request.timeout), What::etcd_over, h, place);
  if (!etcd_reached(h) || chance(etcd_loss_)) return;
  ++call.uses;
  plan(now_ + etcd_way(), What::etcd_serve, h.index, h.life, place);
}

void World::etcd_serve(std::uint32_t place) {
  EtcdCall& call = etcd_calls_[place];
  Host& h = *hosts_[call.host];
  if (!etcd_reached(h)) return done_with(place);
  etcd::Body body = call.request.body;
  if (auto* txn = std::get_if<etcd::Txn>(&body);
      txn != nullptr && options.plant == ClusterPlant::no_compare && txn->key == "/carillon/box/epoch")
    txn->mod_revision.reset();
  const std::int64_t before = model_.revision;
  call.answer = model_.carry_out(body, now_);
  if (model_.revision != before) tell_watches();
  // The answer may be lost.
  if (chance(etcd_loss_) || h.life != call.life) return done_with(place);
  plan(now_ + etcd_way(), What::etcd_answer, h.index, call.life, place);
}

void World::tell_watches() {
  for (auto& h : hosts_)
    if (h->up)
      for (const Watch& watch : h->watches)
        if (!watch.created || watch.next <= model_.revision)
          plan(now_ + etcd_way(), What::etcd_watch, *h, watch.id);
}

// All that a watch has not told yet.
void World::tell_watch(Host& h, std::uint64_t id) {
  const auto found = std::ranges::find(h.watches, id, &Watch::id);
  if (found == h.watches.end() || !etcd_reached(h)) return;
  etcd::WatchAnswer answer{.header = model_.header(), .created = !found->created};
  found->created = true;
  for (const EtcdModel::Change& change : model_.history)
    if (change.revision >= found->next && change.event.kv.key >= found->key &&
        change.event.kv.key < found->range_end)
      answer.events.push_back(change.event);
  found->next = std::max(found->next, model_.revision + 1);
  if (!answer.created && answer.events.empty()) return;
  h.etcd->answered(id, answer, now(h));
  pump(h);
}

// --- streams

// To all schedulers that are registered.
void World::follow(Host& h) {
  std::vector<bool> wanted(schedulers_, false);
  for (const auto& peer : h.member->peers(now(h)))
    if (peer.member.role == Role::scheduler) wanted[host_at(peer.member.address).index] = true;
  for (std::size_t s = 0; s < schedulers_; ++s) {
    Dial& d = h.dials[s];
    if (d.wanted == wanted[s]) continue;
    d.wanted = wanted[s];
    if (!d.wanted) {
      if (d.stream != none && !streams_[d.stream].follower_over) close(d.stream, true);
      continue;
    }
    d.pause = 5ms;
    if (!d.waiting && (d.stream == none || streams_[d.stream].follower_over)) dial(h, s);
  }
}

void World::dial(Host& h, std::size_t s) {
  Dial& d = h.dials[s];
  if (!d.wanted) return;
  const auto id = static_cast<std::uint32_t>(streams_.size());
  streams_.push_back({.follower = h.index,
                      .scheduler = static_cast<std::uint16_t>(s),
                      .follower_life = h.life,
                      .scheduler_life = none});
  d.stream = id;
  trace("{} dials {}, stream {}", h.id, hosts_[s]->id, id);
  // Three ways until it is open.
  const Duration takes = way(h.index, s) + way(s, h.index) + way(h.index, s);
  if (cut(h.index, s) > 0 || cut(s, h.index) > 0 || !hosts_[s]->up) {
    plan(now_ + (hosts_[s]->up ? 100ms : takes), What::stream_break, h, id);
    return;
  }
  streams_[id].last_to_scheduler = now_ + takes;
  plan(now_ + takes, What::hello, hosts_[s]->index, hosts_[s]->life, id);
  plan(now_ + 150ms, What::dial_over, h, id);
}

// A follower says who it is.
void World::hello(Host& h, std::uint32_t id) {
  Stream& s = streams_[id];
  s.scheduler_life = h.life;
  const Host& f = *hosts_[s.follower];
  const auto peers = h.member->peers(now(h));
  const auto known = std::ranges::find(peers, f.id, [](const auto& each) { return each.member.id; });
  if (s.follower_over || known == peers.end() ||
      known->member.incarnation != incarnation_of(f, s.follower_life)) {
    trace("{} refuses stream {} of {}", h.id, id, f.id);
    s.scheduler_over = true;
    return send_end(id, true);
  }
  trace("{} takes stream {} of {}", h.id, id, f.id);
  s.scheduler_open = true;
  const std::uint32_t parcel = parcels_.take();
  parcels_[parcel] = {.stream = id, .to_follower = true, .frame = {}};
  send_parcel(parcel);
  h.scheduler->opened(id, now(h));
}

void World::follower_heard(Host& h, std::uint32_t id, transport::Frame frame) {
  const bool unfenced = options.plant == ClusterPlant::no_fence && h.worker != nullptr;
  if (!h.member->obeys(frame.epoch) && !unfenced) {
    ++figures.stale;
    trace("{} does not obey epoch {} on stream {}", h.id, frame.epoch, id);
    return;
  }
  const bool leads = std::holds_alternative<transport::Leads>(frame.messages.front());
  if (!leads && (h.leader != id || frame.epoch != h.epoch) && !unfenced) {
    ++figures.stale;
    return;
  }
  const Stream& s = streams_[id];
  std::vector<Window> windows;
  for (Message& message : frame.messages) {
    if (const auto* load = std::get_if<ledger::Load>(&message))
      windows.push_back(load->window);
    else if (const auto* infer = std::get_if<transport::Infer>(&message))
      windows.push_back(infer->order.window);
    else
      windows.push_back({TimePoint::min(), TimePoint::max()});
    if (!convert(h, *hosts_[s.scheduler], s.scheduler_life, message)) {
      trace("{} closes stream {}: the clock is not known", h.id, id);
      return close(id, true);
    }
  }
  if (leads) {
    trace("{} follows epoch {} on stream {}", h.id, frame.epoch, id);
    h.leader = id;
    h.epoch = frame.epoch;
    if (h.frontend) h.frontend->core->react([&](TimePoint at) { h.frontend->offering->leads(at); }, now(h));
    if (h.worker) {
      h.worker->theirs.clear();
      ++h.worker->term;
      h.worker->accepted = std::max(h.worker->accepted, frame.epoch);
      h.worker->core->react([&](TimePoint at) { h.worker->agent->leads(at); }, now(h));
    }
  }
  if (h.worker) return h.worker->heard(id, frame.epoch, std::move(frame.messages), windows);
  h.frontend->core->react(
      [&](TimePoint at) {
        for (Message& message : frame.messages) h.frontend->offering->heard(std::move(message), at);
      },
      now(h));
}

void World::follower_ended(Host& h, std::uint32_t id) {
  const Stream& s = streams_[id];
  trace("{} loses stream {} to {}", h.id, id, hosts_[s.scheduler]->id);
  if (h.leader == id) {
    h.leader = none;
    if (h.frontend)
      h.frontend->core->react([&](TimePoint at) { h.frontend->offering->leader_left(at); }, now(h));
    if (h.worker) h.worker->core->react([&](TimePoint at) { h.worker->agent->leader_left(at); }, now(h));
  }
  Dial& d = h.dials[s.scheduler];
  if (d.stream != id || !d.wanted || d.waiting) return;
  if (s.follower_open && now_ - s.opened > 200ms) d.pause = 5ms;
  d.waiting = true;
  plan(now_ + d.pause, What::dial, h, s.scheduler);
  d.pause = std::min<Duration>(2 * d.pause, 200ms);
}

// One side ends it, and hears of that on another thread.
void World::close(std::uint32_t id, bool by_follower) {
  Stream& s = streams_[id];
  if (by_follower ? s.follower_over : s.scheduler_over) return;
  plan(now_ + 10us, What::stream_break, by_follower ? s.follower : s.scheduler,
       by_follower ? s.follower_life : s.scheduler_life, id);
}

void World::send_end(std::uint32_t id, bool to_follower) {
  const std::uint32_t parcel = parcels_.take();
  parcels_[parcel] = {.stream = id, .ends = true, .to_follower = to_follower, .frame = {}};
  send_parcel(parcel);
}

void World::send_parcel(std::uint32_t place) {
  const Parcel& parcel = parcels_[place];
  Stream& s = streams_[parcel.stream];
  const std::size_t from = parcel.to_follower ? s.scheduler : s.follower;
  const std::size_t to = parcel.to_follower ? s.follower : s.scheduler;
  TimePoint& last = parcel.to_follower ? s.last_to_follower : s.last_to_scheduler;
  last = std::max(last, now_ + way(from, to));
  carry(from, to, last, {.detail = place, .host = static_cast<std::uint16_t>(to), .what = What::frame});
}

void World::post(std::uint32_t id, bool to_follower, std::uint64_t epoch, Message message) {
  const Stream& s = streams_[id];
  if (to_follower ? s.scheduler_over : s.follower_over) return;
  for (Parcel& parcel : outbox_)
    if (parcel.stream == id && parcel.to_follower == to_follower && parcel.frame.epoch == epoch) {
      parcel.frame.messages.push_back(std::move(message));
      return;
    }
  outbox_.push_back({.stream = id, .to_follower = to_follower, .frame = {.epoch = epoch, .messages = {}}});
  outbox_.back().frame.messages.push_back(std::move(message));
}

// What was sent in this step leaves.
void World::flush() {
  for (Parcel& parcel : outbox_) {
    const std::uint32_t place = parcels_.take();
    parcels_[place] = std::move(parcel);
    send_parcel(place);
  }
  outbox_.clear();
}

void World::break_stream(std::uint32_t id) {
  const Stream& s = streams_[id];
  if (!s.follower_over) plan(now_ + part(20ms), What::stream_break, s.follower, s.follower_life, id);
  if (!s.scheduler_over && s.scheduler_open)
    plan(now_ + part(20ms), What::stream_break, s.scheduler, s.scheduler_life, id);
}

// --- rows

void World::ask_row(Host& w, RowCall call) {
  const auto place = static_cast<std::uint32_t>(call.ticket);
  call.worker = w.index;
  call.life = w.life;
  const std::uint16_t f = call.frontend;
  row_calls[place] = std::move(call);
  // Some are still on their way when another leader comes.
  const int slow = options.faults && !calm_ && random.below(64) == 0 ? 10 : 1;
  carry(w.index, f, now_ + way(w.index, f) * slow, {.detail = place, .host = f, .what = What::row_ask});
}

void World::row_asked(Host& h, std::uint32_t place) {
  RowCall& call = row_calls[place];
  FrontendPart& f = *h.frontend;
  FrontendPart::Row* const row = f.find(call.key);
  const bool open = row != nullptr && row->open;
  if (!call.push) {
    if (open) {
      call.pulled = {};
      call.length = row->tensors.length;
      std::ranges::copy(row->tensors.inputs[0], call.bytes.begin());
    } else {
      call.pulled = fail(ErrorCode::not_found, "gone");
    }
  } else {
    const bool again = row != nullptr && (row->taken > 0 || !row->open);
    figures.second_outputs += again ? 1 : 0;
    const bool takes = row != nullptr && (!again || options.plant == ClusterPlant::second_output);
    call.taken = takes;
    if (takes && ++row->taken > 1) broken("a row takes the outputs of a second push");
    if (takes && row->open) {
      std::ranges::copy(call.row->outputs()[0], row->tensors.outputs[0].begin());
      Message report = call.report;
      if (!convert(h, *hosts_[call.worker], call.life, report)) {
        const TimePoint here = now(h);
        std::get<wire::Report>(report).times = {here, here, here, here, here, here, here};
      }
      std::get<wire::Report>(report).status = ledger::ActionStatus::success;
      f.outputs.emplace_back(row->id, std::get<wire::Report>(std::move(report)));
      plan(now_ + part(30us), What::outputs, h);
    }
  }
  carry(h.index, call.worker, now_ + way(h.index, call.worker),
        {.detail = place, .life = call.life, .host = call.worker, .what = What::row_answer});
}

void World::row_answered(Host& h, std::uint32_t place) {
  const RowCall call = std::exchange(row_calls[place], {});
  row_calls.give_back(place);
  if (call.cancelled) return;
  Agent& agent = *h.worker->agent;
  if (call.push)
    return h.worker->core->react([&](TimePoint at) { agent.pushed(call.ticket, call.taken, at); }, now(h));
  Result<> result = call.pulled;
  if (result) {
    const std::uint64_t bytes = row_bytes;
    auto to = call.row->make(call.length, {&bytes, 1});
    if (!to)
      result = std::unexpected(to.error());
    else
      std::ranges::copy(call.bytes, (*to)[0].begin());
  }
  h.worker->core->react([&](TimePoint at) { agent.pulled(call.ticket, result, at); }, now(h));
}

}  // namespace carillon::roles::testing::inside
