#include "carillon/frontend/frontend.h"

#include <algorithm>

#include "grpc_service.pb.h"
#include "model_config.pb.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/admin/metrics.h"
#include "carillon/frontend/doors/messages.h"
#include "carillon/frontend/http/http_routes.h"
#include "carillon/frontend/net/address.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/test_client.h"

namespace carillon::frontend {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Address, Forms) {
  const struct {
    const char* text;
    const char* host;
    std::uint16_t port;
  } good[] = {{"127.0.0.1:8000", "127.0.0.1", 8000},
              {"[::1]:0", "::1", 0},
              {":65535", "0.0.0.0", 65535},
              {"*:80", "0.0.0.0", 80},
              {"localhost:1", "localhost", 1}};
  for (const auto& [text, host, port] : good) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->host, host);
    EXPECT_EQ(address->port, port);
  }
  EXPECT_EQ(parse_address("[::1]:9")->text(), "[::1]:9");
  for (const char* text :
       {"", "8000", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "[]:80", "[::1:80"})
    EXPECT_THAT(parse_address(text).error().message, HasSubstr("host:port")) << text;
}

TEST(Routes, Table) {
  const struct {
    const char* target;
    Route wanted;
  } rows[] = {
      {"/v2", {Endpoint::server_metadata, "", ""}},
      {"/v2/", {Endpoint::server_metadata, "", ""}},
      {"/v2?x=1", {Endpoint::server_metadata, "", ""}},
      {"/v2/models/a%2Fb%20c", {Endpoint::model_metadata, "a/b c", ""}},
      {"/v2/models/m/versions/3", {Endpoint::model_metadata, "m", "3"}},
      {"/v2/models/m/versions/3/config", {Endpoint::model_config, "m", "3"}},
      {"/v2/models/m/stats", {Endpoint::model_statistics, "m", ""}},
      {"/v2/models/stats", {Endpoint::model_statistics, "", ""}},
      {"/v2/models/m/trace/setting", {Endpoint::trace_setting, "m", ""}},
      {"/v2/logging", {Endpoint::logging, "", ""}},
      {"/v2/systemsharedmemory/status", {Endpoint::system_memory_status, "", ""}},
      {"/v2/systemsharedmemory/region/r%2Fs/status", {Endpoint::system_memory_status, "", "", "r/s"}},
      {"/v2/cudasharedmemory/region/r/status", {Endpoint::cuda_memory_status, "", "", "r"}},
  };
  for (const auto& [target, wanted] : rows) {
    const auto route = find_route("GET", target);
    ASSERT_TRUE(route) << target << " " << route.error().message;
    EXPECT_EQ(*route, wanted) << target;
  }
  for (const char* target :
       {"", "v2", "/v1", "/v2/x", "/v2/models", "/v2/models/", "/v2/models//infer", "/v2/models/m/versions",
        "/v2/models/m/versions//ready", "/v2/models/m/infer/x", "/v2/health", "/v2/repository/models/m"})
    EXPECT_EQ(find_route("GET", target).error().status, 404) << target;
  for (const char* target : {"/v2/models/%", "/v2/models/%4", "/v2/models/%4x"})
    EXPECT_EQ(find_route("GET", target).error().status, 400) << target;
  EXPECT_EQ(find_route("DELETE", "/v2/models/m").error().allow, "GET");
}

