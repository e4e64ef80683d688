#include "carillon/cli/serve/arguments.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/cli/admission_option.h"
#include "carillon/cli/environment.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/tls_options.h"
#include "carillon/cluster/coordinator/static_file.h"

namespace carillon::cli::serving {

schedule::Environment environment_of(const Arguments& arguments) {
  schedule::Environment environment = schedule::live_environment();
  environment.hangs_after = from_ms(arguments.hang_after_ms);
  environment.profile_share = arguments.profile_share;
  environment.preemption = preemption_of(arguments.preempt, arguments.scheduler);
  environment.admission = admits_on_arrival(arguments.admission, arguments.scheduler);
  if (arguments.miss_rate) environment.miss_rate = *arguments.miss_rate;
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

controller::Options controller_options(const Arguments& arguments, const Clock& clock) {
  controller::Options options;
  options.turned_away = std::make_shared<std::atomic<std::uint64_t>>(0);
  options.core.max_open = arguments.max_open;
  // Twice for each look of a watchdog, which has eight until a device hangs.
  options.core.slow_after = std::clamp<Duration>(from_ms(arguments.hang_after_ms) / 16, 5ms, 100ms);
  options.core.journal = controller::make_journal(arguments.journal, clock);
  options.core.by_length = !arguments.length_blind;
  options.core.timeline = 8192;  // a megabyte: some seconds of a busy server
  options.core.on_device = [](const controller::DeviceNews& news) {
    if (news.alive)
      spdlog::warn("device {} is back, with empty memory", news.device.value);
    else
      spdlog::warn("device {} is taken out: {}", news.device.value, news.why);
  };
  if (arguments.default_deadline_ms > 0)
    options.core.default_deadline = from_ms(arguments.default_deadline_ms);
  options.sizes.most = arguments.sizes;
  return options;
}

namespace {

Result<std::string> read_key(std::string_view option, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string key(std::istreambuf_iterator<char>(in), {});
  if (!in) return invalid(fmt::format("{}: cannot read '{}'", option, file));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  constexpr std::size_t least = 16, most = 4096;
  if (key.size() < least || key.size() > most)
    return invalid(fmt::format("{}: '{}' has {} bytes, {} to {}", option, file, key.size(), least, most));
  return key;
}

// IP:PORT or HOST:PORT.
bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]:") || address.starts_with("localhost:");
}

}  // namespace

Result<roles::MemberArguments> member_of(const ClusterArguments& arguments, cluster::Role role) {
  auto coordinator = cluster::parse_coordinator_address(arguments.cluster);
  if (!coordinator) return in_context("--cluster", coordinator.error());
  roles::MemberArguments out{.coordinator = *std::move(coordinator),
                             .role = role,
                             .id = arguments.id,
                             .listen = arguments.listen,
                             .key = {}};
  if (out.id.empty()) {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0)
      return invalid("--id is needed: the host has no name");
    out.id = name.data();
  }
  if (out.coordinator.is_static()) {
    const auto file = cluster::read_static_cluster(out.coordinator.file);
    if (!file) return in_context("--cluster", file.error());
    out.coordinator.name = file->name;
    const auto self = std::ranges::find(file->members, out.id, &cluster::Member::id);
    if (self == file->members.end())
      return in_context("--cluster", cluster::check_self(*file, {.id = out.id, .role = role, .address = {}},
                                                         out.coordinator.file)
                                         .error());
    if (out.listen.empty()) out.listen = self->address;
  }
  const auto protocols = protocols_of_environment();
  if (!protocols) return std::unexpected(protocols.error());
  out.protocols = *protocols;
  out.build = CARILLON_VERSION;
  if (out.protocols != cluster::own_protocols)
    spdlog::warn("cluster: CARILLON_PROTOCOLS has this build speak {}, which is for tests alone",
                 to_text(out.protocols));
  if (out.listen.empty())
    return invalid("--listen is needed: IP:PORT where the other members reach this process");
  if (auto can_be = roles::member_options(out); !can_be) return std::unexpected(can_be.error());
  if (is_loopback(out.listen) && !out.coordinator.endpoints.empty() &&
      std::ranges::none_of(out.coordinator.endpoints, is_loopback))
    spdlog::warn(
        "--listen {}: only this host can reach that address, and etcd is on another: members there "
        "cannot. Give an address of this host that they reach",
        out.listen);
  auto tls = open_tls(arguments.tls);
  if (!tls) return std::unexpected(tls.error());
  out.tls = *std::move(tls);
  if (out.tls != nullptr) {
    if (auto named = transport::check_member(out.tls->identity(), out.coordinator.name, role, out.id); !named)
      return in_context("--cluster-cert " + arguments.tls.certificate, named.error());
    spdlog::info("cluster: TLS as {}, until {}", transport::to_text(out.tls->identity()), out.tls->expires());
    if (arguments.key_file.empty())
      spdlog::warn("cluster: TLS does not cover beats: without --cluster-key anybody can forge them");
  }
  out.key = "carillon cluster " + out.coordinator.name;
  if (!arguments.key_file.empty()) {
    auto key = read_key("--cluster-key", arguments.key_file);
    if (!key) return std::unexpected(key.error());
    out.key = *std::move(key);
  }
  if (!arguments.other_key_file.empty()) {
    auto key = read_key("--other-cluster-key", arguments.other_key_file);
    if (!key) return std::unexpected(key.error());
    out.other_key = *std::move(key);
  }
  return out;
}

int complain(int status, const Error& error) {
  fmt::print(stderr, "carillon {}: {}\n", command_name, error.message);
  return status;
}

void begin_log(const Arguments& arguments) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("carillon"));
  spdlog::set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(arguments.log_level));
}

}  // namespace carillon::cli::serving
