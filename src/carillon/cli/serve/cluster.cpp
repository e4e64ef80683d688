#include <csignal>
#include <cstdlib>
#include <utility>

#include <spdlog/spdlog.h>

#include "carillon/base/processors.h"
#include "carillon/cli/admission_option.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/headroom.h"
#include "carillon/cli/partition_option.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/serve/doors.h"
#include "carillon/cli/serve/run.h"
#include "carillon/frontend/admin/metrics.h"
#include "carillon/frontend/admin/metrics_door.h"
#include "carillon/frontend/grpc/external_scaler.h"
#include "carillon/roles/frontend_host.h"
#include "carillon/roles/metrics.h"
#include "carillon/roles/scheduler_host.h"
#include "carillon/schedule/registry.h"
#include "carillon/transport/stream.h"

namespace carillon::cli::serving {
namespace {

void warn(const std::string& text) {
  spdlog::warn("{}", text);
}

}  // namespace

int run_frontend(Arguments& arguments) {
  begin_log(arguments);
  transport::wait_at_own_sockets();
  const auto member = member_of(arguments.cluster, cluster::Role::frontend);
  if (!member) return complain(exit_usage, member.error());
  arguments.devices.each.processors = std::make_shared<UsableProcessors>();
  std::signal(SIGPIPE, SIG_IGN);
  const auto supervised = find_supervisor();
  if (!supervised) return complain(exit_failure, supervised.error());
  SignalWait signals([](const std::string& text) { spdlog::info("{}", text); });
  static const SteadyClock clock;
  auto doors = doors_of(arguments);
  if (!doors) return complain(exit_usage, doors.error());
  const auto spans_go_to = otlp_target(arguments);
  if (!spans_go_to) return complain(exit_usage, spans_go_to.error());
  signals.on_hangup([doors = *doors, manager = supervised->manager.get()] {
    manager->reload(clock.now(),
                    [&] { reload(doors, [](const std::string& text) { spdlog::info("{}", text); }); });
  });
  if (const auto free = frontend::check_addresses(*doors); !free) return complain(exit_failure, free.error());
  const auto memory = plan_memory_of(arguments, false);
  if (!memory) return complain(memory.error().first, memory.error().second);
  const controller::Options options = controller_options(arguments, clock);
  doors->spans = export_spans(*spans_go_to, &*member, options.core.journal);
  auto host = roles::FrontendHost::open(*member, options, clock, warn,
                                        arguments.control == server::ModelControlMode::explicit_orders,
                                        rows_to(doors->spans));
  if (!host) return complain(exit_failure, host.error());
  doors->more_metrics = [&host] { return roles::cluster_text((*host)->figures()); };
  {
    const auto watched = supervised->watch((*host)->service());
    signals.hold();
    auto frontend = open_doors((*host)->service(), arguments, *doors, *memory);
    if (!frontend) return complain(exit_failure, frontend.error());
    tell_ready(**frontend, arguments, *supervised->manager, "frontend '" + member->id + "'");
    serve(**frontend, arguments, signals, options, *supervised->manager, *memory, doors->spans.get());
  }
  (*host)->stop();
  spdlog::info("stopped");
  return exit_success;
}

int run_scheduler(const Arguments& arguments) {
  begin_log(arguments);
  transport::wait_at_own_sockets();
  const auto member = member_of(arguments.cluster, cluster::Role::scheduler);
  if (!member) return complain(exit_usage, member.error());
  std::signal(SIGPIPE, SIG_IGN);
  const auto supervised = find_supervisor();
  if (!supervised) return complain(exit_failure, supervised.error());
  SignalWait signals([](const std::string& text) { spdlog::info("{}", text); });
  static const SteadyClock clock;
  if (auto preempts = check_preempt(arguments.preempt, arguments.scheduler); !preempts)
    return complain(exit_usage, preempts.error());
  if (auto admits = check_admission(arguments.admission, arguments.scheduler); !admits)
    return complain(exit_usage, admits.error());
  schedule::Environment environment = environment_of(arguments);
  environment.profile_share = 0;  // no row is kept
  if (auto made = schedule::make_scheduler(arguments.scheduler, environment); !made)
    return complain(exit_usage, made.error());
  const auto spans_go_to = otlp_target(arguments);
  if (!spans_go_to) return complain(exit_usage, spans_go_to.error());
  const auto partition = std::make_shared<PartitionFile>(arguments.partition);
  const auto spans = export_spans(*spans_go_to, &*member, nullptr);
  roles::SchedulerHost::Options options{
      .make_scheduler = [&] { return schedule::make_scheduler(arguments.scheduler, environment).value(); },
      .leader = {.demand = {.period = from_seconds(arguments.autoscale_period_s),
                            .quiet = from_seconds(arguments.autoscale_quiet_s)}},
      .warn = warn,
      .traced = rows_to(spans)};
  if (partition->given()) {
    if (auto read = partition->read(options.leader.max_devices); !read)
      return complain(exit_usage, read.error());
    options.make_subclusters = [&] {
      return schedule::make_subclusters(arguments.scheduler, environment, partition->lead()).value();
    };
    options.division = [&](bool leads) { return partition->hash(leads); };
  }
  auto host = roles::SchedulerHost::open(*member, std::move(options), clock);
  if (!host) return complain(exit_failure, host.error());
  const roles::SchedulerHost& scheduler = **host;
  std::string ports;
  std::unique_ptr<frontend::MetricsDoor> metrics;
  if (!arguments.metrics.empty()) {
    auto opened = frontend::MetricsDoor::open(
        arguments.metrics,
        [&scheduler, &spans] {
          return frontend::wanted_text(scheduler.own_wanted()) + roles::cluster_text(scheduler.figures()) +
                 (spans != nullptr ? frontend::spans_text(spans->counts(), spans->requests_dropped())
                                   : std::string());
        },
        warn);
    if (!opened) return complain(exit_failure, opened.error());
    metrics = std::move(*opened);
    ports += fmt::format(", metrics port {}", metrics->port());
  }
  std::unique_ptr<frontend::ScalerServer> scaler;
  if (!arguments.keda.empty()) {
    auto opened = frontend::ScalerServer::start([&scheduler] { return scheduler.wanted(); },
                                                {.address = arguments.keda, .log = warn});
    if (!opened) return complain(exit_failure, opened.error());
    scaler = std::move(*opened);
    ports += fmt::format(", KEDA port {}", scaler->port());
  }
  if (partition->given()) {
    partition->begin([&](const schedule::GroupsOfModels& division) { return (*host)->divide(division); });
    signals.on_hangup([partition, manager = supervised->manager.get()] {
      manager->reload(clock.now(), [&] { partition->read_again(); });
    });
  }
  signals.hold();
  spdlog::info("ready: scheduler '{}', policy {}{}; Ctrl-C stops", member->id, arguments.scheduler, ports);
  supervised->manager->ready("ready");
  signals.wait();
  supervised->manager->stopping("stopping", std::chrono::seconds{5});
  scaler.reset();
  metrics.reset();
  partition->end();
  host->reset();
  if (spans != nullptr) spans->stop(flush_of_spans);
  spdlog::info("stopped");
  return exit_success;
}

}  // namespace carillon::cli::serving
