// Frontends, a leader that is killed, and workers, in virtual time: the cores of all roles, with messages
// that take their time and arrive in order, and rows that are really read and written.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/controller/testing/virtual_worker.h"
#include "carillon/roles/agent.h"
#include "carillon/roles/leader.h"
#include "carillon/roles/offering.h"
#include "carillon/schedule/registry.h"

namespace carillon::roles {
namespace {

using controller::InferAnswer;
using controller::InferCall;
using controller::testing::VirtualWorker;

struct Tally {
  int calls = 0, answers = 0, on_time = 0, wrong = 0;
  int leaders = 0, worker_losses = 0, frontend_losses = 0;
  std::uint64_t reoffered = 0, late_wins = 0, strays = 0, events = 0;
  // Of a steady world: calls that came in the second after the change, LOADs in it of what was there before,
  // and what one row of each model was expected to take just before and just after.
  int second = 0, second_on_time = 0, second_loads = 0;
  std::vector<Duration> expected_before, expected_after;
  int while_mute = 0;        // calls that were answered while the leader was not heard
  Duration latest_after{0};  // the longest from a deadline to an answer without outputs
};

constexpr std::size_t row_bytes = 4;

controller::ServedModel told_model(std::uint32_t m, std::uint64_t pages) {
  controller::ServedModel served = controller::testing::served(m, row_bytes);
  served.info.batches = {{1, 1ms}, {2, 2ms}, {4, 4ms}};
  served.info.pages = pages;
  served.hash = 77;
  served.inputs = {{"x", graph::DataType::u8, {graph::batch_dimension, row_bytes}}};
  served.outputs = {{"y", graph::DataType::u8, {graph::batch_dimension, row_bytes}}};
  return served;
}

class Cluster;

// What both sides of a stream share: messages arrive in order, while both ends are there.
struct Line {
  PeerId peer = 0;
  bool open = true;
  TimePoint to_leader, to_peer;  // when the last arrives
};

class Frontend final : public OfferingOut {
 public:
  Frontend(Cluster& of, int number) : cluster(of), id("frontend" + std::to_string(number)) {
    core = std::make_unique<controller::Core>(
        [this](controller::Holder& holder, dispatch::Notes&) {
          auto made = std::make_unique<Offering>(holder, static_cast<OfferingOut&>(*this), id);
          offering = made.get();
          return made;
        },
        nullptr, controller::CoreOptions{.max_open = 512});
  }
  void send(transport::Message message) override;
  std::uint64_t open(RequestId row, transport::RowTensors tensors) override;
  void close(std::uint64_t key) override;
  void model_comes(const wire::Model& model) override;
  void model_goes(ModelId) override {}
  void models_told() override {}

  Cluster& cluster;
  const std::string id;
  std::unique_ptr<controller::Core> core;
  Offering* offering = nullptr;
  std::shared_ptr<Line> line;
  std::map<std::string, ModelId> names;
};

class Worker final : public AgentOut, VirtualWorker::World {
 public:
  Worker(Cluster& of, int number, int life);
  void send(transport::Message message) override;
  std::uint64_t pull(const std::string& address, std::uint64_t key, TimePoint urgency,
                     std::shared_ptr<PulledRow> row) override;
  std::uint64_t push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                     const wire::Report& report) override;
  void cancel(std::uint64_t ticket) override { cancelled.insert(ticket); }
  void warn(const std::string&) override {}
  void answer_probes();

  TimePoint now() const override;
  void plan(TimePoint at, std::function<void()> what) override;
  void result(const worker::ActionResult& result) override;
  void problem(const std::string& what) override;
  void begins(ActionId action) override;
  void leads(TimePoint at);

