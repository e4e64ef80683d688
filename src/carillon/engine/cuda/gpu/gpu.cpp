// Checks and measurements of the CUDA engine on a device; each prints one JSON object. tools/gpu-check runs
// them all.

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "carillon/engine/cuda/gpu/parts.h"

namespace carillon::engine::cuda::gpu {
namespace {

int run(int argc, char** argv) {
  CLI::App app{
      "Checks and measurements of the CUDA engine on a device; each prints one JSON object.\n\n"
      "  carillon_gpu facts --device cuda:0\n"
      "  carillon_gpu agree resnet50/1/model.onnx --number f16 --cut --segment 4\n"
      "  carillon_gpu speed resnet50/1/model.onnx --number f16 --batch 8 --runs 2000\n"
      "  carillon_gpu steps resnet50/1/model.onnx --number f16 --batch 8 > table.json\n"
      "  carillon_gpu load vgg16/1/model.onnx"};
  app.require_subcommand(1);
  std::string device = "cuda", file;
  OpenOptions options;
  int batch = 1, runs = 1000, times = 20;
  bool cut = false;
  static const std::map<std::string, Number> numbers{
      {"f32", Number::f32}, {"tf32", Number::tf32}, {"f16", Number::f16}, {"bf16", Number::bf16}};
  std::function<Result<Json>(const Rig&)> part;
  const auto add = [&](const char* name, const char* what, bool takes_model,
                       std::function<Result<Json>(const Rig&)> does) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->add_option("--device", device, "cuda, cuda:N or cuda-emulated")->capture_default_str();
    command->add_option("--cuda-libraries", options.libraries, "Folder of NVIDIA's libraries");
    command->add_option("--kernel-choices", options.choices,
                        "File beside which choices of library calls are kept");
    if (takes_model) {
      command->add_option("MODEL", file, "ONNX file")->required();
      command
          ->add_option("--number", options.engine.number,
                       "What f32 values are stored as: f32, tf32, f16 or bf16")
          ->transform(CLI::CheckedTransformer(numbers).description("f32, tf32, f16 or bf16"))
          ->default_str("f32");
      command
          ->add_option("--segment", options.engine.longest_segment,
                       "Most kernels in a segment; 0: one segment")
          ->check(CLI::Range(0, 4096))
          ->capture_default_str();
    }
    command->callback([&part, does = std::move(does)] { part = does; });
    return command;
  };
  const auto with_batch = [&](CLI::App* command) {
    command->add_option("--batch", batch, "Batch size")->check(CLI::Range(1, 4096))->capture_default_str();
  };
  add("facts", "What the device is, and how long memory and copies take", false, facts);
  CLI::App* const agrees = add("agree", "Outputs beside the CPU's", true, [&](const Rig& rig) {
    return agree(rig, file, batch, options.engine.number, cut);
  });
  agrees->add_flag("--cut", cut, "Each segment by itself, twice");
  with_batch(agrees);
  CLI::App* const fast =
      add("speed", "How long runs take", true, [&](const Rig& rig) { return speed(rig, file, batch, runs); });
  fast->add_option("--runs", runs, "How many")->check(CLI::Range(1, 10'000'000))->capture_default_str();
  with_batch(fast);
  CLI::App* const by_step =
      add("steps", "How long each step takes by itself, as a table for --device cuda-emulated:FILE", true,
          [&](const Rig& rig) { return steps(rig, file, batch, options.engine.number, runs); });
  by_step->add_option("--runs", runs, "How many")->check(CLI::Range(1, 100'000))->capture_default_str();
  with_batch(by_step);
  add("load", "The rate of a LOAD's copy beside the bus's", true,
      [&](const Rig& rig) { return load(rig, file, times); })
      ->add_option("--times", times, "How often")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (by_step->parsed()) options.engine.longest_segment = 1;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto tell = [](const Error& error) {
    std::cerr << "carillon_gpu: " << error.message << '\n';
    return 2;
  };
  auto rig = make_rig(device, options);
  if (!rig) return tell(rig.error());
  const auto done = part(*rig);
  if (!done) return tell(done.error());
  std::cout << done->dump(1) << std::endl;
  if (rig->emulated != nullptr) {
    rig->engine.reset();
    for (const std::string& violation : rig->emulated->violations())
      std::cerr << "the device: " << violation << '\n';
    if (!rig->emulated->violations().empty()) return 1;
    if (const std::string left = rig->emulated->left_behind(); !left.empty()) {
      std::cerr << "the device was left with " << left << '\n';
      return 1;
    }
  }
  return done->value("agrees", true) ? 0 : 1;
}

}  // namespace
}  // namespace carillon::engine::cuda::gpu

int main(int argc, char** argv) {
  return carillon::engine::cuda::gpu::run(argc, argv);
}
