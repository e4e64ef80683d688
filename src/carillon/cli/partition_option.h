#pragma once

#include <cstddef>
#include <string>

#include "carillon/base/result.h"
#include "carillon/schedule/subclusters.h"

namespace carillon::cli {

// A division as `carillon partition --json` writes it, for so many devices. Errors name the file.
Result<schedule::GroupsOfModels> read_division(const std::string& file, std::size_t devices);

}  // namespace carillon::cli
