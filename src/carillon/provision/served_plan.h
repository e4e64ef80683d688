#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::provision {

// What a server must know of a workload of a plan.
struct ServedWorkload {
  std::string id;
  std::string model;
  double share_pct = 0;          // of the device's compute units, in (0, 100]
  double standby_share_pct = 0;  // that its standby gets: 10 more, or what is left; 0: nothing is left
  int batch = 1;
  Duration slo{0};  // above 0
};

// One device of a plan.
struct ServedDevice {
  int number = 1;
  std::string type;
  std::vector<ServedWorkload> workloads;  // of different models; their shares sum to at most 100
};

// Parses the device `number` (the only one, where it is not given) of a plan as `carillon plan --json` writes
// it: {"devices": [{"device": 1, "type": "cpu", "workloads": [{"id": "W1", "model": "resnet50", "share_pct":
// 40, "batch": 4, "half_slo_ms": 50}]}]}. Unknown fields are ignored. `where` (the file's name) opens every
// error, which goes on with the place in the document, what was there and what would be right.
Result<ServedDevice> parse_served_device(std::string_view json, std::string_view where,
                                         std::optional<int> number);
Result<ServedDevice> read_served_device(const std::filesystem::path& file, std::optional<int> number);

}  // namespace carillon::provision
