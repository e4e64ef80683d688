#include "carillon/server/planned.h"

#include <optional>
#include <string>

#include <spdlog/spdlog.h>

#include "carillon/cli/commands.h"
#include "carillon/cli/serve/doors.h"
#include "carillon/cli/serve/run.h"

namespace carillon::cli::serving {

int run_planned(const Arguments& arguments, const controller::Options& options,
                const frontend::Options& doors, const SignalWait& signals, const Supervised& supervised,
                const Memory& memory, const Clock& clock) {
  if (!arguments.record.empty() || !arguments.profile.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan goes with neither --record nor --profile: each workload has a scheduler "
                     "of its own, and is measured at its share"});
  if (!arguments.train.socket.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan does not go with --train: the plan's shares of the device are all taken"});
  const server::DeviceArguments& wanted = arguments.devices.each;
  if (arguments.stop_cost || wanted.best_effort_streams > 0 || wanted.real_time_threads > 0)
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan goes with none of --stop-cost, --best-effort-streams and --real-time-threads: a "
                     "workload's requests run one after the other, in its share, whatever their class"});
  const auto devices = server::list_devices(arguments.devices);
  if (!devices) return complain(exit_usage, devices.error());
  if (devices->size() != 1 || !arguments.devices.faults.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan serves one device of the plan: give it one --device, cpu or cuda, and no "
                     "--emulated-faults"});
  server::PlannedOptions planned{
      .models = arguments.models,
      .reading = {.follow_links = arguments.follow_links},
      .plan = arguments.plan,
      .number = arguments.plan_device > 0 ? std::optional(arguments.plan_device) : std::nullopt,
      .standbys = !arguments.no_standby,
      .scheduler = arguments.scheduler,
      .environment = environment_of(arguments),
      .controller = options,
      .device = devices->front(),
      .memory = memory.account,
      .tell = [manager = supervised.manager.get()](const std::string& text) {
        spdlog::info("{}", text);
        manager->progress(text);
      }};
  auto server = server::PlannedServer::start(planned, clock);
  if (!server) return complain(exit_failure, server.error());
  const auto watched = supervised.watch((*server)->service());
  {
    signals.hold();  // the ports say at once that it is ready
    auto frontend = open_doors((*server)->service(), arguments, doors, memory);
    if (!frontend) return complain(exit_failure, frontend.error());
    tell_ready(**frontend, arguments, *supervised.manager,
               fmt::format("{} workloads of the plan", (*server)->workloads()));
    serve(**frontend, arguments, signals, options, *supervised.manager, memory, doors.spans.get());
  }
  (*server)->stop();
  spdlog::info("stopped");
  return exit_success;
}

}  // namespace carillon::cli::serving
