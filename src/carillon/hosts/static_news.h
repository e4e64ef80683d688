#pragma once

#include <vector>

#include "carillon/cluster/coordinator/client.h"
#include "carillon/cluster/coordinator/static_file.h"

namespace carillon::hosts {

// What each process of a static cluster hears at its start, in place of a coordinator: all members, and that
// the scheduler leads epoch 1. Nothing follows.
std::vector<cluster::CoordinatorNews> news_of(const cluster::StaticCluster& cluster);

}  // namespace carillon::hosts
