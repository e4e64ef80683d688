#include "carillon/engine/cuda/table/step_table.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/plan/step_work.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"

namespace carillon::engine::cuda {
namespace {

using engine::testing::MadeModel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::OnEmulated;
namespace networks = testing::networks;

struct ListedStep {
  std::string name;
  double us;
};
std::string document(const std::vector<ListedStep>& steps, const std::string& more = "",
                     const char* field = "us") {
  std::string rows;
  for (const ListedStep& step : steps)
    rows += fmt::format("{}{{\"step\": \"{}\", \"{}\": {}}}", rows.empty() ? "" : ", ", step.name, field,
                        step.us);
  return fmt::format(
      R"({{"device": "a GPU"{}, "plans": [{{"model": "made", "number": "f16", "batch": 2, "steps": [{}]}}]}})",
      more, rows);
}

// Remembers what it was asked for, and lets `times` answer, where there is one.
class Asked final : public StepTimes {
 public:
  explicit Asked(std::shared_ptr<const StepTimes> times = nullptr) : times_(std::move(times)) {}
  Result<std::vector<Duration>> of(const PlanName& plan, std::span<const Step> steps) const override {
    names.clear();
    works.clear();
    for (const Step& step : steps) {
      names.emplace_back(plain_name(step.name));
      works.push_back(work_of(step));
    }
    if (times_ == nullptr) return std::vector<Duration>(steps.size());
    auto made = times_->of(plan, steps);
    if (made) takes = *made;
    return made;
  }
  void announce(Duration duration) const override { Emulated::next_takes(duration); }
  mutable std::vector<std::string> names;
  mutable std::vector<StepWork> works;
  mutable std::vector<Duration> takes;

