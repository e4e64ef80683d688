#pragma once

#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/memory/loaded_plan.h"
#include "carillon/engine/cuda/open.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/model.h"
#include "carillon/graph/tensor.h"

// A device to measure on, and a model that is loaded there.
namespace carillon::engine::cuda::gpu {

struct Rig {
  std::shared_ptr<Emulated> emulated;  // where it is one; outlives the rest
  std::shared_ptr<const Driver> driver;
  DeviceNumber device = 0;
  std::string name, libraries;
  bool chains = false;  // elementwise steps are joined
  std::unique_ptr<Engine> engine;
};

// The one emulated device of the process; with `chains` elementwise steps are joined.
Result<Rig> make_emulated_rig(const OpenOptions& options, bool chains);
// `device`: cuda, cuda:N or cuda-emulated. Errors: as of open_device().
Result<Rig> make_rig(const std::string& device, OpenOptions options);

// A model's one plan, with memory on the device for it alone and inputs that are random by a seed.
class Loaded {
 public:
  // From a file, at its greatest length; 128 where it may have any. Compiled as a model of that class is, and
  // bound to a lane of it. `stops`: a best-effort model's runs are to be stopped soon.
  static Result<Loaded> make(const Rig& rig, const std::string& file, int batch, Class cls = Class::normal,
                             bool stops = true);
  Loaded(Loaded&&) = default;

  const graph::Model& model() const { return *model_; }
  const CompiledModel& compiled() const { return *compiled_; }
  const Plan& plan() const { return *plan_; }
  DeviceMemory& memory() const { return placed_->memory(); }
  const WeightRange& range() const { return placed_->range(); }
  const Binding& binding() const { return binding_; }
  const std::vector<graph::Tensor>& inputs() const { return inputs_; }
  // What the last run gave, from the device.
  std::vector<graph::Tensor> outputs() const;

 private:
  Loaded() = default;
  std::shared_ptr<const graph::Model> model_;
  std::shared_ptr<const CompiledModel> compiled_;
  const Plan* plan_ = nullptr;
  std::vector<graph::Tensor> inputs_;
  std::unique_ptr<LoadedPlan> placed_;
  std::unique_ptr<Team> team_;
  std::unique_ptr<RunState> state_;
  Binding binding_;
};

}  // namespace carillon::engine::cuda::gpu
