#include "carillon/frontend/http/compression.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>
#include <new>
#include <utility>

#include <zlib.h>

#include "carillon/frontend/http/http_framing.h"

namespace carillon::frontend {
namespace {

constexpr int gzip_window = 15 + 16;
constexpr int zlib_window = 15;
constexpr int either_window = 15 + 32;

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// zlib counts in 32 bits.
uInt step_of(std::size_t n) {
  return static_cast<uInt>(std::min<std::size_t>(n, std::size_t{1} << 30));
}

}  // namespace

std::expected<PaddedBytes, UnpackError> unpack(std::string_view packed, std::size_t limit,
                                               Reservation* room) {
  const auto refuse = [](UnpackFault fault, std::string message) {
    return std::unexpected(UnpackError{fault, std::move(message)});
  };
  z_stream stream{};
  if (inflateInit2(&stream, either_window) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> ended(&stream, inflateEnd);
  const std::size_t by_ratio =
      std::max(any_ratio, packed.size() > limit / largest_ratio ? limit : packed.size() * largest_ratio);
  const std::size_t most = std::min(limit, by_ratio);
  const std::size_t held = room != nullptr ? room->bytes() : 0;
  PaddedBytes out;
  int status = Z_OK;
  std::string_view left = packed;
  while (status == Z_OK && !(left.empty() && stream.avail_in == 0)) {
    if (stream.avail_in == 0) {
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(left.data()));
      stream.avail_in = step_of(left.size());
      left.remove_prefix(stream.avail_in);
    }
    // Grows with what was really unpacked, so that a small body cannot ask for a large buffer; and by one
    // byte more than is allowed, to find out whether there is more.
    const std::size_t had = out.size();
    const std::size_t step =
        std::min(std::clamp<std::size_t>(had, std::size_t{1} << 14, std::size_t{1} << 24), most + 1 - had);
    if (room != nullptr && !room->grow(step)) {
      room->shrink_to(held);
      return refuse(UnpackFault::no_room, "there is no room now for what the body unpacks to");
    }
    out.resize(had + step);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + had);
    stream.avail_out = step_of(step);
    status = inflate(&stream, Z_NO_FLUSH);
    out.resize(had + step - stream.avail_out);
    if (room != nullptr) room->shrink_to(held + out.size());
    if (out.size() > most) {
      if (room != nullptr) room->shrink_to(held);
      return refuse(
          UnpackFault::too_large,
          "the unpacked body has more than " + std::to_string(most) + " bytes, " +
              (most == limit ? "which is what is allowed"
                             : std::to_string(most / packed.size()) + " times its packed size; it may have " +
                                   std::to_string(any_ratio) + " and beyond that " +
                                   std::to_string(largest_ratio) + " times its packed size"));
    }
    if (status == Z_BUF_ERROR) status = Z_OK;  // wants more room or more input; the loop gives both
  }
  if (status == Z_STREAM_END && left.empty() && stream.avail_in == 0) return out;
  if (room != nullptr) room->shrink_to(held);
  return refuse(UnpackFault::damaged, status == Z_STREAM_END ? "the compressed body goes on behind its end"
                                      : status == Z_OK
                                          ? "the compressed body is cut short"
                                          : "the compressed body is damaged: not gzip or deflate data");
}

std::string pack(Coding coding, std::span<const std::span<const std::byte>> pieces) {
  z_stream stream{};
  const int window = coding == Coding::gzip ? gzip_window : zlib_window;
  if (deflateInit2(&stream, 1, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  std::string out;
  const auto run = [&](int flush) {
    int status = Z_OK;
    do {
      char room[1 << 14];
      stream.next_out = reinterpret_cast<Bytef*>(room);
      stream.avail_out = sizeof room;
      status = deflate(&stream, flush);
      out.append(room, sizeof room - stream.avail_out);
    } while (stream.avail_out == 0 || (flush == Z_FINISH && status != Z_STREAM_END));
  };
  for (auto piece : pieces) {
    while (!piece.empty()) {
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(piece.data()));
      stream.avail_in = step_of(piece.size());
      piece = piece.subspan(stream.avail_in);
      run(Z_NO_FLUSH);
    }
  }
  run(Z_FINISH);
  deflateEnd(&stream);
  return out;
}

std::optional<Coding> accepted_coding(std::string_view accept_encoding) {
  bool gzip = false;
  bool deflate = false;
  while (!accept_encoding.empty()) {
    const auto comma = std::min(accept_encoding.find(','), accept_encoding.size());
    const auto item = accept_encoding.substr(0, comma);
    accept_encoding.remove_prefix(std::min(comma + 1, accept_encoding.size()));
    const auto semicolon = std::min(item.find(';'), item.size());
    const auto name = trimmed(item.substr(0, semicolon));
    double weight = 1;
    if (const auto q = item.find("q=", semicolon); q != std::string_view::npos) {
      const auto number = trimmed(item.substr(q + 2));
      if (std::from_chars(number.data(), number.data() + number.size(), weight).ec != std::errc{}) weight = 0;
    }
    if (!(weight > 0)) continue;
    gzip |= same_word(name, "gzip") || same_word(name, "x-gzip");
    deflate |= same_word(name, "deflate");
  }
  if (gzip) return Coding::gzip;
  if (deflate) return Coding::deflate;
  return std::nullopt;
}

}  // namespace carillon::frontend
