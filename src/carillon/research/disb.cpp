#include "carillon/research/disb.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/base/range.h"
#include "carillon/workload/disb_client.h"

namespace carillon::research {
namespace {

using workload::DisbClient;

class Run final : UnitObserver {
 public:
  Run(const workload::DisbWorkload& workload, const profile::KernelTable& table, const DisbOptions& options,
      std::unique_ptr<Sharing> sharing)
      : workload_(workload),
        options_(options),
        sharing_(std::move(sharing)),
        device_(table.units, workload.clients.size(), options.device, options.seed ^ 0x9e3779b97f4a7c15ULL,
                observers()),
        end_(TimePoint{} + workload.length) {
    Random random(options.seed);
    for (const DisbClient& client : workload.clients) {
      const profile::ModelKernels& model = *table.find(client.model);
      const auto found = plans_.find(&model);
      const std::uint32_t plan = found != plans_.end() ? found->second : add_plan(model, table.units);
      plans_[&model] = plan;
      clients_.push_back(
          {.queue = sharing_->add_queue(client.cls),
           .plan = plan,
           .arrivals = workload::DisbArrivals(client, random.split()),
           .sender = workload::DisbSender(client.arrivals == DisbClient::Arrivals::closed_loop)});
      figures_.clients.push_back({.name = client.name, .model = model.names.front(), .cls = client.cls});
    }
    figures_.length = workload.length;
  }

  DisbFigures run() {
    for (std::size_t i = 0; i < clients_.size(); ++i) plan_next(i);
    TimePoint said;
    while (true) {
      const TimePoint arrival = arrivals_.empty() ? TimePoint::max() : arrivals_.top().first;
      now_ = std::min({device_.next(), arrival, tick_});
      if (now_ > end_) break;
      ++figures_.events;
      if (device_.next() == now_) {
        const auto event = device_.step();
        if (!event) {
          if (!go_on(said)) break;
          continue;
        }
        const auto call = event->kind == UnitDevice::Event::Kind::ended ? &Sharing::ended : &Sharing::evicted;
        tick_ = (*sharing_.*call)(event->queue, now_, commands_);
      } else if (arrival == now_) {
        const std::size_t client = arrivals_.top().second;
        arrivals_.pop();
        arrive(client);
      } else {
        tick_ = sharing_->tick(now_, commands_);
      }
      carry_out();
      if (!go_on(said)) break;
    }
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      figures_.clients[i].requests = clients_[i].sender.requests();
      figures_.clients[i].dropped = clients_[i].sender.dropped();
      figures_.clients[i].unfinished = clients_[i].sender.unfinished();
    }
    return std::move(figures_);
  }

