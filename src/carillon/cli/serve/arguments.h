#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cli/door_options.h"
#include "carillon/cli/otlp_options.h"
#include "carillon/cli/safety_options.h"
#include "carillon/cli/train.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/gates/sizes.h"
#include "carillon/repository/repository.h"
#include "carillon/roles/follower.h"
#include "carillon/schedule/registry.h"
#include "carillon/server/devices.h"
#include "carillon/server/store.h"
#include "carillon/server/whole.h"
#include "carillon/transport/tls.h"

namespace carillon::cli::serving {

// How a process joins a cluster.
struct ClusterArguments {
  std::string cluster;  // empty: the process serves by itself
  std::string id;       // empty: the host's name
  std::string listen;
  std::optional<std::uint32_t> order;  // of a worker; none: as its id says
  std::string key_file, other_key_file;
  transport::TlsFiles tls;  // none is given, or all
};

// What `carillon serve`, or a role of a cluster, was told.
struct Arguments {
  ClusterArguments cluster;
  std::string models;
  std::vector<std::string> model;
  std::vector<repository::ModelFile> files;  // that `model` names
  bool follow_links = false;
  server::ModelControlMode control = server::ModelControlMode::none;
  double poll_s = 15;
  std::vector<std::string> load;
  std::string scheduler = "carillon";
  std::string record;
  std::string http = "0.0.0.0:8000";
  std::string grpc = "0.0.0.0:8001";
  std::string metrics = "0.0.0.0:8002";
  std::string keda;                                         // empty: off
  double autoscale_period_s = 15, autoscale_quiet_s = 300;  // of a scheduler
  SafetyArguments safety;
  std::string profile;
  std::string partition;
  std::string plan;
  int plan_device = 0;
  bool no_standby = false;
  double default_deadline_ms = 0;
  std::optional<double> stop_cost;
  bool plans_at_once = false;
  std::size_t max_open = 1 << 16;
  std::size_t journal = 10'000;
  std::size_t sizes = controller::SizeOptions{}.most;
  std::string sizes_memory;
  std::string memory = "auto";
  double profile_share = schedule::live_environment().profile_share;
  bool length_blind = false;
  int http_threads = 1;
  DoorArguments doors;
  double drain_s = 10;
  bool strict_readiness = true;
  std::string access_log;
  double trace_sample = 0;
  OtlpArguments otlp;
  bool empty_histograms = false;
  std::string log_level = "info";
  std::string preempt;
  std::string admission;
  std::optional<double> miss_rate;
  double hang_after_ms = to_ms(schedule::live_environment().hangs_after);
  server::DevicesArguments devices;
  TrainArguments train;
  server::StoreArguments store;
};

schedule::Environment environment_of(const Arguments& arguments);

// As far as the command line says.
controller::Options controller_options(const Arguments& arguments, const Clock& clock);

// The CPU's number among the devices, where it is one.
std::optional<DeviceId> cpu_of(const Arguments& arguments);

// Errors: an address, an id or a file that cannot be.
Result<roles::MemberArguments> member_of(const ClusterArguments& arguments, cluster::Role role);

// What the process was started as.
inline std::string command_name = "serve";

// Says why the server does not start, or ends; returns `status`.
int complain(int status, const Error& error);

// Progress and logs go to standard error: standard output stays free for what is asked for.
void begin_log(const Arguments& arguments);

}  // namespace carillon::cli::serving
