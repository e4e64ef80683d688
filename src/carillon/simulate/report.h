#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "carillon/simulate/simulation.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// What is told of a run. Latencies are of answers, on time or late; rates are per second of Figures::span.
struct Report {
  std::string scenario, scheduler;
  std::uint64_t seed = 0;
  double offered_rps = 0, goodput_rps = 0, finish_rate = 0;
  std::uint64_t offered = 0, on_time = 0, refused = 0, late = 0, cancelled = 0;
  std::uint64_t shed = 0;  // of the refused: turned away before the scheduler heard of them
  double p50_ms = 0, p99_ms = 0, p9999_ms = 0, max_ms = 0;
  double mean_batch = 0;
  int median_batch = 0;  // of requests: half of them ran in batches of at least this size
  int devices = 0, devices_used = 0;
  double utilization = 0;        // mean busy fraction of all devices
  double worst_finish_rate = 1;  // of the model that fares worst
  std::uint64_t loads = 0, unloads = 0, stopped = 0;
  std::uint64_t events = 0, decisions = 0;
  // What decisions took of the CPU, where they were measured.
  struct DecisionTimes {
    double mean_us = 0, p50_us = 0, p99_us = 0, max_us = 0;
  };
  std::optional<DecisionTimes> decision_times;
  double wall_s = 0;
  struct Model {
    std::string name;
    double offered_rps = 0, finish_rate = 0, p99_ms = 0, mean_batch = 0;
    std::uint64_t promised = 0, promised_late = 0, avoidable_late = 0;  // as ModelFigures'
    double expected_late = 0;
  };
  std::vector<Model> models;
  // Of its requests; empty where all are normal.
  struct OfClass {
    std::string_view name;
    std::uint64_t offered = 0, on_time = 0, late = 0, refused = 0;
    double offered_rps = 0, answered_rps = 0, finish_rate = 0, p50_ms = 0, p99_ms = 0, max_ms = 0;
  };
  std::vector<OfClass> classes;
  // Of Figures::intervals, where it has any; of models, requests offered and on time by interval.
  Duration interval{0};
  std::vector<IntervalFigures> intervals;
  std::vector<std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> by_model;
  ScalingFigures scaling;  // without looks: devices did not come and go
};

// Reorders the latencies in `figures`. `interval` as in the run's Options.
Report make_report(const workload::Scenario& scenario, std::string_view scheduler, Figures& figures,
                   Duration interval = Duration{0});

// The fields of `carillon simulate --json`, and autoscaling advice. Only wall_s differs between equal runs,
// and all figures where decisions were measured.
nlohmann::ordered_json to_json(const Report& report);

// A table for people; models beyond the twenty that fare worst are left out, and that is said.
std::string to_table(const Report& report);

}  // namespace carillon::simulate
