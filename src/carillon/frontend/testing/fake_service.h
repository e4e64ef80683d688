#pragma once

// For tests only: models and a service that answers as it is told.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/service.h"

namespace carillon::frontend {

inline constexpr std::int64_t any_batch = graph::batch_dimension;

// "pair": inputs x FP32 [-1,3] and n INT32 [-1,2]; outputs y FP32 [-1,3] and s INT64 [-1,1]; batch up to 4.
inline controller::ModelView pair_model() {
  controller::ModelView view{.name = "pair", .version = 2, .ready = true, .id = ModelId{7}};
  view.config.name = "pair";
  view.config.max_batch_size = 4;
  view.config.inputs = {{"x", graph::DataType::f32, {any_batch, 3}},
                        {"n", graph::DataType::i32, {any_batch, 2}}};
  view.config.outputs = {{"y", graph::DataType::f32, {any_batch, 3}},
                         {"s", graph::DataType::i64, {any_batch, 1}}};
  return view;
}

// One input x and one output y of `type` and `shape`; does not batch unless shape begins with any_batch.
inline controller::ModelView model_of(graph::DataType type, graph::Shape shape, std::string name = "one") {
  controller::ModelView view{.name = name, .version = 1, .ready = true, .id = ModelId{1}};
  view.config.name = std::move(name);
  view.config.max_batch_size = !shape.empty() && shape[0] == any_batch ? 8 : 0;
  view.config.inputs = {{"x", type, shape}};
  view.config.outputs = {{"y", type, shape}};
  return view;
}

// Outputs of the right sizes, with byte i of output o holding o + i.
inline void fill_outputs(const repository::ModelConfig& config, controller::InferCall& call) {
  call.outputs.clear();
  for (std::size_t o = 0; o < config.outputs.size(); ++o) {
    std::size_t n = graph::size_of(config.outputs[o].type);
    for (const auto extent : config.outputs[o].shape)
      n *= static_cast<std::size_t>(extent == any_batch ? call.rows : extent);
    std::vector<std::byte> bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>((o + i) & 0x3f);
    call.outputs.push_back(std::move(bytes));
  }
}

// Answers each call at once with fill_outputs(), unless told to hold calls back or to fail them.
class FakeService : public controller::Service {
 public:
  struct Held {
    std::unique_ptr<controller::InferCall> call;
    controller::AnswerHandler on_answer;
  };

  std::vector<controller::ModelView> all_models;
  controller::ServerStatistics all_statistics;
  std::shared_ptr<controller::Journal> kept;   // null: there is no journal
  controller::ModelControl* orders = nullptr;  // null: none are taken

  bool ready() const override { return ready_; }
  std::vector<controller::ModelView> models() const override { return all_models; }
  controller::ModelCounts model_counts() const override {
    controller::ModelCounts counts;
    for (const auto& view : all_models) {
      if (view.ready) ++counts.ready;
      if (!view.ready && !view.left_out) {
        ++counts.broken;
        counts.a_broken_one = view.name;
      }
    }
    return counts;
  }
  Result<std::shared_ptr<const controller::ModelView>> find(std::string_view model,
                                                            std::string_view version) const override {
    for (const auto& view : all_models)
      if (view.name == model && (version.empty() || std::to_string(view.version) == version))
        return std::make_shared<const controller::ModelView>(view);
    return fail(ErrorCode::not_found,
                "no model '" + std::string(model) + "' of version '" + std::string(version) + "'");
  }
  TimePoint now() const override { return clock_; }

  std::uint64_t submit(std::unique_ptr<controller::InferCall> call,
                       controller::AnswerHandler on_answer) override {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = ++last_ticket_;
    last_deadline_ = call->deadline;
    last_class_ = call->cls;
    last_application_ = call->application;
    last_id_ = call->id;
    last_deadline_from_ = call->deadline_from;
    last_sequence_ = call->sequence;
    if (auto refused = refused_outputs(*call)) {
      lock.unlock();
      answer(Held{std::move(call), std::move(on_answer)}, std::move(refused), 1s);
      return ticket;
    }
    if (hold_) {
      held_.emplace(ticket, Held{std::move(call), std::move(on_answer)});
      changed_.notify_all();
      return ticket;
    }
    const auto failure = failure_;
    lock.unlock();
    answer(Held{std::move(call), std::move(on_answer)}, failure);
    return ticket;
  }

