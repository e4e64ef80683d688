#include "carillon/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>
#include <set>

#include <CLI/CLI.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/clock.h"
#include "carillon/base/files.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/device_options.h"
#include "carillon/cli/interference/cpu_probe.h"
#include "carillon/cli/interference/measure.h"
#include "carillon/cli/kernel_times.h"
#include "carillon/cli/profile_fit.h"
#include "carillon/controller/models/model_loader.h"

namespace carillon::cli {
namespace {

struct ProfileArguments {
  std::string models;
  std::string out;
  std::string csv;
  std::vector<std::string> only;
  int repeats = 30;
  bool json = false;
  server::DeviceArguments device;
  FitArguments fit;
  bool kernels = false;
  double stop_cost = engine::usual_stop_cost;
  bool interference = false;
  std::string out_measurements;
  int together = 3;
  int max_batch = 32;
  std::optional<double> price;
};

// Nobody waits for results here: measuring blocks until it has them.
class NoResults final : public worker::ResultSink {
 public:
  void on_result(const worker::ActionResult&) override {}
};

int fail_profile(int status, const Error& error) {
  fmt::print(stderr, "carillon profile: {}\n", error.message);
  return status;
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Result<profile::ModelProfile> measure_model(const controller::PreparedModel& model, std::int64_t version,
                                            worker::Worker& worker, int repeats) {
  profile::ModelProfile measured;
  measured.name = model.config.name;
  measured.version = version;
  measured.precision = model.config.precision;
  measured.weights = model.compiled.front()->weights();
  auto loads = worker.measure_load(model.id, std::min(repeats, 10));
  if (!loads) return in_context("loading", loads.error());
  measured.load = profile::summarize(*loads);
  const auto measure_batches = [&](std::int64_t length) -> Result<std::vector<profile::BatchTimes>> {
    std::vector<profile::BatchTimes> out;
    for (const int batch : model.config.batch_sizes) {
      fmt::print(stderr, " {}", batch);
      std::fflush(stderr);
      // The first runs touch memory and wake threads.
      if (auto warm = worker.measure_exec(model.id, batch, 2, length); !warm)
        return in_context("running", warm.error());
      auto times = worker.measure_exec(model.id, batch, repeats, length);
      if (!times) return in_context("batch " + std::to_string(batch), times.error());
      out.push_back({batch, profile::summarize(*times)});
    }
    return out;
  };
  const auto lengths = model.compiled.front()->lengths();
  for (const std::int64_t length : lengths) {
    fmt::print(stderr, "{}length {}:", length == lengths.front() ? " " : "; ", length);
    auto batches = measure_batches(length);
    if (!batches) return in_context("length " + std::to_string(length), batches.error());
    measured.lengths.push_back({length, std::move(*batches)});
  }
  if (!lengths.empty()) {
    measured.batches = measured.lengths[lengths.size() / 2].batches;
    return measured;
  }
  auto batches = measure_batches(0);
  if (!batches) return std::unexpected(batches.error());
  measured.batches = std::move(*batches);
  // An open model at smaller and larger sizes than its reference, as far as its operators and memory allow.
  const auto reference = model.compiled.front()->reference();
  std::int64_t number = 0;
  for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
    if (reference.empty()) break;
    profile::SizeTimes size;
    for (const std::int64_t extent : reference)
      size.extents.push_back(std::max<std::int64_t>(1, std::llround(factor * static_cast<double>(extent))));
    const auto added = worker.add_size(model.id, ++number, size.extents, model.config.batch_sizes);
    if (!added) continue;
    fmt::print(stderr, "; {} times the size:", factor);
    auto times = measure_batches(number);
    if (!times) return std::unexpected(times.error());
    worker.remove_size(model.id, number);
    size.row = added->effort;
    size.batches = std::move(*times);
    measured.sizes.push_back(std::move(size));
  }
  return measured;
}

// As scenarios read it: latency = { csv = "FILE", row = "NAME" }. Batch sizes that a model lacks lie on the
// line between its own.
Result<> write_profile_csv(const profile::DeviceProfile& profile, const std::string& file) {
  std::set<int> sizes;
  for (const auto& model : profile.models)
    for (const auto& batch : model.batches) sizes.insert(batch.batch);
  std::string out = "model,weights_MB,transfer_ms";
  for (const int size : sizes) out += fmt::format(",exec_b{}_ms", size);
  out += "\n";
  for (const auto& model : profile.models) {
    out += fmt::format("{},{:.6f},{:.6f}", model.name, static_cast<double>(model.weights.count) / 1e6,
                       to_ms(model.load.mean));
    for (const int size : sizes) out += fmt::format(",{:.6f}", to_ms(model.exec_mean(size)));
    out += "\n";
  }
  if (auto written = write_file(file, out); !written) return in_context("--csv", written.error());
  return {};
}

void print_profile(const profile::DeviceProfile& profile) {
  fmt::print("{:<20}{:>10}{:>10}{:>7}{:>11}{:>11}{:>11}{:>12}\n", "model", "weights", "load ms", "batch",
             "p50 ms", "p99 ms", "p99/p50", "requests/s");
  for (const auto& model : profile.models) {
    bool first = true;
    const auto rows = [&](const std::vector<profile::BatchTimes>& batches, const std::string& length) {
      for (const auto& batch : batches) {
        const bool own = &batch == &batches.front() && !length.empty();
        fmt::print("{:<20}{:>10}{:>10}{:>7}{:>11.3f}{:>11.3f}{:>11.3f}{:>12.1f}\n",
                   first ? model.name
                   : own ? "  length " + length
                         : "",
                   first ? to_text(model.weights) : "",
                   first ? fmt::format("{:.2f}", to_ms(model.load.p50)) : "", batch.batch,
                   to_ms(batch.exec.p50), to_ms(batch.exec.p99),
                   to_ms(batch.exec.p99) / std::max(1e-9, to_ms(batch.exec.p50)),
                   batch.batch / std::max(1e-12, to_seconds(batch.exec.p50)));
        first = false;
      }
    };
    if (!model.lengths.empty()) {
      fmt::print("{:<20}{:>10}{:>10.2f}\n", model.name, to_text(model.weights), to_ms(model.load.p50));
      first = false;
    }
    for (const auto& at : model.lengths) rows(at.batches, std::to_string(at.length));
    if (model.lengths.empty()) rows(model.batches, "");
  }
}

// Ensembles are measured with their steps' models.
Result<std::vector<repository::RepositoryEntry>> read_models(const std::string& directory) {
  auto entries = repository::read_repository(directory);
  if (entries)
    std::erase_if(*entries, [](const auto& entry) { return entry.config && !entry.config->steps.empty(); });
  return entries;
}

// --interference: models alone and together at shares of the device, and the fit to that.
int measure_together(const ProfileArguments& arguments) {
  if (arguments.device.device != "cpu")
    return fail_profile(
        exit_usage, {ErrorCode::invalid_argument,
                     "--interference measures on --device cpu, not on '" + arguments.device.device + "'"});
  const SteadyClock clock;
  auto entries = read_models(arguments.models);
  if (!entries) return fail_profile(exit_failure, entries.error());
  for (const std::string& name : arguments.only)
    if (std::ranges::none_of(*entries, [&](const auto& entry) { return entry.name == name; }))
      return fail_profile(exit_usage, {ErrorCode::not_found,
                                       "--only " + name + ": there is no such model in " + arguments.models});
  std::erase_if(*entries, [&](const auto& entry) {
    return !arguments.only.empty() && std::ranges::find(arguments.only, entry.name) == arguments.only.end();
  });
  const auto tell = [](const std::string& what) { fmt::print(stderr, "{}\n", what); };
  CpuProbeOptions options;
  options.device = arguments.device;
  options.repeats = arguments.repeats;
  auto probe = make_cpu_probe(std::move(*entries), options, clock, tell);
  if (!probe) return fail_profile(exit_failure, probe.error());
  auto measured = measure_interference(
      **probe, {.most_together = arguments.together, .max_batch = arguments.max_batch, .tell = tell});
  if (!measured) return fail_profile(exit_failure, measured.error());
  measured->price_usd_per_hour = arguments.price;
  // What was measured is kept even where the fit to it fails.
  if (!arguments.out_measurements.empty()) {
    if (auto written = write_file(arguments.out_measurements, profile::to_json(*measured)); !written)
      return fail_profile(exit_failure, in_context("--out-measurements", written.error()).error());
    fmt::print(stderr, "wrote {}\n", arguments.out_measurements);
  }
  if (const auto done = fit_and_report(*measured, arguments.fit, arguments.json); !done)
    return fail_profile(exit_failure, done.error());
  return exit_success;
}

int run_profile(const ProfileArguments& arguments) {
  if (!arguments.fit.files.empty()) return fit_files(arguments.fit, arguments.json);
  if (arguments.interference) return measure_together(arguments);
  if (arguments.kernels && arguments.device.device != "cpu")
    return fail_profile(exit_usage,
                        {ErrorCode::invalid_argument,
                         "--kernels measures on --device cpu, not on '" + arguments.device.device + "'"});
  const SteadyClock real;
  server::DeviceArguments described = arguments.device;
  described.virtual_time = true;
  auto device = server::make_device(described, real);
  if (!device) return fail_profile(exit_usage, device.error());
  if (!device->notice.empty()) fmt::print(stderr, "{}\n", device->notice);
  // Of a device whose time is virtual, what work takes passes there alone: the figures are the same every
  // time.
  const Clock& clock = device->clock ? *device->clock : real;
  const auto entries = read_models(arguments.models);
  if (!entries) return fail_profile(exit_failure, entries.error());
  NoResults nobody;
  auto worker = worker::make_worker(device->worker, clock, nobody);
  if (!worker) return fail_profile(exit_failure, worker.error());

  profile::DeviceProfile profile;
  profile.device = device->description;
  profile.created = timestamp();
  profile.carillon = CARILLON_VERSION;
  profile.threads = device->worker.exec_threads;
  std::uint32_t next = 0;
  int failures = 0;
  for (const std::string& name : arguments.only)
    if (std::ranges::none_of(*entries, [&](const auto& entry) { return entry.name == name; }))
      return fail_profile(exit_usage, {ErrorCode::not_found,
                                       "--only " + name + ": there is no such model in " + arguments.models});
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const repository::RepositoryEntry& entry = (*entries)[i];
    if (!arguments.only.empty() && std::ranges::find(arguments.only, entry.name) == arguments.only.end())
      continue;
    fmt::print(stderr, "[{}/{}] {}: ", i + 1, entries->size(), entry.name);
    std::fflush(stderr);
    const auto one = [&]() -> Result<> {
      if (!entry.config) return std::unexpected(entry.config.error());
      const repository::ModelVersion& version = entry.versions.back();
      fmt::print(stderr, "compiling");
      std::fflush(stderr);
      const controller::LoadTarget target{
          .engine = device->engine.get(),
          .worker = worker->get(),
          .others = server::others_of(*device),
          .stop_cost = arguments.kernels ? std::optional(arguments.stop_cost) : std::nullopt};
      auto model = controller::prepare_model(entry, version, {&target, 1}, ModelId{next}, [](const auto&) {});
      if (!model) return std::unexpected(model.error());
      ++next;
      fmt::print(stderr, ", measuring batch");
      auto measured = measure_model(*model, version.version, **worker, arguments.repeats);
      if (!measured) return std::unexpected(measured.error());
      if (arguments.kernels) {
        fmt::print(stderr, ", kernels");
        std::fflush(stderr);
        auto kernels = measure_kernels(*device->engine, *model->compiled.front(),
                                       {.threads = profile.threads, .repeats = arguments.repeats}, clock);
        if (!kernels) return in_context("kernels", kernels.error());
        measured->kernels = std::move(*kernels);
      }
      profile.models.push_back(std::move(*measured));
      return {};
    }();
    if (one) {
      fmt::print(stderr, "\n");
    } else {
      ++failures;
      fmt::print(stderr, "\n  left out: {}\n", one.error().message);
    }
  }
  if (profile.models.empty())
    return fail_profile(exit_failure,
                        {ErrorCode::not_found, "there is no model to measure in '" + arguments.models + "'"});
  if (!arguments.out.empty()) {
    if (const auto written = profile::write_profile(profile, arguments.out); !written)
      return fail_profile(exit_failure, written.error());
    fmt::print(stderr, "wrote {}\n", arguments.out);
  }
  if (!arguments.csv.empty()) {
    if (const auto written = write_profile_csv(profile, arguments.csv); !written)
      return fail_profile(exit_failure, written.error());
    fmt::print(stderr, "wrote {}\n", arguments.csv);
  }
  if (arguments.json)
    fmt::print("{}\n", profile::to_json(profile));
  else
    print_profile(profile);
  return failures == 0 ? exit_success : exit_failure;
}

}  // namespace

