#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "carillon/base/bytes.h"

namespace carillon::graph {

// What an ONNX file's constants take of memory, by the headers of its tensors. Their data is passed over, so
// that it takes some MiB of memory at most, and microseconds a tensor. No size is above 2^50 bytes.
struct ConstantSizes {
  Bytes file;     // of the file itself
  Bytes held;     // tensors as they are read, external ones included
  Bytes widened;  // those of them that become others: as f32, or with the scales of a normalisation
  Bytes packed;   // all of them as kernels want them
  std::size_t nodes = 0;
  // Nodes or functions may make constants that are larger than these, as Expand does.
  bool may_grow = false;

  // At most at once, while the file is read and plans are made of it.
  Bytes to_make() const;
};

// Nothing where the file is none that we read, or is cut off. Tensors in other files count as far as the
// file's folder, with the folders in it, has so much; at most 10,000 names are looked at there.
std::optional<ConstantSizes> constant_sizes(const std::filesystem::path& file);

}  // namespace carillon::graph
