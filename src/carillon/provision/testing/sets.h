#pragma once

#include <string>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/provision/workload.h"

#ifndef CARILLON_SOURCE_DIR  // the build sets it for tests; headers are also compiled alone
#define CARILLON_SOURCE_DIR "."
#endif

// Workloads and devices for tests: the published ones, and random sets like them.
namespace carillon::provision::testing {

inline DeviceType v100() {
  const std::string folder = CARILLON_SOURCE_DIR "/profiles/igniter/";
  return {.hardware = *profile::read_hardware(folder + "v100.json"),
          .models = *profile::read_coefficients(folder + "workloads.json")};
}

// A made-up device: half as fast as a V100, at a price of its own.
inline DeviceType half_v100(double price) {
  DeviceType type = v100();
  type.hardware.name = "half";
  type.hardware.price_usd_per_hour = price;
  type.hardware.coefficients.share_unit_pct = 5;
  for (auto& [name, model] : type.models.models) {
    for (double* k : {&model.k1, &model.k2, &model.k3, &model.k5, &model.schedule_ms}) *k *= 2;
    model.alpha_power *= 2;
  }
  return type;
}

inline std::vector<Workload> table1() {
  return {{"A", "alexnet", 15, 500}, {"R", "resnet50", 40, 400}, {"V", "vgg19", 60, 200}};
}

inline std::vector<Workload> table3() {
  return {{"W1", "alexnet", 10, 1200}, {"W2", "alexnet", 15, 400},  {"W3", "alexnet", 20, 800},
          {"W4", "resnet50", 20, 400}, {"W5", "resnet50", 30, 600}, {"W6", "resnet50", 40, 200},
          {"W7", "vgg19", 20, 300},    {"W8", "vgg19", 30, 400},    {"W9", "vgg19", 40, 200},
          {"W10", "ssd", 25, 150},     {"W11", "ssd", 40, 50},      {"W12", "ssd", 55, 300}};
}

// So many workloads, each like one of table 3 with 0.8 to 1.5 of its SLO and 0.2 to `most_rate` of its rate.
inline std::vector<Workload> random_set(Random& random, int count, double most_rate = 1) {
  const auto pattern = table3();
  std::vector<Workload> workloads;
  for (int i = 0; i < count; ++i) {
    Workload w = pattern[random.below(pattern.size())];
    w.id = std::to_string(i);
    w.slo_ms *= 0.8 + 0.7 * random.uniform();
    w.rate_rps *= 0.2 + (most_rate - 0.2) * random.uniform();
    workloads.push_back(std::move(w));
  }
  return workloads;
}

}  // namespace carillon::provision::testing
