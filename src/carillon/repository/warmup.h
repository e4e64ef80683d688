#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/tensor.h"

namespace inference {
class ModelConfig;
}

namespace carillon::repository {

inline constexpr int most_warmups = 64;                       // of one model
inline constexpr std::uint32_t most_warmup_runs = 1000;       // of one of them
inline constexpr std::size_t largest_warmup_file = 64 << 20;  // bytes
// The folder, in the model's, that files of warm-up data are in.
inline constexpr const char* warmup_folder = "warmup";

// A request that a model runs before it is ready (`model_warmup`).
struct Warmup {
  struct Input {
    enum class Data : std::uint8_t { zeros, random, file } data = Data::zeros;
    std::string name;
    graph::DataType type = graph::DataType::f32;
    graph::Shape dims;  // of a row, where the model batches; each >= 1
    std::string file;
    std::vector<std::byte> bytes;  // of the file, once it was read
  };
  std::string name;
  int rows = 1;  // each has the same data
  int runs = 1;
  std::vector<Input> inputs;  // by name
};

// Errors (invalid_argument): too many, rows or runs out of range, an input without type, dims or data, a
// file's name that leads elsewhere; unsupported: text.
Result<std::vector<Warmup>> read_warmup(const inference::ModelConfig& message);

}  // namespace carillon::repository