void add_profile(CLI::App& program, int& status) {
  auto arguments = std::make_shared<ProfileArguments>();
  CLI::App& command =
      *program.add_subcommand("profile", "Measures how long models take on this device, by batch size");
  auto& models = *command.add_option("--models", arguments->models, "Model repository");
  auto& fit =
      *command.add_option("--fit", arguments->fit.files,
                          "Measure nothing: fit the interference model's coefficients to these files of "
                          "measurements, taken together (docs/interference.md)");
  fit.excludes(&models);
  auto& interference = *command.add_flag(
      "--interference", arguments->interference,
      "Measure how models slow each other: alone and together at shares of the device; and fit the "
      "coefficients that 'plan' reads");
  interference.needs(&models);
  command
      .add_option("--out-measurements", arguments->out_measurements,
                  "File to write with what --interference measured; --fit reads it")
      ->needs(&interference);
  command
      .add_option("--together", arguments->together, "With --interference: at most so many models at once")
      ->check(CLI::Range(1, 5))
      ->capture_default_str()
      ->needs(&interference);
  command.add_option("--max-batch", arguments->max_batch, "With --interference: no larger batches")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->needs(&interference);
  command.add_option("--price", arguments->price, "With --interference: US dollars an hour of this device")
      ->check(CLI::NonNegativeNumber)
      ->needs(&interference);
  add_fit_options(command, arguments->fit);
  command.add_option("--out", arguments->out, "File to write; 'serve --profile' starts from it");
  command.add_option("--csv", arguments->csv,
                     "File to write as a table, which scenarios name in latency = { csv, row }");
  command.add_option("--only", arguments->only, "Only this model; may be repeated");
  command.add_option("--repeats", arguments->repeats, "Measurements of each batch size")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  auto& kernels = *command.add_flag(
      "--kernels", arguments->kernels,
      "Also write, for each kernel, into how many parts it is divided, between which a run may stop, and its "
      "time on 1, 2, ... threads; models are compiled to be stopped so. Only for --device cpu");
  command
      .add_option("--stop-cost", arguments->stop_cost,
                  "With --kernels: the share of a kernel's time that its parts may cost")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->needs(&kernels);
  interference.excludes(&kernels);
  fit.excludes(&kernels);
  add_device_options(command, arguments->device);
  command.add_flag("--json", arguments->json, "Print the profile as one JSON object");
  command.footer(
      "Examples:\n"
      "  carillon profile --models ./models --out profile.json\n"
      "  carillon profile --models ./models --only resnet50 --repeats 1000 --json\n"
      "  carillon profile --models ./models --kernels --out profile.json\n"
      "  carillon profile --models ./models --device cuda-emulated:profiles/h100_mobilenetv2.json --out "
      "h100.json\n"
      "  carillon profile --models ./models --interference --out-coefficients models.json --out-hardware "
      "cpu.json\n"
      "  carillon profile --fit profiles/igniter/profile_samples.json --fit profiles/igniter/workloads.json "
      "\\\n"
      "    --fit profiles/igniter/v100.json --out-coefficients workloads.json --out-hardware v100.json");
  command.callback([arguments, &models, &fit, &status] {
    if (models.empty() && fit.empty())
      throw CLI::RequiredError("--models DIR (to measure) or --fit FILE (to fit what was measured)");
    const bool fits = arguments->interference || !fit.empty();
    if (!fits && !(arguments->fit.out_coefficients.empty() && arguments->fit.out_hardware.empty()))
      throw CLI::RequiresError("--out-coefficients and --out-hardware", "--interference or --fit");
    status = run_profile(*arguments);
  });
}

}  // namespace carillon::cli
