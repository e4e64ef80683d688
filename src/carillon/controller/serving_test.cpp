// The whole of the serving path below the frontends: a repository on disk, the CPU engine, a worker with room
// for two models, a real scheduler and the live controller.
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/base/testing/folder.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/models/first_load.h"
#include "carillon/controller/models/kept_times.h"
#include "carillon/controller/models/model_loader.h"
#include "carillon/controller/models/repository_control.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/schedule/registry.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {
namespace {

using ::testing::ElementsAre;

namespace fs = std::filesystem;

void add_io(onnx::ValueInfoProto& value, const char* name, std::int64_t width, bool open) {
  value.set_name(name);
  auto& type = *value.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx::TensorProto::FLOAT);
  auto& first = *type.mutable_shape()->add_dim();
  if (open)
    first.set_dim_param("batch");
  else
    first.set_dim_value(1);
  type.mutable_shape()->add_dim()->set_dim_value(width);
}

// y = relu(x * W), x [batch, in], y [batch, out], W[i][j] = weight(i, j).
std::string linear_model(std::int64_t in, std::int64_t out, float scale, bool open_batch = true) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  auto& opset = *model.add_opset_import();
  opset.set_domain("");
  opset.set_version(17);
  auto& graph = *model.mutable_graph();
  graph.set_name("linear");
  add_io(*graph.add_input(), "x", in, open_batch);
  add_io(*graph.add_output(), "y", out, open_batch);
  auto& weights = *graph.add_initializer();
  weights.set_name("W");
  weights.set_data_type(onnx::TensorProto::FLOAT);
  weights.add_dims(in);
  weights.add_dims(out);
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(in * out));
  for (std::int64_t i = 0; i < in; ++i)
    for (std::int64_t j = 0; j < out; ++j) values.push_back(scale * static_cast<float>((i + 2 * j) % 5 - 1));
  weights.set_raw_data(values.data(), values.size() * sizeof(float));
  auto& product = *graph.add_node();
  product.set_name("product");
  product.set_op_type("MatMul");
  product.add_input("x");
  product.add_input("W");
  product.add_output("p");
  auto& relu = *graph.add_node();
  relu.set_name("relu");
  relu.set_op_type("Relu");
  relu.add_input("p");
  relu.add_output("y");
  return model.SerializeAsString();
}

float expected(const float* x, std::int64_t in, std::int64_t j, float scale) {
  double sum = 0;
  for (std::int64_t i = 0; i < in; ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(scale * static_cast<float>((i + 2 * j) % 5 - 1));
  return static_cast<float>(std::max(0.0, sum));
}

constexpr std::int64_t in_width = 8;
constexpr std::int64_t out_width = 3;

// Has room for every model, until it comes.
class RefusingWorker final : public testing::HeldWorker {
 public:
  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override {
    return fail(ErrorCode::resource_exhausted, "there are no addresses left");
  }
};

class Nobody final : public worker::ResultSink {
 public:
  void on_result(const worker::ActionResult&) override {}
  void on_probe(const worker::ProbeResult&) override {}
};

class ServingTest : public ::testing::TestWithParam<const char*> {
 protected:
  void write(const fs::path& relative, const std::string& bytes) { folder.write(relative.string(), bytes); }
  // Models a, b and c, alike but for the scale of their weights: 1, 2 and 3.
  void write_three() {
    float scale = 0;
    for (const char* name : {"a", "b", "c"})
      write(fs::path(name) / "1/model.onnx", linear_model(in_width, out_width, ++scale));
    write("a/config.pbtxt",
          "max_batch_size: 4 parameters { key: \"slo_ms\" value { string_value: \"60000\" } }");
  }
  LoadReport load(LoaderOptions options = {}, const worker::Options& sizes = {.page_cache = page_size * 2,
                                                                              .io_cache = mib(4),
                                                                              .workspace = mib(16),
                                                                              .exec_threads = 1}) {
    auto scheduler = schedule::make_scheduler(GetParam());
    EXPECT_TRUE(scheduler.has_value());
    controller = std::make_unique<Controller>(std::move(*scheduler), Options{}, clock);
    auto worker = worker::make_worker(sizes, clock, controller->results());
    EXPECT_TRUE(worker.has_value()) << worker.error().message;
    engine = engine::make_cpu_engine({.threads = 1});
    target = {engine.get(), worker->get()};
    if (options.seeds.repeats == 5) options.seeds.repeats = 2;
    options.progress = [this](const LoadProgress& now) { said.push_back(now.model + ": " + now.doing); };
    auto report = load_models(root, std::array{target}, *controller, options);
    EXPECT_TRUE(report.has_value()) << report.error().message;
    controller->add_worker(std::move(*worker));
    return report ? *report : LoadReport{};
  }

  std::future<InferAnswer> infer(const char* name, int rows, Duration deadline = Duration{0},
                                 std::uint64_t seed = 1) {
    const auto view = controller->find(name, "");
    EXPECT_TRUE(view.has_value());
    auto call = std::make_unique<InferCall>();
    call->model = (*view)->id;
    call->rows = rows;
    call->arrival = clock.now();
    call->deadline = deadline == Duration{0} ? TimePoint::max() : call->arrival + deadline;
    const std::size_t floats = static_cast<std::size_t>(rows) * static_cast<std::size_t>(in_width);
    call->inputs.emplace_back(floats * 4);
    Random random(seed);
    for (std::size_t i = 0; i < floats; ++i) {
      const auto x = static_cast<float>(random.normal());
      std::memcpy(call->inputs[0].data() + i * 4, &x, 4);
    }
    auto promise = std::make_shared<std::promise<InferAnswer>>();
    auto future = promise->get_future();
    controller->submit(std::move(call),
                       [promise](InferAnswer answer) { promise->set_value(std::move(answer)); });
    return future;
  }
  static void expect_right(const InferAnswer& answer, float scale) {
    ASSERT_TRUE(answer.status.has_value()) << answer.status.error().message;
    ASSERT_NE(answer.call, nullptr);
    std::vector<float> x(answer.call->inputs[0].size() / 4), y(answer.call->outputs[0].size() / 4);
    std::memcpy(x.data(), answer.call->inputs[0].data(), x.size() * 4);
    std::memcpy(y.data(), answer.call->outputs[0].data(), y.size() * 4);
    ASSERT_EQ(y.size(), static_cast<std::size_t>(answer.call->rows) * static_cast<std::size_t>(out_width));
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) / out_width;
      const float want =
          expected(x.data() + row * in_width, in_width, static_cast<std::int64_t>(i) % out_width, scale);
      EXPECT_NEAR(y[i], want, 1e-4F * (1 + std::abs(want))) << i;
    }
  }

  carillon::testing::Folder folder;  // goes last
  const fs::path root = folder.path();
  SteadyClock clock;
  std::vector<std::string> said;
  std::shared_ptr<engine::Engine> engine;
  LoadTarget target;
  std::unique_ptr<Controller> controller;
};

