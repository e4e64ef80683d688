#pragma once

#include <string>
#include <string_view>

#include "carillon/engine/cuda/library/library.h"
#include "carillon/engine/cuda/plan/recipe.h"

namespace carillon::engine::cuda {

// What a step has to do, whatever computes it.
struct StepWork {
  std::string kernel;  // "conv f16", "product f32", or our own kernel's symbol
  double operations = 0, bytes = 0;
};
StepWork work_of(const Step& step);

// The step's name without what computes it, which differs from device to device: "fc product f16 1x [1x16]
// [16x10] bias". A plan may have several of one name.
std::string_view plain_name(std::string_view step);

}  // namespace carillon::engine::cuda
