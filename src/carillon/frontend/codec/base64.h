#pragma once

#include <optional>
#include <string>

namespace carillon::frontend {

// The bytes that `text` stands for in base64, with or without line breaks; none where it is something else,
// or of 2 GiB and more.
std::optional<std::string> from_base64(std::string text);

}  // namespace carillon::frontend