TEST_P(ServingTest, LoadsAndAnswersColdAndWarm) {
  write_three();
  const LoadReport report = load();
  EXPECT_EQ(report.ready, 3U);
  EXPECT_EQ(report.not_ready, 0U);
  EXPECT_EQ(controller->find("a", "").value()->config.max_batch_size, 4);
  EXPECT_EQ(controller->find("b", "").value()->config.max_batch_size, 16) << "from the file alone";
  controller->start();
  expect_right(infer("a", 1).get(), 1);  // cold
  EXPECT_EQ(controller->statistics().models[0].loads, 1U);
  expect_right(infer("a", 3).get(), 1);  // warm
  EXPECT_EQ(controller->statistics().models[0].loads, 1U);
  expect_right(infer("b", 16, 60s).get(), 2);
  expect_right(infer("c", 5, 60s).get(), 3);  // no page is left: somebody is evicted
  expect_right(infer("a", 2).get(), 1);
  const ServerStatistics statistics = controller->statistics();
  std::uint64_t unloads = 0, rows = 0, executions = 0;
  for (const ModelStatistics& model : statistics.models) {
    unloads += model.unloads;
    rows += model.inference_count;
    for (const auto& batch : model.batches)
      executions += batch.infer.count * static_cast<std::uint64_t>(batch.size);
    EXPECT_EQ(model.success.count, model.on_time) << model.name;
  }
  EXPECT_GE(unloads, 1U);
  EXPECT_EQ(rows, 27U);
  EXPECT_EQ(executions, 27U) << "every row ran once";
  EXPECT_EQ(statistics.pages_total, 2U);
  EXPECT_GT(statistics.exec_busy, Duration{0});
  EXPECT_GT(statistics.load_busy, Duration{0});
}

TEST_P(ServingTest, ManyCallsEvictAndNoneIsLost) {
  write_three();
  load();
  controller->start();
  Random random(11);
  const char* names[] = {"a", "b", "c"};
  struct Waiting {
    std::size_t model;
    std::future<InferAnswer> answer;
  };
  std::vector<Waiting> waiting;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::size_t model = random.below(3);
    waiting.push_back({model, infer(names[model], 1 + static_cast<int>(random.below(4)), 60s, i)});
  }
  for (Waiting& each : waiting) expect_right(each.answer.get(), static_cast<float>(each.model + 1));
  EXPECT_EQ(controller->statistics().open_requests, 0U);
}

TEST_P(ServingTest, AStopAnswersWhatIsOpen) {
  write_three();
  load();
  controller->start();
  std::vector<std::future<InferAnswer>> open;
  for (std::uint64_t i = 0; i < 100; ++i) open.push_back(infer("a", 2, 60s, i));
  controller->stop();
  for (auto& each : open) {
    const InferAnswer answer = each.get();
    if (answer.status)
      expect_right(answer, 1);
    else
      EXPECT_EQ(answer.status.error().code, ErrorCode::unavailable);
  }
}

TEST_P(ServingTest, BadModelsAreNotReadyAndDoNotStopTheOthers) {
  write("a/1/model.onnx", linear_model(in_width, out_width, 1));
  write("corrupt/1/model.onnx", "this is no model");
  write("disagrees/1/model.onnx", linear_model(in_width, out_width, 1));
  write("disagrees/config.pbtxt", "max_batch_size: 2 input { name: \"x\" data_type: TYPE_FP32 dims: [ 9 ] }");
  write("empty/config.pbtxt", "");
  write("huge/1/model.onnx", linear_model(3 << 20, 3, 1));  // 36 MiB of weights, and 32 of cache
  write("whole/1/model.onnx", linear_model(in_width, out_width, 1, false));
  const LoadReport report = load();
  EXPECT_EQ(report.ready, 2U);
  EXPECT_EQ(report.not_ready, 4U);
  EXPECT_EQ(report.notes.size(), 4U);
  for (const char* name : {"corrupt", "disagrees", "empty", "huge"}) {
    const auto view = controller->find(name, "");
    ASSERT_TRUE(view.has_value());
    EXPECT_FALSE((*view)->ready) << name;
    EXPECT_FALSE((*view)->reason.empty()) << name;
  }
  EXPECT_NE(controller->find("huge", "").value()->reason.find("page cache"), std::string::npos)
      << controller->find("huge", "").value()->reason;
  EXPECT_EQ(controller->find("whole", "").value()->config.max_batch_size, 0)
      << "its first dimension is fixed";
  controller->start();
  expect_right(infer("a", 2).get(), 1);
  expect_right(infer("whole", 1).get(), 1);
}

