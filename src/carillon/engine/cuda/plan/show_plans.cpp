// What the plans of models are made of on a GPU that need not be there (--help has the options).
//
// Per model, number and batch size: what computes each step, its operations and bytes, and the least time
// that the device's arithmetic and memory allow. Convolutions are planned by cuDNN for the device of
// --described (cuDNN's JSON of a device's properties; without it an H100), the plans are built and
// serialised, and not run; cuBLASLt makes no plans without a device, so of products the work is told alone.
// Attention that one kernel could compute is its nodes' calls, or with --attention kernel that: which is
// faster is measured on a device.
//
// Ends with 1 where cuDNN has no plan for a convolution.
//
// What --json writes is a table of steps (table/step_table.h) for --device cuda-emulated:FILE.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/files.h"
#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/engine/cuda/plan/step_work.h"
#include "carillon/engine/cuda/table/step_table.h"
#include "carillon/graph/model.h"

namespace carillon::engine::cuda {
namespace {

using namespace std::string_view_literals;

// An H100 SXM's, as published, dense: terabytes a second, and tera-operations a second by number.
constexpr double memory_tbs = 3.35;
constexpr double peak(Number number) {
  return number == Number::f32 ? 66.9 : number == Number::tf32 ? 494.7 : 989.4;
}
constexpr double peak_of_cores = 66.9;  // of what runs without tensor cores, in f32

struct Arguments {
  std::vector<std::string> models;
  std::vector<Number> numbers;
  std::vector<int> batches{1};
  std::string json, folder, described, attention = "calls";
  bool no_chains = false;
};

// What is known of a call that was planned.
struct Planned {
  std::string way;
  std::uint64_t workspace = 0;
  std::size_t ways = 0;
  bool built = false;
};

class Told final : public Call {
 public:
  Told(std::string name, CallWork work, Planned planned)
      : name_(std::move(name)), work_(std::move(work)), planned_(std::move(planned)) {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return planned_.workspace; }
  CallWork work() const override { return work_; }
  Result<> enqueue(Stream, const CallPlaces&) const override {
    return fail(ErrorCode::internal, name_ + ": it is only told of");
  }
  const Planned& planned() const { return planned_; }

 private:
  std::string name_;
  CallWork work_;
  Planned planned_;
};

// Takes the first way that cuDNN's plans can be built for.
class Planner final : public MathLibrary {
 public:
  explicit Planner(Ways& cudnn) : cudnn_(cudnn) {}

  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    Planned planned;
    auto ways = cudnn_.of(spec);
    if (!ways) {
      planned.way = ways.error().message;
    } else {
      planned.ways = ways->size();
      for (const Way& way : *ways) {
        auto call = way.make();
        if (!call) continue;
        planned.built = true;
        planned.way = "cuDNN " + way.key;
        planned.workspace = (*call)->workspace();
        break;
      }
      if (!planned.built) planned.way = "no plan could be built";
    }
    return std::make_shared<Told>(to_text(spec), work_of(spec), std::move(planned));
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return std::make_shared<Told>(to_text(spec), work_of(spec),
                                  Planned{.way = "cuBLASLt", .workspace = 0, .ways = 0, .built = true});
  }
  bool fuses(const Convolution& spec) override {
    const auto ways = cudnn_.of(spec);
    return ways && std::ranges::any_of(*ways, [](const Way& way) { return way.make().has_value(); });
  }
  bool fuses(const Product& spec) override { return spec.epilogue != Epilogue::gelu_erf; }

