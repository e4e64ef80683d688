// How fast is the CPU engine on one model, and where does the time go?
//
//   carillon_engine_bench --model FILE.onnx [--batch N] [--threads T] [--precision f32|bf16] [--seconds S]
//                         [--choose SECONDS] [--choices FILE] [--kernels] [--json] [--rounds] [--sizes N,N,...]
//
// With --rounds it waits for lines "SECONDS" on standard input and answers each with a JSON line: so that
// compare_engines.py can let several engines take turns. With --sizes it asks an open model for each of these
// extents, one after the other, and says how long each plan, its first run and a later run took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "model_runner.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "carillon/base/clock.h"
#include "carillon/base/statistics.h"
#include "carillon/engine/cpu/candidates.h"

namespace carillon::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model, precision = "f32";
  int batch = 1, threads = 0;
  double seconds = 3, choose = 0;
  std::string choices;
  std::vector<std::int64_t> sizes;
  bool kernels = false, json = false, rounds = false;
};

Result<Json> measure(Runner& runner, const Options& options, double seconds) {
  std::vector<Duration> took;
  const SteadyClock clock;
  const TimePoint end = saturating_add(clock.now(), from_seconds(seconds));
  TimePoint before = clock.now();
  while (before < end || took.size() < 3) {
    if (auto done = runner.run(); !done) return std::unexpected(done.error());
    const TimePoint after = clock.now();
    took.push_back(after - before);
    before = after;
  }
  Duration sum{0};
  for (const Duration d : took) sum += d;
  const double mean = to_ms(sum) / static_cast<double>(took.size());
  return Json{{"runs", took.size()},
              {"mean_ms", mean},
              {"min_ms", to_ms(percentile(took, 0))},
              {"p50_ms", to_ms(percentile(took, 0.5))},
              {"p99_ms", to_ms(percentile(took, 0.99))},
              {"per_s", 1e3 * options.batch / mean}};
}

// Medians, kernel by kernel.
Result<Json> measure_kernels(Runner& runner, double seconds) {
  const auto count = static_cast<std::size_t>(runner.plan().kernels());
  std::vector<std::vector<Duration>> took(count);
  std::vector<Duration> durations(count);
  const SteadyClock clock;
  const TimePoint end = saturating_add(clock.now(), from_seconds(seconds));
  do {
    if (auto done = runner.run(durations); !done) return std::unexpected(done.error());
    for (std::size_t k = 0; k < count; ++k) took[k].push_back(durations[k]);
  } while (clock.now() < end);
  Json table = Json::array();
  for (std::size_t k = 0; k < count; ++k)
    table.push_back({{"name", runner.plan().kernel_name(static_cast<int>(k))},
                     {"p50_us", to_us(percentile(took[k], 0.5))}});
  return table;
}

// Every open dimension has that extent, but for one called "batch", which is 1 (where rows see each other it is
// open like the others).
Result<Json> measure_sizes(Runner& runner, const Options& options) {
  if (runner.open().empty()) return invalid(options.model + " is not open: --sizes asks for sizes of open inputs");
  const SteadyClock clock;
  Json table = Json::array();
  for (const std::int64_t size : options.sizes) {
    std::vector<std::int64_t> extents;
    for (const std::string& name : runner.open()) extents.push_back(name == "batch" ? 1 : size);
    const TimePoint asked = clock.now();
    if (auto made = runner.select_new(extents); !made)
      return std::unexpected(made.error());
    const TimePoint there = clock.now();
    runner.fill_inputs(1);
    const TimePoint filled = clock.now();
    if (auto done = runner.run(); !done) return std::unexpected(done.error());
    const TimePoint ran = clock.now();
    if (auto done = runner.run(); !done) return std::unexpected(done.error());
    table.push_back({{"size", size},
                     {"kernels", runner.plan().kernels()},
                     {"plan_ms", to_ms(there - asked)},
                     {"first_run_ms", to_ms(ran - filled)},
                     {"run_ms", to_ms(clock.now() - ran)}});
    if (options.kernels) {
      auto kernels = measure_kernels(runner, options.seconds);
      if (!kernels) return std::unexpected(kernels.error());
      table.back()["kernel_table"] = *kernels;
    }
  }
  return table;
}