TEST_P(ServingTest, BatchesThatDoNotFitAreLeftOut) {
  constexpr std::int64_t wide = 100'000;  // 400 kB a row: 16 of them are more than the I/O cache has
  write("wide/1/model.onnx", linear_model(wide, 2, 1));
  const LoadReport report = load();
  EXPECT_EQ(report.ready, 1U);
  const auto view = controller->find("wide", "");
  EXPECT_EQ((*view)->config.batch_sizes, (std::vector<int>{1, 2, 4, 8}));
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_TRUE(report.notes[0].starts_with("wide version 1: batches of 16 are left out: ")) << report.notes[0];
}

TEST_P(ServingTest, SeedsComeFromTheProfileWhereItKnowsThem) {
  write_three();
  profile::DeviceProfile profile;
  profile::ModelProfile known{.name = "a", .version = 1, .precision = "f32"};
  known.load.p50 = known.load.p99 = 2ms;
  for (const int batch : {1, 2, 4}) known.batches.push_back({batch, {.p50 = 1ms, .p99 = 1ms, .n = 10}});
  profile.models = {known};
  known.name = "b";
  known.precision = "bf16";
  profile.models.push_back(known);
  LoaderOptions options;
  options.seeds.profile = &profile;
  load(options);
  bool measured_a = false, measured_b = false;
  for (const std::string& line : said) {
    measured_a |= line.starts_with("a version 1: measuring");
    measured_b |= line.starts_with("b version 1: measuring");
  }
  EXPECT_FALSE(measured_a);
  EXPECT_TRUE(measured_b) << "known in another precision only";
  EXPECT_EQ(said.back(), "c version 1: ready");
}

// An order, and what becomes of it.
Result<> ordered(ModelControl& control, const std::string& model, bool loads,
                 std::optional<std::string> config = std::nullopt) {
  std::promise<Result<>> done;
  const auto answer = [&](Result<> result, bool) { done.set_value(std::move(result)); };
  if (loads)
    control.load(model, {.config = std::move(config), .files = {}}, answer);
  else
    control.unload(model, false, answer);
  return done.get_future().get();
}

RepositoryOptions orders(std::vector<std::string>* said = nullptr) {
  RepositoryOptions options{
      .explicit_orders = true, .poll = std::nullopt, .seeds = {.repeats = 2, .aside = true}};
  options.tell = [](const std::string&) {};
  options.warn = [said](const std::string& text) {
    if (said != nullptr) said->push_back(text);
  };
  return options;
}

TEST_P(ServingTest, ModelsChangeWhileTheyServe) {
  write_three();
  const LoadReport loaded = load();
  RepositoryControl control(root, {target}, *controller, orders());
  controller->start();
  control.start(loaded.stamps);
  std::atomic<bool> ended{false};
  std::atomic<int> answers{0};
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 2; ++client)
    clients.emplace_back([&, client] {
      for (std::uint64_t i = 0; !ended; ++i) {
        const InferAnswer answer =
            infer("a", 1 + static_cast<int>(i % 3), Duration{0}, 10 * client + i).get();
        ASSERT_TRUE(answer.status.has_value()) << answer.status.error().message;
        ++answers;
      }
    });
  for (int round = 2; round < 8; ++round) {
    write("a/1/model.onnx", linear_model(in_width, out_width, static_cast<float>(round)));
    ASSERT_TRUE(ordered(control, "a", true));
    expect_right(infer("a", 2).get(), static_cast<float>(round));
    ASSERT_TRUE(ordered(control, "b", round % 2 == 1));
  }
  ended = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GT(answers, 0);
  expect_right(infer("c", 1).get(), 3);
  expect_right(infer("b", 1).get(), 2);
  // What is as it was is not loaded again.
  const ModelId before = (*controller->find("a", ""))->id;
  ASSERT_TRUE(ordered(control, "a", true));
  EXPECT_EQ((*controller->find("a", ""))->id, before);
  ASSERT_TRUE(ordered(control, "a", true, R"({"max_batch_size": 2})"));
  EXPECT_EQ((*controller->find("a", ""))->config.max_batch_size, 2);
  control.stop();
  EXPECT_EQ(ordered(control, "a", true).error().code, ErrorCode::unavailable);
}

