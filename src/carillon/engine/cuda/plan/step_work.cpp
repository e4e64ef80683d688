#include "carillon/engine/cuda/plan/step_work.h"

#include <cstring>

namespace carillon::engine::cuda {

StepWork work_of(const Step& step) {
  if (step.call != nullptr) {
    CallWork work = step.call->work();
    return {.kernel = std::move(work.kernel), .operations = work.operations, .bytes = work.bytes};
  }
  StepWork out{.kernel = std::string(step.launch.kernel->symbol)};
  // At addresses that no two areas share; nothing is read there.
  std::vector<std::byte> params = step.params;
  for (const auto& [at, place] : step.pointers) {
    const Address address = place.at(std::uint64_t{1} << 40, std::uint64_t{1} << 41);
    std::memcpy(params.data() + at, &address, sizeof address);
  }
  std::vector<kernels::Bytes> reads, writes;
  step.launch.kernel->accesses(params.data(), reads, writes);
  for (const auto* each : {&reads, &writes})
    for (const auto& bytes : *each) out.bytes += static_cast<double>(bytes.count);
  if (out.kernel.starts_with("carillon_attention")) {
    kernels::AttentionParams p;
    std::memcpy(&p, params.data(), sizeof p);
    out.operations = 4.0 * p.outer[0] * p.outer[1] * p.outer[2] * p.queries * p.keys * p.head_size;
  }
  return out;
}

std::string_view plain_name(std::string_view step) {
  return step.substr(0, step.rfind(" by "));
}

}  // namespace carillon::engine::cuda
