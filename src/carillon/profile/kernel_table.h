#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::profile {

// One kernel of a plan, measured: `blocks` that may run in any order and beside each other, of which one
// compute unit runs up to rounds.size() at a time. rounds[k-1] is how long a unit takes for k at once: what
// REEF's section 5.2 calls execution time and occupancy.
struct KernelEntry {
  std::string name;              // for people; a kernel that runs several times has it several times
  int blocks = 1;                // 1..1e6
  std::vector<Duration> rounds;  // 1..64 of them, each above 0 and at most 10 s
};

struct ModelKernels {
  std::vector<std::string> names;    // what workloads may call it, the first its own; unique over the table
  std::string source;                // where the measurements come from, for people; may be empty
  Duration latency;                  // of the model alone on the whole device: above 0, at most 1000 s
  std::vector<KernelEntry> kernels;  // in the order in which they run; not empty
};

// The kernels of some models on one device.
struct KernelTable {
  std::string device;  // its name, for people
  int units = 1;       // compute units: 1..1024
  std::vector<ModelKernels> models;

  // The model that workloads call `name`; nullptr: none.
  const ModelKernels* find(std::string_view name) const;
};

// From JSON: {"device": "...", "units": 60, "models": {"vgg19": {"aliases": ["vgg19-imagenet"], "source":
// "...", "latency_us": 4824, "kernels": [{"name": "...", "blocks": 64, "round_us": [14, 15]}, ...]}}}. A
// kernel may also say "repeat": n, for n of it in a row. 1 to 256 models, in the table in the order of their
// names; each of 1 to 100,000 kernels, and 200,000 in all. Names are of 1 to 200 bytes. `where` is named in
// errors (invalid_argument): wrong types, numbers out of range, and names given twice are refused, nothing is
// replaced. Other fields are left alone.
Result<KernelTable> parse_kernel_table(std::string_view json, std::string_view where);
// not_found where there is no such file; files above 64 MiB are refused.
Result<KernelTable> read_kernel_table(const std::filesystem::path& file);

// The table that the program brings with it, profiles/mi50_kernels.json: nine models on an AMD MI50, by
// REEF's authors.
KernelTable mi50_kernel_table();

}  // namespace carillon::profile
