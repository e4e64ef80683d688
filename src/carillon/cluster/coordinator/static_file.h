#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/member.h"

namespace carillon::cluster {

inline constexpr std::size_t most_static_members = 4096;

// Of every process of such a cluster: nobody tells the others of a new one.
inline constexpr std::uint64_t static_incarnation = 1;

// A cluster without a coordinator: its members stand in a file, and its one scheduler leads for good.
struct StaticCluster {
  std::string name;
  std::vector<Member> members;  // in the file's order; protocols are not known
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
// The same of what the file holds.
Result<StaticCluster> read_static_cluster(const std::filesystem::path& file);

// Whether the file has `self` with its role and its address. Else the error names the file and the field.
Result<> check_self(const StaticCluster& cluster, const Member& self, const std::filesystem::path& file);

}  // namespace carillon::cluster
