#include "carillon/roles/testing/cluster_world.h"
#include "carillon/schedule/registry.h"

namespace carillon::roles::testing::inside {

// ---------------------------------------------------------------- a scheduler

void SchedulerPart::send(PeerId peer, Message message) {
  if (const auto found = streams.find(peer); found != streams.end())
    world.post(found->second, true, epoch, std::move(message));
}
void SchedulerPart::end(PeerId peer, std::string) {
  if (const auto found = streams.find(peer); found != streams.end()) world.close(found->second, false);
}
void SchedulerPart::warn(std::string text) {
  world.broken("scheduler " + host.id + " warns: " + text);
}

void SchedulerPart::changed(TimePoint now) {
  Changed change = std::move(news.front());
  news.pop_front();
  there = std::move(change.workers);
  seen.insert(there.begin(), there.end());
  std::erase_if(missing, [&](const auto& each) { return there.contains(each.first); });
  for (const std::string& id : seen)
    if (!there.contains(id)) missing.try_emplace(id, now);
  leave_missing(now);
  if (leader != nullptr) {
    std::set<std::string> unheard;
    for (const auto& [id, since] : missing) unheard.insert(id);
    leader->unheard(std::move(unheard));
  }
  if (leader != nullptr && (!change.leads || change.epoch != epoch)) {
    world.trace("{} leads no more, since epoch {}", host.id, change.epoch);
    leader.reset();
  }
  if (!change.leads || leader != nullptr) return;
  epoch = change.epoch;
  deaf = Duration{0};
  world.leads(host, epoch);
  // A device that goes again and again is back within the time that a world has to come to rest.
  LeaderOptions options;
  options.dispatch.revivals.longest_pause = 200ms;
  leader = std::make_unique<Leader>(*schedule::make_scheduler(world.options.policy, world.environment),
                                    options, static_cast<Out&>(*this));
  leader->start(now);
  std::set<std::string> await;
  for (const auto& peer : host.member->peers(now))
    if (peer.there && peer.member.role == Role::worker) await.insert(peer.member.id);
  leader->await_workers(std::move(await), now + wait_for_workers);
  const auto all = streams;  // joining may end one
  for (const auto& [peer, stream] : all) join(peer, stream, now);
}

void SchedulerPart::leave_missing(TimePoint now) {
  look_for_missing = TimePoint::max();
  const auto serves = [&](const Leader::DeviceView& device) {
    return device.alive && there.contains(device.worker);
  };
  if (leader == nullptr || missing.empty() || std::ranges::none_of(leader->devices(), serves)) return;
  const auto all = streams;  // leaving may end one
  for (const auto& [peer, stream] : all) {
    const Host& other = world.host(world.stream(stream).follower);
    const auto found = missing.find(other.id);
    if (found == missing.end() || other.role != Role::worker) continue;
    if (const TimePoint at = found->second + others_follow; at > now) {
      look_for_missing = std::min(look_for_missing, at);
      continue;
    }
    seen.erase(found->first);
    missing.erase(found);
    world.trace("{} leaves {}, of which it hears nothing", host.id, other.id);
    world.close(stream, false);
    ended(stream, now);
  }
}

void SchedulerPart::join(PeerId peer, std::uint32_t stream, TimePoint now) {
  const Host& other = world.host(world.stream(stream).follower);
  if (!world.clock_known(host, other, world.stream(stream).follower_life)) {
    world.trace("{} closes stream {}: the clock of {} is not known", host.id, stream, other.id);
    return world.close(stream, false);
  }
  world.trace("{} has joined {}", other.id, host.id);
  leader->joined(peer, {.cluster = "box", .id = other.id, .role = other.role}, now);
}

void SchedulerPart::opened(std::uint32_t stream, TimePoint now) {
  const PeerId peer = next_peer++;
  world.stream(stream).peer = peer;
  streams.emplace(peer, stream);
  if (leader != nullptr) join(peer, stream, now);
}

void SchedulerPart::ended(std::uint32_t stream, TimePoint now) {
  const PeerId peer = world.stream(stream).peer;
  if (streams.erase(peer) == 0 || leader == nullptr) return;
  leader->left(peer, "its stream ended", now);
}

void SchedulerPart::heard(std::uint32_t stream, transport::Frame frame, TimePoint now) {
  const Stream& from = world.stream(stream);
  if (leader == nullptr || !streams.contains(from.peer) || frame.epoch != epoch) return;
  for (Message& message : frame.messages)
    if (!world.convert(host, world.host(from.follower), from.follower_life, message))
      return world.close(stream, false);
  leader->heard(from.peer, std::move(frame.messages), now);
}

void SchedulerPart::count_devices(TimePoint now) {
  const std::size_t alive = leader != nullptr ? leader->dispatch().devices_alive() : 0;
  if (alive == counted) return;
  counted = alive;
  leave_missing(now);
}

void SchedulerPart::wake(TimePoint now) {
  if (leader != nullptr && leader->wake_at() <= now) leader->wake(now);
  if (look_for_missing <= now) leave_missing(now);
}

// ---------------------------------------------------------------- a frontend

FrontendPart::FrontendPart(World& w, Host& h) : world(w), host(h) {
  core = std::make_unique<controller::Core>(
      [this](controller::Holder& holder, dispatch::Notes&) {
        auto made = std::make_unique<Offering>(holder, static_cast<OfferingOut&>(*this), host.address);
        offering = made.get();
        return made;
      },
      nullptr, controller::CoreOptions{.max_open = 512});
  core->start(world.now(host));
}
void FrontendPart::send(Message message) {
  if (host.leader != none) world.post(host.leader, false, host.epoch, std::move(message));
}
std::uint64_t FrontendPart::open(RequestId row, transport::RowTensors tensors) {
  const std::uint32_t place = rows.take();
  rows[place] = {.turn = ++world.row_turns, .open = true, .id = row, .tensors = std::move(tensors)};
  return (std::uint64_t{rows[place].turn} << 32) | place;
}
void FrontendPart::close(std::uint64_t key) {
  Row* const row = find(key);
  if (row == nullptr || !std::exchange(row->open, false)) return;
  rows.give_back(static_cast<std::uint32_t>(key));
}
void FrontendPart::model_comes(const wire::Model& model) {
  coming.push_back(model);
  world.plan(world.true_now() + 20us, What::model_comes, host);
}

// ---------------------------------------------------------------- a worker

WorkerPart::WorkerPart(inside::World& w, Host& h) : world(w), host(h) {
  core = std::make_unique<controller::Core>(
      [this](controller::Holder&, dispatch::Notes& notes) {
        auto made = std::make_unique<Agent>(static_cast<AgentOut&>(*this), notes);
        agent = lookup.agent = made.get();
        return made;
      },
      &lookup, controller::CoreOptions{});
  for (std::uint32_t d = 0; d < 2; ++d) {
    devices.push_back(
        std::make_unique<ClusterDevice>(*this, DeviceId{d}, 4, world.models, world.random.split()));
    devices.back()->mishaps = world.mishaps;
    core->add_device(*devices.back());
  }
  for (std::uint32_t m = 0; m < world.models; ++m)
    core->add_model(told_model(m, "model" + std::to_string(m), ClusterDevice::pages_of(ModelId{m})));
  core->start(world.now(host));
}
void WorkerPart::send(Message message) {
  if (const auto* report = std::get_if<wire::Report>(&message); report != nullptr && !report->device_lost &&
                                                                !theirs.contains(report->id) &&
                                                                world.options.plant == ClusterPlant::none)
    world.broken("worker " + host.id + " reports what this leader did not order");
  if (const auto* found = std::get_if<wire::ProbeReport>(&message))
    world.trace("{} tells of a probe of device {}", host.id, found->device.value);
  if (const auto* lost = std::get_if<wire::Report>(&message); lost != nullptr && lost->device_lost)
    world.trace("{} tells that device {} is lost", host.id, lost->device.value);
  if (host.leader != none) world.post(host.leader, false, host.epoch, std::move(message));
}
std::uint64_t WorkerPart::pull(const std::string& address, std::uint64_t key, TimePoint,
                               std::shared_ptr<PulledRow> row) {
  RowCall call;
  call.frontend = world.host_at(address).index;
  call.key = key;
  call.row = std::move(row);
  const std::uint32_t place = world.row_calls.take();
  call.ticket = (std::uint64_t{++world.row_turns} << 32) | place;
  const std::uint64_t ticket = call.ticket;
  world.ask_row(host, std::move(call));
  return ticket;
}
std::uint64_t WorkerPart::push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                               const wire::Report& report) {
  RowCall call;
  call.frontend = world.host_at(address).index;
  call.key = key;
  call.row = std::move(row);
  call.push = true;
  call.report = report;
  const std::uint32_t place = world.row_calls.take();
  call.ticket = (std::uint64_t{++world.row_turns} << 32) | place;
  const std::uint64_t ticket = call.ticket;
  world.ask_row(host, std::move(call));
  return ticket;
}
void WorkerPart::cancel(std::uint64_t ticket) {
  RowCall& call = world.row_calls[static_cast<std::uint32_t>(ticket)];
  if (call.ticket == ticket) call.cancelled = true;
}
void WorkerPart::warn(const std::string& text) {
  world.broken("worker " + host.id + " warns: " + text);
}
TimePoint WorkerPart::now() const {
  return world.now(host);
}
void WorkerPart::plan(ClusterDevice& device, TimePoint at, std::uint64_t what) {
  world.plan(host.clock().when(at), What::device, host.index, device.generation, what,
             static_cast<std::uint8_t>(device.id().value));
}
void WorkerPart::result(worker::ActionResult result) {
  results.push_back(std::move(result));
  world.plan(world.true_now() + 10us, What::result, host);
}
void WorkerPart::probe(ClusterDevice& device) {
  world.plan(world.true_now() + 50us, What::probe, host, device.life,
             static_cast<std::uint8_t>(device.id().value));
}
void WorkerPart::begins(ActionId action) {
  if (action.index() >= ordered.size()) return world.broken("an action begins that nobody ordered");
  world.begins(host, ordered[action.index()]);
}
std::uint32_t WorkerPart::next_generation() {
  return ++world.generations;
}