TEST(Messages, StatisticsAreWholeAsJson) {
  FakeService service;
  service.all_models = {pair_model()};
  service.all_statistics.models.push_back({.name = "pair",
                                           .version = 2,
                                           .inference_count = 40,
                                           .execution_count = 10,
                                           .success = {40, 8ms},
                                           .batches = {{4, {10, 1ms}, {10, 2ms}, {10, 3ms}}}});
  const auto statistics = model_statistics(service, "pair", "");
  ASSERT_TRUE(statistics);
  const auto all = json::parse(to_json(*statistics));
  const auto& model = all["model_stats"][0];
  EXPECT_EQ(model["version"], "2");
  EXPECT_EQ(model["inference_count"], 40);
  EXPECT_EQ(model["inference_stats"]["success"], (json{{"count", 40}, {"ns", 8000000}}));
  // What perf_analyzer reads without asking.
  for (const char* step : {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
                           "cache_hit", "cache_miss"}) {
    EXPECT_TRUE(model["inference_stats"][step]["count"].is_number()) << step;
    EXPECT_TRUE(model["inference_stats"][step]["ns"].is_number()) << step;
  }
  EXPECT_EQ(model["batch_stats"], json::parse(R"([{"batch_size":4,"compute_input":{"count":10,"ns":1000000},
                             "compute_infer":{"count":10,"ns":2000000},
                             "compute_output":{"count":10,"ns":3000000}}])"));
  EXPECT_FALSE(model_statistics(service, "nobody", ""));
}

TEST(Messages, ConfigsAreJsonWithNumbersAndNames) {
  inference::ModelConfig config;
  config.set_name("m");
  config.set_max_batch_size(8);
  auto& input = *config.add_input();
  input.set_name("x\xC3\xA9");
  input.set_data_type(inference::TYPE_FP32);
  input.add_dims(-1);
  config.mutable_dynamic_batching()->set_max_queue_delay_microseconds(1ULL << 60);
  (*config.mutable_parameters())["slo_ms"].set_string_value("25");
  FakeService service;
  service.all_models = {pair_model()};
  service.all_models[0].config.serialized = config.SerializeAsString();
  const auto read = model_config(service, "pair", "2");
  ASSERT_TRUE(read);
  const auto all = json::parse(to_json(*read));
  EXPECT_EQ(all["max_batch_size"], 8);
  EXPECT_EQ(all["input"][0]["data_type"], "TYPE_FP32");
  EXPECT_EQ(all["input"][0]["dims"], json{-1});
  EXPECT_EQ(all["input"][0]["name"], "x\xC3\xA9");
  EXPECT_EQ(all["dynamic_batching"]["max_queue_delay_microseconds"], 1ULL << 60);
  EXPECT_EQ(all["parameters"]["slo_ms"]["string_value"], "25");
  EXPECT_FALSE(all.contains("ensemble_scheduling"));
  service.all_models[0].config.serialized = "\xff\xff damaged";
  EXPECT_EQ(model_config(service, "pair", "2").error().code, ErrorCode::internal);
}