TEST_P(ServingTest, WhatCannotBeLoadedLeavesWhatServes) {
  write_three();
  const LoadReport loaded = load();
  RepositoryControl control(root, {target}, *controller, orders(&said));
  controller->start();
  control.start(loaded.stamps);
  write("a/1/model.onnx", "no model");
  EXPECT_EQ(ordered(control, "a", true).error().code, ErrorCode::invalid_argument);
  expect_right(infer("a", 1).get(), 1);
  write("a/1/model.onnx", linear_model(in_width, out_width, 9));
  EXPECT_EQ(ordered(control, "a", true, "{").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(ordered(control, "a", true, R"({"max_batch_size": "x"})").error().code,
            ErrorCode::invalid_argument);
  expect_right(infer("a", 1).get(), 1);
  EXPECT_EQ(ordered(control, "../a", true).error().code, ErrorCode::not_found);
  EXPECT_EQ(ordered(control, "nobody", false).error().code, ErrorCode::not_found);
  // New and broken: it is known, and not ready.
  write("new/1/model.onnx", "no model");
  EXPECT_FALSE(ordered(control, "new", true));
  const auto view = controller->find("new", "");
  ASSERT_TRUE(view);
  EXPECT_FALSE((*view)->ready);
  EXPECT_NE((*view)->reason.find("not an ONNX model"), std::string::npos) << (*view)->reason;
  EXPECT_FALSE(said.empty());
}

// Files that change between their loading and the start are taken for what they are: changed.
TEST_P(ServingTest, WhatChangesWhileTheServerStartsIsLoadedAgain) {
  write_three();
  const LoadReport loaded = load();
  write("a/1/model.onnx", linear_model(in_width, out_width, 7));
  RepositoryControl control(root, {target}, *controller, orders());
  std::promise<Result<>> early;
  control.unload("b", false, [&](Result<> result, bool) { early.set_value(std::move(result)); });
  EXPECT_FALSE((*controller->find("a", ""))->ready) << "nothing is before the controller runs";
  controller->start();
  control.start(loaded.stamps);
  EXPECT_TRUE(early.get_future().get()) << "an order that came before";
  EXPECT_FALSE((*controller->find("b", ""))->ready);
  expect_right(infer("a", 1).get(), 1);
  ASSERT_TRUE(ordered(control, "a", true));
  expect_right(infer("a", 1).get(), 7);
}

// Without the mode nothing is taken; and a control that nobody wants has no thread.
TEST_P(ServingTest, OrdersAreTakenWhereTheyAreWanted) {
  write_three();
  const LoadReport loaded = load();
  RepositoryOptions none = orders();
  none.explicit_orders = false;
  RepositoryControl control(root, {target}, *controller, none);
  controller->start();
  control.start(loaded.stamps);
  EXPECT_EQ(ordered(control, "a", true).error().code, ErrorCode::unavailable);
}

// A call that holds an old version is answered, and the version ends after it.
TEST_P(ServingTest, AModelThatGoesAnswersWhatItHas) {
  write_three();
  const LoadReport loaded = load();
  RepositoryControl control(root, {target}, *controller, orders());
  controller->start();
  control.start(loaded.stamps);
  const ModelId old = (*controller->find("a", ""))->id;
  std::vector<std::future<InferAnswer>> waiting;
  for (std::uint64_t i = 0; i < 30; ++i) waiting.push_back(infer("a", 2, Duration{0}, i));
  ASSERT_TRUE(ordered(control, "a", false));
  for (auto& each : waiting) expect_right(each.get(), 1);
  EXPECT_FALSE((*controller->find("a", ""))->ready);
  // Whoever still has its id is told, once it has ended.
  for (ErrorCode code = ErrorCode::internal; code != ErrorCode::not_found;) {
    auto late = std::make_unique<InferCall>();
    late->model = old;
    late->arrival = clock.now();
    late->deadline = TimePoint::max();
    late->inputs.emplace_back(in_width * 4);
    std::promise<InferAnswer> answer;
    controller->submit(std::move(late), [&](InferAnswer is) { answer.set_value(std::move(is)); });
    const InferAnswer is = answer.get_future().get();
    if (!is.status) code = is.status.error().code;
    ASSERT_TRUE(is.status || code == ErrorCode::not_found) << is.status.error().message;
    std::this_thread::sleep_for(100ms);  // the model ends once it has not been used for a while
  }
}

INSTANTIATE_TEST_SUITE_P(Schedulers, ServingTest,
                         ::testing::Values("clockwork", "fcfs", "symphony", "eager", "clipper", "nexus",
                                           "shepherd", "orloj"),
                         [](const auto& tested) { return std::string(tested.param); });

class ClockworkServingTest : public ServingTest {};

TEST_P(ClockworkServingTest, FilesOfAnOrderAreServedInPlaceOfTheRepositorys) {
  write_three();
  const LoadReport loaded = load();
  RepositoryControl control(root, {target}, *controller, orders());
  controller->start();
  control.start(loaded.stamps);
  const auto given = [&](ModelControl::Brought brought) {
    std::promise<Result<>> done;
    control.load("a", std::move(brought), [&](Result<> result, bool) { done.set_value(std::move(result)); });
    return done.get_future().get();
  };
  const std::string file = linear_model(in_width, out_width, 7);
  EXPECT_EQ(given({.config = std::nullopt, .files = {{"1/model.onnx", file}}}).error().code,
            ErrorCode::invalid_argument)
      << "files need a config";
  EXPECT_EQ(given({.config = "{}", .files = {{"../b/1/model.onnx", file}}}).error().code,
            ErrorCode::invalid_argument);
  expect_right(infer("a", 1).get(), 1);
  ASSERT_TRUE(given({.config = "{}", .files = {{"1/model.onnx", file}}}));
  expect_right(infer("a", 1).get(), 7);
  ASSERT_TRUE(ordered(control, "a", true));
  expect_right(infer("a", 1).get(), 1);
}

TEST_P(ClockworkServingTest, FilesThatWaitAreBounded) {
  write_three();
  const LoadReport loaded = load();
  RepositoryOptions options = orders();
  options.most_waiting_bytes = 30;
  RepositoryControl control(root, {target}, *controller, options);
  controller->start();
  control.start(loaded.stamps);
  std::promise<void> go_on;
  std::promise<void> at_work;
  control.load("a", {}, [&](Result<>, bool) {
    at_work.set_value();
    go_on.get_future().wait();
  });
  at_work.get_future().wait();
  const auto give = [&](std::size_t bytes, std::promise<ErrorCode>& code) {
    control.load("a", {.config = "{}", .files = {{"x", std::string(bytes, 'x')}}},
                 [&](Result<> result, bool full) {
                   EXPECT_EQ(full, result.error().code == ErrorCode::resource_exhausted);
                   code.set_value(result.error().code);
                 });
  };
  std::promise<ErrorCode> first, second, third, fourth;
  give(100, first);  // however many one has
  give(1, second);   // none beside it
  EXPECT_EQ(second.get_future().get(), ErrorCode::resource_exhausted);
  go_on.set_value();
  EXPECT_EQ(first.get_future().get(), ErrorCode::not_found) << "it was tried: there is no version in it";
  give(20, third);
  EXPECT_EQ(third.get_future().get(), ErrorCode::not_found);
  give(20, fourth);
  EXPECT_EQ(fourth.get_future().get(), ErrorCode::not_found) << "what was taken is given back";
}

TEST_P(ClockworkServingTest, OnlyWhatTheVersionPolicyBringsIsLoaded) {
  write_three();
  for (const char* version : {"2", "3"})
    write("a/" + std::string(version) + "/model.onnx", linear_model(in_width, out_width, 5));
  write("a/config.pbtxt", "version_policy { latest { num_versions: 2 } }");
  const LoadReport loaded = load();
  RepositoryControl control(root, {target}, *controller, orders());
  controller->start();
  control.start(loaded.stamps);
  const auto id = [&](const char* version) { return (*controller->find("a", version))->id; };
  const ModelId second = id("2"), third = id("3"), next = controller->next_model();
  write("a/config.pbtxt", "version_policy { all { } }");
  ASSERT_TRUE(ordered(control, "a", true));
  EXPECT_EQ(id("2"), second);
  EXPECT_EQ(id("3"), third);
  EXPECT_EQ(id("1"), next) << "the one that came";
  EXPECT_EQ(controller->next_model().value, next.value + 1) << "and no other";
  const auto told = (*controller->find("a", "3"))->config;
  EXPECT_TRUE(repository::same_version_policy(
      told, repository::parse_config("version_policy { all { } }", "a")->config))
      << "what is told of those that stay";
  write("a/config.pbtxt", "version_policy { specific { versions: [ 3 ] } }");
  ASSERT_TRUE(ordered(control, "a", true));
  EXPECT_EQ(id("3"), third);
  EXPECT_FALSE((*controller->find("a", "1"))->ready);
  EXPECT_EQ(controller->next_model().value, next.value + 1);
  expect_right(infer("a", 1).get(), 5);
}

TEST_P(ClockworkServingTest, AHopelessDeadlineIsRefusedWithTheTimeItWouldHaveTaken) {
  write_three();
  load();
  controller->start();
  expect_right(infer("a", 1).get(), 1);
  const InferAnswer answer = infer("a", 1, 1ns).get();
  ASSERT_FALSE(answer.status.has_value());
  EXPECT_EQ(answer.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_NE(answer.status.error().message.find("model 'a'"), std::string::npos);
  ASSERT_TRUE(answer.would_take.has_value());
  EXPECT_GT(*answer.would_take, Duration{0});
  EXPECT_EQ(controller->statistics().models[0].refused, 1U);
}

INSTANTIATE_TEST_SUITE_P(Schedulers, ClockworkServingTest, ::testing::Values("clockwork"));

// Models a and b, and a worker that takes them.
class PrepareModel : public ::testing::Test {
 protected:
  PrepareModel() {
    for (const char* name : {"a", "b"})
      folder.write(std::string(name) + "/1/model.onnx", linear_model(in_width, out_width, 1));
  }
  Result<std::unique_ptr<worker::Worker>> make_worker() {
    return worker::make_worker(
        {.page_cache = page_size, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1}, clock, nobody);
  }
  Result<PreparedModel> prepare(std::size_t entry, std::span<const LoadTarget> targets) const {
    const auto entries = repository::read_repository(root);
    EXPECT_TRUE(entries && entries->size() == 2);
    return prepare_model((*entries)[entry], (*entries)[entry].versions[0], targets, ModelId{0},
                         [](const std::string&) {});
  }

  carillon::testing::Folder folder;
  const fs::path root = folder.path();
  SteadyClock clock;
  Nobody nobody;
  std::unique_ptr<engine::Engine> engine = engine::make_cpu_engine({.threads = 1});
};

// Of two devices the second does not take a model that the first has: it is free again on both.
TEST_F(PrepareModel, AModelThatOneDeviceRefusesIsOnNone) {
  const auto first = make_worker();
  ASSERT_TRUE(first.has_value()) << first.error().message;
  RefusingWorker second;
  const std::array<LoadTarget, 2> both{LoadTarget{.engine = engine.get(), .worker = first->get()},
                                       LoadTarget{.engine = engine.get(), .worker = &second}};
  const auto refused = prepare(0, both);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("no addresses left"), std::string::npos) << refused.error().message;
  const auto other = prepare(1, std::span(both).first(1));
  EXPECT_TRUE(other.has_value()) << other.error().message;
}

TEST_F(PrepareModel, WhatItTakesIsChargedUntilItEnds) {
  const auto worker = make_worker();
  ASSERT_TRUE(worker);
  const auto account = MemoryAccount::make({.models = mib(64), .bound = "--memory 1GiB"});
  const LoadTarget target{.engine = engine.get(), .worker = worker->get(), .memory = account};
  {
    const auto prepared = prepare(0, {&target, 1});
    ASSERT_TRUE(prepared) << prepared.error().message;
    const MemoryAccount::Counts counts = account->counts();
    EXPECT_EQ(counts.loading, Bytes{});
    EXPECT_GT(counts.taken.plans, Bytes{});
    EXPECT_GT(counts.taken.weights, Bytes{});  // no store keeps them
    EXPECT_EQ(counts.taken.sum(), prepared->compiled.front()->memory().sum());
    (*worker)->remove_model(ModelId{0});
  }
  EXPECT_EQ(account->counts().taken.sum(), Bytes{});
}

TEST_F(PrepareModel, WhatDoesNotFitIsRefusedBeforeItIsRead) {
  const auto worker = make_worker();
  ASSERT_TRUE(worker);
  const auto account = MemoryAccount::make({.models = Bytes{8}, .bound = "--memory 1MiB"});
  const LoadTarget target{.engine = engine.get(), .worker = worker->get(), .memory = account};
  const auto entries = repository::read_repository(root);
  ASSERT_TRUE(entries);
  bool tried = false;
  const auto refused = prepare_model(entries->front(), entries->front().versions[0], {&target, 1}, ModelId{0},
                                     [&](const std::string&) { tried = true; });
  ASSERT_FALSE(refused);
  EXPECT_FALSE(tried);
  EXPECT_NE(refused.error().message.find("--memory 1MiB is too small for model 'a'"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(account->left(), Bytes{8});
}

// Its file is small, and its plans are not.
TEST_F(PrepareModel, WhatTurnsOutToTakeTooMuchIsOnNoWorker) {
  const auto worker = make_worker();
  ASSERT_TRUE(worker);
  const auto account = MemoryAccount::make({.models = kib(24), .bound = "--memory 1MiB"});
  const LoadTarget target{.engine = engine.get(), .worker = worker->get(), .memory = account};
  const auto refused = prepare(0, {&target, 1});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("too small for model 'a'"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(account->left(), kib(24));
  const LoadTarget uncounted{.engine = engine.get(), .worker = worker->get()};
  EXPECT_TRUE(prepare(1, {&uncounted, 1}));  // its number is free
}

// The CPU's, which leaves batch sizes out.
class LeavingOut final : public engine::Engine {
 public:
  explicit LeavingOut(std::vector<int> sizes) : sizes_(std::move(sizes)) {}
  std::string_view name() const override { return "leaving out"; }
  Result<std::shared_ptr<const engine::CompiledModel>> compile(
      const graph::Model& model, const engine::CompileOptions& options) override {
    engine::CompileOptions fewer = options;
    std::erase_if(fewer.batch_sizes,
                  [&](int size) { return std::ranges::find(sizes_, size) != sizes_.end(); });
    return cpu_->compile(model, fewer);
  }

 private:
  std::vector<int> sizes_;
  std::unique_ptr<engine::Engine> cpu_ = engine::make_cpu_engine({.threads = 1});
};

TEST_F(PrepareModel, DevicesServeTheBatchSizesThatAllOfThemHave) {
  LeavingOut without_two({2}), without_eight({8, 16});
  const auto one = make_worker(), other = make_worker();
  ASSERT_TRUE(one && other);
  const std::array<LoadTarget, 2> both{LoadTarget{.engine = &without_two, .worker = one->get()},
                                       LoadTarget{.engine = &without_eight, .worker = other->get()}};
  const auto prepared = prepare(0, both);
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_THAT(prepared->config.batch_sizes, ElementsAre(1, 4));
  ASSERT_EQ(prepared->compiled.size(), 2U);
  for (const auto& each : prepared->compiled) {
    EXPECT_THAT(each->batch_sizes(), ElementsAre(1, 4));
    EXPECT_NE(each->plan(4, 0), nullptr);
    EXPECT_EQ(each->plan(2, 0), nullptr);
    EXPECT_EQ(each->plan(8, 0), nullptr);
  }
}

// What takes a millisecond a row, and one more.
class RowsWatch final : public Stopwatch {
 public:
  Result<std::vector<Duration>> exec(int batch, int repeats, std::int64_t, std::string*) override {
    asked.insert(batch);
    return std::vector<Duration>(static_cast<std::size_t>(repeats), std::chrono::milliseconds{1 + batch});
  }
  Result<std::vector<Duration>> load(int) override { return std::vector<Duration>{1us}; }
  std::set<int> asked;
};

TEST_F(PrepareModel, BatchesBetweenTheSmallestAndTheLargestLieOnALine) {
  const auto worker = make_worker();
  ASSERT_TRUE(worker);
  const LoadTarget target{.engine = engine.get(), .worker = worker->get()};
  const auto prepared = prepare(0, {&target, 1});
  ASSERT_TRUE(prepared) << prepared.error().message;
  RowsWatch watch;
  std::vector<std::string> notes;
  const auto info = seed_profile(
      *prepared, 1, watch, {.repeats = 2, .ends_only = true}, [](const std::string&) {}, notes);
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_THAT(watch.asked, ElementsAre(1, 16));
  ASSERT_EQ(info->batches.size(), 5U);
  for (const schedule::BatchProfile& each : info->batches)
    EXPECT_EQ(each.exec, std::chrono::milliseconds{1 + each.batch});
}

// A store, and models whose files are known.
class KeptTimesTest : public PrepareModel {
 protected:
  KeptTimesTest() {
    auto opened = engine::WeightFiles::open({.directory = store_folder.path() / "weights", .limit = mib(8)});
    EXPECT_TRUE(opened) << opened.error().message;
    store = *opened;
    worker = *make_worker();
  }
  PreparedModel model(std::size_t entry) {
    const LoadTarget target{.engine = engine.get(), .worker = worker.get(), .later_plans = true};
    const auto entries = repository::read_repository(root);
    EXPECT_TRUE(entries);
    auto made =
        make_model((*entries)[entry], (*entries)[entry].versions[0], {&target, 1}, [](const std::string&) {});
    EXPECT_TRUE(made) << made.error().message;
    return *std::move(made);
  }
  // The sizes that are measured for it.
  std::set<int> measured(const PreparedModel& model, const std::string& machine, int threads = 1) {
    const KeptTimes kept(store, machine);
    RowsWatch rows;
    KeptWatch watch(rows, kept, model, threads);
    std::vector<std::string> notes;
    const auto info = seed_profile(
        model, 1, watch, {.repeats = 2, .aside = true}, [](const std::string&) {}, notes);
    EXPECT_TRUE(info) << info.error().message;
    EXPECT_EQ(info->load, 1us);
    EXPECT_EQ(info->batches.front().exec, std::chrono::milliseconds{2});
    watch.keep();
    return rows.asked;
  }
  std::vector<fs::path> notes() const {
    std::vector<fs::path> out;
    for (const auto& each : fs::directory_iterator(store->directory()))
      if (each.path().extension() == ".note") out.push_back(each.path());
    return out;
  }

  carillon::testing::Folder store_folder;
  std::shared_ptr<engine::WeightFiles> store;
  std::unique_ptr<worker::Worker> worker;
};

TEST_F(KeptTimesTest, WhatWasMeasuredIsNotMeasuredAgain) {
  const PreparedModel a = model(0);
  EXPECT_THAT(measured(a, "a machine"), ElementsAre(1));
  EXPECT_THAT(measured(a, "a machine"), ElementsAre());
  EXPECT_EQ(notes().size(), 1U);
}

TEST_F(KeptTimesTest, OtherFilesPlansThreadsAndMachinesAreMeasured) {
  EXPECT_THAT(measured(model(0), "a machine"), ElementsAre(1));
  EXPECT_THAT(measured(model(0), "another"), ElementsAre(1));
  EXPECT_THAT(measured(model(0), "a machine", 2), ElementsAre(1));
  folder.write("a/config.pbtxt", "parameters { key: \"precision\" value: { string_value: \"bf16\" } }");
  EXPECT_THAT(measured(model(0), "a machine"), ElementsAre(1));
  folder.write("a/1/model.onnx", linear_model(in_width, out_width, 2));
  EXPECT_THAT(measured(model(0), "a machine"), ElementsAre(1));
  EXPECT_EQ(notes().size(), 5U);
  EXPECT_THAT(measured(model(0), "a machine"), ElementsAre());
}

TEST_F(KeptTimesTest, WhatIsNoProfileIsMeasuredAnew) {
  const PreparedModel a = model(0);
  EXPECT_THAT(measured(a, "a machine"), ElementsAre(1));
  const std::string name = notes().front().stem().string();
  for (const char* text : {"", "{}", "no json", "{\"device\": \"x\", \"models\": []}"}) {
    store->put_note(name, text);
    EXPECT_THAT(measured(a, "a machine"), ElementsAre(1)) << text;
    EXPECT_THAT(measured(a, "a machine"), ElementsAre()) << text;
  }
}

// Models whose file nobody looked at, and those that refuse the data that they are measured on.
TEST_F(KeptTimesTest, WhatIsNotKnownIsNotKept) {
  PreparedModel a = model(0);
  a.file.reset();
  EXPECT_THAT(measured(a, "a machine"), ElementsAre(1));
  EXPECT_THAT(measured(a, "a machine"), ElementsAre(1));
  class Refusing final : public Stopwatch {
   public:
    Result<std::vector<Duration>> exec(int, int repeats, std::int64_t, std::string* refused) override {
      *refused = "an index";
      return std::vector<Duration>(static_cast<std::size_t>(repeats), 1us);
    }
    Result<std::vector<Duration>> load(int) override { return std::vector<Duration>{1us}; }
  } refusing;
  const PreparedModel b = model(1);
  const KeptTimes kept(store, "a machine");
  KeptWatch watch(refusing, kept, b, 1);
  std::vector<std::string> told;
  EXPECT_TRUE(seed_profile(
      b, 1, watch, {.repeats = 2, .aside = true}, [](const std::string&) {}, told));
  watch.keep();
  EXPECT_TRUE(notes().empty());
}

TEST_F(PrepareModel, DevicesWithoutABatchSizeInCommonAreNamed) {
  LeavingOut odd({1, 4, 16}), even({2, 8});
  const auto one = make_worker(), other = make_worker();
  ASSERT_TRUE(one && other);
  const std::array<LoadTarget, 2> both{LoadTarget{.engine = &odd, .worker = one->get()},
                                       LoadTarget{.engine = &even, .worker = other->get()}};
  const auto prepared = prepare(0, both);
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, ErrorCode::unsupported);
  EXPECT_EQ(prepared.error().message, "no batch size runs on all devices");
}

// The CPU's, which keeps some models until they are let go.
class Keeping final : public engine::Engine {
 public:
  explicit Keeping(std::set<std::string> kept) : kept_(std::move(kept)) {}
  std::string_view name() const override { return "keeping"; }
  bool compiles_in_parallel() const override { return true; }
  Result<std::unique_ptr<engine::Team>> make_team(const engine::TeamOptions& options) override {
    return cpu_->make_team(options);
  }
  Result<std::shared_ptr<const engine::CompiledModel>> compile(
      const graph::Model& model, const engine::CompileOptions& options) override {
    {
      std::unique_lock lock(mutex_);
      begun_.push_back(options.name);
      changed_.notify_all();
      changed_.wait(lock, [&] { return !kept_.contains(options.name); });
    }
    return cpu_->compile(model, options);
  }
  void let_go(const std::string& model) {
    const std::lock_guard lock(mutex_);
    kept_.erase(model);
    changed_.notify_all();
  }
  void wait_for(const std::string& model) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::ranges::find(begun_, model) != begun_.end(); });
  }
  std::vector<std::string> begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

 private:
  std::unique_ptr<engine::Engine> cpu_ = engine::make_cpu_engine({.threads = 1});
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> kept_;
  std::vector<std::string> begun_;  // in the order in which they began
};

