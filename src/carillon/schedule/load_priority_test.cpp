#include "carillon/schedule/load_priority.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

// Devices come and go, as do copies and demand. What is wanted is what has a positive priority and is not on
// as many devices as are alive.
TEST(LoadPriority, WhatIsWantedFollowsFromPrioritiesAndDevices) {
  constexpr std::uint32_t models = 40, devices = 8;
  Random random(1);
  LoadPriority load(10ms);
  for (std::uint32_t m = 0; m < models; ++m) load.add_model();
  for (std::uint32_t d = 0; d < devices; ++d) load.add_device();
  std::vector<std::set<std::uint32_t>> places(models);
  std::size_t alive = 0, most_wanted = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto m = static_cast<std::uint32_t>(random.below(models));
    const auto d = static_cast<std::uint32_t>(random.below(devices));
    const ModelId model{m};
    switch (random.below(4)) {
      case 0:
        alive = random.below(devices + 1);
        load.set_alive(alive);
        break;
      case 1:
        if (places[m].insert(d).second)
          load.placed(model, DeviceId{d});
        else if (places[m].erase(d) > 0)
          load.removed(model, DeviceId{d});
        break;
      case 2:
        load.add_demand(model, Duration{static_cast<std::int64_t>(random.below(20'000'000))});
        break;
      default:
        load.add_demand(model, -load.demand(model));
    }
    std::set<std::pair<double, ModelId>> wanted;
    for (std::uint32_t each = 0; each < models; ++each)
      if (const double priority = load.priority(ModelId{each}); priority > 0 && places[each].size() < alive)
        wanted.emplace(-priority, ModelId{each});
    ASSERT_EQ(load.wanted(), wanted) << i;
    most_wanted = std::max(most_wanted, wanted.size());
  }
  EXPECT_GT(most_wanted, 10U);
}

}  // namespace
}  // namespace carillon::schedule
