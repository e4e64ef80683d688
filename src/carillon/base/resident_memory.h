#pragma once

#include <filesystem>

#include <sys/types.h>

#include "carillon/base/bytes.h"

namespace carillon {

// What a process has of memory (VmRSS: file pages included). 0: there is no such process.
Bytes resident_memory(pid_t process, const std::filesystem::path& root = "/");
// The sum over a process and all that descend from it. Looks at every process of the system: some
// milliseconds where there are hundreds. `root` stands before /proc (tests).
Bytes resident_of_tree(pid_t process, const std::filesystem::path& root = "/");

}  // namespace carillon