 private:
  std::shared_ptr<const StepTimes> times_;
};

Result<std::shared_ptr<const CompiledModel>> compile(OnEmulated& on, const networks::Make& make,
                                                     std::shared_ptr<const StepTimes> times) {
  const auto engine = on.engine({.number = Number::f16, .times = std::move(times)});
  if (!engine) return std::unexpected(engine.error());
  return (*engine)->compile(MadeModel(make), {.batch_sizes = {2}});
}

std::vector<std::string> names_of_steps(OnEmulated& on, const networks::Make& make) {
  const auto asked = std::make_shared<Asked>();
  EXPECT_TRUE(compile(on, make, asked));
  return asked->names;
}

std::shared_ptr<const StepTimes> times_of(const std::string& json) {
  auto read = parse_step_table(json, "t.json");
  EXPECT_TRUE(read) << read.error().message;
  return read ? times_by(std::move(*read), "t.json") : nullptr;
}

TEST(StepTable, ReadsWhatToolsWrite) {
  const auto read = parse_step_table(
      R"({"device": "H", "made_by": "x", "processors": 108, "memory_bytes": 42949672960, "bus_bytes_per_s": 2.5e10,
          "memory_bytes_per_s": 2e12, "copy_us": 1.5, "step_us": 2, "rates": {"*": {"operations_per_s": 2e13, "bytes_per_s": 1e12}},
          "plans": [{"model": "m", "number": "f16", "batch": 8, "length": 128, "least_us": 3, "steps": [
            {"step": "fc product f16 1x [1x16] [16x10] bias by cuBLASLt's way 3", "us": 7, "least_us": 1},
            {"step": "pool carillon_reduce_f16", "kernel": "carillon_reduce_f16", "least_us": 0.25}]}]})",
      "t.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->device, "H");
  EXPECT_EQ(read->processors, 108U);
  EXPECT_EQ(read->memory, std::uint64_t{40} << 30);
  EXPECT_EQ(read->bus_bytes_per_s, 2.5e10);
  EXPECT_EQ(read->rates.at("*").bytes_per_s, 1e12);
  ASSERT_EQ(read->plans.size(), 1U);
  const StepTable::Plan& plan = read->plans[0];
  EXPECT_EQ(plan.name.model, "m");
  EXPECT_EQ(plan.name.number, Number::f16);
  EXPECT_EQ(plan.name.batch, 8);
  EXPECT_EQ(plan.name.length, 128);
  ASSERT_EQ(plan.steps.size(), 2U);
  EXPECT_EQ(plan.steps[0].name, "fc product f16 1x [1x16] [16x10] bias");
  EXPECT_EQ(plan.steps[0].us, 7) << "microseconds, and what was measured";
  EXPECT_TRUE(plan.steps[0].measured);
  EXPECT_EQ(plan.steps[1].us, 0.25);
  EXPECT_FALSE(plan.steps[1].measured);
}

TEST(StepTable, WhatIsWrongIsNamedWithItsPlace) {
  const std::string nested = std::string(100'000, '[');
  const auto plan = [](const std::string& fields) {
    return R"({"device": "H", "plans": [{)" + fields + "}]}";
  };
  const std::string named = R"("model": "m", "number": "f16", "batch": 1)";
  const auto step = [&](const std::string& fields) {
    return plan(named + R"(, "steps": [{)" + fields + "}]");
  };
  const std::pair<std::string, std::string> rows[] = {
      {"", "t.json: not a JSON document"},
      {"no", "t.json: not a JSON document"},
      {nested, "deep in each other"},
      {R"({"device": )" + nested, "deep in each other"},
      {"[]", "t.json: document: is array, but should be an object"},
      {"{}", R"(document: has no "device")"},
      {R"({"device": 3})", "device: is 3, but should be a string"},
      {R"({"device": "", "plans": []})", "device: is a name of 0 bytes"},
      {R"({"device": "H"})", R"(has no "plans")"},
      {R"({"device": "H", "plans": []})", R"(has neither "plans" with steps nor "rates" of kernels)"},
      {R"({"device": "H", "plans": {}})", "plans: is object, but should be an array"},
      {R"({"device": "H", "plans": [], "plans": []})", R"(has "plans" twice)"},
      {R"({"device": "H", "memory_bytes": 1.5, "plans": []})", "memory_bytes: is 1.5, but should be a whole"},
      {R"({"device": "H", "processors": 0, "plans": []})",
       "processors: is 0, but should be a whole number in 1"},
      {R"({"device": "H", "copy_us": -1, "plans": []})", "copy_us: is -1, but should be microseconds in 0"},
      {R"({"device": "H", "copy_us": 1e999, "plans": []})", "not a JSON document"},
      {R"({"device": "H", "copy_us": NaN, "plans": []})", "not a JSON document"},
      {R"({"device": "H", "bus_bytes_per_s": "fast", "plans": []})", R"(bus_bytes_per_s: is "fast", but)"},
      {R"({"device": "H", "rates": {"*": {"bytes_per_s": 1}}})", R"(rates.*: has no "operations_per_s")"},
      {R"({"device": "H", "rates": {"x": {"bytes_per_s": 0, "operations_per_s": 1}}})",
       "rates.x.bytes_per_s: is 0"},
      {R"({"device": "H", "rates": {"x": {"bytes_per_s": 1, "operations_per_s": 1}, "x": {}}})",
       R"(has "x" twice)"},
      {plan(R"("number": "f16")"), R"(plans[0]: has no "model")"},
      {plan(R"("model": "m", "number": "f8", "batch": 1)"), R"(plans[0].number: is "f8", but should be f32)"},
      {plan(R"("model": "m", "number": "f16", "batch": 0)"), "plans[0].batch: is 0"},
      {plan(named), R"(plans[0]: has no "steps")"},
      {plan(named + R"(, "steps": [3])"), "plans[0].steps[0]: is number, but should be an object"},
      {step(R"("us": 1)"), R"(plans[0].steps[0]: has no "step")"},
      {step(R"("step": "a")"), R"(plans[0].steps[0]: has neither "us", as measured, nor "least_us")"},
      {step(R"("step": "a", "ms": 1)"),
       R"(plans[0].steps[0]: has "ms", which is none of its fields: step, us)"},
      {plan(named + R"(, "lenght": 128, "steps": [])"), R"(plans[0]: has "lenght", which is none of)"},
      {R"({"device": "H", "memory_byte": 1e9, "plans": []})",
       R"(document: has "memory_byte", which is none)"},
      {R"({"device": "H", "rates": {"*": {"operations_per_s": 1, "bytes_per_s": 1, "us": 3}}})",
       R"(rates.*: has "us", which is none of its fields: operations_per_s, bytes_per_s)"},
      {step(R"("step": "a", "us": -1)"), "plans[0].steps[0].us: is -1, but should be microseconds in 0.."},
      {step(R"("step": "a", "us": 1e12)"), "plans[0].steps[0].us: is 1"},
      {step(R"("step": "a", "us": "1")"), R"(plans[0].steps[0].us: is "1")"},
      {step(R"("step": ")" + std::string(3000, 'a') + R"(", "us": 1)"), "is a name of 3000 bytes"},
      {R"({"device": "H", "plans": [{)" + named + R"(, "steps": []}, {)" + named +
           R"(, "length": 0, "steps": []}]})",
       "plans[1]: m at batch 1 in f16 stands here for the second time"},
  };
  for (const auto& [json, says] : rows) {
    const auto read = parse_step_table(json, "t.json");
    ASSERT_FALSE(read) << json.substr(0, 200);
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(read.error().message, AllOf(HasSubstr("t.json: "), HasSubstr(says))) << json.substr(0, 200);
    EXPECT_LT(read.error().message.size(), 500U);
  }
}

TEST(StepTable, FilesThatAreNoneAreNamed) {
  const auto none = read_step_table("/nowhere/t.json");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  EXPECT_THAT(none.error().message,
              HasSubstr("/nowhere/t.json: no such file; it should be a table of steps"));
  const auto folder = read_step_table("/tmp");
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message, HasSubstr("is a directory"));
  const auto file = std::filesystem::temp_directory_path() / fmt::format("carillon-large-{}.json", getpid());
  { std::ofstream(file) << "["; }
  std::filesystem::resize_file(file, std::uintmax_t{1} << 30);  // without its blocks
  const auto large = read_step_table(file);
  std::filesystem::remove(file);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message,
              HasSubstr("has 1073741824 bytes, but a table of steps has at most 64 MiB"));
}

// Every step takes what the table says, the k-th of a name what is listed k-th; and a run their sum, in the
// device's time.
TEST(StepTable, StepsTakeWhatIsListed) {
  const std::pair<const char*, networks::Make> all[] = {{"layers", networks::layers},
                                                        {"residual", networks::residual},
                                                        {"inverted", networks::inverted},
                                                        {"encoder", networks::encoder},
                                                        {"views", networks::views}};
  Random random(5);
  for (const auto& [name, make] : all) {
    SCOPED_TRACE(name);
    OnEmulated on({.computes = false});
    std::vector<ListedStep> listed;
    for (const std::string& step : names_of_steps(on, make))
      listed.push_back({step, static_cast<double>(1 + random.below(4000)) / 8});
    const auto asked = std::make_shared<Asked>(times_of(document(listed)));
    auto model = compile(on, make, asked);
    ASSERT_TRUE(model) << model.error().message;
    ASSERT_EQ(asked->takes.size(), listed.size());
    Duration sum{0};
    for (std::size_t i = 0; i < listed.size(); ++i) {
      EXPECT_NEAR(to_ms(asked->takes[i]) * 1e3, listed[i].us, 0.0011) << listed[i].name;
      sum += asked->takes[i];
    }
    const auto graph = make(2);
    const auto inputs = engine::testing::random_inputs(graph, 11);
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& input : inputs) bytes.emplace_back(input->bytes());
    const Duration before = on.device().busy(), start = on.device().now();
    const auto outputs = on.run(**model, *(*model)->plan(2), bytes, false);
    ASSERT_TRUE(outputs) << outputs.error().message;
    for (const auto& output : *outputs)
      EXPECT_TRUE(std::ranges::all_of(output, [](std::byte b) { return b == std::byte{0}; })) << "zeros";
    // Beside the steps: what is copied, on the device and over the bus.
    const Duration busy = on.device().busy() - before;
    EXPECT_GE(busy, sum);
    EXPECT_LT(busy - sum, from_ms(0.03));
    EXPECT_LT(on.device().now() - start - sum, from_ms(0.2));
    model->reset();
    EXPECT_EQ(on.device().left_behind(), "");
  }
}

