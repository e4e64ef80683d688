#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/profile/kernel_table.h"
#include "carillon/research/disb_report.h"
#include "carillon/research/sharing/sharing.h"
#include "carillon/research/unit_device.h"
#include "carillon/server/device.h"
#include "carillon/workload/disb.h"

namespace carillon::cli {

// What `carillon disb` was told.
struct DisbArguments {
  std::string workload;
  bool simulate = false;
  std::vector<std::string> schedulers;
  std::string kernels;
  std::uint64_t seed = 1;
  double duration_s = 0;  // 0: the workload's; live, live_seconds
  std::string scale;      // a number or "auto"; empty: auto where it is live, else 1
  bool json = false;
  std::string plot;

  // Simulated runs.
  int jobs = 0;
  int in_flight = research::SharingOptions{}.in_flight;
  double in_flight_us = to_us(research::SharingOptions{}.in_flight_time);
  double best_effort_share = 0;
  bool no_look_ahead = false, no_padding = false, knows_kernel = false;
  double margin = research::SharingOptions{}.margin;
  double slowdown = research::SharingOptions{}.slowdown;
  double noise = 0;
  double interference = research::UnitDeviceOptions{}.interference;
  double dispatch_us = to_us(research::UnitDeviceOptions{}.dispatch);

  // Live ones.
  std::string models = "build/samples";
  server::DeviceArguments device;
  double warm_up_s = 2;
  double stop_cost = engine::usual_stop_cost;
};
inline constexpr double live_seconds = 20;

int fail_disb(const Error& error);  // says it, and returns the exit status
// "reef, rt-only, ...".
std::string scheduler_list();
// Each once, in the order given; "all" for all of them.
Result<std::vector<std::string>> schedulers_of(const DisbArguments& arguments);
// The workload as it is written: one that the program brings with it, or a file.
Result<workload::DisbWorkload> read_workload(const DisbArguments& arguments);
// --kernels, or the table that the program brings with it.
Result<profile::KernelTable> read_kernels(const DisbArguments& arguments);
// A number of --scale; nothing for "auto".
Result<std::optional<double>> scale_of(const DisbArguments& arguments);
// Whether --plot can be written, before there is anything to write.
Result<> check_plot(const DisbArguments& arguments);
// What all runs gave, as text or JSON on standard output, and --plot; returns the exit status.
int show_runs(const DisbArguments& arguments, const std::vector<research::DisbReport>& reports);

int simulate_disb(const DisbArguments& arguments);
int run_disb_live(const DisbArguments& arguments);

}  // namespace carillon::cli
