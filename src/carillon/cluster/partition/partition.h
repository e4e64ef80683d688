#pragma once

#include "carillon/base/result.h"
#include "carillon/cluster/partition/problem.h"
#include "carillon/cluster/partition/search.h"

namespace carillon::cluster {

struct Partition {
  Division division;
  Figures figures;
  double bound = 0;     // no division's objective is below
  bool proved = false;  // the objective is within `tolerance` of the bound
};

struct PartitionOptions {
  SearchOptions search;
  double proof_seconds = 0;  // that prove() may take; 0: search() alone
};

// The division of a problem: what search() finds, unless prove() knows a better one. With proof_seconds of 0,
// or enough of them, the same problem and seed give the same answer. Where no division can be, or none was
// found, the error says which sum exceeds what, or what bound stands in the way. Without a division in force
// groups are numbered by their first models.
Result<Partition> partition(const Problem& problem, const PartitionOptions& options);

}  // namespace carillon::cluster
