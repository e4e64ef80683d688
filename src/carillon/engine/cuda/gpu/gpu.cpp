// Checks and measurements of the CUDA engine on a device; each prints one JSON object. tools/gpu-first runs
// them all.

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "carillon/base/files.h"
#include "carillon/engine/cuda/driver/recorded.h"
#include "carillon/engine/cuda/driver/rules.h"
#include "carillon/engine/cuda/gpu/parts.h"

namespace carillon::engine::cuda::gpu {
namespace {

Result<Json> replayed(const std::string& file) {
  const auto text = read_file("recorded calls", file);
  if (!text) return std::unexpected(text.error());
  const auto out = replay(*text);
  if (!out) return in_context(file, out.error());
  return Json{{"file", file},
              {"calls", out->calls},
              {"left_out", out->left_out},
              {"differences", out->differences},
              {"agrees", out->differences.empty()}};
}

int run(int argc, char** argv) {
  CLI::App app{
      "Checks and measurements of the CUDA engine on a device; each prints one JSON object.\n\n"
      "  carillon_gpu facts --device cuda:0\n"
      "  carillon_gpu agree resnet50/1/model.onnx --number f16 --cut --segment 4\n"
      "  carillon_gpu speed resnet50/1/model.onnx --number f16 --batch 8 --runs 2000\n"
      "  carillon_gpu attention distilbert/1/model.onnx --number f16 --batch 8\n"
      "  carillon_gpu steps resnet50/1/model.onnx --number f16 --batch 8 > table.json\n"
      "  carillon_gpu load vgg16/1/model.onnx\n"
      "  carillon_gpu replay driver_calls.txt\n"
      "  carillon_gpu preempt resnet50/1/model.onnx vgg19/1/model.onnx --number f16 --stop bound"};
  app.require_subcommand(1);
  std::string device = "cuda", file;
  OpenOptions options;
  int batch = 1, runs = 1000, times = 20;
  bool cut = false, whole = false, by_step = false;
  AskedCalls asked;
  TrialCall trial;
  std::string record, recorded;
  std::string number = "f32", way = "faster";
  std::vector<AttentionTimes> told;
  std::function<Result<Json>(const Rig&)> part;
  const auto add = [&](const char* name, const char* what, bool takes_model,
                       std::function<Result<Json>(const Rig&)> does) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->add_option("--device", device, "cuda, cuda:N or cuda-emulated")->capture_default_str();
    command->add_option("--cuda-libraries", options.libraries, "Folder of NVIDIA's libraries");
    command->add_option("--kernel-choices", options.choices,
                        "File beside which choices of library calls are kept");
    command->add_option("--record", record,
                        "File that the driver's calls and answers are written to (replay reads it)");
    command->add_flag("--whole,!--parts", whole, "The device is not divided");
    if (takes_model) {
      command->add_option("MODEL", file, "ONNX file")->required();
      command->add_option("--number", number, "What f32 values are stored as")
          ->check(CLI::IsMember({"f32", "tf32", "f16", "bf16"}))
          ->capture_default_str();
      command
          ->add_option("--segment", options.engine.longest_segment,
                       "Most kernels in a segment; 0: one segment")
          ->check(CLI::Range(0, 4096))
          ->capture_default_str();
      command->add_flag("!--products-apart", options.engine.join_products,
                        "Products of one input are computed one by one");
    }
    if (takes_model && std::string_view(name) != "attention")
      command->add_option("--attention", way, "Attention by calls, by one kernel, or by the faster")
          ->check(CLI::IsMember({"faster", "calls", "kernel"}))
          ->capture_default_str();
    command->callback([&part, does = std::move(does)] { part = does; });
    return command;
  };
  const auto with_batch = [&](CLI::App* command) {
    command->add_option("--batch", batch, "Batch size")->check(CLI::Range(1, 4096))->capture_default_str();
  };
  CLI::App* const tells = add("facts", "What the device is, and how long memory and copies take", false,
                              [&](const Rig& rig) { return facts(rig, trial); });
  CLI::App* const agrees = add("agree", "Outputs beside the CPU's", true, [&](const Rig& rig) {
    return by_step ? agree_by_step(rig, file, batch, options.engine, asked)
                   : agree(rig, file, batch, options.engine.number, cut);
  });
  CLI::Option* const by_segment = agrees->add_flag("--cut", cut, "Each segment by itself, twice");
  agrees->add_flag("--steps", by_step, "Each step beside the emulated device's, from the same bytes")
      ->excludes(by_segment);
  with_batch(agrees);
  CLI::App* const fast =
      add("speed", "How long runs take", true, [&](const Rig& rig) { return speed(rig, file, batch, runs); });
  fast->add_option("--runs", runs, "How many")->check(CLI::Range(1, 10'000'000))->capture_default_str();
  with_batch(fast);
  CLI::App* const attends =
      add("attention", "How long each attention takes by calls and by one kernel", true,
          [&](const Rig& rig) { return attention(rig, file, batch, options.engine.number, told); });
  with_batch(attends);
  CLI::App* const table =
      add("steps", "How long each step takes by itself, as a table for --device cuda-emulated:FILE", true,
          [&](const Rig& rig) { return steps(rig, file, batch, options.engine.number, runs); });
  table->add_option("--runs", runs, "How many")->check(CLI::Range(1, 100'000))->capture_default_str();
  with_batch(table);
  add("load", "The rate of a LOAD's copy beside the bus's", true,
      [&](const Rig& rig) { return load(rig, file, times); })
      ->add_option("--times", times, "How often")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  std::string other, stop = "bound";
  int bound =
      static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(options.engine.bound).count());
  CLI::App* const preempts =
      add("preempt", "How much longer real-time runs take where best-effort ones have the device", true,
          [&](const Rig& rig) { return preempt(rig, file, other, times, stop == "priority"); });
  preempts->add_option("OTHER", other, "ONNX file of the best-effort model")->required();
  preempts->add_option("--times", times, "How many real-time runs")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  preempts
      ->add_option(
          "--stop", stop,
          "What ends best-effort work that is with the device: bound, nothing, so that it runs; flag, "
          "kernels of ours look at one; priority, nothing, and runs are whole, "
          "in a stream of the least priority")
      ->check(CLI::IsMember({"bound", "flag", "priority"}))
      ->capture_default_str();
  preempts->add_option("--bound", bound, "How much best-effort work is with the device, us")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  CLI::App* const replays =
      app.add_subcommand("replay", "Recorded calls of a driver, and what the emulated device answers");
  replays->add_option("FILE", recorded, "As --record writes it")->required();
  CLI11_PARSE(app, argc, argv);
  options.engine.number = *number_named(number);
  options.engine.attention = way == "calls"    ? AttentionWay::calls
                             : way == "kernel" ? AttentionWay::kernel
                                               : AttentionWay::faster;
  options.engine.bound = std::chrono::microseconds{bound};
  options.engine.flag = stop == "flag";
  options.engine.splits = !whole;
  if (table->parsed() || by_step) options.engine.longest_segment = 1;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto tell = [](const Error& error) {
    std::cerr << "carillon_gpu: " << error.message << '\n';
    return 2;
  };
  if (replays->parsed()) {
    const auto done = replayed(recorded);
    if (!done) return tell(done.error());
    std::cout << done->dump(1) << std::endl;
    return done->at("agrees") ? 0 : 1;
  }
  if (tells->parsed())
    options.around = [&trial](std::unique_ptr<MathLibrary> library) {
      trial = trial_of(*library);
      return library;
    };
  if (attends->parsed()) {
    options.engine.choices = std::make_shared<KernelChoices>();  // nothing that was kept: all is measured
    options.engine.told = [&told](const AttentionTimes& each) { told.push_back(each); };
  }
  if (by_step) {
    if (device == "cuda-emulated")
      return tell(invalid("--steps holds a device against the emulated one: --device cuda").error());
    options.engine.choices = std::make_shared<KernelChoices>();  // of attention: the emulated device's, too
    options.around = [&asked](std::unique_ptr<MathLibrary> library) {
      return recording(std::move(library), asked);
    };
  }
  std::unique_ptr<Recording> recording;  // outlives the rig
  if (!record.empty()) {
    auto made = Recording::make(record);
    if (!made) return tell(made.error());
    recording = std::move(*made);
    options.watch = [&recording](const Driver& driver) { return recording->around(driver); };
  }
  auto rig = make_rig(device, options);
  if (!rig) return tell(rig.error());
  std::size_t asked_for = 0;  // violations: refusals are what is to be recorded
  if (recording != nullptr) {
    if (auto ruled = ask_rules(*rig->driver, rig->device); !ruled) return tell(ruled.error());
    if (rig->emulated != nullptr) asked_for = rig->emulated->violations().size();
  }
  const auto done = part(*rig);
  trial = {};
  if (!done) return tell(done.error());
  std::cout << done->dump(1) << std::endl;
  if (rig->emulated != nullptr) {
    rig->engine.reset();
    const auto violations = rig->emulated->violations();
    for (std::size_t i = asked_for; i < violations.size(); ++i)
      std::cerr << "the device: " << violations[i] << '\n';
    if (violations.size() > asked_for) return 1;
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
