#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/cli/disb/local_models.h"
#include "carillon/worker/worker.h"

namespace carillon::cli {

// Sets page_cache, io_cache and workspace of `options` to what it takes to have all `models` loaded at once,
// and `rows` requests of the largest under way.
void size_memory(worker::Options& options, std::span<const LocalModel> models, std::size_t rows);

// A worker in this process that has some models, for commands that measure a device with no server before
// it. A model's id is its place.
class LocalWorker final : worker::ResultSink {
 public:
  // Errors: memory that cannot be had, or that does not hold all models: says how much they need.
  static Result<std::unique_ptr<LocalWorker>> make(const worker::Options& options,
                                                   std::span<const LocalModel> models, const Clock& clock);

  // What a run takes with the device to itself: the median of some, for about `at_most` but at least three,
  // after two that warm up. Before load(); blocks.
  Result<Duration> alone(std::size_t model, Duration at_most);
  // Loads all models; blocks.
  Result<> load();
  // Who hears of INFERs from now on, on the worker's threads: see worker::ResultSink. Not while any are under
  // way.
  void listen(std::function<void(const worker::ActionResult&)> listener) { listener_ = std::move(listener); }
  worker::Worker& worker() { return *worker_; }
  std::span<const LocalModel> models() const { return models_; }

 private:
  explicit LocalWorker(std::span<const LocalModel> models) : models_(models.begin(), models.end()) {}
  void on_result(const worker::ActionResult& result) override;

  // Of LOADs; those of INFERs are below.
  static constexpr std::uint64_t first_load = std::uint64_t{1} << 62;

  std::vector<LocalModel> models_;
  std::function<void(const worker::ActionResult&)> listener_;
  std::mutex mutex_;  // of what follows
  std::condition_variable told_;
  std::vector<worker::ActionResult> loaded_;
  std::unique_ptr<worker::Worker> worker_;  // goes first: it calls the rest
};

}  // namespace carillon::cli