void print(const Json& result) {
  std::printf("%s batch %d, %s: p50 %.3f ms, p99 %.3f ms, %.1f inferences/s (%d runs)\n",
              result["model"].get<std::string>().c_str(), result["batch"].get<int>(),
              result["precision"].get<std::string>().c_str(), result["p50_ms"].get<double>(),
              result["p99_ms"].get<double>(), result["per_s"].get<double>(), result["runs"].get<int>());
  std::printf("%d kernels, %.1f MB of weights, %.1f MB of workspace\n", result["kernels"].get<int>(),
              result["weights_bytes"].get<double>() / 1e6, result["workspace_bytes"].get<double>() / 1e6);
  if (!result.contains("kernel_table")) return;
  double sum = 0;
  for (const auto& row : result["kernel_table"]) sum += row["p50_us"].get<double>();
  for (const auto& row : result["kernel_table"]) {
    const double us = row["p50_us"].get<double>();
    std::printf("%10.1f us %5.1f%%  %s\n", us, 100 * us / sum, row["name"].get<std::string>().c_str());
  }
}

Result<> run(const Options& options) {
  auto choices = std::make_shared<engine::KernelChoices>();
  if (!options.choices.empty()) {
    std::string problem;
    choices = std::make_shared<engine::KernelChoices>(options.choices, engine::cpu::choices_header(), &problem);
    if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  }
  const SteadyClock clock;
  const TimePoint before_load = clock.now();
  auto runner = Runner::load(
      options.model,
      {.threads = options.threads, .choose_for = from_seconds(options.choose), .choices = choices},
      {.batch_sizes = {options.batch},
       .precision = options.precision == "bf16" ? engine::Precision::bf16 : engine::Precision::f32});
  if (!runner) return std::unexpected(runner.error());
  const double load_ms = to_ms(clock.now() - before_load);
  if (!options.sizes.empty()) {
    auto table = measure_sizes(*runner, options);
    if (!table) return std::unexpected(table.error());
    std::cout << Json{{"model", options.model}, {"load_ms", load_ms}, {"sizes", *table}}.dump() << "\n";
    return {};
  }
  if (!runner->select(options.batch))
    return invalid(options.model + " has no batch dimension: --batch must be 1");
  runner->fill_inputs(1);
  for (int i = 0; i < 3; ++i)  // the first runs fault pages in and start threads
    if (auto done = runner->run(); !done) return done;

  if (options.rounds) {
    std::cout << Json{{"ready", true},
                      {"load_ms", load_ms},
                      {"measured", choices->measured()},
                      {"weights_bytes", runner->compiled().weights().count}}
                     .dump()
              << std::endl;
    for (double seconds = 0; std::cin >> seconds;) {
      auto round = measure(*runner, options, seconds);
      if (!round) return std::unexpected(round.error());
      std::cout << round->dump() << std::endl;
    }
    return {};
  }
  Json result{{"model", options.model},
              {"batch", options.batch},
              {"threads", options.threads},
              {"precision", options.precision},
              {"load_ms", load_ms},
              {"measured", choices->measured()},
              {"kernels", runner->plan().kernels()},
              {"weights_bytes", runner->compiled().weights().count},
              {"workspace_bytes", runner->plan().workspace().count}};
  auto figures = measure(*runner, options, options.seconds);
  if (!figures) return std::unexpected(figures.error());
  result.update(*figures);
  if (options.kernels) {
    auto table = measure_kernels(*runner, options.seconds);
    if (!table) return std::unexpected(table.error());
    result["kernel_table"] = *table;
  }
  if (options.json)
    std::cout << result.dump() << "\n";
  else
    print(result);
  return {};
}

}  // namespace
}  // namespace carillon::bench

int main(int argc, char** argv) {
  carillon::bench::Options options;
  CLI::App app{"Measures the CPU engine on one ONNX model."};
  app.add_option("--model", options.model, "ONNX file")->required()->check(CLI::ExistingFile);
  app.add_option("--batch", options.batch, "batch size")->check(CLI::Range(1, 4096));
  app.add_option("--threads", options.threads, "threads (0: all cores)")->check(CLI::Range(0, 1024));
  app.add_option("--precision", options.precision, "of the heavy kernels")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--seconds", options.seconds, "how long to measure")->check(CLI::Range(0.0, 3600.0));
  app.add_option("--choose", options.choose, "seconds that kernels' candidates are measured; 0: rules only")
      ->check(CLI::Range(0.0, 600.0));
  app.add_option("--choices", options.choices, "file that keeps what was chosen");
  app.add_flag("--kernels", options.kernels, "a line for each kernel");
  app.add_flag("--json", options.json, "one JSON object instead of text");
  app.add_option("--sizes", options.sizes, "extents of an open model's plans; prints JSON")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--rounds", options.rounds, "measure for each number of seconds read from standard input");
  CLI11_PARSE(app, argc, argv);
  if (const auto done = carillon::bench::run(options); !done) {
    std::fprintf(stderr, "error: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}