TEST(StepTable, ShortStepsAreRoundedAsAWhole) {
  OnEmulated on({.computes = false});
  std::vector<ListedStep> listed;
  for (const std::string& step : names_of_steps(on, networks::encoder)) listed.push_back({step, 0.0003});
  const auto asked = std::make_shared<Asked>(times_of(document(listed)));
  ASSERT_TRUE(compile(on, networks::encoder, asked));
  const Duration sum = std::accumulate(asked->takes.begin(), asked->takes.end(), Duration{0});
  EXPECT_EQ(sum.count(), std::llround(0.3 * static_cast<double>(listed.size())));
}

TEST(StepTable, WhatIsNotListedGoesByRates) {
  OnEmulated on({.computes = false});
  const auto asked = std::make_shared<Asked>(times_of(R"({"device": "a GPU", "step_us": 2, "rates": {
        "conv f16": {"operations_per_s": 1e9, "bytes_per_s": 1e20},
        "product f16": {"operations_per_s": 1e20, "bytes_per_s": 2e9},
        "*": {"operations_per_s": 1, "bytes_per_s": 1e9}}})"));
  ASSERT_TRUE(compile(on, networks::residual, asked));
  int convolutions = 0, own = 0;
  for (std::size_t i = 0; i < asked->names.size(); ++i) {
    const StepWork& work = asked->works[i];
    const double us = to_ms(asked->takes[i]) * 1e3;
    SCOPED_TRACE(asked->names[i]);
    EXPECT_GT(work.bytes, 0);
    if (work.kernel == "conv f16") {
      ++convolutions;
      EXPECT_GT(work.operations, 0);
      EXPECT_NEAR(us, 2 + work.operations / 1e3, 0.0011);
    } else {
      own += work.kernel.starts_with("carillon_") ? 1 : 0;
      EXPECT_NEAR(us, 2 + work.bytes / (work.kernel == "product f16" ? 2e3 : 1e3), 0.0011);
    }
  }
  EXPECT_GT(convolutions, 1);
  EXPECT_GT(own, 1);
}

