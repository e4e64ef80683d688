#include "carillon/engine/cuda/gpu/rig.h"

#include <algorithm>
#include <utility>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/plain.h"

namespace carillon::engine::cuda::gpu {

Result<Rig> make_emulated_rig(const OpenOptions& options, bool chains) {
  Rig rig;
  const auto host = std::make_shared<EmulatedHost>(EmulatedOptions{.memory = std::uint64_t{80} << 30});
  rig.emulated = std::shared_ptr<Emulated>(host, &host->device);
  rig.driver = std::shared_ptr<const Driver>(host, &host->driver);
  if (options.watch) rig.driver = std::make_shared<const Driver>(options.watch(host->driver));
  rig.name = "emulated";
  rig.libraries = "plain kernels";
  rig.chains = chains;
  auto library = make_plain_library(rig.driver);
  if (!library) return std::unexpected(library.error());
  if (options.around) *library = options.around(std::move(*library));
  std::unique_ptr<ChainLibrary> interpreted;
  if (chains) {
    auto made = make_interpreted_chains(rig.driver, 0);
    if (!made) return std::unexpected(made.error());
    interpreted = std::move(*made);
  }
  auto engine = make_cuda_engine(rig.driver, 0, "emulated", std::move(*library), options.engine,
                                 std::move(interpreted));
  if (!engine) return std::unexpected(engine.error());
  rig.engine = std::move(*engine);
  return rig;
}

Result<Rig> make_rig(const std::string& device, OpenOptions options) {
  if (device == "cuda-emulated") return make_emulated_rig(options, true);
  Rig rig;
  const auto ordinal = device_in(device);
  if (!ordinal) return invalid("'" + device + "' is not a device: there are cuda, cuda:N and cuda-emulated");
  options.ordinal = *ordinal;
  auto opened = open_device(options);
  if (!opened) return std::unexpected(opened.error());
  rig.driver = opened->driver;
  rig.device = opened->facts.device;
  rig.name = opened->facts.name;
  rig.libraries = opened->libraries;
  rig.chains = !opened->chains.empty();
  rig.engine = std::move(opened->engine);
  return rig;
}

Result<Loaded> Loaded::make(const Rig& rig, const std::string& file, int batch, Class cls, bool stops) {
  Loaded out;
  auto model = graph::import_onnx(file, {.lengths = {128}});
  if (!model) model = graph::import_onnx(file, {});
  if (!model) return std::unexpected(model.error());
  out.model_ = *model;
  CompileOptions wanted{.batch_sizes = {batch}};
  if (cls == Class::best_effort && stops) wanted.stop_cost = usual_stop_cost;
  if (cls == Class::real_time) wanted.room_cost = usual_room_cost;
  auto compiled = rig.engine->compile(**model, wanted);
  if (!compiled) return std::unexpected(compiled.error());
  out.compiled_ = *compiled;
  out.plan_ = (*compiled)->plan(batch, (*compiled)->lengths().empty() ? 0 : (*compiled)->lengths().back());
  const Plan& plan = *out.plan_;
  auto placed = LoadedPlan::make(rig.driver, rig.device, **compiled, plan);
  if (!placed) return std::unexpected(placed.error());
  out.placed_ = std::move(*placed);
  Random random(7);
  for (std::size_t i = 0; i < plan.inputs().size(); ++i) {
    const graph::TensorSpec& spec = plan.inputs()[i];
    graph::Tensor& tensor = out.inputs_.emplace_back(graph::TensorType{spec.type, spec.shape});
    if (spec.type == graph::DataType::f32)
      for (float& x : tensor.as<float>()) x = static_cast<float>(random.normal());
    else if (spec.type == graph::DataType::i64)
      for (std::int64_t& x : tensor.as<std::int64_t>())
        x = spec.name.find("mask") != std::string::npos ? 1 : static_cast<std::int64_t>(random.below(100));
    out.placed_->set_input(i, tensor.bytes());
  }
  auto team = rig.engine->make_team({.cls = cls});
  if (!team) return std::unexpected(team.error());
  out.team_ = std::move(*team);
  out.state_ = plan.make_state(out.team_.get());
  out.binding_ = out.placed_->binding(out.state_.get());
  return out;
}

std::vector<graph::Tensor> Loaded::outputs() const {
  std::vector<graph::Tensor> out;
  for (std::size_t i = 0; i < plan_->outputs().size(); ++i) {
    const graph::TensorSpec& spec = plan_->outputs()[i];
    graph::Tensor& tensor = out.emplace_back(graph::TensorType{spec.type, spec.shape});
    std::ranges::copy(placed_->output(i), tensor.bytes().begin());
  }
  return out;
}

}  // namespace carillon::engine::cuda::gpu
