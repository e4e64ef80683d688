#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <system_error>

namespace carillon {

// Puts a file with these pieces, one after the other, in the place of what is there: whoever reads it sees
// one or the other, whole. Through a file beside it, of this process's own name, which is gone afterwards. No
// two threads may do it for one file at a time.
std::error_code replace_file(const std::filesystem::path& file,
                             std::initializer_list<std::string_view> pieces);

}  // namespace carillon