 private:
  Ways& cudnn_;
};

// Chains are told of, and not compiled.
class ToldChains final : public ChainLibrary {
 public:
  Result<std::shared_ptr<const ChainKernel>> kernel(const kernels::Chain&) override {
    return std::make_shared<const ChainKernel>();
  }
};

struct Total {
  int steps = 0;
  double operations = 0, bytes = 0, microseconds = 0;
};

Result<nlohmann::ordered_json> show(const graph::Model& model, const std::string& name, int batch,
                                    Number number, bool attention_by_kernel, bool joins_chains, Ways& cudnn,
                                    bool& all_built) {
  const std::int64_t length = model.lengths().empty() ? 0 : model.lengths().back();
  auto graph = model.specialize(batch, length);
  if (!graph) return std::unexpected(graph.error());
  Planner planner(cudnn);
  Weights weights;
  ToldChains chains;
  RecipeOptions options{.number = number, .processors = 132};
  if (joins_chains) options.chains = &chains;
  options.one_kernel = [&](const std::string&) { return attention_by_kernel; };
  auto recipe = make_recipe(*graph, options, planner, weights);
  if (!recipe) return std::unexpected(recipe.error());
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  std::map<std::string, Total> totals;
  Total all;
  int convolutions = 0, built = 0;
  int number_of_step = 0;
  for (const Step& step : recipe->steps) {
    const StepWork work = work_of(step);
    Planned planned;
    std::string kind = work.kernel;
    double tera = peak_of_cores;
    if (step.call != nullptr) {
      planned = static_cast<const Told&>(*step.call).planned();
      tera = peak(number);
      if (kind.starts_with("conv")) {
        ++convolutions;
        built += planned.built ? 1 : 0;
      }
      kind = kind.starts_with("conv") ? "convolutions (cuDNN)" : "products (cuBLASLt)";
    } else {
      // attention_64_f16 is by tensor cores, attention_f16 is not.
      constexpr auto attention = "carillon_attention_"sv;
      if (kind.starts_with(attention) &&
          std::isdigit(static_cast<unsigned char>(kind[attention.size()])) != 0)
        tera = peak(number);
      planned.way = fmt::format("own kernel, {} blocks of {}", step.launch.grid, step.launch.block);
    }
    const double least = std::max(work.operations / tera, work.bytes / memory_tbs) / 1e6;  // microseconds
    for (Total* total : {&totals[kind], &all}) {
      ++total->steps;
      total->operations += work.operations;
      total->bytes += work.bytes;
      total->microseconds += least;
    }
    nlohmann::ordered_json row{{"step", step.name},   {"kernel", work.kernel},
                               {"way", planned.way},  {"operations", work.operations},
                               {"bytes", work.bytes}, {"workspace_bytes", planned.workspace},
                               {"least_us", least}};
    if (kind.starts_with("conv")) row["ways"] = planned.ways;
    for (const Recipe::Attention& each : recipe->attentions)
      if (number_of_step >= each.first && number_of_step < each.last)
        row["attention"] = each.one_kernel ? "kernel" : "calls";
    ++number_of_step;
    steps.push_back(std::move(row));
  }
  all_built = all_built && built == convolutions;
  std::cout << fmt::format("\n## {} {} batch {}: {} steps, {} of {} convolutions planned\n\n", name,
                           name_of(number), batch, recipe->steps.size(), built, convolutions)
            << "| what | steps | MFLOP | MB | least us |\n|---|---:|---:|---:|---:|\n";
  for (const auto& [kind, total] : totals)
    std::cout << fmt::format("| {} | {} | {:.1f} | {:.2f} | {:.1f} |\n", kind, total.steps,
                             total.operations / 1e6, total.bytes / 1e6, total.microseconds);
  std::cout << fmt::format("| all | {} | {:.1f} | {:.2f} | {:.1f} |\n", all.steps, all.operations / 1e6,
                           all.bytes / 1e6, all.microseconds);
  if (!recipe->attentions.empty())
    std::cout << fmt::format("{} attentions that one kernel could compute, by {}\n",
                             recipe->attentions.size(), attention_by_kernel ? "that" : "calls");
  for (const auto& row : steps)
    if (row.contains("ways") && row["ways"] == 0)
      std::cout << fmt::format("no plan: {}\n", row["way"].get<std::string>());
  return nlohmann::ordered_json{{"model", name},
                                {"number", name_of(number)},
                                {"batch", batch},
                                {"length", length},
                                {"workspace_bytes", recipe->workspace},
                                {"convolutions", convolutions},
                                {"planned", built},
                                {"operations", all.operations},
                                {"bytes", all.bytes},
                                {"least_us", all.microseconds},
                                {"steps", std::move(steps)}};
}

// What the device's arithmetic and memory allow, for kernels that no plan here has.
nlohmann::ordered_json rates_of_device() {
  nlohmann::ordered_json rates;
  const auto add = [&](const std::string& kernel, double tera) {
    rates[kernel] = {{"operations_per_s", std::round(tera * 1e12)},
                     {"bytes_per_s", std::round(memory_tbs * 1e12)}};
  };
  for (const Number number : {Number::f32, Number::tf32, Number::f16, Number::bf16})
    for (const char* const kind : {"conv", "product"})
      add(fmt::format("{} {}", kind, name_of(number)), peak(number));
  add("*", peak_of_cores);
  return rates;
}

Result<bool> run(const Arguments& arguments) {
  auto library = open_library(cudnn, arguments.folder, known_site_packages());
  if (!library) return std::unexpected(library.error());
  std::string described = h100_description();
  if (!arguments.described.empty()) {
    auto text = read_file("the description", arguments.described);
    if (!text) return std::unexpected(text.error());
    described = *std::move(text);
  }
  const auto api = dnn::find_api(*library);
  if (!api) return std::unexpected(api.error());
  auto ways = make_described_cudnn(*api, described);
  if (!ways) return std::unexpected(ways.error());
  std::cout << "# Plans by " << (*ways)->version() << "\n";
  nlohmann::ordered_json tables = nlohmann::ordered_json::array();
  bool all_built = true;
  for (const std::string& file : arguments.models) {
    auto model = graph::import_onnx(file, {.lengths = {128}});
    if (!model) model = graph::import_onnx(file, {});
    if (!model) return std::unexpected(model.error());
    for (const Number number : arguments.numbers)
      for (const int batch : arguments.batches) {
        auto table = show(**model, model_of_file(file), (*model)->batched() ? batch : 1, number,
                          arguments.attention == "kernel", !arguments.no_chains, **ways, all_built);
        if (!table) return in_context(file, table.error());
        tables.push_back(std::move(*table));
      }
  }
  std::cout
      << "\n## Summary\n\n| model | number | batch | steps | convolutions planned | GFLOP | MB | least us |\n"
         "|---|---|---:|---:|---:|---:|---:|---:|\n";
  for (const auto& table : tables)
    std::cout << fmt::format("| {} | {} | {} | {} | {} of {} | {:.2f} | {:.1f} | {:.0f} |\n",
                             table["model"].get<std::string>(), table["number"].get<std::string>(),
                             table["batch"].get<int>(), table["steps"].size(), table["planned"].get<int>(),
                             table["convolutions"].get<int>(), table["operations"].get<double>() / 1e9,
                             table["bytes"].get<double>() / 1e6, table["least_us"].get<double>());
  if (!arguments.json.empty()) {
    nlohmann::ordered_json table{
        {"device", "H100 SXM, as published" + (arguments.described.empty()
                                                   ? std::string()
                                                   : ", with cuDNN's plans for " + arguments.described)},
        {"made_by", fmt::format("carillon_cuda_tables, {}", (*ways)->version())}};
    table["processors"] = 132;
    table["memory_bytes"] = std::uint64_t{80} << 30;
    table["memory_bytes_per_s"] = std::round(memory_tbs * 1e12);
    table["rates"] = rates_of_device();
    table["plans"] = std::move(tables);
    if (auto written = write_file(arguments.json, table.dump(1) + "\n"); !written)
      return std::unexpected(written.error());
  }
  return all_built;
}

}  // namespace
}  // namespace carillon::engine::cuda

