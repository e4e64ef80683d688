#include "carillon/frontend/codec/base64.h"

#include <limits>

#include <openssl/evp.h>

namespace carillon::frontend {

std::optional<std::string> from_base64(std::string text) {
  std::erase_if(text, [](char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; });
  const std::size_t end = text.find_last_not_of('=');
  const std::size_t letters = end == std::string::npos ? 0 : end + 1;
  const std::size_t padding = text.size() - letters;
  if (text.size() % 4 != 0 || padding > 2 || text.find('=') < letters ||
      text.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  // It takes some letters for an end, and then finds less.
  const int found = text.empty() ? 0
                                 : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                                   reinterpret_cast<const unsigned char*>(text.data()),
                                                   static_cast<int>(text.size()));
  if (found < 0 || static_cast<std::size_t>(found) != bytes.size()) return std::nullopt;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace carillon::frontend
