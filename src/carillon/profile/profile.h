#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/effort.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::profile {

// What a set of measurements says. p50 <= p99 <= max, min <= mean <= max; all >= 0.
struct Times {
  Duration p50{0}, p99{0}, mean{0}, min{0}, max{0};
  std::int64_t n = 0;  // how many measurements; >= 1 in a file

  friend bool operator==(const Times&, const Times&) = default;
};
// Of at least one measurement; reorders them.
Times summarize(std::span<Duration> measured);

struct BatchTimes {
  int batch = 1;
  Times exec;

  friend bool operator==(const BatchTimes&, const BatchTimes&) = default;
};
struct LengthTimes {
  std::int64_t length = 1;
  std::vector<BatchTimes> batches;  // ascending by batch, never empty

  friend bool operator==(const LengthTimes&, const LengthTimes&) = default;
};
// Of an open model, at extents of its free dimensions beside its reference.
struct SizeTimes {
  std::vector<std::int64_t> extents;  // each >= 1
  Effort row;                         // as the program that measured counts it, of one row
  std::vector<BatchTimes> batches;    // ascending by batch, never empty

  friend bool operator==(const SizeTimes&, const SizeTimes&) = default;
};
struct KernelTimes {
  int batch = 1;
  std::string name;
  Duration mean{0};                // on as many threads as the profile says
  std::int64_t length = 0;         // 0: the model has none
  int parts = 1;                   // into which it is divided, between which a run may stop
  std::vector<Duration> by_width;  // the mean on 1, 2, ... threads; may be empty

  friend bool operator==(const KernelTimes&, const KernelTimes&) = default;
};
struct ModelProfile {
  std::string name;
  std::int64_t version = 1;
  std::string precision = "f32";
  Bytes weights;
  Times load;
  std::vector<BatchTimes> batches;   // ascending by batch, never empty; at the middle one of `lengths`
  std::vector<LengthTimes> lengths;  // ascending; empty where the model's inputs have one shape
  std::vector<SizeTimes> sizes;      // empty where the model is not open
  std::vector<KernelTimes> kernels;  // optional: in the order of the plan, by length and batch

  // Mean time of a batch of `batch` >= 1; on the line between (beyond: through the last two of) the sizes
  // that were measured.
  Duration exec_mean(int batch) const;

  friend bool operator==(const ModelProfile&, const ModelProfile&) = default;
};

// A profile file: how long things take on one device. Times are milliseconds in the file, nanoseconds here.
//
//   {"device": "cpu: ...", "created": "2026-01-02T03:04:05Z", "carillon": "0.1.0", "threads": 2,
//    "models": [{"name": "resnet50", "version": 1, "precision": "f32", "weights_bytes": 102300000,
//                "load_ms": {"p50": 30.1, "p99": 33.0, "mean": 30.4, "min": 29.0, "max": 33.5, "n": 20},
//                "batches": [{"batch": 1, "p50_ms": 40.2, "p99_ms": 43.0, "mean_ms": 40.5, "min_ms": 39.9,
//                             "max_ms": 43.1, "n": 100}],
//                "lengths": [{"length": 16, "batches": [{"batch": 1, ...}]}],
//                 "sizes": [{"extents": [16], "operations": 25000000, "bytes": 180000,
//                            "batches": [{"batch": 1, ...}]}],
//                "kernels": [{"batch": 1, "length": 16, "name": "conv1 jit", "mean_ms": 0.5, "parts": 32,
//                             "by_width_ms": [0.9, 0.5]}]}]}
struct DeviceProfile {
  std::string device;
  std::string created;   // ISO 8601
  std::string carillon;  // version of the program that measured
  int threads = 1;
  std::vector<ModelProfile> models;

  // The newest version of the model, or nullptr.
  const ModelProfile* find(std::string_view name) const;

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// Parses the text of a profile file. `where` (the file's name) opens every error, which goes on with the
// place in the document, what was there and what would be right. Unknown fields are ignored. In "load_ms" and
// in a batch only p50 and p99 are required; what is missing of the rest is taken from them. In a kernel
// "length", "parts" and "by_width_ms" may be missing.
Result<DeviceProfile> parse_profile(std::string_view json, std::string_view where);
Result<DeviceProfile> read_profile(const std::filesystem::path& file);

std::string to_json(const DeviceProfile& profile);
// Replaces `file` in one step: a reader sees the old file or the new one.
Result<> write_profile(const DeviceProfile& profile, const std::filesystem::path& file);

}  // namespace carillon::profile