TEST(Metrics, NamesAndValues) {
  controller::ServerStatistics statistics{
      .open_requests = 3,
      .pages_total = 64,
      .pages_free = 60,
      .exec_busy = 1500ms,
      .load_busy = {},
      .advice = provision::AutoscaleAdvice{.add_devices = 2, .bad_rate = 0.25},
      .wanted = {{.group = "0", .wanted = 4, .present = 2, .coming = 2, .start_up = 2500ms},
                 {.group = "1", .wanted = 7, .given_up = 1}}};
  auto& model = statistics.models.emplace_back();
  model.name = "m\"\n";
  model.version = 4;
  model.success = {7, 21ms};
  model.on_time = 6;
  model.late = 1;
  model.refused = 2;
  model.loaded = true;
  model.latency.add(3ms);
  model.latency.add(20s);
  model.devices = 2;
  model.waiting = 5;
  model.load_time = 1250ms;
  statistics.devices = {{.name = "cpu", .executions = 4, .exec_busy = 250ms},
                        {.name = "emulated:a", .alive = false, .lost = 3, .models = 2, .pages_free = 7}};
  const std::string text = metrics_text(
      statistics,
      {.host = HostStatistics{.utilization = 0.5, .memory_total = 8192, .memory_used = 4096},
       .process = ProcessStatistics{.cpu = 2500ms, .resident = 1024},
       .access_lines = 11,
       .access_dropped = 12,
       .memory = MemoryFigures{
           .limit = mib(2), .resident = mib(1), .parts = {{"plans", kib(1)}, {"bodies", kib(2)}}}});
  for (const char* line : {
           "nv_inference_request_success{model=\"m\\\"\\n\",version=\"4\"} 7",
           "nv_inference_request_duration_us{model=\"m\\\"\\n\",version=\"4\"} 21000",
           "nv_inference_request_failure{model=\"m\\\"\\n\",version=\"4\",reason=\"REJECTED\"} 2",
           "carillon_requests_total{model=\"m\\\"\\n\",version=\"4\",outcome=\"on_time\"} 6",
           "carillon_requests_total{model=\"m\\\"\\n\",version=\"4\",outcome=\"late\"} 1",
           "carillon_request_latency_seconds_bucket{model=\"m\\\"\\n\",version=\"4\",le=\"0.0025\"} 0",
           "carillon_request_latency_seconds_bucket{model=\"m\\\"\\n\",version=\"4\",le=\"10\"} 1",
           "carillon_request_latency_seconds_bucket{model=\"m\\\"\\n\",version=\"4\",le=\"+Inf\"} 2",
           "carillon_request_latency_seconds_count{model=\"m\\\"\\n\",version=\"4\"} 2",
           "carillon_model_loaded{model=\"m\\\"\\n\",version=\"4\"} 1",
           "carillon_model_devices{model=\"m\\\"\\n\",version=\"4\"} 2",
           "carillon_device_up{device=\"0\",name=\"cpu\"} 1",
           "carillon_device_up{device=\"1\",name=\"emulated:a\"} 0",
           "carillon_device_lost_total{device=\"1\",name=\"emulated:a\"} 3",
           "carillon_device_executions_total{device=\"0\",name=\"cpu\"} 4",
           "carillon_device_exec_busy_seconds_total{device=\"0\",name=\"cpu\"} 0.25",
           "carillon_device_models{device=\"1\",name=\"emulated:a\"} 2",
           "carillon_device_pages_free{device=\"1\",name=\"emulated:a\"} 7",
           "nv_inference_pending_request_count{model=\"m\\\"\\n\",version=\"4\"} 5",
           "nv_model_load_duration_secs{model=\"m\\\"\\n\",version=\"4\"} 1.25",
           "nv_inference_request_summary_us_count{model=\"m\\\"\\n\",version=\"4\"} 2",
           "nv_inference_request_summary_us_sum{model=\"m\\\"\\n\",version=\"4\"} 20003000",
           "nv_cpu_utilization 0.5",
           "nv_cpu_memory_total_bytes 8192",
           "nv_cpu_memory_used_bytes 4096",
           "process_cpu_seconds_total 2.5",
           "process_resident_memory_bytes 1024",
           "carillon_access_log_lines_total 11",
           "carillon_memory_limit_bytes 2097152",
           "carillon_memory_resident_bytes 1048576",
           "carillon_memory_bytes{part=\"plans\"} 1024",
           "carillon_memory_bytes{part=\"bodies\"} 2048",
           "carillon_access_log_dropped_total 12",
           "carillon_page_cache_pages 64",
           "carillon_page_cache_pages_free 60",
           "carillon_open_requests 3",
           "carillon_autoscale_add_devices 2",
           "carillon_autoscale_release_devices 0",
           "carillon_bad_request_ratio 0.25",
           "carillon_devices_wanted{subcluster=\"0\"} 4",
           "carillon_devices_wanted{subcluster=\"1\"} 7",
           "carillon_devices_present{subcluster=\"0\"} 2",
           "carillon_devices_coming{subcluster=\"0\"} 2",
           "carillon_devices_given_up{subcluster=\"1\"} 1",
           "carillon_device_start_up_seconds{subcluster=\"0\"} 2.5",
           "carillon_exec_busy_seconds_total 1.5",
           "# TYPE carillon_requests_total counter",
       })
    EXPECT_THAT(text, HasSubstr(line));
}

