#include "carillon/roles/testing/virtual_cluster.h"

#include "carillon/roles/testing/cluster_world.h"

namespace carillon::roles::testing {
namespace inside {

// ---------------------------------------------------------------- the world

World::World(std::uint64_t seed, const ClusterOptions& o) : random(seed), options(o), asks_(seed ^ 0xa5a5) {
  const bool quiet = !options.faults;
  environment = {
      .measured = seed % 2 == 0, .hangs_after = 50ms, .classes = seed % 2 == 0, .admission = seed % 2 == 0};
  schedulers_ = 2 + random.below(2);
  workers_ = 3 + random.below(2);
  models = quiet ? 5 : static_cast<std::uint32_t>(1 + random.below(5));
  mishaps = quiet || random.below(3) == 0 ? 0 : 1;
  gap_ = quiet ? 0.5e6 : 0.5e6 + random.uniform() * 2.5e6;
  near_ = 30us + part(100us);
  tail_ = quiet ? 30e3 : 20e3 + random.uniform() * 200e3;
  farthest_ = quiet ? 500us : 5ms;
  loss_ = quiet ? 0.001 : 0.05 * random.uniform() * random.uniform();
  twice_ = quiet || random.below(2) == 0 ? 0 : 0.03;
  etcd_loss_ = quiet || random.below(2) == 0 ? 0 : 0.05;
  const std::size_t count = schedulers_ + frontends_ + workers_;
  cut_.assign(count * count, 0);
  for (std::size_t i = 0; i < count * count; ++i) asymmetry_.push_back(Duration{0});
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t k = i + 1; k < count; ++k) {
      const Duration more = quiet ? Duration{1ms} : part(1ms);
      asymmetry_[random.below(2) == 0 ? i * count + k : k * count + i] = more;
    }
  for (std::size_t i = 0; i < count; ++i) {
    hosts_.push_back(std::make_unique<Host>());
    Host& h = *hosts_.back();
    h.index = static_cast<std::uint16_t>(i);
    const bool scheduler = i < schedulers_, frontend = !scheduler && i < schedulers_ + frontends_;
    h.role = scheduler ? Role::scheduler : frontend ? Role::frontend : Role::worker;
    h.id = fmt::format("{}{}", scheduler ? "s" : frontend ? "f" : "w", i);
    h.address = fmt::format("h{}:1", i);
    h.dials.resize(scheduler ? 0 : schedulers_);
    const HostClock its_own = any_clock();
    h.clocks.push_back(options.one_clock ? HostClock() : its_own);
  }
}

World::~World() {
  ending_ = true;
  for (auto& h : hosts_)
    if (h->up) crash(*h, true);
}

ClusterFigures World::run() {
  for (auto& h : hosts_) start(*h);
  plan(now_ + 10ms, What::expire, 0, 0);
  rest_at_ = faults_from + faults_for + 1s;
  if (options.faults) draw_faults();
  calls_until_ = options.faults ? rest_at_ : start_at + 1200ms;
  plan(calls_from, What::arrive, 0, 0);
  plan(faults_from + faults_for, What::calm, 0, 0);
  const TimePoint steady_until = rest_at_ + 250ms;
  const TimePoint end = options.faults ? steady_until + 300ms : calls_until_ + 300ms;
  bool rested = false;
  while (!figures.broken && !calendar_.empty()) {
    const Event event = calendar_.take();
    const TimePoint at{Duration{event.at}};
    if (options.faults && !rested && at >= rest_at_) {
      rested = true;
      now_ = rest_at_;
      check_rest();
      calls_until_ = steady_until;
      gap_ = 2.5e6;
      plan(now_, What::arrive, 0, 0);
    }
    if (at >= end) break;
    now_ = std::max(now_, at);
    ++figures.events;
    handle(event);
    flush();
  }
  now_ = end;
  if (!figures.broken) check_end();
  for (const auto& h : hosts_)
    if (h->frontend) figures.late_wins += h->frontend->offering->counters().late_wins;
  figures.epochs = led_.size();
  return figures;
}

// --- processes

void World::start(Host& h) {
  trace("{} starts", h.id);
  h.up = true;
  h.paused = h.frozen = false;
  const cluster::Member self{h.id, h.role, h.address, incarnation_of(h, h.life)};
  h.member =
      std::make_unique<hosts::MemberCore>(hosts::MemberOptions{.cluster = "box", .key = "k", .self = self});
  h.published = 0;
  cluster::CoordinatorOptions client;
  client.name = "box";
  client.endpoints = {"e:1"};
  client.self = self;
  client.seed = random.bits();
  client.registration = {.ttl_s = std::chrono::duration_cast<std::chrono::seconds>(lease).count(),
                         .retry = 100ms};
  client.request_timeout = 200ms;
  client.probe_every = 200ms;
  client.lost_after = 500ms;
  client.first_wait = 10ms;
  client.longest_wait = 100ms;
  h.etcd = std::make_unique<cluster::CoordinatorClient>(std::move(client), now(h));
  h.watches.clear();
  h.etcd_wake = h.core_wake = 0;
  h.leader = none;
  h.epoch = 0;
  for (Dial& dial : h.dials) dial = {};
  switch (h.role) {
    case Role::scheduler:
      h.scheduler = std::make_unique<SchedulerPart>(*this, h);
      break;
    case Role::frontend:
      h.frontend = std::make_unique<FrontendPart>(*this, h);
      break;
    case Role::worker:
      h.worker = std::make_unique<WorkerPart>(*this, h);
      break;
  }
  pump(h);
  plan(now_ + part(2ms), What::tick, h);
}

// `silent`: the host loses its power. The other ends of its streams are told nothing, and its clock is
// another one afterwards.
void World::crash(Host& h, bool silent) {
  const std::uint32_t life = h.life++;
  trace("{} dies{}", h.id, silent ? " silently" : "");
  h.clocks.push_back(silent && !options.one_clock ? any_clock() : h.clock());
  h.up = false;
  h.paused = h.frozen = false;
  for (const Event& event : std::exchange(h.waiting, {})) release(event);
  for (const std::uint32_t datagram : std::exchange(h.inbox, {})) datagrams_.give_back(datagram);
  if (h.frontend) figures.late_wins += h.frontend->offering->counters().late_wins;
  h.scheduler.reset();
  h.frontend.reset();
  h.worker.reset();
  h.member.reset();
  h.etcd.reset();
  if (ending_) return;
  for (std::uint32_t id = 0; id < streams_.size(); ++id) {
    Stream& s = streams_[id];
    if (s.follower == h.index && s.follower_life == life && !s.follower_over) {
      s.follower_over = true;
      if (!silent)
        send_end(id, false);
      else
        plan(now_ + 300ms + part(200ms), What::stream_break, s.scheduler, s.scheduler_life, id);
    }
    if (s.scheduler == h.index && s.scheduler_life == life && !s.scheduler_over) {
      s.scheduler_over = true;
      if (!silent)
        send_end(id, true);
      else
        plan(now_ + 300ms + part(200ms), What::stream_break, s.follower, s.follower_life, id);
    }
  }
}

// What a void event leaves behind.
void World::release(const Event& event) {
  switch (event.what) {
    case What::datagram:
      datagrams_.give_back(static_cast<std::uint32_t>(event.detail));
      return;
    case What::frame:
      parcels_.give_back(static_cast<std::uint32_t>(event.detail));
      return;
    case What::etcd_answer:
    case What::etcd_over:
      done_with(static_cast<std::uint32_t>(event.detail));
      return;
    case What::row_answer: {
      RowCall& call = row_calls[static_cast<std::uint32_t>(event.detail)];
      call = {};
      row_calls.give_back(static_cast<std::uint32_t>(event.detail));
      return;
    }
    case What::row_ask: {
      // Its host has gone: whoever asked hears of that.
      const auto place = static_cast<std::uint32_t>(event.detail);
      RowCall& call = row_calls[place];
      call.pulled = fail(ErrorCode::unavailable, "the frontend has gone");
      call.taken = fail(ErrorCode::unavailable, "the frontend has gone");
      Event answer{.detail = place, .life = call.life, .host = call.worker, .what = What::row_answer};
      carry(call.frontend, call.worker, now_ + way(call.frontend, call.worker), answer);
      return;
    }
    default:
      return;
  }
}

void World::handle(const Event& event) {
  switch (event.what) {
    case What::etcd_serve:
      return etcd_serve(static_cast<std::uint32_t>(event.detail));
    case What::expire:
      model_.expire(now_);
      tell_watches();
      return plan(now_ + 10ms, What::expire, 0, 0);
    case What::arrive:
      return arrive();
    case What::calm:
      return be_calm();
    case What::fault:
      return begin(faults_[event.detail]);
    case What::mend:
      return mend(faults_[event.detail]);
    case What::restart:
      return start(*hosts_[event.host]);
    default:
      break;
  }
  Host& h = *hosts_[event.host];
  // Frames, datagrams and rows reach whatever process is there.
  const bool any_life = event.what == What::datagram || event.what == What::frame ||
                        event.what == What::row_ask || event.what == What::device;
  if (!h.up || (!any_life && event.life != h.life)) return release(event);
  if (h.paused) {
    h.waiting.push_back(event);
    return;
  }
  handle_here(h, event);
}

void World::handle_here(Host& h, const Event& event) {
  const TimePoint here = now(h);
  switch (event.what) {
    case What::tick:
      plan(now_ + 2ms + part(200us), What::tick, h);
      return member_step(h);
    case What::datagram:
      h.inbox.push_back(static_cast<std::uint32_t>(event.detail));
      return member_step(h);
    case What::etcd_answer: {
      const auto place = static_cast<std::uint32_t>(event.detail);
      EtcdCall& call = etcd_calls_[place];
      if (!std::exchange(call.over, true)) {
        if (const auto* answer = std::get_if<etcd::Answer>(&call.answer))
          h.etcd->answered(call.request.id, *answer, here);
        else
          h.etcd->failed(call.request.id, std::get<etcd::Failure>(call.answer), here);
      }
      done_with(place);
      return pump(h);
    }
    case What::etcd_over: {
      const auto place = static_cast<std::uint32_t>(event.detail);
      EtcdCall& call = etcd_calls_[place];
      if (!std::exchange(call.over, true))
        h.etcd->failed(call.request.id, {etcd::Failure::Kind::unreachable, "Deadline Exceeded"}, here);
      done_with(place);
      return pump(h);
    }
    case What::etcd_watch:
      return tell_watch(h, event.detail);
    case What::etcd_wake:
      if (event.at != h.etcd_wake) return;
      h.etcd_wake = 0;
      if (h.etcd->due() <= here) h.etcd->tick(here);
      return pump(h);
    case What::changed:
      h.scheduler->changed(here);
      break;
    case What::core_wake:
      if (event.at != h.core_wake) return;
      h.core_wake = 0;
      if (h.scheduler)
        h.scheduler->wake(here);
      else if (h.core()->wake_at() <= here)
        h.core()->wake(here);
      break;
    case What::device: {
      ClusterDevice& device = *h.worker->devices[event.part];
      if (device.generation != event.life) return;
      device.event(event.detail);
      return;
    }
    case What::result: {
      const worker::ActionResult result = std::move(h.worker->results.front());
      h.worker->results.pop_front();
      h.worker->core->on_result(result, here);
      break;
    }
    case What::probe:
      h.worker->core->on_probe(
          {.found = {}, .life = static_cast<std::uint32_t>(event.detail), .device = DeviceId{event.part}},
          here);
      break;
    case What::dial:
      h.dials[event.detail].waiting = false;
      dial(h, event.detail);
      return;
    case What::hello:
      hello(h, static_cast<std::uint32_t>(event.detail));
      break;
    case What::dial_over:
      if (const Stream& s = streams_[event.detail]; s.follower_open || s.follower_over) return;
      [[fallthrough]];
    case What::stream_break: {
      Stream& s = streams_[event.detail];
      const auto id = static_cast<std::uint32_t>(event.detail);
      if (s.follower == h.index && s.follower_life == h.life && !s.follower_over) {
        s.follower_over = true;
        send_end(id, false);
        follower_ended(h, id);
      } else if (s.scheduler == h.index && s.scheduler_life == h.life && !s.scheduler_over) {
        s.scheduler_over = true;
        send_end(id, true);
        h.scheduler->ended(id, here);
      }
      break;
    }
    case What::frame: {
      const auto place = static_cast<std::uint32_t>(event.detail);
      const Parcel parcel = std::move(parcels_[place]);
      parcels_[place].frame = {};
      parcels_.give_back(place);
      Stream& s = streams_[parcel.stream];
      if (parcel.to_follower) {
        if (s.follower_over || s.follower_life != h.life) return;
        if (parcel.ends) {
          s.follower_over = true;
          follower_ended(h, parcel.stream);
        } else if (parcel.frame.messages.empty()) {
          s.follower_open = true;
          s.opened = now_;
        } else {
          follower_heard(h, parcel.stream, parcel.frame);
        }
      } else {
        if (s.scheduler_over || !s.scheduler_open || s.scheduler_life != h.life) return;
        if (parcel.ends) {
          s.scheduler_over = true;
          h.scheduler->ended(parcel.stream, here);
        } else {
          h.scheduler->heard(parcel.stream, parcel.frame, here);
        }
      }
      break;
    }
    case What::row_ask:
      return row_asked(h, static_cast<std::uint32_t>(event.detail));
    case What::row_answer:
      row_answered(h, static_cast<std::uint32_t>(event.detail));
      break;
    case What::outputs: {
      const auto [row, report] = std::move(h.frontend->outputs.front());
      h.frontend->outputs.pop_front();
      h.frontend->core->react([&](TimePoint at) { h.frontend->offering->outputs(row, report, at); }, here);
      break;
    }
    case What::model_comes: {
      FrontendPart& f = *h.frontend;
      const wire::Model model = std::move(f.coming.front());
      f.coming.pop_front();
      if (f.names.contains(model.info.name)) return;
      controller::ServedModel served =
          told_model(static_cast<std::uint32_t>(f.core->models()), model.info.name, model.info.pages);
      const ModelId ours = served.info.id;
      f.core->book().add_model(served.info.name, 1);
      f.core->come(std::move(served), here);
      f.names[model.info.name] = ours;
      break;
    }
    case What::cancel_call:
      h.frontend->core->cancel(event.detail, here);
      break;
    case What::etcd_serve:
    case What::expire:
    case What::arrive:
    case What::calm:
    case What::fault:
    case What::mend:
    case What::restart:
      return;
  }
  if (h.scheduler) h.scheduler->count_devices(now(h));
  rearm_core(h);
}

// All that waited comes at once: for the membership's thread together, for the others in its order.
void World::resume(Host& h) {
  const Duration stood = now_ - h.paused_at;
  h.paused = false;
  std::vector<Event> waited = std::exchange(h.waiting, {});
  if (std::exchange(h.frozen, false)) {
    h.clocks.back().step(h.clock().shows(h.paused_at) - h.clock().shows(now_));
    ++figures.steps;
    h.stepped_at = now_;
    // Its devices stood still, too.
    const auto of_device = [&](const Event& event) {
      return event.what == What::device && event.host == h.index;
    };
    calendar_.change([&](Event& event) {
      if (of_device(event)) event.at += stood.count();
    });
    for (Event& event : waited)
      if (of_device(event)) {
        event.at += stood.count();
        calendar_.add(event);
      }
    std::erase_if(waited, of_device);
  }
  const auto of_member = [](const Event& event) { return event.what <= What::etcd_wake; };
  const auto member = [&] {
    for (const Event& event : waited)
      if (event.what == What::datagram) h.inbox.push_back(static_cast<std::uint32_t>(event.detail));
    member_step(h);
    for (const Event& event : waited)
      if (of_member(event) && event.what != What::datagram) handle_here(h, event);
  };
  const bool first = random.below(2) == 0;
  if (first) member();
  for (const Event& event : waited)
    if (!of_member(event)) handle_here(h, event);
  if (!first) member();
  rearm_core(h);
  rearm_etcd(h);
}

void World::rearm_core(Host& h) {
  const TimePoint wake = h.scheduler ? h.scheduler->wake_at() : h.core()->wake_at();
  if (wake == TimePoint::max()) return;
  const std::int64_t at = std::max(now_, h.clock().when(wake)).time_since_epoch().count();
  if (h.core_wake != 0 && h.core_wake <= at) return;
  h.core_wake = at;
  plan(TimePoint{Duration{at}}, What::core_wake, h);
}
void World::rearm_etcd(Host& h) {
  const TimePoint wake = h.etcd->due();
  if (wake == TimePoint::max()) return;
  const std::int64_t at = std::max(now_, h.clock().when(wake)).time_since_epoch().count();
  if (h.etcd_wake != 0 && h.etcd_wake <= at) return;
  h.etcd_wake = at;
  plan(TimePoint{Duration{at}}, What::etcd_wake, h);
}

}  // namespace inside

ClusterFigures run_virtual_cluster(std::uint64_t seed, const ClusterOptions& options) {
  return inside::World(seed, options).run();
}

}  // namespace carillon::roles::testing
