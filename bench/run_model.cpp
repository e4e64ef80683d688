// Runs a model on given inputs and writes its outputs, for comparison with another engine.
//
//   carillon_run_model --model FILE.onnx --data DIR --batches 1,2,7,16 [--precision f32|bf16] [--threads T]
//
// For each batch size B, reads DIR/B/in_I.bin and writes DIR/B/out_I.bin: raw row-major elements,
// little-endian, I counting inputs and outputs in the model's order. Prints names, types and shapes as JSON.
// All batch sizes are compiled together, so they share their weights as in a server.
#include <fstream>
#include <iostream>

#include "model_runner.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace carillon::bench {
namespace {

struct Options {
  std::string model, data, precision = "f32";
  std::vector<int> batches{1};
  int threads = 0;
};

Result<> read(const std::filesystem::path& file, std::span<std::byte> to) {
  std::error_code none;
  const auto size = std::filesystem::file_size(file, none);
  if (none) return invalid("cannot read " + file.string() + ": " + none.message());
  if (size != to.size())
    return invalid(file.string() + " has " + std::to_string(size) + " bytes; the input takes " +
                   std::to_string(to.size()));
  std::ifstream in(file, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size())) && !to.empty())
    return invalid("cannot read " + file.string());
  return {};
}

Result<> write(const std::filesystem::path& file, std::span<const std::byte> from) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(from.data()), static_cast<std::streamsize>(from.size()));
  if (!out) return invalid("cannot write " + file.string());
  return {};
}

nlohmann::json describe(std::span<const graph::TensorSpec> specs) {
  auto list = nlohmann::json::array();
  for (const auto& spec : specs)
    list.push_back(
        {{"name", spec.name}, {"type", std::string(graph::kserve_name(spec.type))}, {"shape", spec.shape}});
  return list;
}

Result<> run(const Options& options) {
  auto runner = Runner::load(
      options.model, {.threads = options.threads},
      {.batch_sizes = options.batches,
       .precision = options.precision == "bf16" ? engine::Precision::bf16 : engine::Precision::f32});
  if (!runner) return std::unexpected(runner.error());
  for (const graph::TensorSpec& output : runner->compiled().outputs())
    if (graph::has_bounded(output.shape))
      return invalid("the data decide how long output '" + output.name +
                     "' is; its bytes alone do not say it");
  for (const int batch : options.batches) {
    if (!runner->select(batch))
      return invalid(options.model + " has no plan for batch " + std::to_string(batch));
    const auto folder = std::filesystem::path(options.data) / std::to_string(batch);
    for (std::size_t i = 0; i < runner->inputs().size(); ++i)
      if (auto done = read(folder / ("in_" + std::to_string(i) + ".bin"), runner->inputs()[i].bytes()); !done)
        return done;
    if (auto done = runner->run(); !done) return done;
    for (std::size_t i = 0; i < runner->outputs().size(); ++i)
      if (auto done = write(folder / ("out_" + std::to_string(i) + ".bin"), runner->outputs()[i].bytes());
          !done)
        return done;
  }
  std::cout << nlohmann::json{{"inputs", describe(runner->compiled().inputs())},
                              {"outputs", describe(runner->compiled().outputs())},
                              {"weights_bytes", runner->compiled().weights().count}}
                   .dump()
            << "\n";
  return {};
}

}  // namespace
}  // namespace carillon::bench

int main(int argc, char** argv) {
  carillon::bench::Options options;
  CLI::App app{"Runs an ONNX model on raw inputs."};
  app.add_option("--model", options.model, "ONNX file")->required()->check(CLI::ExistingFile);
  app.add_option("--data", options.data, "folder of inputs and outputs")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--batches", options.batches, "ascending batch sizes")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--threads", options.threads, "threads (0: all cores)")->check(CLI::Range(0, 1024));
  app.add_option("--precision", options.precision, "of the heavy kernels")
      ->check(CLI::IsMember({"f32", "bf16"}));
  CLI11_PARSE(app, argc, argv);
  if (const auto done = carillon::bench::run(options); !done) {
    std::fprintf(stderr, "error: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}
