#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/memory/byte_budget.h"

namespace carillon::frontend {

// What answering one inference holds of the bytes in flight: from when its outputs take memory, which is
// before the model runs (InferCall::room_for_outputs), until its client has the answer. Of an ensemble that
// is also what passes between its steps. One thread at a time.
class AnswerRoom {
 public:
  // `share`: of the connection that the answer goes to; null: there is no bound.
  explicit AnswerRoom(std::shared_ptr<ByteBudget> bodies, std::shared_ptr<ConnectionShare> share = nullptr)
      : bodies_(std::move(bodies)), share_(std::move(share)), room_(bodies_, nullptr, share_) {}

  // Holds at least `bytes`. An answer that is larger than everything that may be in flight holds that much,
  // which it finds where nothing else is in flight. Error (resource_exhausted): there is no room; what is
  // held stays as it was.
  Result<> hold(std::size_t bytes);
  // Holds exactly `bytes`, whether or not there is room: for a message that is made, and hardly larger than
  // the outputs that found room.
  void settle(std::size_t bytes);
  std::size_t bytes() const { return room_.bytes(); }

  // Hands over what is held; nothing is held here afterwards.
  Reservation take() { return std::exchange(room_, Reservation(bodies_, nullptr, share_)); }

 private:
  std::shared_ptr<ByteBudget> bodies_;
  std::shared_ptr<ConnectionShare> share_;
  Reservation room_;
};

// The room for the answer of `call`, which the call asks for as soon as the sizes of its outputs are known.
std::shared_ptr<AnswerRoom> room_for_answer(std::shared_ptr<ByteBudget> bodies, controller::InferCall& call,
                                            std::shared_ptr<ConnectionShare> share = nullptr);

// The bytes of an answered call that its answer is made of: outputs and texts.
std::size_t size_of_answer(const controller::InferCall& call);

}  // namespace carillon::frontend
