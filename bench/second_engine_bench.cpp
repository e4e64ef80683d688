// What a run by an engine of others costs more in a process of its own than in this one.
//
//   carillon_second_engine_bench --model FILE.onnx [--engine openvino|onnxruntime] [--batch B] [--threads T]
//                                [--runs N] [--module FILE.so]
//
// Both are compiled, and run in turn, so that whatever else the machine does is in both. Prints p50 and p99
// of each in microseconds, and the differences, as JSON.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "carillon/engine/onnxruntime/onnxruntime.h"
#include "carillon/engine/openvino/openvino.h"
#include "carillon/engine/second/second_engine.h"
#include "carillon/graph/bounded.h"

namespace carillon::bench {
namespace {

struct Options {
  std::string model, module, engine = "openvino";
  int batch = 1, threads = 1, runs = 2000;
};

struct Placed {
  std::shared_ptr<const engine::CompiledModel> compiled;
  std::vector<double> us;
};

Result<Placed> place(const Options& options, bool apart) {
  const auto engine = engine::make_second_engine(
      options.engine == engine::openvino.name ? engine::openvino : engine::onnxruntime,
      {.threads = options.threads, .module = options.module, .apart = apart});
  const auto model = engine->read(options.model, {});
  if (!model) return std::unexpected(model.error());
  auto compiled = engine->compile(**model, {.batch_sizes = {options.batch}});
  if (!compiled) return std::unexpected(compiled.error());
  return Placed{.compiled = std::move(*compiled), .us = {}};
}

std::vector<std::unique_ptr<graph::Tensor>> zeros(std::span<const graph::TensorSpec> specs) {
  std::vector<std::unique_ptr<graph::Tensor>> out;
  for (const graph::TensorSpec& spec : specs)
    out.push_back(std::make_unique<graph::Tensor>(graph::TensorType{
        graph::DataType::u8, {static_cast<std::int64_t>(graph::memory_of(spec.type, spec.shape).count)}}));
  return out;
}

double at(std::vector<double>& values, double share) {
  const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(index));
  return values[index];
}

Result<> measure(const Options& options) {
  std::vector<Placed> placed;
  for (const bool apart : {false, true}) {
    auto made = place(options, apart);
    if (!made) return std::unexpected(made.error());
    placed.push_back(std::move(*made));
  }
  const engine::Plan& plan = *placed.front().compiled->plan(options.batch);
  const auto inputs = zeros(plan.inputs()), outputs = zeros(plan.outputs());
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const auto& each : inputs) from.push_back(each->bytes().data());
  for (const auto& each : outputs) to.push_back(each->bytes().data());
  for (int i = -options.runs / 10; i < options.runs; ++i)
    for (Placed& each : placed) {
      const auto begin = std::chrono::steady_clock::now();
      auto ran = each.compiled->plan(options.batch)->run({0, 1}, {.inputs = from, .outputs = to}, {});
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (!ran) return ran;
      if (i >= 0) each.us.push_back(took.count());
    }
  nlohmann::json out;
  for (const auto& [name, share] : {std::pair("p50_us", 0.5), std::pair("p99_us", 0.99)}) {
    const double inside = at(placed[0].us, share), apart = at(placed[1].us, share);
    out[name] = {{"inside", inside}, {"apart", apart}, {"more", apart - inside}};
  }
  std::cout << out.dump(2) << "\n";
  return {};
}

}  // namespace
}  // namespace carillon::bench

int main(int argc, char** argv) {
  carillon::bench::Options options;
  CLI::App app{"What a process of its own costs an engine of others."};
  app.add_option("--model", options.model)->required();
  app.add_option("--module", options.module);
  app.add_option("--engine", options.engine)->check(CLI::IsMember({"openvino", "onnxruntime"}));
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 1024));
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--runs", options.runs)->check(CLI::Range(10, 10'000'000));
  CLI11_PARSE(app, argc, argv);
  if (const auto measured = carillon::bench::measure(options); !measured) {
    std::cerr << measured.error().message << "\n";
    return 1;
  }
  return 0;
}
