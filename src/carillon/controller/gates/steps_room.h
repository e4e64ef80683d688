#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "carillon/base/result.h"

namespace carillon::controller {

// The memory that a request to an ensemble holds while its steps run. Its own inputs do not count: the
// frontend holds room for them. Three kinds of tensors count: those between steps, copies of those that
// several steps read, and the outputs of steps that run now. The class asks for room when their sum is larger
// than ever before, by the request's InferCall::room_for_outputs. Any thread.
class StepsRoom {
 public:
  using Ask = std::function<Result<>(std::size_t bytes)>;

  // `ask` may be null: then there is room for everything. `inputs`: bytes of the request's own inputs.
  StepsRoom(Ask ask, std::size_t inputs) : ask_(std::move(ask)), inputs_(inputs) {}

  // The tensors are `bytes` now: those that wait for steps, and the inputs of steps that are under way.
  // Error: there is no room; then nothing has changed.
  Result<> hold_tensors(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (auto room = ask_for(bytes + outputs_sum()); !room) return room;
    tensors_ = bytes;
    return {};
  }
  // The step will give so many bytes. Error: likewise.
  Result<> hold_outputs(std::size_t step, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto at = outputs_.find(step);
    const std::size_t before = at == outputs_.end() ? 0 : at->second;
    if (auto room = ask_for(tensors_ + outputs_sum() - before + bytes); !room) return room;
    outputs_[step] = bytes;
    return {};
  }
  // The step has been answered: what it gave is among the tensors from now on.
  void answered(std::size_t step) {
    const std::lock_guard lock(mutex_);
    outputs_.erase(step);
  }
  // The request is being answered: nobody is asked any more.
  void close() {
    const std::lock_guard lock(mutex_);
    ask_ = nullptr;
  }

 private:
  std::size_t outputs_sum() const {
    std::size_t sum = 0;
    for (const auto& [step, bytes] : outputs_) sum += bytes;
    return sum;
  }
  Result<> ask_for(std::size_t all) {
    const std::size_t beyond = all > inputs_ ? all - inputs_ : 0;
    if (!ask_ || beyond <= most_) return {};
    if (auto room = ask_(beyond); !room) return room;
    most_ = beyond;
    return {};
  }

  std::mutex mutex_;
  Ask ask_;
  const std::size_t inputs_;
  std::size_t tensors_ = 0;
  std::map<std::size_t, std::size_t> outputs_;  // by step
  std::size_t most_ = 0;                        // that was asked for
};

}  // namespace carillon::controller
