#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/memory/parse_room.h"

namespace carillon::frontend {

// What reading a request takes beside its body, while it is read: what a parser makes of the body, and
// tensors. Small bodies are read without: a thread reads one at a time.
class ReadingRoom {
 public:
  // `room`: what the body holds, which must stay as long; null: there is no bound. `body`: its bytes.
  // `admitted`: the body's place in the room for large JSON, where it waits for its turn if there is no other
  // room; null: it has none.
  ReadingRoom(const Reservation* room, std::size_t body, ParseRoom::Admission* admitted = nullptr)
      : room_(body > ByteBudget::small ? room : nullptr),
        taken_(room_ != nullptr ? room_->beside() : Reservation()),
        admitted_(room_ != nullptr ? admitted : nullptr) {}

  bool heeds() const { return room_ != nullptr; }
  // Takes room for `bytes` more. Errors: there is none now for `what` (resource_exhausted), or never could be
  // (invalid_argument: it would help to send blobs).
  Result<> take(std::size_t bytes, std::string_view what);
  // The same for a tensor, as a copy of what was sent: one that never could find room beside that takes what
  // there is where nothing else is in flight.
  Result<> take_copy(std::size_t bytes, std::string_view what);

 private:
  bool find(std::size_t bytes);

  const Reservation* room_;
  Reservation taken_;
  ParseRoom::Admission* admitted_;
  std::unique_ptr<ParseRoom::Turn> turn_;
  std::size_t in_turn_ = 0;  // taken of the room for large JSON
};

// At least the memory that the JSON parser touches for `json`: an index of its tokens, a tape of its values,
// and its texts twice. Ten times the text and more where it is numbers of one digit, less than it where it is
// text. Linear in the text.
std::size_t json_reading_cost(std::string_view json);

// The most that reading JSON of that size may take, its tensors included: twelve times its size by
// json_reading_cost() (brackets, or numbers of one digit), and four times for numbers of one digit and a
// comma that become eight bytes.
constexpr std::size_t most_json_cost(std::size_t json) {
  return 16 * json;
}

// Sees to it that a parsed request holds as much as its tensors take, where that is more than its body took.
// Error (resource_exhausted): there is no room.
Result<> hold_inputs(InferRequest& request, const Reservation* room);

}  // namespace carillon::frontend
