#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/frontend/padded_bytes.h"

namespace carillon::frontend {

enum class Coding { gzip, deflate };  // deflate: in zlib's envelope, as HTTP means it

// Unpacks a gzip or zlib stream of at most `limit` bytes of content. Errors (invalid_argument): a damaged or
// cut stream, bytes behind its end, more content than `limit` (found before memory is taken for it).
Result<PaddedBytes> unpack(std::string_view packed, std::size_t limit);

// Packs pieces one after the other, quickly rather than tightly.
std::string pack(Coding coding, std::span<const std::span<const std::byte>> pieces);

// The coding that an Accept-Encoding header asks for by name with a weight above 0, gzip before deflate;
// none if it names neither.
std::optional<Coding> accepted_coding(std::string_view accept_encoding);

}  // namespace carillon::frontend
