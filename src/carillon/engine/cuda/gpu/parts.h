#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/engine/cuda/gpu/rig.h"
#include "carillon/engine/cuda/gpu/twin.h"
#include "carillon/engine/cuda/library/library.h"

// What is measured and checked on a device, each as a JSON object. Times are in microseconds.
namespace carillon::engine::cuda::gpu {

using Json = nlohmann::ordered_json;

// Quantiles of measurements; one at least.
Json quantiles(std::vector<double> values);

// A call that facts() tries in a part of the device, or why the library has none.
struct TrialCall {
  Result<std::shared_ptr<const Call>> call = fail(ErrorCode::not_found, "it was not asked for");
  CallBytes bytes;
};
TrialCall trial_of(MathLibrary& library);
// What the device is, the parts that its processors can be divided into, and whether a kernel of ours and the
// trial run there ("division": "yes", or what does not); how long memory and launches take, and the rate of
// copies.
Result<Json> facts(const Rig& rig, const TrialCall& trial);
// How far outputs may be from the CPU's, of the largest element: tf32 is exact where it is emulated.
double allowed_for(Number number, bool is_emulated);
// Outputs beside the CPU's, whole and, `cut`, each segment by itself and twice. "agrees" is false where they
// are further apart than allowed_for() says.
Result<Json> agree(const Rig& rig, const std::string& file, int batch, Number number, bool cut);
// Each step by itself beside the emulated device's, from the same bytes: "steps" has those that differ, the
// furthest first, by how far of the largest element that either wrote. What a step wrote is read as numbers
// of `options.number`: of whole numbers and Booleans only that they differ says something. `options`: the
// rig's, with each step a segment and choices of attention that are shared; `asked`: what its library was
// asked for. "agrees" is false where a step is further apart than agree() allows.
Result<Json> agree_by_step(const Rig& rig, const std::string& file, int batch, const CudaOptions& options,
                           const AskedCalls& asked);
// `runs` runs, one after the other.
Result<Json> speed(const Rig& rig, const std::string& file, int batch, int runs);
// What was measured of each attention of the model when it was compiled, by its nodes' calls and by one
// kernel: `told` is filled meanwhile, by the rig's engine.
Result<Json> attention(const Rig& rig, const std::string& file, int batch, Number number,
                       const std::vector<AttentionTimes>& told);
// Each step by itself, of a plan whose segments are single steps (CudaOptions::longest_segment 1): the median
// of `runs`, as a table of steps (table/step_table.h), without what the launch of a graph adds to each.
Result<Json> steps(const Rig& rig, const std::string& file, int batch, Number number, int runs);
// Weights from the host, as a LOAD copies them; of the same bytes, pinned, what the bus gives; and how long
// runs take by themselves and beside one such copy after the other.
Result<Json> load(const Rig& rig, const std::string& file, int times);

// `times` real-time runs of one model that come while best-effort runs of another have the device, which are
// made to end: how much longer than alone each takes, from its request on; the best-effort work that was lost
// and had to run again; and whether the real-time model left room. "best_effort_speed": of the runs that the
// other model would have done uncut in the time that real-time runs, as long as alone, left it.
// `by_priority`: best-effort runs are whole, and end for nobody; their stream's priority is the least.
Result<Json> preempt(const Rig& rig, const std::string& urgent, const std::string& patient, int times,
                     bool by_priority);
// How long each of `runs` runs takes, after 20 that do not count; us.
Result<std::vector<double>> run_times(const Loaded& loaded, int runs);

}  // namespace carillon::engine::cuda::gpu
