#pragma once

#include <cstddef>
#include <string>

#include "carillon/base/result.h"
#include "carillon/schedule/subclusters.h"

namespace carillon::cli {

// Reads a division that `carillon partition --json` wrote. `devices` bounds the number of groups.
// Errors name the file.
Result<schedule::GroupsOfModels> read_division(const std::string& file, std::size_t devices);

}  // namespace carillon::cli
