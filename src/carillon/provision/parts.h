#pragma once

#include <optional>
#include <span>
#include <vector>

#include "carillon/provision/demands.h"

namespace carillon::provision {

// A workload, or what one device serves of it.
struct Part {
  std::size_t workload = 0;
  double rate_rps = 0;
  std::vector<std::optional<Demand>> demands;  // by type; at least one has a value
  int home = -1;  // index of the device of an existing plan where it runs; -1: none

  // The least that it costs: its share of the cheapest type for it.
  double least_cost(std::span<const DeviceType> types) const;
};

enum class Split {
  unequal,  // devices as full as one workload makes them, and one with the rest
  equal,    // as few devices, with the same rate on each
};

// The parts of all workloads by the demands' rule: one each where one device is enough, several where
// `may_split` and the rate asks for them. What cannot be served is put down in `infeasible`.
// `has_split` tells whether any was split.
std::vector<Part> make_parts(std::span<const Workload> workloads, std::span<const DeviceType> types,
                             Demands& demands, Split split, bool may_split,
                             std::vector<Infeasible>& infeasible, bool& has_split);

// A device and the parts on it, by index into the parts, with their shares.
struct Packed {
  std::size_t type = 0;
  std::vector<std::size_t> parts;
  std::vector<int> units;
  int used = 0;
  int home = -1;  // index of the device of an existing plan that this is; -1: a new one
};

// Whether the parts fit on one device of the type; their shares in `units`.
bool fit(std::span<const Part> parts, std::span<const std::size_t> chosen, std::span<const DeviceType> types,
         std::size_t type, std::vector<int>& units);

enum class Rule { least_growth, best_fit, first_fit };

// Puts `waiting` parts, in descending order of their least cost, on `devices` by the rule, and opens devices
// of the type with the lowest cost for a part's share (only of type `only`, where that has a demand of the
// part).
void pack_greedily(std::span<const Part> parts, std::span<const DeviceType> types,
                   std::vector<std::size_t> waiting, Rule rule, std::optional<std::size_t> only,
                   std::vector<Packed>& devices);

// No packing of the parts can cost less.
double lower_bound_usd(std::span<const Part> parts, std::span<const DeviceType> types);

}  // namespace carillon::provision
