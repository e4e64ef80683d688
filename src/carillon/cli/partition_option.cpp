#include "carillon/cli/partition_option.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

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

Result<schedule::GroupsOfModels> PartitionFile::read(std::size_t devices) {
  auto division = read_division(file_, devices);
  if (!division) return in_context("--partition", division.error());
  const std::lock_guard lock(mutex_);
  devices_ = devices;
  division_ = *division;
  return division;
}

void PartitionFile::begin(Divide divide) {
  const std::lock_guard lock(calls_);
  divide_ = std::move(divide);
}

void PartitionFile::end() {
  const std::lock_guard lock(calls_);
  divide_ = {};
}

Result<schedule::GroupsOfModels> PartitionFile::read_next() const {
  auto division = read_division(file_, devices_);
  if (division && division->groups != division_.groups)
    return invalid(fmt::format("{}: has {} groups, but {} are in force; their number stays", file_,
                               division->groups, division_.groups));
  return division;
}

void PartitionFile::read_again() {
  if (!given()) return;
  const std::lock_guard call(calls_);
  if (!divide_)
    return spdlog::warn("--partition: the server does not serve yet, or any more; nothing changes");
  std::unique_lock lock(mutex_);
  const auto division = read_next();
  lock.unlock();
  if (!division) return spdlog::warn("--partition: {}; nothing changes", division.error().message);
  const auto moves = divide_(*division);
  if (!moves) return spdlog::warn("--partition: {}", moves.error().message);
  lock.lock();
  division_.merge(*division);
  if (*moves)
    spdlog::info("partition: models move to the groups of {}", file_);
  else
    spdlog::info("partition: the groups of {} count once this scheduler leads", file_);
}

schedule::GroupsOfModels PartitionFile::lead() {
  const std::lock_guard lock(mutex_);
  if (const auto division = read_next())
    division_.merge(*division);
  else
    spdlog::warn("--partition: {}; the groups that were read last count", division.error().message);
  spdlog::info("partition: the {} groups of {} are in force", division_.groups, file_);
  return division_;
}

std::uint64_t PartitionFile::hash(bool leads) const {
  if (!given()) return 0;
  const std::lock_guard lock(mutex_);
  schedule::GroupsOfModels division = division_;
  if (!leads)
    if (const auto next = read_next()) division.merge(*next);
  return division.hash();
}

}  // namespace carillon::cli
