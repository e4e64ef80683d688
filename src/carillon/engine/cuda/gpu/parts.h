#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/engine/cuda/gpu/rig.h"

// What is measured and checked on a device, each as a JSON object. Times are in microseconds.
namespace carillon::engine::cuda::gpu {

using Json = nlohmann::ordered_json;

// Quantiles of measurements; one at least.
Json quantiles(std::vector<double> values);

// What the device is, the parts that its processors can be divided into, how long memory and launches take,
// and the rate of copies.
Result<Json> facts(const Rig& rig);
// Outputs beside the CPU's, whole and, `cut`, each segment by itself and twice. "agrees" is false where they
// are further apart than the number allows (f32, tf32 without its rounding 1e-4; else 3e-2, of the largest
// element).
Result<Json> agree(const Rig& rig, const std::string& file, int batch, Number number, bool cut);
// `runs` runs, one after the other.
Result<Json> speed(const Rig& rig, const std::string& file, int batch, int runs);
// What was measured of each attention of the model when it was compiled, by its nodes' calls and by one
// kernel: `told` is filled meanwhile, by the rig's engine.
Result<Json> attention(const Rig& rig, const std::string& file, int batch, Number number,
                       const std::vector<AttentionTimes>& told);
// Each step by itself, of a plan whose segments are single steps (CudaOptions::longest_segment 1): the median
// of `runs`, as a table of steps (table/step_table.h). Between a step's two events lies the launch of a
// graph, so that short ones are told some microseconds longer than they are among others.
Result<Json> steps(const Rig& rig, const std::string& file, int batch, Number number, int runs);
// Weights from the host, as a LOAD copies them; of the same bytes, pinned, what the bus gives; and how long
// runs take by themselves and beside one such copy after the other.
Result<Json> load(const Rig& rig, const std::string& file, int times);

// `times` real-time runs of one model that come while best-effort runs of another have the device, which are
// made to end: how much longer than alone each takes, from its request on; the best-effort work that was lost
// and had to run again; and what part of the device the real-time model was given.
Result<Json> preempt(const Rig& rig, const std::string& urgent, const std::string& patient, int times);

}  // namespace carillon::engine::cuda::gpu
