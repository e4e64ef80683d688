#include "carillon/cli/partition_option.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "carillon/cluster/partition/partition_json.h"

namespace carillon::cli {

Result<schedule::GroupsOfModels> read_division(const std::string& file, std::size_t devices) {
  const auto names = cluster::read_group_names(file);
  if (!names) return std::unexpected(names.error());
  if (const std::size_t most = std::min(devices, schedule::most_subclusters); names->size() > most)
    return invalid(fmt::format("{}: has {} groups, but should have at most {}, for {} device{}", file,
                               names->size(), most, devices, devices == 1 ? "" : "s"));
  return schedule::groups_of_models(*names);
}

}  // namespace carillon::cli
