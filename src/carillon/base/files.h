#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon {

// A stream at the beginning of `file`, whose first byte could be read, or which is empty. `what` says in
// errors what the file should be: "cannot read the log 'run.log': Permission denied". Errors: not_found where
// there is no such file; else invalid_argument.
Result<std::ifstream> open_to_read(std::string_view what, const std::filesystem::path& file);

// All that the file holds. Errors as above, also where reading fails later on.
Result<std::string> read_file(std::string_view what, const std::filesystem::path& file);

// The file holds `text`, and nothing else, afterwards. Error (internal): "cannot write 'FILE': No space left
// on device"; what the file holds then is not known.
Result<> write_file(const std::filesystem::path& file, std::string_view text);

}  // namespace carillon
