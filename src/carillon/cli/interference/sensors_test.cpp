#include "carillon/cli/interference/sensors.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cli {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;

class Machine : public testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(testing::TempDir()) /
           (std::string("sensors_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root);
    fs::create_directories(root);
  }
  void TearDown() override { fs::remove_all(root); }
  void put(const std::string& file, double value) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << std::fixed << value << "\n";
  }
  static TimePoint at(int seconds) { return TimePoint{std::chrono::seconds{seconds}}; }

  fs::path root;
};

TEST_F(Machine, ThatTellsNothingIsSaidToLackIt) {
  CpuSensors sensors(root, false);
  EXPECT_THAT(sensors.missing(), Contains(HasSubstr("frequency: no cpufreq")));
  EXPECT_THAT(sensors.missing(), Contains(HasSubstr("power: no RAPL package")));
  EXPECT_THAT(sensors.missing(), Contains(HasSubstr("cache: ")));
  sensors.start(at(1));
  const auto reading = sensors.stop(at(2));
  EXPECT_FALSE(reading.power_w || reading.frequency_mhz || reading.misses_per_second);
  EXPECT_FALSE(sensors.max_frequency_mhz() || sensors.power_cap_w());
}

TEST_F(Machine, ThatTellsFrequencyAndPowerIsRead) {
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 2'000'000);
  put("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", 3'500'000);
  put("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", 3'000'000);
  put("sys/class/powercap/intel-rapl:0/energy_uj", 9e6);
  put("sys/class/powercap/intel-rapl:0/max_energy_range_uj", 10e6);
  put("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw", 65e6);
  put("sys/class/powercap/intel-rapl:0:0/energy_uj", 1e6);  // a part of package 0: not counted again
  put("sys/class/powercap/intel-rapl:1/energy_uj", 0);
  CpuSensors sensors(root, false);
  EXPECT_EQ(sensors.missing().size(), 1u);
  EXPECT_EQ(sensors.max_frequency_mhz(), 3500);
  EXPECT_EQ(sensors.power_cap_w(), 65);
  sensors.start(at(10));
  put("sys/class/powercap/intel-rapl:0/energy_uj", 3e6);  // once around: 4 J
  put("sys/class/powercap/intel-rapl:1/energy_uj", 6e6);
  const auto reading = sensors.stop(at(12));
  EXPECT_NEAR(*reading.power_w, 5, 1e-9);
  EXPECT_NEAR(*reading.frequency_mhz, 2500, 1e-9);
}

}  // namespace
}  // namespace carillon::cli
