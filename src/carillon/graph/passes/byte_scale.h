#pragma once

#include <cstdint>
#include <optional>

#include "carillon/graph/graph.h"

namespace carillon::graph {

// What a QuantizeLinear or DequantizeLinear with one constant scale for a tensor of bytes says: a byte b
// stands for (b - zero) * scale.
struct ByteScale {
  float scale = 1;
  std::int32_t zero = 0;
  DataType type = DataType::u8;

  friend bool operator==(const ByteScale&, const ByteScale&) = default;
};
std::optional<ByteScale> byte_scale(const Graph& graph, const Node& node);

inline bool holds_bytes(DataType type) {
  return type == DataType::u8 || type == DataType::i8;
}

}  // namespace carillon::graph
