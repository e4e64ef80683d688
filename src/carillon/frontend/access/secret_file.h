#pragma once

#include <cstddef>
#include <string>

#include "carillon/base/result.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

inline constexpr std::size_t longest_secret_file = std::size_t{1} << 20;  // bytes

// Reads a file of keys or certificates, which `option` names. Errors name both: no such file, not a file, too
// large. Where `secret` it is told to `log` that users beside the file's owner and group may read or write
// it.
Result<std::string> read_secret_file(const std::string& file, const std::string& option, bool secret,
                                     const Log& log);

}  // namespace carillon::frontend
