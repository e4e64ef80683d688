#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>

#include "carillon/base/result.h"
#include "carillon/cluster/protocols.h"
#include "carillon/transport/row_wire.h"

// What the two ends of the rows' connections (rows.h, row_client.h) say. Numbers are little endian. A client
// begins with a hello; then both ends send frames: a header, and a body of `longest_body` bytes at most.
namespace carillon::transport::rows {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::size_t longest_body = 64UL << 10;  // so a chunk, too
inline constexpr std::size_t longest_report = 4096;
inline constexpr std::size_t most_tensors = 1024;

enum class Kind : std::uint32_t {
  // A client's:
  pull = 1,  // PullBody
  push,      // PushBody, bytes of each output, report, and all the outputs where they fit: else data follow
  cancel,    // of either
  // Of both:
  data,  // the next bytes of the tensors of `tag`, one tensor after the other
  // A server's:
  sizes,    // SizesBody, bytes of each input; data follow
  gone,     // the row is closed or was never open; of a push, too: another push was taken
  taken,    // of a push
  refused,  // an ErrorCode as 4 bytes, a text; with tag 0 for the connection, which ends
};
struct Header {
  Kind kind{};
  std::uint32_t size = 0;  // of the body
  std::uint64_t tag = 0;
};
struct PullBody {
  std::uint64_t key = 0;
  std::int64_t urgency = 0;  // the smaller first
};
struct PushBody {
  std::uint64_t key = 0;
  std::uint64_t epoch = 0;
  std::uint32_t outputs = 0, report = 0;  // how many; bytes
};
struct SizesBody {
  std::int64_t length = 0;
  std::uint64_t inputs = 0;  // how many
};
struct Hello {
  std::array<char, 4> magic{'C', 'R', 'L', 'R'};
  std::uint32_t protocol = cluster::own_protocols.oldest;  // that the client knows the server to speak
  std::array<unsigned char, 16> cluster{};                 // of its name's SHA-256
  friend bool operator==(const Hello&, const Hello&) = default;
};
static_assert(sizeof(Header) == 16 && sizeof(PullBody) == 16 && sizeof(PushBody) == 24 &&
              sizeof(SizesBody) == 16 && sizeof(Hello) == 24);
Hello hello_of(std::string_view cluster, std::uint32_t protocol = cluster::own_protocols.oldest);

template <typename Value>
void put(std::string& out, const Value& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
// Takes a value, or bytes, from the front of `in`, which must have them.
template <typename Value>
Value take(std::span<const std::byte>& in) {
  Value value;
  std::memcpy(&value, in.data(), sizeof(value));
  in = in.subspan(sizeof(value));
  return value;
}
inline std::span<const std::byte> take(std::span<const std::byte>& in, std::size_t size) {
  const auto taken = in.first(size);
  in = in.subspan(size);
  return taken;
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
// `count` sizes from the front of `in`, which must have them. Their sum must fit into 63 bits.
Result<std::vector<std::uint64_t>> take_sizes(std::span<const std::byte>& in, std::size_t count);

// A place in tensors that are read or written from the first byte to the last.
template <typename Byte>
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(std::vector<std::span<Byte>> tensors) : tensors_(std::move(tensors)) {
    for (const auto& tensor : tensors_) left_ += tensor.size();
  }
  std::uint64_t left() const { return left_; }
  // Calls `each` with the next bytes, `size` (at most left()) together.
  template <typename Each>
  void peek(std::size_t size, Each each) const {
    for (std::size_t at = index_, offset = offset_; size > 0; ++at, offset = 0) {
      const auto part = tensors_[at].subspan(offset, std::min(size, tensors_[at].size() - offset));
      if (!part.empty()) each(part);
      size -= part.size();
    }
  }
  void skip(std::size_t size) {
    left_ -= size;
    for (offset_ += size; index_ < tensors_.size() && offset_ >= tensors_[index_].size(); ++index_)
      offset_ -= tensors_[index_].size();
  }

 private:
  std::vector<std::span<Byte>> tensors_;
  std::size_t index_ = 0, offset_ = 0;
  std::uint64_t left_ = 0;
};

// No waiting for others' acknowledgements; a peer whose host died, or that the way to is cut, is noticed
// within 4 s. `socket` does not block.
void prepare(boost::asio::ip::tcp::socket& socket);

// Takes frames from a wire. `Ear` hears of them:
//   Result<> greeted(const Hello&);
//   Result<> heard(const Header&, std::span<const std::byte> body);  // of all kinds but data
//   Result<> begins(const Header&);                // data: whether they may come
//   Cursor<std::byte>* place_of(std::uint64_t tag);  // where data go; null: nowhere. Asked anew for each
//   read Result<> ended(std::uint64_t tag);             // a chunk is there
// Their errors end the reading. Large chunks are read into their place at once.
class Reader {
 public:
  explicit Reader(bool greets) : greets_(greets) {}

  // Reads once. True: there may be more.
  template <typename Ear>
  Result<bool> read(Wire& wire, Ear& ear) {
    namespace asio = boost::asio;
    Cursor<std::byte>* place = data_left_ > 0 ? ear.place_of(tag_) : nullptr;
    // With a place, the buffer is empty and takes the next header. Nothing happens between here and the read.
    std::vector<asio::mutable_buffer>& into = into_;
    into.clear();
    std::size_t direct = 0;
    if (place != nullptr) {
      direct = data_left_;
      place->peek(direct, [&](std::span<std::byte> part) { into.emplace_back(part.data(), part.size()); });
    } else if (begin_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
    }
    const std::size_t room = place != nullptr ? sizeof(Header) : capacity - end_;
    into.emplace_back(buffer_.get() + end_, room);
    boost::system::error_code error;
    const std::size_t count = wire.read_some(into, error);
    if (would_block(error)) return false;
    if (error) return std::unexpected(error_of(error));
    const std::size_t placed = std::min(direct, count);
    if (place != nullptr) place->skip(placed);
    data_left_ -= placed;
    end_ += count - placed;
    if (placed > 0 && data_left_ == 0)
      if (auto done = ear.ended(tag_); !done) return std::unexpected(std::move(done.error()));
    if (auto done = parse(ear); !done) return std::unexpected(std::move(done.error()));
    return count == direct + room;
  }

 private:
  static constexpr std::size_t capacity = longest_body + sizeof(Header);

  template <typename Ear>
  Result<> parse(Ear& ear) {
    for (;;) {
      std::span<const std::byte> in(buffer_.get() + begin_, end_ - begin_);
      Result<> heard;
      if (data_left_ > 0) {
        if (in.empty()) break;
        const auto part = take(in, std::min(data_left_, in.size()));
        data_left_ -= part.size();
        if (Cursor<std::byte>* place = ear.place_of(tag_)) {
          place->peek(part.size(), [from = part](std::span<std::byte> to) mutable {
            std::memcpy(to.data(), take(from, to.size()).data(), to.size());
          });
          place->skip(part.size());
        }
        if (data_left_ == 0) heard = ear.ended(tag_);
      } else if (greets_) {
        if (in.size() < sizeof(Hello)) break;
        heard = ear.greeted(take<Hello>(in));
        greets_ = false;
      } else {
        if (in.size() < sizeof(Header)) break;
        const auto header = take<Header>(in);
        if (header.kind < Kind::pull || header.kind > Kind::refused)
          return invalid(fmt::format("a frame of unknown kind {}", static_cast<std::uint32_t>(header.kind)));
        if (header.size > longest_body)
          return invalid(fmt::format("a frame of {} bytes; {} are the most", header.size, longest_body));
        if (header.kind == Kind::data) {
          if (header.size == 0) return invalid("a chunk without bytes");
          heard = ear.begins(header);
          tag_ = header.tag;
          data_left_ = header.size;
        } else {
          if (in.size() < header.size) break;
          heard = ear.heard(header, take(in, header.size));
        }
      }
      if (!heard) return heard;
      begin_ = end_ - in.size();
    }
    if (begin_ == end_) begin_ = end_ = 0;
    return {};
  }

  bool greets_;
  std::unique_ptr<std::byte[]> buffer_ = std::make_unique_for_overwrite<std::byte[]>(capacity);
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t tag_ = 0;  // of the chunk that is being read, and what is missing of it
  std::size_t data_left_ = 0;
  std::vector<boost::asio::mutable_buffer> into_;
};

}  // namespace carillon::transport::rows
