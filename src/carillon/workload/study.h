#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

// A study of a tuner: its algorithm, its trials and the devices they have, as a file describes them.
// docs/fluid.md has the format.
namespace carillon::workload {

enum class StudyAlgorithm : std::uint8_t { grid, halving, hyperband, syncbohb, asha, bohb, pbt };
std::string_view name_of(StudyAlgorithm algorithm);

// What one configuration did when it was trained: an entry an epoch, alone on a device of speed 1.
struct LearningCurve {
  std::string name;
  std::vector<Duration> epoch;
  std::vector<double> metric;  // not a number where none was told
};

struct SupplyStep {
  TimePoint at;
  double share = 1;  // of the device's time that is there for trials, [0, 1]
};
struct StudyDevice {
  double speed = 1;
  Bytes memory;                    // most_job_bytes where the file does not say
  std::vector<SupplyStep> supply;  // ascending; 1 before the first
};

struct Rung {
  std::uint32_t trials = 1;
  std::uint32_t epochs = 1;  // more, from the rung before
};

struct Study {
  std::string name;
  std::uint64_t seed = 1;
  std::string scheduler = "best";
  std::vector<StudyDevice> devices;

  StudyAlgorithm algorithm{};
  std::vector<double> seconds;  // of `trials = [...]`: one group, each a trial of one epoch
  std::vector<Rung> rungs;      // halving
  std::uint32_t trials = 1;     // grid, asha, bohb; of pbt the population
  std::uint32_t epochs = 1;     // of a trial at most
  std::uint32_t grace = 1;      // epochs at the first rung: asha, bohb; of pbt between two looks
  std::uint32_t eta = 3;
  std::uint32_t rounds = 1;                  // hyperband, syncbohb: of all brackets
  std::optional<std::uint32_t> concurrency;  // asha, bohb: trials at a time at most; fewer where the policy
                                             // can run no more
  std::optional<double> target;
  bool larger_is_better = true;

  std::vector<LearningCurve> curves;  // empty: none, and who is better is drawn
  Duration epoch{1};                  // where there are none
  double sigma = 0;                   // lognormal, of unlike trials' epochs; their mean is `epoch`
  double noise = 0;                   // an iteration takes 1 + noise * normal of it, a tenth of it at least
  std::uint32_t iterations = 20;      // of an epoch: widths change between them; 0: at any time
  double alpha = 1, beta = 1;
  std::optional<int> c, d;
  double threshold = 0;
  Duration move{0};
  Bytes persistent, ephemeral;
  // What the policy is told; the rest it has to measure.
  bool tells_seconds = true, tells_overheads = true, tells_move = true;
};

// Whether a TOML file has [study]. False for what cannot be read as TOML at all.
bool has_study(const std::filesystem::path& file);

// Reads such a file. Paths inside are relative to it. Errors name file, line, key, what was found and what
// would be right.
Result<Study> read_study(const std::filesystem::path& file, std::optional<std::uint64_t> seed = {});
Result<Study> parse_study(std::string_view toml, const std::filesystem::path& where,
                          std::optional<std::uint64_t> seed = {});

}  // namespace carillon::workload
