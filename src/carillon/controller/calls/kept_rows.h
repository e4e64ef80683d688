#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// Rows of answered calls, for as long as the scheduler wants to run them again (schedule::Keep). Not
// thread-safe.
class KeptRows {
 public:
  // `largest`: bytes of a row's inputs and outputs; a larger one is not kept. `most`: rows; beyond them none
  // is.
  explicit KeptRows(std::size_t largest, std::size_t most = 1024) : largest_(largest), most_(most) {}

  // The row is wanted once it is answered.
  void want(RequestId request) {
    if (rows_.size() < most_) rows_.try_emplace(request.value);
  }
  void forget(RequestId request) { rows_.erase(request.value); }
  // Any row is wanted, or kept.
  bool any() const { return !rows_.empty(); }
  // It is answered: `row` of its call. Copied where it is wanted.
  void answered(RequestId request, const InferCall& call, std::size_t row);
  // It ended otherwise: nothing of it is to be kept. What is kept of it already stays.
  void gone(RequestId request);

  // Fills `command` so that the row runs alone, into memory of its own; false where nothing of it is kept.
  // The row must be kept until that has ended.
  bool run(RequestId request, ActionId id, Window window, worker::InferCommand& command);
  std::size_t size() const { return rows_.size(); }

 private:
  struct Row {
    bool kept = false;
    ModelId model;
    std::int64_t length = 0;
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
  };

  std::size_t largest_, most_;
  std::unordered_map<std::uint64_t, Row> rows_;  // by request; pointers into it stay good
};

}  // namespace carillon::controller
