#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "carillon/engine/cuda/gpu/parts.h"
#include "carillon/engine/cuda/kernels/number.h"
#include "carillon/engine/cuda/plan/cuda_plan.h"

namespace carillon::engine::cuda::gpu {
namespace {

using Memory = std::vector<std::byte>;

Memory workspace_of(const Loaded& loaded) {
  Memory out(loaded.plan().workspace().count);
  if (!out.empty()) loaded.memory().copy_out(out, loaded.memory().workspace(0));
  return out;
}

template <typename T>
float element(const Memory& memory, std::size_t at) {
  T value;
  std::memcpy(&value, memory.data() + at, sizeof value);
  return kernels::to_float(value);
}

struct Difference {
  double apart = 0;         // of the largest element that either wrote
  std::size_t written = 0;  // elements that the device's step changed
  std::size_t stray = 0;    // that it changed and the other did not
  std::size_t left = 0;     // that the other changed and it did not
  std::size_t at = 0;       // of the workspace: the element that is furthest apart
  double want = 0, got = 0;
};

// What a step made of `before`, but for bytes [from, to), which are a call's workspace.
template <typename T>
Difference between(const Memory& before, const Memory& device, const Memory& other, std::size_t from,
                   std::size_t to) {
  Difference out;
  double most = 0, worst = 0;
  for (std::size_t at = 0; at + sizeof(T) <= before.size(); at += sizeof(T)) {
    if (at >= from && at < to) continue;
    const auto is = [&](const Memory& a, const Memory& b) {
      return std::memcmp(a.data() + at, b.data() + at, sizeof(T)) == 0;
    };
    const bool by_device = !is(before, device), by_other = !is(before, other);
    if (!by_device && !by_other) continue;
    ++out.written;
    const double want = element<T>(other, at), got = element<T>(device, at);
    if (std::isfinite(want)) most = std::max(most, std::abs(want));
    if (is(device, other)) continue;
    if (by_device && !by_other) ++out.stray;
    if (by_other && !by_device) ++out.left;
    if (std::isnan(want) && std::isnan(got)) continue;
    const double error = std::isfinite(got - want) ? std::abs(got - want) : INFINITY;
    if (error <= worst) continue;
    worst = error;
    out.at = at;
    out.want = want;
    out.got = got;
  }
  out.apart = worst == 0 ? 0 : worst / std::max(most, 1e-30);
  return out;
}

Difference between(Number number, const Memory& before, const Memory& device, const Memory& other,
                   std::size_t from, std::size_t to) {
  return number == Number::f16    ? between<kernels::Half>(before, device, other, from, to)
         : number == Number::bf16 ? between<kernels::Bfloat>(before, device, other, from, to)
                                  : between<float>(before, device, other, from, to);
}

}  // namespace

Result<Json> agree_by_step(const Rig& rig, const std::string& file, int batch, const CudaOptions& options,
                           const AskedCalls& asked) {
  auto device = Loaded::make(rig, file, batch);
  if (!device) return std::unexpected(device.error());
  auto beside = make_emulated_rig(
      {.around = [&](auto plain) { return twin_of(asked, std::move(plain)); }, .engine = options},
      rig.chains);
  if (!beside) return std::unexpected(beside.error());
  auto other = Loaded::make(*beside, file, batch);
  if (!other) return std::unexpected(other.error());

  const auto& parts = static_cast<const CudaPlan&>(device->plan()).parts();
  const auto& others = static_cast<const CudaPlan&>(other->plan()).parts();
  if (parts.names != others.names || parts.recipe.workspace != others.recipe.workspace)
    return fail(ErrorCode::internal, file + ": the emulated device's plan has other steps");
  Json rows = Json::array();
  const double allowed = allowed_for(options.number, false);
  bool agrees = true;
  Memory before = workspace_of(*device);
  for (int k = 0; k < device->plan().kernels(); ++k) {
    if (!before.empty()) other->memory().copy_in(other->memory().workspace(0), before);
    for (Loaded* const each : {&*device, &*other})
      if (auto ran = each->plan().run({k, k + 1}, each->binding(), {}); !ran)
        return std::unexpected(ran.error());
    Memory after = workspace_of(*device);
    const auto segment = parts.segments[static_cast<std::size_t>(k)];
    const std::string& name = parts.names[static_cast<std::size_t>(k)];
    std::size_t from = 0, to = 0;
    if (segment.last > segment.first) {
      const Step& step = parts.recipe.steps[static_cast<std::size_t>(segment.first)];
      if (step.call != nullptr && step.scratch.area == Place::Area::workspace) {
        from = step.scratch.offset;
        to = from + step.call->workspace();
      }
    }
    const auto is_cast = name.ends_with("_f32") && name.find("carillon_cast_") != std::string::npos;
    const Difference found =
        between(is_cast ? Number::f32 : options.number, before, after, workspace_of(*other), from, to);
    if (found.apart > 0)
      rows.push_back({{"step", name},
                      {"apart", found.apart},
                      {"at", found.at},
                      {"want", found.want},
                      {"got", found.got},
                      {"elements", found.written},
                      {"stray", found.stray},
                      {"left", found.left}});
    agrees = agrees && found.apart <= allowed;
    before = std::move(after);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Json& a, const Json& b) {
    return a["apart"].get<double>() > b["apart"].get<double>();
  });
  return Json{{"device", rig.name},
              {"libraries", rig.libraries},
              {"model", file},
              {"batch", batch},
              {"number", name_of(options.number)},
              {"compared", device->plan().kernels()},
              {"allowed", allowed},
              {"agrees", agrees},
              {"steps", std::move(rows)}};
}

}  // namespace carillon::engine::cuda::gpu