  struct Lookup final : controller::RowLookup {
    worker::RowBuffers buffers(RequestId row) const override { return agent->buffers(row); }
    bool run_again(const ledger::Profile&, worker::InferCommand&) override { return false; }
    Agent* agent = nullptr;
  };
  Cluster& cluster;
  const std::string id;
  Lookup lookup;
  Agent* agent = nullptr;
  std::vector<std::unique_ptr<VirtualWorker>> devices;
  std::unique_ptr<controller::Core> core;
  std::shared_ptr<Line> line;
  bool dead = false;
  std::uint64_t next_ticket = 1;
  std::set<std::uint64_t> pulling, cancelled;
  // Of this leader: ids of actions, from there on as the devices have them, and as it gave them.
  std::uint64_t of_this_leader = 0;
  std::set<ActionId> ordered;
  std::map<std::size_t, int> probes;
};

struct Options {
  bool kills = true;
  double lost_pushes = 0;
  // Devices take three times as long as models tell, and do nothing else amiss. There is room for all models,
  // less to do than there is time for, and one change of the leader at most.
  bool steady = false;
  // Instead of that change the leader is not heard for a second, while it hears all others.
  bool mute = false;
  // Likewise: a worker drains, and is stopped as soon as it is drained.
  bool drain = false;
  // Likewise: all streams break, and frontends are back before workers are.
  bool cut_all = false;
};

class Cluster final : public Out {
 public:
  Cluster(std::string policy, std::uint64_t seed, Options options)
      : random(seed),
        policy_(std::move(policy)),
        environment_{.measured = seed % 2 == 0,
                     .hangs_after = 50ms,
                     .classes = seed % 2 == 0,
                     .admission = seed % 2 == 0},
        options_(options),
        asks_(seed) {
    models = options_.steady ? 5 : static_cast<std::uint32_t>(1 + random.below(5));
    for (int f = 0; f < 2; ++f) frontends.push_back(std::make_unique<Frontend>(*this, f));
    for (const auto& frontend : frontends) frontend->core->start(now_);
    for (int w = 0; w < 3; ++w) workers.push_back(std::make_unique<Worker>(*this, w, 0));
    lead();
    if (options_.steady) {
      be_steady();
      return;
    }
    const Duration span = 60ms + Duration{static_cast<std::int64_t>(random.below(300'000'000))};
    const double gap = 0.3e6 + random.uniform() * 3e6;
    for (Duration at{0}; at < span; at += from_ns(random.exponential(gap)))
      plan(now_ + 5ms + at, [this] { arrive(); });
    if (!options_.kills) return;
    const auto some_time = [&] {
      return now_ +
             Duration{static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(span.count())))};
    };
    for (std::uint64_t n = random.below(4); n > 0; --n) plan(some_time(), [this] { kill_leader(); });
    for (std::uint64_t n = random.below(4); n > 0; --n) plan(some_time(), [this] { kill_worker(); });
    for (std::uint64_t n = random.below(3); n > 0; --n) plan(some_time(), [this] { cut_a_line(); });
    for (std::uint64_t n = random.below(3); n > 0; --n) plan(some_time(), [this] { break_a_device(); });
  }

  void be_steady() {
    for (Duration at{0}; at < change_at + 1s; at += from_ns(asks_.exponential(2.5e6)))
      plan(now_ + 5ms + at, [this] { arrive(); });
    change_ = now_ + change_at;
    if (options_.mute) {
      plan(change_, [this] { mute_until_ = now_ + 1s; });
    } else if (options_.cut_all) {
      plan(change_, [this] { cut_all(); });
    } else if (options_.drain) {
      plan(change_, [this] {
        EXPECT_TRUE(leader->drain(workers[0]->id, false, now_));
        stop_once_drained();
      });
    } else if (options_.kills) {
      plan(change_, [this] {
        tally.expected_before = expected();
        kill_leader(30ms);
      });
    }
  }
  void cut_all() {
    const auto again = [&](auto& peer, Duration after) {
      const PeerId number = peer.line->peer;
      cut(peer);
      leader->left(number, "cut", now_);
      plan(now_ + after, [this, &peer] { join(peer); });
    };
    for (const auto& each : workers) again(*each, 20ms);
    for (const auto& frontend : frontends) again(*frontend, 1ms);
  }
  void stop_once_drained() {
    if (leader->drains().at(workers[0]->id) > 0) return plan(now_ + 100us, [this] { stop_once_drained(); });
    workers[0]->dead = true;
    workers[0]->line->open = false;
    leader->left(workers[0]->line->peer, "stopped", now_);
    ++tally.worker_losses;
  }
  // What a row of each model takes, as the leader expects it of its slowest device.
  std::vector<Duration> expected() const {
    const ledger::Ledger& ledger = leader->dispatch().ledger();
    std::vector<Duration> out;
    for (std::uint32_t m = 0; m < models; ++m) {
      out.emplace_back(0);
      for (const auto& device : leader->devices())
        out.back() = std::max(out.back(), ledger.times(Class::normal).of(device.id, ModelId{m}, 0));
    }
    return out;
  }

  Tally run() {
    for (int steps = 0; steps < 400'000; ++steps) {
      ++tally.events;
      TimePoint at = calendar_.empty() ? TimePoint::max() : calendar_.begin()->first.first;
      controller::Core* sleeper = nullptr;
      const auto earlier = [&](TimePoint wake, controller::Core* of) {
        if (wake < at) {
          at = wake;
          sleeper = of;
        }
      };
      for (const auto& frontend : frontends) earlier(frontend->core->wake_at(), frontend->core.get());
      for (const auto& each : workers)
        if (!each->dead) earlier(each->core->wake_at(), each->core.get());
      bool leader_wakes = false;
      if (leader && leader->wake_at() < at) {
        at = leader->wake_at();
        leader_wakes = true;
      }
      std::size_t open = 0;
      for (const auto& frontend : frontends) open += frontend->core->open_calls();
      if (at == TimePoint::max() || (calendar_.empty() && open == 0)) break;
      now_ = std::max(now_, at);
      if (leader_wakes) {
        leader->wake(now_);
      } else if (sleeper != nullptr) {
        sleeper->wake(now_);
      } else {
        auto next = calendar_.extract(calendar_.begin());
        next.mapped()();
      }
      for (const auto& each : workers) each->answer_probes();
    }
    for (const auto& frontend : frontends) {
      EXPECT_EQ(frontend->core->open_calls(), 0U) << "a call that is never answered";
      EXPECT_EQ(frontend->offering->open_rows(), 0U);
      tally.reoffered += frontend->offering->counters().reoffered;
      tally.late_wins += frontend->offering->counters().late_wins;
      tally.strays += frontend->offering->counters().strays;
    }
    EXPECT_TRUE(rows.empty()) << "a row that can still be pulled";
    EXPECT_TRUE(!leader || leader->rows_open() == 0);
    for (const auto& each : workers)
      for (const auto& device : leader ? leader->devices() : std::vector<Leader::DeviceView>{})
        if (device.worker == each->id && device.alive && !each->dead) {
          EXPECT_TRUE(each->agent->device_alive(device.number)) << "the leader does not know better";
        }
    for (const auto& [ticket, count] : answers_) EXPECT_EQ(count, 1) << "ticket " << ticket;
    EXPECT_EQ(static_cast<int>(answers_.size()), tally.calls);
    EXPECT_TRUE(problems.empty()) << *problems.begin();
    for (const auto& frontend : frontends) frontend->core->stop(now_);
    for (const auto& each : workers) each->core->stop(now_);
    return tally;
  }

  void plan(TimePoint at, std::function<void()> what) { calendar_[{at, order_++}] = std::move(what); }
  Duration delay() { return 30us + from_ns(random.exponential(60'000)); }
  TimePoint now() const { return now_; }

  // Messages of a peer to the leader.
  void to_leader(const std::shared_ptr<Line>& line, transport::Message message) {
    if (line == nullptr || !line->open) return;
    line->to_leader = std::max(line->to_leader, now_ + delay());
    plan(line->to_leader, [this, line, told = std::move(message)]() mutable {
      if (!line->open || !leader) return;
      std::vector<transport::Message> frame;
      frame.push_back(std::move(told));
      leader->heard(line->peer, std::move(frame), now_);
    });
  }
  void send(PeerId peer, transport::Message message) override {
    if (const auto* load = std::get_if<ledger::Load>(&message)) count(peer, *load);
    const auto [line, hear] = peers_.at(peer);
    line->to_peer = std::max(line->to_peer, now_ + delay());
    if (mute_until_ > now_) line->to_peer = std::max(line->to_peer, mute_until_);
    plan(line->to_peer, [line, hear, told = std::move(message)]() mutable {
      if (line->open) hear(std::move(told));
    });
  }
  void count(PeerId peer, const ledger::Load& load) {
    const auto worker = std::ranges::find_if(
        workers, [&](const auto& each) { return each->line != nullptr && each->line->peer == peer; });
    const std::tuple copy((*worker)->id, load.device, load.model);
    if (now_ < change_)
      loaded_.insert(copy);
    else
      tally.second_loads += static_cast<int>(loaded_.count(copy));
  }
  void end(PeerId, std::string) override {}
  void warn(std::string text) override { problems.insert("warning: " + text); }

  void lead() {
    ++tally.leaders;
    leader = std::make_unique<Leader>(*schedule::make_scheduler(policy_, environment_),
                                      LeaderOptions{.model_grace = 50ms}, static_cast<Out&>(*this));
    leader->start(now_);
    std::set<std::string> there;
    for (const auto& each : workers)
      if (!each->dead) there.insert(each->id);
    leader->await_workers(std::move(there), now_ + 20ms);
    for (const auto& frontend : frontends) join(*frontend);
    for (const auto& each : workers)
      if (!each->dead) join(*each);
  }
  template <typename Peer>
  void join(Peer& peer) {
    if (!leader) return;
    auto line = std::make_shared<Line>();
    line->peer = next_peer_++;
    peer.line = line;
    peers_[line->peer] = {line, [this, &peer, line](transport::Message message) {
                            peer.core->react(
                                [&](TimePoint at) {
                                  if (std::holds_alternative<transport::Leads>(message)) begin(peer, at);
                                  hear(peer, std::move(message), at);
                                },
                                now_);
                          }};
    leader->joined(line->peer, {.cluster = "box", .id = peer.id, .role = role_of(peer)}, now_);
  }
  static cluster::Role role_of(const Frontend&) { return cluster::Role::frontend; }
  static cluster::Role role_of(const Worker&) { return cluster::Role::worker; }
  static void begin(Frontend& peer, TimePoint at) { peer.offering->leads(at); }
  static void begin(Worker& peer, TimePoint at) { peer.leads(at); }
  static void hear(Frontend& peer, transport::Message message, TimePoint at) {
    peer.offering->heard(std::move(message), at);
  }
  static void hear(Worker& peer, transport::Message message, TimePoint at) {
    if (const auto* load = std::get_if<ledger::Load>(&message);
        load != nullptr && peer.devices[load->device.index()]->loaded(load->model))
      peer.problem("a LOAD of what is there");
    std::visit(
        [&](const auto& what) {
          if constexpr (requires { what.order.requests; })
            peer.ordered.insert(what.order.id);
          else if constexpr (requires {
                               what.id;
                               what.model;
                             })
            peer.ordered.insert(what.id);
        },
        message);
    peer.agent->heard(std::move(message), at);
  }
  static void end(Frontend& peer, TimePoint at) { peer.offering->leader_left(at); }
  static void end(Worker& peer, TimePoint at) { peer.agent->leader_left(at); }
  template <typename Peer>
  void cut(Peer& peer) {
    if (peer.line == nullptr || !std::exchange(peer.line->open, false)) return;
    peer.core->react([&](TimePoint at) { end(peer, at); }, now_);
  }

  void kill_leader() { kill_leader(1ms + Duration{static_cast<std::int64_t>(random.below(60'000'000))}); }
  void kill_leader(Duration until_the_next) {
    if (!leader) return;
    leader.reset();
    for (const auto& frontend : frontends) cut(*frontend);
    for (const auto& each : workers)
      if (!each->dead) cut(*each);
    plan(now_ + until_the_next, [this] {
      lead();
      if (options_.steady) plan(now_ + 2ms, [this] { tally.expected_after = expected(); });
    });
  }
  // Another process of the same id comes later.
  void kill_worker() {
    const std::size_t which = random.below(workers.size());
    if (workers[which]->dead) return;
    ++tally.worker_losses;
    Worker& lost = *workers[which];
    const std::shared_ptr<Line> line = lost.line;
    lost.dead = true;
    if (line != nullptr && std::exchange(line->open, false))
      plan(now_ + delay(), [this, peer = line->peer] {
        if (leader) leader->left(peer, "killed", now_);
      });
    plan(now_ + 5ms + Duration{static_cast<std::int64_t>(random.below(80'000'000))}, [this, which] {
      buried.push_back(std::move(workers[which]));
      workers[which] = std::make_unique<Worker>(*this, static_cast<int>(which), ++lives_);
      join(*workers[which]);
    });
  }
  // Often while its worker has just told of it.
  void break_a_device() {
    Worker& worker = *workers[random.below(workers.size())];
    if (worker.dead) return;
    if (random.below(2) == 0 && leader && worker.line != nullptr && worker.line->open) {
      const PeerId number = worker.line->peer;
      cut(worker);
      leader->left(number, "cut", now_);
      join(worker);
    }
    const auto d = static_cast<std::uint32_t>(random.below(worker.devices.size()));
    plan(now_ + 2 * delay(), [&worker, d] {
      if (worker.dead) return;
      worker.core->on_result({.id = {},
                              .status = ledger::ActionStatus::failed,
                              .times = {},
                              .error = "it broke",
                              .device_lost = true,
                              .life = worker.devices[d]->life,
                              .device = DeviceId{d}},
                             worker.cluster.now());
    });
  }
  // A stream breaks, and begins anew.
  void cut_a_line() {
    const auto again = [&](auto& peer) {
      if (peer.line == nullptr || !peer.line->open) return;
      const PeerId number = peer.line->peer;
      cut(peer);
      plan(now_ + delay(), [this, number] {
        if (leader) leader->left(number, "cut", now_);
      });
      plan(now_ + 2ms, [this, &peer, line = peer.line] {
        if (leader && peer.line == line) join(peer);
      });
    };
    ++tally.frontend_losses;
    if (random.below(2) == 0)
      again(*frontends[random.below(frontends.size())]);
    else if (Worker& which = *workers[random.below(workers.size())]; !which.dead)
      again(which);
  }

  void arrive() {
    Frontend& frontend = *frontends[asks_.below(frontends.size())];
    if (frontend.names.empty()) return;
    auto name = frontend.names.begin();
    std::advance(name, static_cast<std::ptrdiff_t>(asks_.below(frontend.names.size())));
    const int count = static_cast<int>(1 + asks_.below(3));
    const Duration patience = 2ms + Duration{static_cast<std::int64_t>(asks_.below(80'000'000))};
    const TimePoint deadline = now_ + (options_.steady ? 120ms : patience);
    auto call = controller::testing::call_of(name->second, count, now_, deadline,
                                             static_cast<unsigned>(asks_.below(200)));
    if (const std::uint64_t other = asks_.below(8); other < 2 && !options_.steady) {
      call->cls = other == 0 ? Class::real_time : Class::best_effort;
      call->class_given = true;
    }
    const std::uint64_t ticket = ++tickets_;
    ++tally.calls;
    const bool second = now_ >= change_;
    tally.second += second ? 1 : 0;
    frontend.core->submit(
        ticket, std::move(call),
        [this, ticket, second, deadline](InferAnswer answer) {
          ++answers_[ticket];
          ++tally.answers;
          tally.while_mute += mute_until_ > now_ ? 1 : 0;
          if (!answer.status) tally.latest_after = std::max(tally.latest_after, now_ - deadline);
          if (!answer.status) return;
          ++tally.on_time;
          tally.second_on_time += second ? 1 : 0;
          if (!controller::testing::is_right(*answer.call)) ++tally.wrong;
        },
        now_);
    if (asks_.below(10) == 0 && !options_.steady)
      plan(now_ + Duration{static_cast<std::int64_t>(asks_.below(5'000'000))},
           [this, &frontend, ticket] { frontend.core->cancel(ticket, now_); });
  }

  struct Row {
    Frontend* frontend = nullptr;
    RequestId row;
    transport::RowTensors tensors;
    bool taken = false;
  };
  Random random;
  std::uint32_t models = 0;
  std::vector<std::unique_ptr<Frontend>> frontends;
  std::vector<std::unique_ptr<Worker>> workers, buried;
  std::unique_ptr<Leader> leader;
  std::map<std::uint64_t, Row> rows;  // by key
  std::uint64_t next_key = 1;
  std::set<std::string> problems;
  Tally tally;
  const Options& options() const { return options_; }

 private:
  const std::string policy_;
  const schedule::Environment environment_;  // that of a server, in every other world
  const Options options_;
  static constexpr Duration change_at = 1s;
  Random asks_;                                                  // of what clients ask
  std::set<std::tuple<std::string, DeviceId, ModelId>> loaded_;  // copies, before the change
  TimePoint change_ = TimePoint::max();                          // of the leader, where the world is steady
  TimePoint mute_until_ = TimePoint::min();
  TimePoint now_{1s};
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> calendar_;
  std::uint64_t order_ = 0;
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, int> answers_;
  std::map<PeerId, std::pair<std::shared_ptr<Line>, std::function<void(transport::Message)>>> peers_;
  PeerId next_peer_ = 1;
  int lives_ = 0;
};

void Frontend::send(transport::Message message) {
  cluster.to_leader(line, std::move(message));
}
std::uint64_t Frontend::open(RequestId row, transport::RowTensors tensors) {
  cluster.rows[cluster.next_key] = {this, row, std::move(tensors)};
  return cluster.next_key++;
}
void Frontend::close(std::uint64_t key) {
  cluster.rows.erase(key);
}
void Frontend::model_comes(const wire::Model& model) {
  cluster.plan(cluster.now() + 10us, [this, model] {
    if (names.contains(model.info.name)) return;
    controller::ServedModel served = told_model(static_cast<std::uint32_t>(core->models()), model.info.pages);
    served.info.name = model.info.name;
    served.hash = model.hash;
    const ModelId ours = served.info.id;
    core->book().add_model(served.info.name, 1);
    core->come(std::move(served), cluster.now());
    names[model.info.name] = ours;
  });
}

Worker::Worker(Cluster& of, int number, int life) : cluster(of), id("worker" + std::to_string(number)) {
  core = std::make_unique<controller::Core>(
      [this](controller::Holder&, dispatch::Notes& notes) {
        auto made = std::make_unique<Agent>(static_cast<AgentOut&>(*this), notes);
        agent = lookup.agent = made.get();
        return made;
      },
      &lookup, controller::CoreOptions{});
  for (std::uint32_t d = 0; d < 2; ++d) {
    devices.push_back(
        std::make_unique<VirtualWorker>(static_cast<VirtualWorker::World&>(*this), DeviceId{d}, 4,
                                        Random(static_cast<std::uint64_t>(100 * life + 10 * number) + d)));
    devices.back()->mishaps = cluster.options().steady ? 0 : 1;
    devices.back()->pace = cluster.options().steady ? 3 : 1;
    core->add_device(*devices.back());
  }
  for (std::uint32_t m = 0; m < cluster.models; ++m) {
    for (const auto& device : devices) EXPECT_TRUE(device->add_model({m}, nullptr));
    controller::ServedModel served = told_model(m, devices.front()->pages_of({m}));
    served.info.name = "model" + std::to_string(m);
    core->add_model(std::move(served));
  }
  core->start(cluster.now());
}
void Worker::send(transport::Message message) {
  if (const auto* report = std::get_if<wire::Report>(&message);
      report != nullptr && !report->device_lost && !ordered.contains(report->id))
    problem("a report of what this leader did not order");
  if (!dead) cluster.to_leader(line, std::move(message));
}
std::uint64_t Worker::pull(const std::string&, std::uint64_t key, TimePoint, std::shared_ptr<PulledRow> row) {
  const std::uint64_t ticket = next_ticket++;
  pulling.insert(ticket);
  // Some are still on their way when another leader comes.
  const bool slow = !cluster.options().steady && cluster.random.below(16) == 0;
  cluster.plan(cluster.now() + cluster.delay() * (slow ? 100 : 1), [this, key, row, ticket] {
    pulling.erase(ticket);
    if (dead) return;
    Result<> result;
    const auto found = cluster.rows.find(key);
    if (cancelled.contains(ticket)) {
      result = fail(ErrorCode::cancelled, "cancelled");
    } else if (found == cluster.rows.end()) {
      result = fail(ErrorCode::not_found, "gone");
    } else {
      const auto& inputs = found->second.tensors.inputs;
      const std::uint64_t bytes = inputs[0].size();
      auto to = row->make(found->second.tensors.length, {&bytes, 1});
      if (!to)
        result = std::unexpected(to.error());
      else
        std::ranges::copy(inputs[0], (*to)[0].begin());
    }
    core->react([&](TimePoint at) { agent->pulled(ticket, result, at); }, cluster.now());
  });
  return ticket;
}
std::uint64_t Worker::push(const std::string&, std::uint64_t key, std::shared_ptr<PulledRow> row,
                           const wire::Report& report) {
  const std::uint64_t ticket = next_ticket++;
  cluster.plan(cluster.now() + cluster.delay(), [this, key, row, report, ticket] {
    if (dead) return;
    Result<bool> taken = false;
    const auto found = cluster.rows.find(key);
    if (cluster.random.uniform() < cluster.options().lost_pushes) {
      taken = fail(ErrorCode::unavailable, "lost");
    } else if (found != cluster.rows.end() && !found->second.taken) {
      std::ranges::copy(row->outputs()[0], found->second.tensors.outputs[0].begin());
      found->second.taken = true;
      taken = true;
      Frontend& frontend = *found->second.frontend;
      frontend.core->react([&](TimePoint at) { frontend.offering->outputs(found->second.row, report, at); },
                           cluster.now());
    }
    cluster.plan(cluster.now() + cluster.delay(), [this, ticket, taken] {
      if (!dead) core->react([&](TimePoint at) { agent->pushed(ticket, taken, at); }, cluster.now());
    });
  });
  return ticket;
}
TimePoint Worker::now() const {
  return cluster.now();
}
void Worker::plan(TimePoint at, std::function<void()> what) {
  cluster.plan(at, [this, run = std::move(what)] {
    if (!dead) run();
  });
}
void Worker::result(const worker::ActionResult& result) {
  plan(cluster.now() + 10us, [this, result] { core->on_result(result, cluster.now()); });
}
void Worker::problem(const std::string& what) {
  cluster.problems.insert(what);
}
// Nothing that an earlier leader ordered may begin any more.
void Worker::leads(TimePoint at) {
  for (const auto& device : devices) of_this_leader = std::max(of_this_leader, device->next_id);
  ordered.clear();
  agent->leads(at);
  for (const std::uint64_t ticket : pulling)
    if (!cancelled.contains(ticket)) problem("a row is pulled for an earlier leader");
}
void Worker::begins(ActionId action) {
  if (action.value < of_this_leader) problem("what an earlier leader ordered has begun");
}
void Worker::answer_probes() {
  for (std::uint32_t d = 0; d < devices.size(); ++d) {
    const int asked = std::exchange(devices[d]->probes, 0);
    for (int i = 0; i < asked && !dead; ++i)
      plan(cluster.now() + 50us, [this, d, life = devices[d]->life] {
        core->on_probe({.found = {}, .life = life, .device = DeviceId{d}}, cluster.now());
      });
  }
}

class Clusters : public ::testing::TestWithParam<const char*> {};

TEST_P(Clusters, EachCallHasOneAnswerWhoeverIsKilled) {
  Tally sum;
  const auto seeds = carillon::testing::seeds_from("CARILLON_ROLES", {1, 60});
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    SCOPED_TRACE("CARILLON_ROLES=" + std::to_string(seed));
    const Tally tally = Cluster(GetParam(), seed, {.lost_pushes = seed % 3 == 0 ? 0.05 : 0}).run();
    EXPECT_EQ(tally.wrong, 0);
    sum.calls += tally.calls;
    sum.on_time += tally.on_time;
    sum.leaders += tally.leaders;
    sum.worker_losses += tally.worker_losses;
    sum.reoffered += tally.reoffered;
    sum.late_wins += tally.late_wins;
    if (HasFailure()) break;
  }
  RecordProperty("calls", sum.calls);
  RecordProperty("on_time", sum.on_time);
  if (seeds.last - seeds.first < 20) return;
  EXPECT_GT(sum.on_time, sum.calls / 2);
  EXPECT_GT(sum.leaders, static_cast<int>(seeds.last - seeds.first) + 10);
  EXPECT_GT(sum.worker_losses, 10);
  EXPECT_GT(sum.reoffered, 0U);
  EXPECT_GT(sum.late_wins, 0U);
}

TEST_P(Clusters, NothingIsRefusedWhereThereIsRoom) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Tally tally = Cluster(GetParam(), 1000 + seed, {.kills = false}).run();
    EXPECT_EQ(tally.wrong, 0);
    EXPECT_EQ(tally.reoffered, 0U);
    EXPECT_GT(tally.on_time, tally.calls * 6 / 10) << "of " << tally.calls;
  }
}

