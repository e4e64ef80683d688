#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model_config.pb.h"

#include "carillon/base/result.h"

namespace carillon::repository {

// A config.pbtxt as the message that it is in protobuf's text format. Errors (invalid_argument): syntax, a
// field that is not known, each with line and column, and the name that may have been meant; strings that are
// not UTF-8; nesting that no config needs.
Result<inference::ModelConfig> message_of(std::string_view text);

// The one of `known` that `name` may have been meant to be, as few characters differ; empty: none is near.
// Takes time as the product of the lengths does: outside text is cut before.
std::string nearest(std::string_view name, std::span<const std::string_view> known);

// Its bytes, the same for the same content: maps have an order there, by which configs can be told apart.
std::string bytes_of(const inference::ModelConfig& message);

}  // namespace carillon::repository
