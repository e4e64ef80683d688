#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/transport/messages.h"

namespace carillon::hosts {
class Frame;
}

namespace carillon::transport {

// The most that is taken from a peer.
struct FrameLimits {
  std::size_t bytes = std::size_t{4} << 20;
  std::size_t messages = 1U << 16;
  std::size_t rows = 4096;                    // of one message: the largest batch that a model may ask for
  std::size_t text = 4096;                    // bytes of one name or error
  std::size_t config = std::size_t{1} << 20;  // bytes of a model's config
};

// Writes frames as proto/hosts.proto has them. Texts are cut at `limits.text`, those of bad rows at a
// sixteenth of it: so no message takes half of a frame. Allocates nothing but the output's bytes once it has
// written all kinds of messages. Not thread-safe.
class Encoder {
 public:
  explicit Encoder(const FrameLimits& limits = {});
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Begins a frame at the end of `out`, to which add() appends its messages. `protocol`: in which it is
  // written; with a hello, the oldest of the hello's protocols.
  void begin(std::uint32_t protocol, std::uint64_t epoch, const std::optional<Hello>& hello,
             std::string& out);
  void add(const Message& message, std::string& out);

 private:
  const FrameLimits limits_;
  std::unique_ptr<hosts::Frame> head_, one_;  // scratch
};

// The whole of it at once.
void encode(const Frame& frame, std::string& out, const FrameLimits& limits = {});

// What a peer sent. Errors (invalid_argument) say which message is wrong and what would be right. Nothing
// that is decoded is larger than the limits; numbers of models, devices and rows may be any. A message of a
// kind that this version does not know is left out. A frame of a protocol outside `speaks` is refused if it
// has no hello. If it has one, its messages are left out, and the caller settles with the speaker
// (cluster::settle()).
Result<Frame> decode(std::string_view bytes, const FrameLimits& limits = {},
                     const Protocols& speaks = cluster::own_protocols);

}  // namespace carillon::transport
