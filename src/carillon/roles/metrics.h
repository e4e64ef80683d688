#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "carillon/base/statistics.h"
#include "carillon/hosts/member_core.h"

namespace carillon::roles {

// How long the rows of a worker took, from when they were asked for until all was there.
struct RowTimes {
  LatencyHistogram pulls;   // of inputs, from the frontend
  LatencyHistogram pushes;  // of outputs that the frontend took
};

// What a process of a cluster counts and measures, of the cluster alone. What it does not know is left out.
struct ClusterFigures {
  hosts::MemberFigures member;
  std::optional<std::uint64_t> reoffered{};  // rows: by a frontend to a leader, by leaders to their policy
  std::optional<std::uint64_t> doubled{};    // transport::RowServer::doubled()
  std::optional<std::uint64_t> unwanted{};   // Agent::Counters::unwanted
  std::optional<std::size_t> moving{};       // Leader::moving()
  std::optional<RowTimes> rows{};
};

// In Prometheus' text format (docs/cluster-metrics.md).
std::string cluster_text(const ClusterFigures& figures);

}  // namespace carillon::roles
