#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/library/library.h"
#include "carillon/engine/cuda/plan/step_times.h"

namespace carillon::engine::cuda {

// How long the steps of plans take on some GPU: measured there, or worked out from what it can do.
struct StepTable {
  // A kernel of which no step is listed takes operations and bytes at these rates, whichever is longer.
  struct Rate {
    double operations_per_s = 0, bytes_per_s = 0;
  };
  struct Step {
    std::string name;  // as plain_name() has it
    double us = 0;
    bool measured = false;  // "us", else "least_us"
  };
  struct Plan {
    PlanName name;
    std::vector<Step> steps;  // in the order in which they run
  };
  std::string device;  // its name, for people
  unsigned processors = 132;
  std::uint64_t memory = std::uint64_t{80} << 30;
  double bus_bytes_per_s = 55e9;                   // between host and device, each way
  double memory_bytes_per_s = 3.35e12;             // of copies on the device, which read and write
  double copy_us = 2;                              // what a copy takes besides
  double step_us = 0;                              // what a step takes beside "least_us" or what rates give
  std::map<std::string, Rate, std::less<>> rates;  // by StepWork::kernel; "*": any other
  std::vector<Plan> plans;
};

// From JSON (docs/cuda.md, "Tables of steps"): what carillon_cuda_tables --json and carillon_gpu steps write.
// 1 to 4,096 plans or some rates; 100,000 steps a plan and 1,000,000 in all. `where` is named in errors
// (invalid_argument): wrong types, numbers out of range and plans given twice are refused, nothing is
// replaced, and no other fields are taken but those that these programs write for people.
Result<StepTable> parse_step_table(std::string_view json, std::string_view where);
// not_found where there is no such file; files above 64 MiB are refused.
Result<StepTable> read_step_table(const std::filesystem::path& file);

// The model's name that a table made from this file has: its folder's in a repository (NAME/1/model.onnx),
// else the file.
std::string model_of_file(const std::string& file);

// By the table: a plan that is listed takes what its steps are listed with, in their order where several have
// one name; whatever is not listed takes what its kernel's rate gives. Errors name the step that is neither
// listed nor of a kernel with a rate, and a listed step that the plan does not have. `where`: the file.
std::shared_ptr<const StepTimes> times_by(StepTable table, std::string where);

// Before `library`: fuses what the table's plans have fused, and what it does not tell of as cuDNN and
// cuBLASLt usually do, so that plans have the steps that they have on the table's device.
std::unique_ptr<MathLibrary> fusing_as(const StepTable& table, std::unique_ptr<MathLibrary> library);

}  // namespace carillon::engine::cuda