TEST(StepTable, AStepWithoutATimeIsNamed) {
  OnEmulated on({.computes = false});
  std::vector<ListedStep> listed;
  for (const std::string& step : names_of_steps(on, networks::layers)) listed.push_back({step, 5});
  const auto error = [&](const std::vector<ListedStep>& steps, const std::string& more) {
    const auto model = compile(on, networks::layers, times_of(document(steps, more)));
    return model ? std::string() : model.error().message;
  };
  EXPECT_EQ(error(listed, ""), "");
  auto lacking = listed;
  const ListedStep gone = lacking.back();
  lacking.pop_back();
  EXPECT_THAT(error(lacking, ""), AllOf(HasSubstr("t.json: it has no time for step \"" + gone.name +
                                                  "\" of made at batch 2 in f16"),
                                        HasSubstr("nor has \"rates\" its kernel")));
  EXPECT_EQ(error(lacking, R"(, "rates": {"*": {"operations_per_s": 1e9, "bytes_per_s": 1e9}})"), "");
  auto more = listed;
  more.push_back({"a step that nobody knows", 5});
  EXPECT_THAT(
      error(more, R"(, "rates": {"*": {"operations_per_s": 1e9, "bytes_per_s": 1e9}})"),
      HasSubstr("step \"a step that nobody knows\" of made at batch 2 in f16 is listed, and this program's "
                "plan has it less often, or not at all"));
  more.back() = listed.front();
  EXPECT_THAT(error(more, ""), HasSubstr("less often"));
}

// Plans have the steps that they have on the table's device.
TEST(StepTable, FusesAsTheTableHasIt) {
  OnEmulated on({.computes = false});
  const auto library = [&](const std::string& step) {
    auto read = parse_step_table(document({{step, 1}}), "t.json");
    EXPECT_TRUE(read);
    return fusing_as(*read, *make_plain_library(std::make_shared<const Driver>(on.driver())));
  };
  const Convolution conv{.number = Number::f16, .channels = 3, .filters = 4, .bias = true, .relu = true};
  Convolution plain = conv;
  plain.bias = plain.relu = false;
  Convolution biased = conv;
  biased.relu = false;
  Convolution residual = conv;
  residual.residual_pitch = 4;
  residual.relu = false;
  EXPECT_TRUE(library("x other")->fuses(conv)) << "as cuDNN does";
  EXPECT_TRUE(library("a conv b " + to_text(conv))->fuses(conv));
  EXPECT_TRUE(library("a " + to_text(conv))->fuses(biased)) << "asked for its bias first";
  EXPECT_FALSE(library("a " + to_text(biased))->fuses(conv));
  EXPECT_FALSE(library("a " + to_text(plain))->fuses(biased));
  EXPECT_FALSE(library("a " + to_text(conv))->fuses(residual));
  Product product{.number = Number::f16, .rows = 4, .columns = 4, .depth = 4, .epilogue = Epilogue::gelu_erf};
  EXPECT_FALSE(library("x other")->fuses(product)) << "as cuBLASLt does not";
  EXPECT_TRUE(library("a " + to_text(product))->fuses(product));
  product.epilogue = Epilogue::relu;
  EXPECT_TRUE(library("x other")->fuses(product));
  Product without = product;
  without.epilogue = Epilogue::none;
  EXPECT_FALSE(library("a " + to_text(without))->fuses(product));
}

TEST(StepTable, ModelsAreNamedAsTheirRepositoryDoes) {
  EXPECT_EQ(model_of_file("models/resnet50/1/model.onnx"), "resnet50");
  EXPECT_EQ(model_of_file("resnet50.onnx"), "resnet50.onnx");
}

}  // namespace
}  // namespace carillon::engine::cuda
