#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/repository/repository.h"

namespace carillon::repository {

inline constexpr int derived_max_batch = 16;     // where only the file says that a model batches
inline constexpr int largest_max_batch = 4096;   // that a config may ask for
inline constexpr int largest_plan = 128;         // rows of the largest plan that is made
inline constexpr std::size_t most_lengths = 64;  // that parameter lengths may list
inline constexpr std::int64_t largest_length = 1 << 20;
inline constexpr std::size_t most_plans = 512;  // batch sizes times lengths

// Which of a model's version folders are served.
struct VersionPolicy {
  enum class Kind : std::uint8_t { latest, all, specific } kind = Kind::latest;
  std::int64_t latest = 1;             // how many of the newest
  std::vector<std::int64_t> specific;  // ascending
};

struct ConfigFile {
  ModelConfig config;
  VersionPolicy versions;
};

// What a config.pbtxt says, before the model's own file is seen (`text`: protobuf text format of
// inference.ModelConfig; empty where there is no config.pbtxt). `folder` is the model's folder's name, which
// the config must agree with. Nothing in the text is trusted. Errors: syntax, with line and column
// (invalid_argument); values out of range, with what would be right (invalid_argument); what we cannot serve
// (unsupported).
Result<ConfigFile> parse_config(std::string_view text, std::string_view folder);

// 1, 2, 4, ... up to `max_batch_size`, at most largest_plan; 1 alone for a model without a batch.
std::vector<int> default_batch_sizes(int max_batch_size);

}  // namespace carillon::repository
