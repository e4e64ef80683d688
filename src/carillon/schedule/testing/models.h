#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::testing {

// A model whose batches take alpha * k + beta.
inline ModelInfo linear_model(std::uint32_t id, Duration alpha, Duration beta, std::uint64_t pages = 1,
                              Duration load = 8ms, std::initializer_list<int> sizes = {1, 2, 4, 8, 16}) {
  ModelInfo model{.id = ModelId{id},
                  .name = std::string("m").append(std::to_string(id)),
                  .pages = pages,
                  .load = load,
                  .batches = {}};
  for (const int k : sizes) model.batches.push_back({k, alpha * k + beta});
  return model;
}

}  // namespace carillon::schedule::testing