// Brings models to a controller that runs.
class FirstLoadTest : public ServingTest {
 protected:
  void begin(Keeping& keeping, int makers) {
    auto scheduler = schedule::make_scheduler("clockwork");
    ASSERT_TRUE(scheduler);
    controller = std::make_unique<Controller>(std::move(*scheduler), Options{}, clock);
    auto worker = worker::make_worker(
        {.page_cache = page_size * 4, .io_cache = mib(4), .workspace = mib(16), .exec_threads = 1}, clock,
        controller->results());
    ASSERT_TRUE(worker) << worker.error().message;
    target = {.engine = &keeping, .worker = worker->get(), .threads = 1};
    first =
        std::make_unique<FirstLoad>(root, std::array{target}, *controller,
                                    LoaderOptions{.seeds = {.repeats = 1, .aside = true}, .makers = makers});
    ASSERT_TRUE(first->look());
    controller->add_worker(std::move(*worker));
    controller->set_asked_for([this](std::string_view model) { first->want(model); });
    controller->set_loading(true);
    controller->start();
    loading = std::async(std::launch::async, [this] {
      LoadReport report = first->run();
      controller->set_loading(false);
      return report;
    });
  }
  void wait_until_ready(const char* model) {
    while (!controller->state(model, 1)) std::this_thread::sleep_for(1ms);
  }

