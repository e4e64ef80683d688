#pragma once

#include <optional>

#include "model_config.pb.h"

#include "carillon/graph/tensor.h"

namespace carillon::repository {

// Between the wire's types and ours; nothing for TYPE_INVALID and for numbers that name no type.
std::optional<graph::DataType> from_wire(inference::DataType type);
inference::DataType to_wire(graph::DataType type);

}  // namespace carillon::repository
