#include "carillon/cli/serve/arguments.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "carillon/cli/admission_option.h"
#include "carillon/cli/preempt_option.h"

namespace carillon::cli::serving {

schedule::Environment environment_of(const Arguments& arguments) {
  schedule::Environment environment = schedule::live_environment();
  environment.hangs_after = from_ms(arguments.hang_after_ms);
  environment.profile_share = arguments.profile_share;
  environment.preemption = preemption_of(arguments.preempt, arguments.scheduler);
  environment.admission = admits_on_arrival(arguments.admission, arguments.scheduler);
  // Who comes to an idle device finds it lent.
  if (!arguments.train.socket.empty())
    environment.dispatch = environment.dispatch + from_ms(arguments.train.freeze_ms);
  return environment;
}

std::optional<DeviceId> cpu_of(const Arguments& arguments) {
  const auto listed = server::list_devices(arguments.devices);
  if (!listed) return std::nullopt;
  const auto cpu = std::ranges::find(*listed, "cpu", &server::DeviceArguments::device);
  if (cpu == listed->end()) return std::nullopt;
  return DeviceId{static_cast<DeviceId::rep>(cpu - listed->begin())};
}

int complain(int status, const Error& error) {
  fmt::print(stderr, "carillon serve: {}\n", error.message);
  return status;
}

}  // namespace carillon::cli::serving
