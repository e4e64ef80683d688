#include "carillon/cli/disb/arguments.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/files.h"
#include "carillon/cli/commands.h"
#include "carillon/research/disb.h"

namespace carillon::cli {

int fail_disb(const Error& error) {
  fmt::print(stderr, "carillon disb: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

std::string scheduler_list() {
  std::string all;
  for (const std::string_view name : research::sharing_names())
    all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

Result<std::vector<std::string>> schedulers_of(const DisbArguments& arguments) {
  std::vector<std::string> wanted;
  const auto want = [&](std::string_view name) {
    if (std::ranges::find(wanted, name) == wanted.end()) wanted.emplace_back(name);
  };
  for (const std::string& name : arguments.schedulers) {
    if (name == "all")
      for (const std::string_view each : research::sharing_names()) want(each);
    else if (std::ranges::find(research::sharing_names(), name) != research::sharing_names().end())
      want(name);
    else
      return invalid("--scheduler '" + name + "': there is none of that name; there are " + scheduler_list() +
                     ", and all");
  }
  if (wanted.empty()) want(research::DisbOptions{}.scheduler);
  return wanted;
}

Result<workload::DisbWorkload> read_workload(const DisbArguments& arguments) {
  auto workload = workload::disb_workload(arguments.workload);
  if (!workload) {
    auto file = workload::read_disb(arguments.workload);
    if (!file && file.error().code == ErrorCode::not_found)
      return fail(ErrorCode::not_found, workload.error().message + ", and no such file");
    workload = std::move(file);
  }
  return workload;
}

Result<profile::KernelTable> read_kernels(const DisbArguments& arguments) {
  if (arguments.kernels.empty()) return profile::mi50_kernel_table();
  return profile::read_kernel_table(arguments.kernels);
}

Result<std::optional<double>> scale_of(const DisbArguments& arguments) {
  const std::string& text = arguments.scale;
  if (text.empty() || text == "auto") {
    if (arguments.simulate && !text.empty())
      return invalid(
          "--scale auto is of live runs: the device of --simulate is the one that it would scale to");
    return std::nullopt;
  }
  double scale = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  if (error != std::errc{} || end != text.data() + text.size() || !(scale >= 1e-3 && scale <= 1e3))
    return invalid("--scale: '" + text + "' should be a number of 0.001 to 1000" +
                   (arguments.simulate ? "" : ", or auto"));
  return scale;
}

Result<> check_plot(const DisbArguments& arguments) {
  if (arguments.plot.empty()) return {};
  std::error_code unknown;
  const bool there = std::filesystem::exists(arguments.plot, unknown);
  const bool writable = std::ofstream(arguments.plot, std::ios::app).good();
  const int why = errno;
  if (!there) std::filesystem::remove(arguments.plot, unknown);
  if (!writable)
    return fail(ErrorCode::internal,
                "--plot: cannot write '" + arguments.plot + "': " + std::generic_category().message(why));
  return {};
}

int show_runs(const DisbArguments& arguments, const std::vector<research::DisbReport>& reports) {
  // A file's name need not be UTF-8, but JSON is.
  constexpr auto replace_bad = nlohmann::json::error_handler_t::replace;
  if (!arguments.plot.empty()) {
    if (auto written = write_file(arguments.plot, research::to_svg(reports)); !written)
      return fail_disb(in_context("--plot", written.error()).error());
  }
  if (!arguments.json) {
    fmt::print("{}", research::to_table(reports));
  } else if (reports.size() == 1) {
    fmt::print("{}\n", research::to_json(reports.front()).dump(2, ' ', false, replace_bad));
  } else {
    nlohmann::ordered_json all{{"workload", reports.front().workload},
                               {"runs", nlohmann::ordered_json::array()}};
    for (const research::DisbReport& report : reports) all["runs"].push_back(research::to_json(report));
    fmt::print("{}\n", all.dump(2, ' ', false, replace_bad));
  }
  return exit_success;
}

}  // namespace carillon::cli
