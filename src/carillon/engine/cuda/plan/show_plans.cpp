// What the plans of models are made of on a GPU that need not be there.
//
//   carillon_cuda_tables MODEL.onnx ... [--number f32|tf32|f16|bf16]... [--batch N]... [--json FILE]
//                        [--cudnn-folder FOLDER] [--described FILE] [--no-chains]
//
// Per model, number and batch size: what computes each step, its operations and bytes, and the least time
// that the device's arithmetic and memory allow. Convolutions are planned by cuDNN for the device of
// --described (cuDNN's JSON of a device's properties; without it an H100), the plans are built and
// serialised, and not run; cuBLASLt makes no plans without a device, so of products the work is told alone.
// --no-chains: as where there is no NVRTC, each elementwise step by itself.
// Ends with 1 where cuDNN has no plan for a convolution.

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/graph/model.h"

namespace carillon::engine::cuda {
namespace {

// An H100 SXM's, as published, dense: terabytes a second, and tera-operations a second by number.
constexpr double memory_tbs = 3.35;
constexpr double peak(Number number) {
  return number == Number::f32 ? 66.9 : number == Number::tf32 ? 494.7 : 989.4;
}
constexpr double peak_of_cores = 66.9;  // of what runs without tensor cores, in f32

struct Arguments {
  std::vector<std::string> models;
  std::vector<Number> numbers;
  std::vector<int> batches;
  std::string json, folder, described;
  bool no_chains = false;
};

Result<Arguments> parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    const auto next = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (text == "--number") {
      const std::string value = next();
      const auto number = number_named(value);
      if (!number) return invalid(fmt::format("--number is f32, tf32, f16 or bf16, not '{}'", value));
      out.numbers.push_back(*number);
    } else if (text == "--batch") {
      const std::string value = next();
      int batch = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), batch);
      if (error != std::errc{} || end != value.data() + value.size() || batch < 1 || batch > 4096)
        return invalid(fmt::format("--batch takes a number of 1 to 4096, not '{}'", value));
      out.batches.push_back(batch);
    } else if (text == "--json") {
      out.json = next();
    } else if (text == "--no-chains") {
      out.no_chains = true;
    } else if (text == "--cudnn-folder") {
      out.folder = next();
    } else if (text == "--described") {
      out.described = next();
    } else if (text.starts_with("--")) {
      return invalid(fmt::format("unknown option {}", text));
    } else {
      out.models.emplace_back(text);
    }
  }
  if (out.models.empty()) return invalid("which models? give ONNX files");
  if (out.numbers.empty()) out.numbers = {Number::f16};
  if (out.batches.empty()) out.batches = {1};
  return out;
}

// What a call was made for.
struct Work {
  std::string what, way;
  double operations = 0, bytes = 0;
  std::uint64_t workspace = 0;
  std::size_t ways = 0;
  bool built = false;
};

class Told final : public Call {
 public:
  explicit Told(std::string name, std::uint64_t workspace) : name_(std::move(name)), workspace_(workspace) {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return workspace_; }
  Result<> enqueue(Stream, const CallPlaces&) const override {
    return fail(ErrorCode::internal, name_ + ": it is only told of");
  }

 private:
  std::string name_;
  std::uint64_t workspace_;
};

double sum_of(const CallBytes& bytes) {
  return static_cast<double>(bytes.a + bytes.b + bytes.out + bytes.bias + bytes.residual);
}

// Takes the first way that cuDNN's plans can be built for.
class Planner final : public MathLibrary {
 public:
  explicit Planner(Ways& cudnn) : cudnn_(cudnn) {}

  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    Work work{.what = to_text(spec), .bytes = sum_of(bytes_of(spec))};
    work.operations = 2.0 * spec.batch * spec.out_height * spec.out_width * spec.filters * spec.kernel_h *
                      spec.kernel_w * (spec.channels / spec.groups);
    auto ways = cudnn_.of(spec);
    if (!ways) {
      work.way = ways.error().message;
    } else {
      work.ways = ways->size();
      for (const Way& way : *ways) {
        auto call = way.make();
        if (!call) continue;
        work.built = true;
        work.way = "cuDNN " + way.key;
        work.workspace = (*call)->workspace();
        break;
      }
      if (!work.built) work.way = "no plan could be built";
    }
    return tell(std::move(work));
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    Work work{.what = to_text(spec), .way = "cuBLASLt", .bytes = sum_of(bytes_of(spec)), .built = true};
    work.operations = 2.0 * static_cast<double>(spec.batch * spec.rows * spec.columns * spec.depth);
    return tell(std::move(work));
  }
  bool fuses(const Convolution& spec) override {
    const auto ways = cudnn_.of(spec);
    return ways && std::ranges::any_of(*ways, [](const Way& way) { return way.make().has_value(); });
  }
  bool fuses(const Product& spec) override { return spec.epilogue != Epilogue::gelu_erf; }

  const Work& of(const Call* call) const { return works_.at(call); }

 private:
  Result<std::shared_ptr<const Call>> tell(Work work) {
    auto call = std::make_shared<Told>(work.what, work.workspace);
    works_.emplace(call.get(), std::move(work));
    return call;
  }

  Ways& cudnn_;
  std::map<const Call*, Work> works_;
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