// The next leader finds weights and estimates as they are.
TEST_P(Clusters, AChangeOfTheLeaderLosesNothing) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tally without = Cluster(GetParam(), seed, {.kills = false, .steady = true}).run();
    const Tally with = Cluster(GetParam(), seed, {.kills = true, .steady = true}).run();
    EXPECT_EQ(with.leaders, 2);
    EXPECT_EQ(with.second_loads, 0);
    EXPECT_GT(without.second_on_time, 300);
    EXPECT_GE(with.second_on_time, without.second_on_time * 99 / 100);
    EXPECT_EQ(with.wrong, 0);
    EXPECT_EQ(with.expected_before, std::vector<Duration>(5, 3ms));
    EXPECT_EQ(with.expected_after, with.expected_before);
  }
}

// Also where most rows are refused, as workers do not hear the leader either.
TEST_P(Clusters, ALeaderThatIsNotHeardKeepsNoClientWaiting) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tally tally = Cluster(GetParam(), seed, {.kills = false, .steady = true, .mute = true}).run();
    EXPECT_GT(tally.while_mute, 200);
    EXPECT_EQ(tally.latest_after, Offering::word_grace);
    EXPECT_EQ(tally.wrong, 0);
  }
}

TEST_P(Clusters, AWorkerThatIsStoppedOnceItIsDrainedLosesNothing) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tally tally = Cluster(GetParam(), seed, {.kills = false, .steady = true, .drain = true}).run();
    EXPECT_EQ(tally.worker_losses, 1);
    EXPECT_GT(tally.second, 300);
    EXPECT_EQ(tally.second_on_time, tally.second);
    EXPECT_EQ(tally.wrong, 0);
  }
}

TEST_P(Clusters, AFrontendThatIsBackBeforeTheWorkersLosesNothing) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tally tally = Cluster(GetParam(), seed, {.kills = false, .steady = true, .cut_all = true}).run();
    EXPECT_EQ(tally.leaders, 1);
    EXPECT_GT(tally.second, 300);
    EXPECT_EQ(tally.second_on_time, tally.second);
    EXPECT_EQ(tally.wrong, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Clusters,
                         ::testing::Values("clockwork", "symphony", "fcfs", "edf", "orloj"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace carillon::roles
