// What CUDA plans of a model are made of, and how near they are to the CPU's, on an emulated device.
//
//   carillon_cuda_check MODEL.onnx [--number f32|tf32|f16|bf16] [--batch N] [--segment N] [--cut] [--steps]
//
// --cut runs each segment by itself, twice; --segment is the most kernels in one (0: all); --steps lists
// them. Ends with 1 where the outputs are further apart than the number allows (f32 1e-4, f16 and bf16 3e-2,
// of the largest element), or the device found a fault.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cuda/testing/on_emulated.h"
#include "carillon/engine/zero_operands.h"
#include "carillon/graph/model.h"

namespace carillon::engine::cuda {
namespace {

struct Arguments {
  std::string file;
  Number number = Number::f32;
  int batch = 1, segment = 0;
  bool cut = false, steps = false;
};

Result<Arguments> parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    const auto number = [&](int least, int& to) -> Result<> {
      const std::string_view value = i + 1 < argc ? argv[++i] : "";
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to);
      if (error != std::errc{} || end != value.data() + value.size() || to < least || to > 4096)
        return invalid(fmt::format("{} takes a number of {} to 4096, not '{}'", text, least, value));
      return {};
    };
    Result<> taken;
    if (text == "--number") {
      const std::string_view value = i + 1 < argc ? argv[++i] : "";
      bool known = false;
      for (const Number each : {Number::f32, Number::tf32, Number::f16, Number::bf16})
        if (value == name_of(each)) {
          out.number = each;
          known = true;
        }
      if (!known) taken = invalid(fmt::format("--number is f32, tf32, f16 or bf16, not '{}'", value));
    } else if (text == "--batch") {
      taken = number(1, out.batch);
    } else if (text == "--segment") {
      taken = number(0, out.segment);
    } else if (text == "--cut") {
      out.cut = true;
    } else if (text == "--steps") {
      out.steps = true;
    } else if (text.starts_with("--") || !out.file.empty()) {
      taken = invalid(fmt::format("unknown option {}", text));
    } else {
      out.file = text;
    }
    if (!taken) return std::unexpected(taken.error());
  }
  if (out.file.empty()) return invalid("which model? give an ONNX file");
  return out;
}

using Values = std::vector<std::vector<std::byte>>;

// The CPU's answers.
Result<Values> wanted(const graph::Model& model, int batch,
                      const std::vector<std::vector<std::byte>>& inputs) {
  const auto engine = make_cpu_engine({.threads = 2});
  auto compiled = engine->compile(model, {.batch_sizes = {batch}});
  if (!compiled) return in_context("on the CPU", compiled.error());
  const std::int64_t length = (*compiled)->lengths().empty() ? 0 : (*compiled)->lengths().back();
  const Plan& plan = *(*compiled)->plan(batch, length);
  const auto aligned = [](std::uint64_t bytes) {
    return graph::Tensor(
        {graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(1, bytes))}});
  };
  std::vector<graph::Tensor> kept;
  std::vector<const std::byte*> from;
  for (const auto& input : inputs) {
    std::ranges::copy(input, kept.emplace_back(aligned(input.size())).bytes().begin());
    from.push_back(kept.back().bytes().data());
  }
  std::vector<graph::Tensor> room;
  std::vector<std::byte*> to;
  for (const auto& spec : plan.outputs())
    to.push_back(
        room.emplace_back(aligned(graph::TensorType{spec.type, spec.shape}.bytes().count)).bytes().data());
  graph::Tensor weights = aligned((*compiled)->weights().count), workspace = aligned(plan.workspace().count);
  (*compiled)->write_weights(0, weights.bytes().first((*compiled)->weights().count));
  const auto state = plan.make_state();
  if (auto ran = plan.run({0, plan.kernels()},
                          {.inputs = from,
                           .outputs = to,
                           .workspace = workspace.bytes().data(),
                           .weights = weights.bytes().data(),
                           .state = state.get()},
                          {});
      !ran)
    return in_context("on the CPU", ran.error());
  Values out;
  for (std::size_t i = 0; i < room.size(); ++i) {
    const auto& spec = plan.outputs()[i];
    const auto bytes = room[i].bytes().first(graph::TensorType{spec.type, spec.shape}.bytes().count);
    out.emplace_back(bytes.begin(), bytes.end());
  }
  return out;
}