// A frontend of a cluster does not see what devices do, and a worker sees no requests.
TEST(Metrics, WithoutAdviceThereIsNone) {
  const std::string text = metrics_text({});
  for (const char* name : {"carillon_autoscale", "carillon_bad_request_ratio", "carillon_device_idle_ratio",
                           "carillon_devices_wanted", "carillon_devices_present"})
    EXPECT_THAT(text, Not(HasSubstr(name)));
}

TEST(Metrics, HistogramsAreOfModelsThatCountedSomething) {
  controller::ServerStatistics statistics;
  for (const char* name : {"busy", "idle"}) statistics.models.emplace_back().name = name;
  statistics.models[0].latency.add(3ms);
  const std::string usual = metrics_text(statistics),
                    all = metrics_text(statistics, {.empty_histograms = true});
  for (const char* name :
       {"carillon_request_latency_seconds_count", "nv_inference_request_summary_us_count"}) {
    const auto line = [&](const char* model, int count) {
      return std::string(name) + "{model=\"" + model + "\",version=\"1\"} " + std::to_string(count);
    };
    EXPECT_THAT(usual, HasSubstr(line("busy", 1)));
    EXPECT_THAT(usual, Not(HasSubstr(line("idle", 0))));
    EXPECT_THAT(all, HasSubstr(line("busy", 1)));
    EXPECT_THAT(all, HasSubstr(line("idle", 0)));
  }
  EXPECT_THAT(usual, Not(HasSubstr("carillon_exec_seconds{")))
      << "of the busy one, which counted none of these";
  EXPECT_THAT(usual, HasSubstr("nv_inference_request_success{model=\"idle\",version=\"1\"} 0"));
  EXPECT_LT(std::ranges::count(usual, '\n'), std::ranges::count(all, '\n') - 140);
}

TEST(Frontend, OpensAllDoors) {
  FakeService service;
  service.all_models = {pair_model()};
  const Options options{.http = "127.0.0.1:0", .grpc = "127.0.0.1:0", .metrics = "127.0.0.1:0"};
  auto frontend = Frontend::start(service, options);
  ASSERT_TRUE(frontend) << frontend.error().message;
  const auto ports = (*frontend)->ports();
  EXPECT_GT(ports.http, 0);
  EXPECT_GT(ports.grpc, 0);
  EXPECT_GT(ports.metrics, 0);
  EXPECT_EQ(TestClient(ports.http).ask("GET", "/v2/health/live").result_int(), 200U);
  TestClient metrics(ports.metrics);
  const auto text = metrics.ask("GET", "/metrics");
  EXPECT_EQ(text.result_int(), 200U);
  EXPECT_THAT(std::string(text["Content-Type"]), HasSubstr("text/plain"));
  EXPECT_THAT(text.body(), HasSubstr("carillon_open_requests 0"));
  EXPECT_EQ(metrics.ask("GET", "/").result_int(), 404U);
  EXPECT_EQ(metrics.ask("POST", "/metrics").result_int(), 405U);

  auto taken = options;
  taken.metrics = "127.0.0.1:" + std::to_string(ports.metrics);
  const auto second = Frontend::start(service, taken);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("--metrics"));
  auto wrong = options;
  wrong.grpc = "nowhere";
  EXPECT_THAT(Frontend::start(service, wrong).error().message, HasSubstr("--grpc"));
  (*frontend)->stop();
  (*frontend)->stop();
}

TEST(Frontend, DoorsCanBeOff) {
  FakeService service;
  auto frontend = Frontend::start(service, {.http = "", .grpc = "", .metrics = "127.0.0.1:0"});
  ASSERT_TRUE(frontend);
  EXPECT_EQ((*frontend)->ports().http, 0);
  EXPECT_EQ((*frontend)->ports().grpc, 0);
  EXPECT_GT((*frontend)->ports().metrics, 0);
}

}  // namespace
}  // namespace carillon::frontend
