#include "carillon/profile/interference.h"

#include <cmath>

#include <gtest/gtest.h>

namespace carillon::profile {
namespace {

const std::string folder = CARILLON_SOURCE_DIR "/profiles/igniter/";

CoefficientSet models() {
  return *read_coefficients(folder + "workloads.json");
}
HardwareType v100() {
  return *read_hardware(folder + "v100.json");
}

TEST(Interference, ReadsThePublishedCoefficients) {
  const HardwareType type = v100();
  EXPECT_EQ(type.name, "NVIDIA V100 (EC2 p3.2xlarge)");
  EXPECT_EQ(type.price_usd_per_hour, 3.06);
  EXPECT_EQ(type.coefficients.share_unit_pct, 2.5);
  EXPECT_NEAR(type.coefficients.alpha_f, -1.025, 5e-4);
  EXPECT_NEAR(type.coefficients.alpha_sch, 0.00475, 5e-6);
  EXPECT_NEAR(type.coefficients.beta_sch, -0.00902, 5e-6);
  const CoefficientSet set = models();
  EXPECT_EQ(set.device, "V100");
  ASSERT_EQ(set.models.size(), 4u);
  EXPECT_EQ(set.models.at("ssd").feedback_bytes, 2'968'880);
  EXPECT_EQ(set.models.at("ssd").measured_batch, 32);
  EXPECT_EQ(*parse_coefficients(to_json(set), "again"), set);
  EXPECT_EQ(*parse_hardware(to_json(type), "again"), type);
}

TEST(Interference, TheLargestBatchIsAlsoOneThatWasMeasured) {
  ModelCoefficients model = models().models.at("alexnet");
  EXPECT_EQ(largest_known_batch(model), 32);
  model.measured_batch = 0;
  EXPECT_EQ(largest_known_batch(model), largest_batch(model)) << "not known";
  model.measured_batch = 60'000;
  model.k1 = -1;
  EXPECT_EQ(largest_known_batch(model), largest_batch(model)) << "beyond the turn of equation 11";
  CoefficientSet set{.device = "d", .models = {{"m", model}}};
  EXPECT_EQ(*parse_coefficients(to_json(set), "again"), set);
}

TEST(Interference, AloneAWorkloadHasNoneOfIt) {
  const HardwareCoefficients hardware = v100().coefficients;
  const ModelCoefficients model = models().models.at("alexnet");
  const Resident alone{.model = &model, .batch = 4, .share_pct = 10};
  const auto p = predict(hardware, {&alone, 1});
  ASSERT_EQ(p.size(), 1u);
  EXPECT_EQ(p[0].schedule_ms, model.schedule_ms);
  EXPECT_DOUBLE_EQ(p[0].active_ms, active_ms(model, 4, 10));
  EXPECT_DOUBLE_EQ(p[0].gpu_ms, p[0].schedule_ms + p[0].active_ms);
  EXPECT_DOUBLE_EQ(p[0].load_ms, 4 * 602'112 / 1e7);
  EXPECT_TRUE(predict(hardware, {}).empty());
}

// Computed apart from this code, in another language, from the paper's equations and the same coefficients.
TEST(Interference, PredictsWhatTheEquationsSay) {
  const HardwareCoefficients hardware = v100().coefficients;
  const CoefficientSet set = models();
  const auto resident = [&](const char* name, int batch, double share) {
    return Resident{.model = &set.models.at(name), .batch = batch, .share_pct = share};
  };
  const struct {
    std::vector<Resident> residents;
    std::vector<std::pair<double, double>> want;  // ms, requests/s
  } rows[] = {
      {{resident("alexnet", 4, 10), resident("resnet50", 8, 30), resident("vgg19", 6, 37.5)},  // table 1
       {{6.91778861728, 599.076480118}, {18.9084710773, 434.150695814}, {28.7300228388, 211.50028843}}},
      // 473 W are asked for, so the device runs at less than full frequency.
      {{resident("ssd", 8, 50), resident("vgg19", 6, 50), resident("resnet50", 16, 50)},
       {{53.3759016545, 152.346415726}, {25.6364601847, 237.386911492}, {26.1716378189, 634.712625012}}},
  };
  for (const auto& row : rows) {
    const auto p = predict(hardware, row.residents);
    for (std::size_t i = 0; i < row.want.size(); ++i) {
      EXPECT_NEAR(p[i].latency_ms, row.want[i].first, 1e-9) << i;
      EXPECT_NEAR(p[i].throughput_rps, row.want[i].second, 1e-7) << i;
    }
  }
}

TEST(Interference, EndsWhereTheEquationsEnd) {
  const HardwareCoefficients hardware = v100().coefficients;
  EXPECT_EQ(schedule_increase_ms(hardware, 0), 0);
  EXPECT_EQ(schedule_increase_ms(hardware, 1), 0);
  EXPECT_DOUBLE_EQ(schedule_increase_ms(hardware, 3), 3 * hardware.alpha_sch + hardware.beta_sch);
  EXPECT_EQ(frequency_ratio(hardware, 300), 1);
  EXPECT_DOUBLE_EQ(frequency_ratio(hardware, 310), (1530 + 10 * hardware.alpha_f) / 1530);
  EXPECT_EQ(frequency_ratio(hardware, 1e4), 0) << "no clock runs backwards";

  // ResNet's fit has k1 < 0: it turns down at a batch of 1663.5, and is not believed from there on.
  const ModelCoefficients model = models().models.at("resnet50");
  EXPECT_EQ(largest_batch(model), 1663);
  EXPECT_TRUE(std::isfinite(active_ms(model, 1663, 50)));
  EXPECT_TRUE(std::isinf(active_ms(model, 1664, 50)));
  EXPECT_TRUE(std::isinf(active_ms(model, 1, -0.4))) << "r + k4 < 0";
  EXPECT_EQ(largest_batch(models().models.at("alexnet")), 65'536);

  const Resident residents[] = {{.model = &model, .batch = 2000, .share_pct = 50},
                                {.model = &model, .batch = 8, .share_pct = 50}};
  const auto p = predict(hardware, residents);
  EXPECT_TRUE(std::isinf(p[0].latency_ms));
  EXPECT_EQ(p[0].throughput_rps, 0);
  EXPECT_TRUE(std::isfinite(p[1].latency_ms));
}

TEST(Interference, SaysWhatIsWrongInAFile) {
  const std::string good = to_json(models()), type = to_json(v100());
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    const auto found = text.find(from);
    EXPECT_NE(found, std::string::npos) << from;
    return text.replace(found, from.size(), to);
  };
  const struct {
    std::string text;
    const char* words;
    bool hardware = false;
  } rows[] = {
      {"[1", "f.json: not a JSON document"},
      {"[]", "f.json: document: is array, but should be an object"},
      {"{}", "f.json: document: has no \"models\""},
      {R"({"models": {}})", "models: is empty"},
      {R"({"models": []})", "document.models: is array, but should be an object"},
      {R"({"models": {"a": {}}})", "models.a: has no \"coefficients\""},
      {replaced(good, "\"k4\": 0.0555", "\"k4\": \"0.0555"), "not a JSON document"},
      {replaced(good, "\"d_load_bytes\": 602112.0", "\"d_load_bytes\": -1"),
       "models.alexnet.coefficients.d_load_bytes: is -1, but should be bytes of one request in 0..1e+12"},
      {replaced(good, "\"k5\": 0.34", "\"k5\": -9000000.34"), "k5: is -9000000.34"},
      {replaced(good, "\"k3\": 23.7", "\"k3\": -2300.7"), "give a batch of one on a whole device no time"},
      {replaced(good, "\"largest_measured_batch\": 32", "\"largest_measured_batch\": 0"),
       "largest_measured_batch: is 0, but should be a whole number in 1..65536"},
      {replaced(good, "\"largest_measured_batch\": 32", "\"largest_measured_batch\": \"32\""),
       "but should be a whole number in 1..65536"},
      {R"({"models": {"a": {"coefficients": {"d_load_bytes": 1}}}})",
       "models.a.coefficients: has no \"d_feedback_bytes\""},
      {replaced(type, "\"P_max_power_W\": 300.0", "\"P_max_power_W\": null"),
       "f.json: hardware_coefficients.P_max_power_W: is null, but should be watts in 0.001..1e+06", true},
      {replaced(type, "\"r_unit_percent\": 2.5", "\"r_unit_percent\": 0"), "r_unit_percent: is 0", true},
      {replaced(type, "\"r_unit_percent\": 2.5", "\"r_unit_percent\": 200"), "in 0.01..100", true},
      {replaced(type, "price_usd_per_hour", "price"), "document: has no \"price_usd_per_hour\"", true},
      {replaced(type, "\"alpha_f_MHz_per_W\": -", "\"alpha_f_MHz_per_W\": "), "alpha_f_MHz_per_W", true},
      {replaced(type, "\"gpu\": \"NVIDIA", "\"gpu\": \"\", \"x\": \"NVIDIA"), "gpu: is empty", true},
      {R"({"gpu": "a", "price_usd_per_hour": 1})", "has no \"hardware_coefficients\"", true},
  };
  for (const auto& [text, words, hardware] : rows) {
    std::string said;
    if (hardware) {
      const auto read = parse_hardware(text, "f.json");
      ASSERT_FALSE(read) << words;
      said = read.error().message;
    } else {
      const auto read = parse_coefficients(text, "f.json");
      ASSERT_FALSE(read) << words;
      said = read.error().message;
    }
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_EQ(said.find("f.json: "), 0u) << said;
  }
  // No full set of coefficients of this device was ever published.
  const auto t4 = read_hardware(folder + "t4.json");
  ASSERT_FALSE(t4);
  EXPECT_NE(t4.error().message.find("P_max_power_W: is null"), std::string::npos) << t4.error().message;
  EXPECT_EQ(read_hardware(folder + "nothing.json").error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace carillon::profile