 private:
  // Tells how far the run is, now and then; false where it is to end.
  bool go_on(TimePoint& said) {
    if (options_.progress == nullptr || (now_ - said < 1s && figures_.events % 16'384 != 0)) return true;
    said = now_;
    return options_.progress(to_seconds(now_ - TimePoint{}) / to_seconds(workload_.length), options_.user);
  }

  struct Client {
    Queue queue = 0;
    std::uint32_t plan = 0;
    workload::DisbArrivals arrivals;
    workload::DisbSender sender;
    TimePoint sent;  // when the request under way was planned
    // Unit time of the launch that is on the device, and of that beside real-time runs.
    Duration spent{0}, beside{0};
  };

  std::vector<UnitObserver*> observers() {
    std::vector<UnitObserver*> all{this};
    if (options_.observer != nullptr) all.push_back(options_.observer);
    return all;
  }

  std::uint32_t add_plan(const profile::ModelKernels& model, int units) {
    std::vector<KernelShape> shapes;
    shapes.reserve(model.kernels.size());
    for (const auto& kernel : model.kernels)
      shapes.push_back({.blocks = kernel.blocks, .rounds = kernel.rounds});
    // The kernels' times were taken one by one, and have what it takes to launch one in them, which a model
    // whose kernels are launched ahead does not spend: the plan alone takes what the model was measured to
    // take.
    const KernelPlan measured(shapes, units);
    const double scale = to_seconds(model.latency) / to_seconds(measured.alone());
    figures_.models.push_back({.model = model.names.front()});
    return sharing_->add_plan(KernelPlan(shapes, units, scale));
  }

  void plan_next(std::size_t client) {
    const TimePoint at = clients_[client].arrivals.next();
    if (at < end_) arrivals_.emplace(at, client);
  }

  void arrive(std::size_t index) {
    plan_next(index);
    if (clients_[index].sender.planned(now_)) send(index, now_);
  }

  void send(std::size_t index, TimePoint planned) {
    Client& client = clients_[index];
    client.sent = planned;
    const bool real_time = figures_.clients[index].cls == Class::real_time;
    if (real_time && !sharing_->real_time() && device_.free_units() < device_.units())
      preempting_ = std::pair(client.queue, now_);
    const RunSpec spec{.run = index, .plan = client.plan, .deadline = planned};
    if (options_.observer != nullptr)
      options_.observer->run_asked(client.queue, spec, figures_.clients[index].cls, now_);
    tick_ = sharing_->submit(client.queue, spec, now_, commands_);
  }

  void carry_out() {
    while (!commands_.empty()) {
      carried_.swap(commands_);
      for (const ShareCommand& command : carried_) {
        switch (command.kind) {
          case ShareCommand::Kind::launch: {
            ++figures_.launches;
            const KernelPlan& plan = sharing_->plan(command.plan);
            device_.launch(command, plan.rounds(plan.kernel(command.kernel)), now_);
            break;
          }
          case ShareCommand::Kind::evict:
            device_.evict(command.queue, command.kill, now_);
            break;
          case ShareCommand::Kind::finished:
            finished(command.run);
            break;
        }
      }
      carried_.clear();
      while (!again_.empty()) {
        const auto [client, planned] = again_.front();
        again_.pop_front();
        send(client, planned);
      }
    }
  }

  void finished(std::uint64_t run) {
    Client& client = clients_[run];
    if (options_.observer != nullptr) options_.observer->run_finished(client.queue, run, now_);
    figures_.clients[run].latencies.push_back(now_ - client.sent);
    if (const auto next = client.sender.answered(now_)) again_.emplace_back(run, *next);
  }

  // --- What units do.
  void round_started(Queue queue, const ShareCommand&, int, int, TimePoint at, TimePoint) override {
    if (!preempting_ || preempting_->first != queue) return;
    figures_.preemptions.push_back(at - preempting_->second);
    preempting_ = std::nullopt;
  }
  void round_ended(Queue queue, const ShareCommand&, int units, int, TimePoint started,
                   TimePoint at) override {
    const Duration time = (at - started) * units;
    figures_.busy += time;
    clients_[queue].spent += time;
    if (sharing_->real_time()) clients_[queue].beside += time;
  }
  void round_killed(Queue queue, const ShareCommand&, int units, int, TimePoint started,
                    TimePoint at) override {
    const Duration time = (at - started) * units;
    figures_.busy += time;
    clients_[queue].spent += time;
  }
  void launch_ended(Queue queue, const ShareCommand& command, TimePoint) override {
    Client& client = clients_[queue];
    DisbModelFigures& model = figures_.models[command.plan];
    if (figures_.clients[queue].cls == Class::real_time) {
      model.real_time += client.spent;
    } else if (command.again) {
      model.lost += client.spent;
    } else {
      model.best_effort += client.spent;
      model.padded += client.beside;
    }
    client.spent = client.beside = Duration{0};
  }
  void launch_killed(Queue queue, const ShareCommand& command, TimePoint) override {
    Client& client = clients_[queue];
    DisbModelFigures& model = figures_.models[command.plan];
    model.lost += client.spent;
    ++model.killed;
    client.spent = client.beside = Duration{0};
  }

  const workload::DisbWorkload& workload_;
  const DisbOptions& options_;
  std::unique_ptr<Sharing> sharing_;
  UnitDevice device_;
  TimePoint end_;
  TimePoint now_, tick_ = TimePoint::max();
  std::map<const profile::ModelKernels*, std::uint32_t> plans_;
  std::vector<Client> clients_;
  std::priority_queue<std::pair<TimePoint, std::size_t>, std::vector<std::pair<TimePoint, std::size_t>>,
                      std::greater<>>
      arrivals_;
  std::deque<std::pair<std::size_t, TimePoint>> again_;
  ShareCommands commands_, carried_;
  std::optional<std::pair<Queue, TimePoint>> preempting_;  // whose first kernel has not started, since when
  DisbFigures figures_;
};

Result<> check(const UnitDeviceOptions& options) {
  const auto time = [](const char* name, Duration value) {
    return within<std::int64_t>(name, value.count(), 0, 1'000'000'000);
  };
  for (const Result<>& checked :
       {time("dispatch (ns)", options.dispatch), time("reset_host (ns)", options.reset_host),
        time("dismiss (ns)", options.dismiss), time("kill (ns)", options.kill),
        within("pipes", options.pipes, 1, 1024), within("interference", options.interference, 0.0, 10.0),
        within("noise", options.noise, 0.0, 1.0)})
    if (!checked) return checked;
  return {};
}

// What a run of the model takes, and its longest round once scaled, must leave room on the timeline.
Result<> check(const profile::ModelKernels& model, const std::string& device) {
  double alone = 0, longest = 0;
  for (const auto& kernel : model.kernels) {
    double deepest = 0;
    for (const Duration round : kernel.rounds) deepest = std::max(deepest, to_seconds(round));
    longest = std::max(longest, deepest);
    alone += deepest * kernel.blocks;
  }
  const std::string where = "kernel table of " + device + ", model " + model.names.front() + ": ";
  if (alone > 1e8) return invalid(where + "its kernels take more than 1e8 s of unit time");
  double least = 0;  // on as many units as there are blocks
  for (const auto& kernel : model.kernels) least += to_seconds(kernel.rounds.front());
  if (longest * to_seconds(model.latency) / least > 100)
    return invalid(where + "a round takes more than 100 s where the model alone takes its latency");
  return {};
}

}  // namespace

Result<DisbFigures> run_disb(const workload::DisbWorkload& workload, const profile::KernelTable& table,
                             const DisbOptions& options) {
  if (const auto checked = check(options.device); !checked) return std::unexpected(checked.error());
  for (const DisbClient& client : workload.clients) {
    if (table.find(client.model) != nullptr) continue;
    std::string known;
    for (const auto& model : table.models)
      known.append(known.empty() ? "" : ", ").append(model.names.front());
    return fail(ErrorCode::not_found, "workload " + workload.name + ", client " + client.name + ": model '" +
                                          client.model + "' is not in the kernel table of " + table.device +
                                          "; it has " + known);
  }
  for (const auto& model : table.models)
    if (const auto checked = check(model, table.device); !checked) return std::unexpected(checked.error());
  SharingOptions sharing = options.sharing;
  sharing.units = table.units;
  sharing.dispatch = options.device.dispatch;
  auto made = make_sharing(options.scheduler, sharing);
  if (!made) return std::unexpected(made.error());
  return Run(workload, table, options, std::move(*made)).run();
}

}  // namespace carillon::research
