#include "carillon/base/replace_file.h"

#include <cerrno>
#include <fstream>
#include <ios>
#include <string>

#include <unistd.h>

namespace carillon {

std::error_code replace_file(const std::filesystem::path& file,
                             std::initializer_list<std::string_view> pieces) {
  std::filesystem::path partial = file;
  partial += ".partial." + std::to_string(::getpid());
  std::error_code error;
  {
    errno = 0;
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    for (const std::string_view piece : pieces)
      out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
    out.close();
    if (!out) error = std::error_code(errno != 0 ? errno : EIO, std::generic_category());
  }
  if (!error) std::filesystem::rename(partial, file, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
  }
  return error;
}

}  // namespace carillon