  std::unique_ptr<FirstLoad> first;
  std::future<LoadReport> loading;
};

TEST_P(FirstLoadTest, AModelIsServedWhileAnotherIsMade) {
  write_three();
  Keeping engine({"c"});
  begin(engine, 1);
  wait_until_ready("b");
  expect_right(infer("b", 2).get(), 2);
  EXPECT_FALSE(controller->ready());
  EXPECT_TRUE(controller->loading());
  const auto later = controller->find("c", "");
  ASSERT_TRUE(later);
  EXPECT_FALSE((*later)->ready);
  EXPECT_EQ((*later)->reason, "it is still to be loaded");
  engine.let_go("c");
  const LoadReport report = loading.get();
  EXPECT_EQ(report.ready, 3U);
  EXPECT_TRUE(report.notes.empty());
  EXPECT_TRUE(controller->ready());
  EXPECT_FALSE(controller->loading());
  expect_right(infer("c", 1).get(), 3);
}

TEST_P(FirstLoadTest, TheOneThatIsAskedForIsNext) {
  write_three();
  write("d/config.pbtxt", R"(platform: "ensemble" max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: 8 } output { name: "y" data_type: TYPE_FP32 dims: 3 }
    ensemble_scheduling { step { model_name: "c" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } })");
  fs::create_directories(root / "d/1");
  Keeping engine({"a"});
  begin(engine, 1);
  engine.wait_for("a");
  (void)controller->find("d", "");  // whose model is c
  (void)controller->find("nobody", "");
  (void)controller->find("a", "");  // is under way
  engine.let_go("a");
  EXPECT_EQ(loading.get().ready, 4U);
  EXPECT_THAT(engine.begun(), ElementsAre("a", "c", "b"));
}