  void cancel(std::uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    const auto it = held_.find(ticket);
    if (it == held_.end()) return;
    Held held = std::move(it->second);
    held_.erase(it);
    ++cancelled_;
    changed_.notify_all();
    lock.unlock();
    answer(std::move(held), Error{ErrorCode::cancelled, "the client has gone"});
  }

  controller::ModelControl* control() const override { return orders; }
  controller::ServerStatistics statistics() const override { return all_statistics; }
  const controller::Journal* journal() const override { return kept.get(); }

  void set_ready(bool ready) { ready_ = ready; }
  void hold(bool hold) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
  }
  void fail_with(std::optional<Error> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  void wait_for_held(std::size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() >= n; });
  }
  void wait_for_cancelled(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ >= n; });
  }
  // Answers every held call, the last first if told so.
  void release(bool last_first = false) {
    std::map<std::uint64_t, Held> held;
    {
      const std::lock_guard lock(mutex_);
      held = std::exchange(held_, {});
    }
    while (!held.empty()) {
      auto node = held.extract(last_first ? std::prev(held.end()) : held.begin());
      answer(std::move(node.mapped()), std::nullopt);
    }
  }
  std::size_t held() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  int cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  TimePoint last_deadline() const {
    const std::lock_guard lock(mutex_);
    return last_deadline_;
  }
  Class last_class() const {
    const std::lock_guard lock(mutex_);
    return last_class_;
  }
  std::string last_id() const {
    const std::lock_guard lock(mutex_);
    return last_id_;
  }
  explain::DeadlineFrom last_deadline_from() const {
    const std::lock_guard lock(mutex_);
    return last_deadline_from_;
  }
  std::optional<controller::SequenceMark> last_sequence() const {
    const std::lock_guard lock(mutex_);
    return last_sequence_;
  }
  std::string last_application() const {
    const std::lock_guard lock(mutex_);
    return last_application_;
  }

 private:
  // As a service does it before outputs take memory.
  std::optional<Error> refused_outputs(const controller::InferCall& call) const {
    if (!call.room_for_outputs) return std::nullopt;
    std::size_t bytes = 0;
    for (const auto& view : all_models) {
      if (view.id != call.model) continue;
      for (const auto& output : view.config.outputs) {
        std::size_t n = graph::size_of(output.type);
        for (const auto extent : output.shape)
          n *= static_cast<std::size_t>(extent == any_batch ? call.rows : extent);
        bytes += n;
      }
    }
    if (auto room = call.room_for_outputs(bytes); !room) return std::move(room.error());
    return std::nullopt;
  }

  void answer(Held held, const std::optional<Error>& failure, std::optional<Duration> retry_after = {}) {
    controller::InferAnswer answer;
    answer.retry_after = retry_after;
    answer.finished = clock_;
    if (kept != nullptr) answer.number = kept->next_number();
    if (failure) {
      answer.status = std::unexpected(*failure);
      if (failure->code == ErrorCode::deadline_exceeded) answer.would_take = 31200us;
      if (failure->code == ErrorCode::deadline_exceeded) answer.retry_after = 1200300us;
    } else {
      for (const auto& view : all_models)
        if (view.id == held.call->model) fill_outputs(view.config, *held.call);
    }
    answer.call = std::move(held.call);
    held.on_answer(std::move(answer));
  }

  const TimePoint clock_{1000s};
  std::atomic<bool> ready_{true};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool hold_ = false;
  std::optional<Error> failure_;
  std::map<std::uint64_t, Held> held_;
  std::uint64_t last_ticket_ = 0;
  int cancelled_ = 0;
  TimePoint last_deadline_;
  Class last_class_ = Class::normal;
  std::string last_application_;
  std::string last_id_;
  std::optional<controller::SequenceMark> last_sequence_;
  explain::DeadlineFrom last_deadline_from_ = explain::DeadlineFrom::none;
};

}  // namespace carillon::frontend