void WorkerPart::heard(std::uint32_t stream, std::uint64_t order_epoch, std::vector<Message> messages,
                       const std::vector<Window>& windows) {
  const Stream& from = world.stream(stream);
  core->react(
      [&](TimePoint at) {
        for (std::size_t i = 0; i < messages.size(); ++i) {
          const ActionId id = std::visit(
              [](const auto& what) {
                if constexpr (requires { what.order.requests; })
                  return what.order.id;
                else if constexpr (requires {
                                     what.id;
                                     what.model;
                                     what.device;
                                   })
                  return what.id;
                else
                  return ActionId{~std::uint64_t{0}};
              },
              messages[i]);
          const bool orders = id.value != ~std::uint64_t{0};
          if (const auto* retire = std::get_if<transport::Retire>(&messages[i]))
            world.trace("device {} of {} is retired", retire->device.value, host.id);
          if (const auto* probe = std::get_if<transport::Probe>(&messages[i]))
            world.trace("device {} of {} is to be probed", probe->device.value, host.id);
          if (const auto* adopt = std::get_if<transport::Adopt>(&messages[i]))
            world.trace("device {} of {} is adopted", adopt->device.value, host.id);
          // The agent numbers what it takes one by one, and an order may begin at once.
          const std::size_t before = core->actions_in_flight();
          if (orders) {
            theirs.insert(id);
            ordered.push_back({order_epoch, term, windows[i], from.scheduler, from.scheduler_life});
          }
          agent->heard(std::move(messages[i]), at);
          if (orders && core->actions_in_flight() == before) ordered.pop_back();
        }
      },
      world.now(host));
}

}  // namespace carillon::roles::testing::inside
