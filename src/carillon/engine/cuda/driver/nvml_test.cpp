#include "carillon/engine/cuda/driver/nvml.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace carillon::engine::cuda {
namespace {

std::string nvml_stub(const char* which) {
  return std::string(CARILLON_CUDA_STUBS) + "/libcarillon_nvml_stub_" + which + ".so";
}
constexpr const char* uuid = "GPU-01000000-0000-0000-0000-000000000000";

TEST(Nvml, TellsWhatTheGpuDoes) {
  Uuid raw;
  raw.bytes[0] = 1;
  EXPECT_EQ(to_text(raw), uuid);
  for (int i = 0; i < 16; ++i) raw.bytes[i] = static_cast<unsigned char>(i + 1);
  EXPECT_EQ(to_text(raw), "GPU-01020304-0506-0708-090a-0b0c0d0e0f10");
  const auto opened = Nvml::open(nvml_stub("whole"));
  ASSERT_TRUE(opened) << opened.error().message;
  const auto figures = (*opened)->look(uuid);
  ASSERT_TRUE(figures);
  EXPECT_DOUBLE_EQ(*figures->utilization, 0.37);
  EXPECT_EQ(*figures->memory_total, 85899345920U);
  EXPECT_EQ(*figures->memory_used, 5899345920U);
  EXPECT_DOUBLE_EQ(*figures->power, 123.456);
  EXPECT_DOUBLE_EQ(*figures->energy, 5.5);
  EXPECT_DOUBLE_EQ(*figures->temperature, 41);
  EXPECT_FALSE(figures->power_limit) << "it does not know";
  const auto other = (*opened)->look("GPU-other");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message, "GPU-other: Not Found");
}

TEST(Nvml, WhatIsWrongWithTheLibraryIsSaid) {
  const struct {
    std::string library;
    const char* says;
  } rows[] = {{"/nowhere/libnvidia-ml.so.1", "No such file"},
              {nvml_stub("dead"), "does not start: Driver Not Loaded"},
              {nvml_stub("lacks"), "has no nvmlDeviceGetTotalEnergyConsumption"}};
  for (const auto& [library, says] : rows) {
    const auto opened = Nvml::open(library);
    ASSERT_FALSE(opened) << library;
    EXPECT_EQ(opened.error().code, ErrorCode::unavailable);
    EXPECT_NE(opened.error().message.find(says), std::string::npos) << opened.error().message;
  }
}

TEST(Nvml, MetricsHaveTritonsNames) {
  const std::pair<std::string, GpuFigures> gpus[] = {
      {"GPU-a", {.utilization = 0.5, .memory_total = 100, .memory_used = 40, .power = 12.5, .energy = 7}},
      {"GPU-b", {.utilization = 0.0}}};
  EXPECT_EQ(metrics_text(gpus),
            "# HELP nv_gpu_utilization Share of the time in which some kernel ran, 0 to 1\n"
            "# TYPE nv_gpu_utilization gauge\n"
            "nv_gpu_utilization{gpu_uuid=\"GPU-a\"} 0.5\n"
            "nv_gpu_utilization{gpu_uuid=\"GPU-b\"} 0\n"
            "# HELP nv_gpu_memory_total_bytes Memory of the GPU\n"
            "# TYPE nv_gpu_memory_total_bytes gauge\n"
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-a\"} 100\n"
            "# HELP nv_gpu_memory_used_bytes Memory of the GPU that somebody has\n"
            "# TYPE nv_gpu_memory_used_bytes gauge\n"
            "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-a\"} 40\n"
            "# HELP nv_gpu_power_usage Watts that the GPU takes\n"
            "# TYPE nv_gpu_power_usage gauge\n"
            "nv_gpu_power_usage{gpu_uuid=\"GPU-a\"} 12.5\n"
            "# HELP nv_energy_consumption Joules that the GPU has taken since its driver was loaded\n"
            "# TYPE nv_energy_consumption counter\n"
            "nv_energy_consumption{gpu_uuid=\"GPU-a\"} 7\n");
  EXPECT_EQ(metrics_text({}), "");
}

}  // namespace
}  // namespace carillon::engine::cuda