int main(int argc, char** argv) {
  using namespace carillon;
  engine::cuda::Arguments arguments;
  CLI::App app{
      "What the plans of models are made of on a GPU that need not be there: per model, number and batch "
      "size\n"
      "what computes each step, its operations and bytes, and the least time that the device allows.\n\n"
      "  carillon_cuda_tables models/resnet50/1/model.onnx --number f16 --batch 1 --batch 8 --json "
      "h100.json\n"
      "  carillon serve --models models --device cuda-emulated:h100.json --cuda-number f16\n\n"
      "Ends with 1 where cuDNN has no plan for a convolution."};
  app.add_option("MODEL", arguments.models, "ONNX files")->required();
  std::vector<std::string> numbers{"f16"};
  app.add_option("--number", numbers, "What f32 values are stored as; may be repeated")
      ->check(CLI::IsMember({"f32", "tf32", "f16", "bf16"}))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--batch", arguments.batches, "Batch size; may be repeated")
      ->check(CLI::Range(1, 4096))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--json", arguments.json, "File for a table of steps, as --device cuda-emulated:FILE reads");
  app.add_option("--cuda-libraries", arguments.folder,
                 "Folder of libcudnn.so.9; without it: as the loader finds "
                 "it, then packages of CARILLON_SITE_PACKAGES");
  app.add_option("--described", arguments.described,
                 "cuDNN's JSON of the device's properties; without it: an H100");
  app.add_option("--attention", arguments.attention,
                 "Where one kernel could compute attention: calls, by the nodes' own, or kernel, by that one")
      ->check(CLI::IsMember({"calls", "kernel"}))
      ->capture_default_str();
  app.add_flag("--no-chains", arguments.no_chains,
               "As where there is no NVRTC: each elementwise step by itself");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& number : numbers) arguments.numbers.push_back(*engine::cuda::number_named(number));
  const auto done = engine::cuda::run(arguments);
  if (!done) {
    std::cerr << "error: " << done.error().message << '\n';
    return 2;
  }
  return *done ? 0 : 1;
}
