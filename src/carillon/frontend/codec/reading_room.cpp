#include "carillon/frontend/codec/reading_room.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace carillon::frontend {
namespace {

enum class Kind : std::uint8_t { scalar, blank, bracket, separator, quote };

constexpr std::array<Kind, 256> kinds = [] {
  std::array<Kind, 256> all{};
  for (const unsigned char c : {' ', '\t', '\n', '\r'}) all[c] = Kind::blank;
  for (const unsigned char c : {'{', '}', '[', ']'}) all[c] = Kind::bracket;
  for (const unsigned char c : {':', ','}) all[c] = Kind::separator;
  all[static_cast<unsigned char>('"')] = Kind::quote;
  return all;
}();

// Past the end of the text that begins behind a quote at `at`.
std::size_t end_of_text(std::string_view json, std::size_t at) {
  for (;;) {
    at = json.find_first_of("\"\\", at);
    if (at == std::string_view::npos) return json.size();
    if (json[at] == '"') return at + 1;
    at += 2;
  }
}

}  // namespace

Result<> ReadingRoom::take(std::size_t bytes, std::string_view what) {
  if (!heeds()) return {};
  const std::size_t most = taken_.most_beside(taken_.bytes() + in_turn_ + room_->bytes());
  if (bytes > most)
    return invalid(std::string(what) + " would take " + std::to_string(bytes) + " bytes, and " +
                   std::to_string(most) +
                   " is the most that there can be beside it (--inflight-limit); send large tensors as blobs "
                   "(binary_data_size, raw_input_contents)");
  return take_copy(bytes, what);
}

bool ReadingRoom::find(std::size_t bytes) {
  if (turn_ == nullptr) {
    if (taken_.grow_within(bytes, room_->bytes())) return true;
    if (admitted_ == nullptr) return false;
    if (taken_.bytes() + bytes > admitted_->bytes()) {
      // The body was admitted for less than it takes. Its place in the room now takes bytes that it needs.
      std::exchange(admitted_, nullptr)->leave();
      return taken_.grow_within(bytes, room_->bytes());
    }
    turn_ = admitted_->wait();
    in_turn_ = taken_.bytes();
    taken_.shrink_to(0);
  }
  if (bytes > admitted_->bytes() - in_turn_) return taken_.grow_within(bytes, room_->bytes());
  in_turn_ += bytes;
  return true;
}

Result<> ReadingRoom::take_copy(std::size_t bytes, std::string_view what) {
  if (!heeds() || find(bytes)) return {};
  return fail(ErrorCode::resource_exhausted, "there is no room now for the " + std::to_string(bytes) +
                                                 " bytes that " + std::string(what) +
                                                 " takes: too many are in flight");
}

std::size_t json_reading_cost(std::string_view json) {
  std::size_t brackets = 0, separators = 0, texts = 0, scalars = 0, text_bytes = 0;
  bool in_scalar = false;
  for (std::size_t at = 0; at < json.size();) {
    const Kind kind = kinds[static_cast<unsigned char>(json[at])];
    if (kind == Kind::quote) {
      const std::size_t end = end_of_text(json, at + 1);
      ++texts;
      text_bytes += end - at;
      at = end;
      in_scalar = false;
      continue;
    }
    brackets += kind == Kind::bracket ? 1U : 0U;
    separators += kind == Kind::separator ? 1U : 0U;
    scalars += kind == Kind::scalar && !in_scalar ? 1U : 0U;
    in_scalar = kind == Kind::scalar;
    ++at;
  }
  // simdjson's: four bytes a token in the index; on the tape eight for a bracket or a text and 16 for a
  // number; a text with its length and an end in a buffer. The second copy of texts is the request's.
  const std::size_t index = 4 * (brackets + separators + texts + scalars);
  const std::size_t tape = 8 * (brackets + texts + 2 * scalars + 2);
  return index + tape + 2 * (text_bytes + 5 * texts);
}

Result<> hold_inputs(InferRequest& request, const Reservation* room) {
  if (room == nullptr) return {};
  std::size_t bytes = request.call->texts.size();
  for (const auto& input : request.call->inputs) bytes += input.size();
  if (bytes <= room->bytes()) return {};
  request.more_room = room->beside();
  if (request.more_room.grow_within(bytes - room->bytes(), room->bytes())) return {};
  return fail(ErrorCode::resource_exhausted, "there is no room now for the " + std::to_string(bytes) +
                                                 " bytes of the inputs: too many are in flight");
}

}  // namespace carillon::frontend
