#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/member.h"

namespace carillon::cluster {

inline constexpr std::size_t most_static_members = 4096;

// A cluster without a coordinator: its members stand in a file, and its one scheduler leads for good.
struct StaticCluster {
  std::string name;
  std::vector<Member> members;  // in the file's order; incarnation and protocol are 0
};

// A file such as
//
//   name = "box"
//   [[member]]
//   id = "a"
//   role = "scheduler"
//   address = "10.0.0.1:8100"
//
// `file` is its name, for errors: "FILE:LINE: what is wrong, and what would be right".
Result<StaticCluster> parse_static_cluster(std::string_view text, const std::filesystem::path& file);

}  // namespace carillon::cluster