// Of a repository's file its model's name there, else the file.
std::string name_of_file(const std::string& file) {
  const std::filesystem::path path(file);
  return path.filename() == "model.onnx" && path.parent_path().has_parent_path()
             ? path.parent_path().parent_path().filename().string()
             : file;
}

Result<nlohmann::ordered_json> show(const graph::Model& model, const std::string& name, int batch,
                                    Number number, bool joins_chains, Ways& cudnn, bool& all_built) {
  auto graph = model.specialize(batch, model.lengths().empty() ? 0 : model.lengths().back());
  if (!graph) return std::unexpected(graph.error());
  Planner planner(cudnn);
  Weights weights;
  ToldChains chains;
  const RecipeOptions options{
      .number = number, .processors = 132, .segment_ends = {}, .chains = joins_chains ? &chains : nullptr};
  auto recipe = make_recipe(*graph, options, planner, weights);
  if (!recipe) return std::unexpected(recipe.error());
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  std::map<std::string, Total> totals;
  Total all;
  int convolutions = 0, built = 0;
  for (const Step& step : recipe->steps) {
    Work work;
    std::string kind;
    double tera = peak_of_cores;
    if (step.call != nullptr) {
      work = planner.of(step.call.get());
      kind = work.what.starts_with("conv") ? "convolutions (cuDNN)" : "products (cuBLASLt)";
      tera = peak(number);
      if (kind.starts_with("conv")) {
        ++convolutions;
        built += work.built ? 1 : 0;
      }
    } else {
      std::vector<kernels::Bytes> reads, writes;
      std::vector<std::byte> params = step.params;
      for (const auto& [at, place] : step.pointers) {
        const Address address = place.at(std::uint64_t{1} << 40, std::uint64_t{1} << 41);
        std::memcpy(params.data() + at, &address, sizeof address);
      }
      step.launch.kernel->accesses(params.data(), reads, writes);
      for (const auto* each : {&reads, &writes})
        for (const auto& bytes : *each) work.bytes += static_cast<double>(bytes.count);
      work.what = std::string(step.launch.kernel->symbol);
      work.way = fmt::format("own kernel, {} blocks of {}", step.launch.grid, step.launch.block);
      kind = work.what;
    }
    const double least = std::max(work.operations / tera, work.bytes / memory_tbs) / 1e6;  // microseconds
    for (Total* total : {&totals[kind], &all}) {
      ++total->steps;
      total->operations += work.operations;
      total->bytes += work.bytes;
      total->microseconds += least;
    }
    nlohmann::ordered_json row{{"step", step.name},
                               {"way", work.way},
                               {"operations", work.operations},
                               {"bytes", work.bytes},
                               {"workspace_bytes", work.workspace},
                               {"least_us", least}};
    if (kind.starts_with("conv")) row["ways"] = work.ways;
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
  for (const auto& row : steps)
    if (row.contains("ways") && row["ways"] == 0)
      std::cout << fmt::format("no plan: {}\n", row["way"].get<std::string>());
  return nlohmann::ordered_json{{"model", name},
                                {"number", name_of(number)},
                                {"batch", batch},
                                {"workspace_bytes", recipe->workspace},
                                {"convolutions", convolutions},
                                {"planned", built},
                                {"operations", all.operations},
                                {"bytes", all.bytes},
                                {"least_us", all.microseconds},
                                {"steps", std::move(steps)}};
}

Result<bool> run(const Arguments& arguments) {
  auto library = open_library(cudnn, arguments.folder, known_site_packages());
  if (!library) return std::unexpected(library.error());
  std::string described = h100_description();
  if (!arguments.described.empty()) {
    std::ifstream in(arguments.described, std::ios::binary);
    std::ostringstream text;
    if (!(text << in.rdbuf())) return invalid(arguments.described + ": cannot be read");
    described = text.str();
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
        auto table = show(**model, name_of_file(file), (*model)->batched() ? batch : 1, number,
                          !arguments.no_chains, **ways, all_built);
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
  if (!arguments.json.empty() && !(std::ofstream(arguments.json) << tables.dump(1) << "\n"))
    return invalid(arguments.json + ": cannot be written");
  return all_built;
}

}  // namespace
}  // namespace carillon::engine::cuda

int main(int argc, char** argv) {
  using namespace carillon;
  const auto arguments = engine::cuda::parse(argc, argv);
  const auto done = arguments ? engine::cuda::run(*arguments) : std::unexpected(arguments.error());
  if (!done) {
    std::cerr << "error: " << done.error().message << '\n';
    return 2;
  }
  return *done ? 0 : 1;
}