Result<bool> check(const Arguments& arguments) {
  auto model = graph::import_onnx(arguments.file, {.lengths = {128}});
  if (!model) model = graph::import_onnx(arguments.file, {});
  if (!model) return std::unexpected(model.error());
  testing::OnEmulated on({.memory = std::uint64_t{16} << 30});
  bool good = true;
  {
    auto engine = on.engine({.number = arguments.number, .longest_segment = arguments.segment});
    if (!engine) return std::unexpected(engine.error());
    auto compiled = (*engine)->compile(**model, {.batch_sizes = {arguments.batch}});
    if (!compiled) return std::unexpected(compiled.error());
    const std::int64_t length = (*compiled)->lengths().empty() ? 0 : (*compiled)->lengths().back();
    const Plan& plan = *(*compiled)->plan(arguments.batch, length);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<std::span<const std::byte>> views;
    Random random(7);
    for (const graph::TensorSpec& spec : plan.inputs()) {
      graph::Tensor tensor({spec.type, spec.shape});
      if (spec.type == graph::DataType::f32)
        for (float& x : tensor.as<float>()) x = static_cast<float>(random.normal());
      else if (spec.type == graph::DataType::i64)
        for (std::int64_t& x : tensor.as<std::int64_t>())
          x = spec.name.find("mask") != std::string::npos ? 1 : static_cast<std::int64_t>(random.below(100));
      inputs.emplace_back(tensor.bytes().begin(), tensor.bytes().end());
    }
    for (const auto& input : inputs) views.emplace_back(input);
    const auto want = wanted(**model, arguments.batch, inputs);
    if (!want) return std::unexpected(want.error());
    const auto began = std::chrono::steady_clock::now();
    const auto got = on.run(**compiled, plan, views, arguments.cut);
    if (!got) return std::unexpected(got.error());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    double worst = 0;
    for (std::size_t i = 0; i < want->size(); ++i) {
      if (plan.outputs()[i].type != graph::DataType::f32) {
        good = good && (*want)[i] == (*got)[i];
        continue;
      }
      double most = 0, apart = 0;
      for (std::size_t k = 0; k < (*want)[i].size(); k += sizeof(float)) {
        float a = 0, b = 0;
        std::memcpy(&a, (*want)[i].data() + k, sizeof a);
        std::memcpy(&b, (*got)[i].data() + k, sizeof b);
        most = std::max(most, std::abs(static_cast<double>(a)));
        apart = std::isnan(b) ? INFINITY : std::max(apart, std::abs(static_cast<double>(a) - b));
      }
      worst = std::max(worst, most > 0 ? apart / most : apart);
    }
    const double allowed = arguments.number == Number::f32 || arguments.number == Number::tf32 ? 1e-4 : 3e-2;
    good = good && worst <= allowed;
    std::cout << fmt::format(
        "{} {} batch {}: {} segments, workspace {}, weights {}; apart by {:.2e} of the largest "
        "element ({:.0e} allowed); {:.1f} s{}\n",
        arguments.file, name_of(arguments.number), arguments.batch, plan.kernels(), to_text(plan.workspace()),
        to_text((*compiled)->weights()), worst, allowed, took.count(), good ? "" : "  FAILED");
    if (arguments.steps)
      for (int i = 0; i < plan.kernels(); ++i) std::cout << "  " << plan.kernel_name(i) << "\n";
  }
  if (const std::string left = on.device().left_behind(); !left.empty())
    return fail(ErrorCode::internal, "the device was left with " + left);
  return good;
}

}  // namespace
}  // namespace carillon::engine::cuda

int main(int argc, char** argv) {
  const auto arguments = carillon::engine::cuda::parse(argc, argv);
  if (!arguments) {
    std::cerr << "carillon_cuda_check: " << arguments.error().message << "\n";
    return 2;
  }
  const auto good = carillon::engine::cuda::check(*arguments);
  if (!good) std::cerr << "carillon_cuda_check: " << good.error().message << "\n";
  return good && *good ? 0 : 1;
}