TEST_P(FirstLoadTest, SeveralAreMadeAtATime) {
  write_three();
  Keeping engine({"a", "b"});
  begin(engine, 2);
  engine.wait_for("a");
  engine.wait_for("b");
  EXPECT_THAT(engine.begun(), ::testing::UnorderedElementsAre("a", "b")) << "two and no more";
  engine.let_go("b");
  wait_until_ready("b");
  engine.let_go("a");
  EXPECT_EQ(loading.get().ready, 3U);
  expect_right(infer("a", 1).get(), 1);
  expect_right(infer("c", 1).get(), 3);
}

// Kernels of best-effort models are measured while they are compiled.
TEST_P(FirstLoadTest, WhatIsMeasuredIsMadeAloneAndLast) {
  write_three();
  write("a/config.pbtxt",
        "max_batch_size: 4 parameters { key: \"class\" value { string_value: \"best_effort\" } }");
  Keeping engine({"b"});
  begin(engine, 2);
  wait_until_ready("c");
  std::this_thread::sleep_for(50ms);
  EXPECT_THAT(engine.begun(), ::testing::UnorderedElementsAre("b", "c")) << "a waits for b";
  engine.let_go("b");
  EXPECT_EQ(loading.get().ready, 3U);
  EXPECT_EQ(engine.begun().back(), "a");
}

