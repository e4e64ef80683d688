#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/plan/recipe.h"

namespace carillon::engine::cuda {

// Which plan of which model.
struct PlanName {
  std::string model;
  Number number = Number::f32;
  int batch = 1;
  std::int64_t length = 0;  // 0: the model has no lengths
};

// How long the steps of plans are to take, on a device that computes nothing.
class StepTimes {
 public:
  virtual ~StepTimes() = default;
  // Of all steps, in their order. Errors name the step that there is no time for.
  virtual Result<std::vector<Duration>> of(const PlanName& plan, std::span<const Step> steps) const = 0;
  // Said before a step's kernel is launched, or captured, by this thread.
  virtual void announce(Duration takes) const = 0;
};

}  // namespace carillon::engine::cuda
