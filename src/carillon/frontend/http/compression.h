#pragma once

#include <cstddef>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "carillon/frontend/codec/padded_bytes.h"
#include "carillon/frontend/memory/byte_budget.h"

namespace carillon::frontend {

enum class Coding { gzip, deflate };  // deflate: in zlib's envelope, as HTTP means it

enum class UnpackFault {
  damaged,    // not gzip or zlib data, cut short, or with bytes behind its end
  too_large,  // more content than allowed
  no_room,    // `room` cannot grow
};
struct UnpackError {
  UnpackFault fault = UnpackFault::damaged;
  std::string message;
};

// A body may unpack to any_ratio bytes whatever its size, and to largest_ratio times its size beyond that:
// what clients send packs to a tenth, constant tensors to a thousandth.
inline constexpr std::size_t any_ratio = std::size_t{16} << 20;
inline constexpr std::size_t largest_ratio = 100;

// What the threads that read from connections unpack themselves, in a millisecond or less: this many bytes,
// as far as it has only so much content. The rest is for the heavy threads.
inline constexpr std::size_t light_packed = std::size_t{32} << 10;
inline constexpr std::size_t light_unpacked = std::size_t{256} << 10;

// Unpacks a gzip or zlib stream of at most `limit` bytes of content. Both limits are held while it unpacks:
// no more memory is taken than they allow. Where `room` is given, it has grown by the size of the content
// after a success; after an error it is as it was. Throws std::bad_alloc.
std::expected<PaddedBytes, UnpackError> unpack(std::string_view packed, std::size_t limit,
                                               Reservation* room = nullptr);

// Packs pieces one after the other, quickly rather than tightly. Throws std::bad_alloc.
std::string pack(Coding coding, std::span<const std::span<const std::byte>> pieces);

// The coding that an Accept-Encoding header asks for by name with a weight above 0, gzip before deflate;
// none if it names neither.
std::optional<Coding> accepted_coding(std::string_view accept_encoding);

}  // namespace carillon::frontend