// To make it may take a minute.
TEST_P(FirstLoadTest, WhatIsMadeIsServedBeforeAnotherIsMadeAlone) {
  for (int round = 0; round < 20; ++round) {
    write_three();
    write("c/config.pbtxt",
          "max_batch_size: 4 parameters { key: \"class\" value { string_value: \"best_effort\" } }");
    Keeping engine({"c"});
    begin(engine, 3);
    engine.wait_for("c");
    EXPECT_TRUE(controller->state("a", 1));
    EXPECT_TRUE(controller->state("b", 1));
    engine.let_go("c");
    EXPECT_EQ(loading.get().ready, 3U);
    controller->stop();
    first.reset();
    controller.reset();
  }
}

TEST_P(FirstLoadTest, TheEndLeavesTheRest) {
  write_three();
  Keeping engine({"b"});
  begin(engine, 1);
  wait_until_ready("a");
  engine.wait_for("b");
  first->end();
  EXPECT_EQ(loading.wait_for(50ms), std::future_status::timeout) << "b is just being made";
  expect_right(infer("a", 1).get(), 1);
  EXPECT_FALSE(controller->state("b", 1));
  engine.let_go("b");
  EXPECT_EQ(loading.get().ready, 1U);
  EXPECT_THAT(engine.begun(), ElementsAre("a", "b"));
  controller->stop();
}

TEST_P(FirstLoadTest, AModelThatCannotBeServedSaysWhy) {
  write_three();
  write("b/1/model.onnx", "no model");
  Keeping engine({});
  begin(engine, 2);
  const LoadReport report = loading.get();
  EXPECT_EQ(report.ready, 2U);
  EXPECT_EQ(report.not_ready, 1U);
  EXPECT_TRUE(report.stamps.failed.contains("b"));
  const auto view = controller->find("b", "");
  ASSERT_TRUE(view);
  EXPECT_NE((*view)->reason.find("model.onnx"), std::string::npos) << (*view)->reason;
}

INSTANTIATE_TEST_SUITE_P(Schedulers, FirstLoadTest, ::testing::Values("clockwork"));

}  // namespace
}  // namespace carillon::controller
