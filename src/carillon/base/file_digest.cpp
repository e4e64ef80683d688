#include "carillon/base/file_digest.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "carillon/base/bytes.h"

namespace carillon {

std::optional<FileDigest> digest_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  std::vector<char> piece(kib(256).count);
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    XXH3_128bits_update(&state, piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (!in.eof()) return std::nullopt;
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return FileDigest{hash.high64, hash.low64};
}

FileDigest digest_of_text(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

std::string to_text(const FileDigest& digest) {
  std::array<char, 33> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx", static_cast<unsigned long long>(digest.first),
                static_cast<unsigned long long>(digest.second));
  return digits.data();
}

}  // namespace carillon
