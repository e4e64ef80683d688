#include "carillon/frontend/memory/answer_room.h"

#include <algorithm>
#include <string>

namespace carillon::frontend {

Result<> AnswerRoom::hold(std::size_t bytes) {
  const std::size_t wanted = std::min(bytes, bodies_->largest());
  if (wanted <= room_.bytes() || room_.grow(wanted - room_.bytes())) return {};
  if (room_.share_refused())
    return fail(ErrorCode::resource_exhausted,
                "the connection's requests and answers have too many bytes in flight for the " +
                    std::to_string(bytes) + " that answering takes: at most " +
                    std::to_string(share_->limit()) + " are a connection's");
  return fail(ErrorCode::resource_exhausted, "there is no room now for the " + std::to_string(bytes) +
                                                 " bytes that answering takes: too many are in flight");
}

void AnswerRoom::settle(std::size_t bytes) {
  if (bytes > room_.bytes())
    room_.overdraw(bytes - room_.bytes());
  else
    room_.shrink_to(bytes);
}

std::shared_ptr<AnswerRoom> room_for_answer(std::shared_ptr<ByteBudget> bodies, controller::InferCall& call,
                                            std::shared_ptr<ConnectionShare> share) {
  auto room = std::make_shared<AnswerRoom>(std::move(bodies), std::move(share));
  call.room_for_outputs = [room](std::size_t bytes) { return room->hold(bytes); };
  return room;
}

std::size_t size_of_answer(const controller::InferCall& call) {
  std::size_t bytes = call.texts.size();
  for (const auto& output : call.outputs) bytes += output.size();
  return bytes;
}

}  // namespace carillon::frontend
