#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/effort.h"
#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/profile/distribution.h"
#include "carillon/workload/request.h"

namespace carillon::ledger {

// What a scheduler knows of a model before it first runs: from its plans and its profile.
struct BatchProfile {
  int batch = 1;
  Duration exec;  // seed estimate of EXEC (with INPUT and OUTPUT, which are far shorter)
  friend bool operator==(const BatchProfile&, const BatchProfile&) = default;
};
inline bool same_sizes(std::span<const BatchProfile> a, std::span<const BatchProfile> b) {
  return std::ranges::equal(a, b, {}, &BatchProfile::batch, &BatchProfile::batch);
}
// A batch of rows of one size, as it was measured.
struct SizeTime {
  Effort row;
  int batch = 1;
  Duration exec;
};
struct ModelInfo {
  ModelId id;  // dense: the model's place in the list
  std::string name;
  std::uint64_t pages = 0;            // of the page cache that its weights take; 0: it needs no LOAD
  Duration load;                      // seed estimate of LOAD
  std::vector<BatchProfile> batches;  // ascending by batch, never empty
  // For policies that plan by distributions: what a batch costs by its size and its longest request, where it
  // is known at the start (measured over sizes and inputs), and times of requests alone to start from, before
  // any sample, each above 0.
  std::optional<profile::PaddedCost> cost = std::nullopt;
  std::vector<Duration> solos = {};
  bool time_varies = false;   // with the input: worth profiling by request
  Class cls = Class::normal;  // of requests that do not say
  // Requests tell their size (Request::effort), and what they take is predicted from it; this was measured
  // before. Empty: they do not, and all of them count alike.
  std::vector<SizeTime> sizes = {};
  // The share of its answers that may be late, in (0, 0.5]; 0: as Environment says.
  double miss_rate = 0;
  // Its weights are that model's, which came before and takes the pages: it is loaded wherever that is. Where
  // that changes, it changes after it. Set by BySize alone.
  std::optional<ModelId> weights_of = std::nullopt;
};

}  // namespace carillon::ledger
