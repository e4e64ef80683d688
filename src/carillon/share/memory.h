#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "carillon/base/bytes.h"
#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/share/lane_memory.h"
#include "carillon/share/messages.h"

// Memory that broker and jobs, or the jobs of a lane, have in common.
namespace carillon::share {

// A job's page: made here, sealed against any other size (nobody can take it away under the other's feet), and
// mapped until it ends.
class Page {
 public:
  Page() = default;
  ~Page();
  Page(Page&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  Page& operator=(Page&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }

  // With its counters as they were; `lease` is hold. `to_send` is the descriptor for the job.
  static Result<Page> make(const Counters& so_far, Descriptor& to_send);

  bool there() const { return page_ != nullptr; }
  // Wakes whoever waits for it.
  void set(Lease lease);
  // Whoever waits for it stays awake until then, as a grant is near.
  void rouse(TimePoint until);
  bool entered() const { return page_ != nullptr && page_->inside.load(std::memory_order_acquire) != 0; }
  // As far as they can be believed: held at the largest that there can be.
  Counters counters() const;
  // Whether it is looked at all the time.
  void listen(bool listens);
  // What it says of its last stop, if it has stopped more than `before` times.
  std::optional<StoppedSaid> stopped(std::uint64_t before) const;
  // When its iteration ends if it takes as long as the one before; none where it does not say.
  std::optional<TimePoint> next_boundary() const;

 private:
  explicit Page(ControlPage* page) : page_(page) {}
  ControlPage* page_ = nullptr;
};

// A lane's memory. It never becomes shorter, so that a job that still has all of it mapped takes no SIGBUS; what
// is no more used is given back.
class LaneFile final : public LaneMemory {
 public:
  static Result<std::unique_ptr<LaneMemory>> make(std::uint32_t number);

  Result<> resize(Bytes size) override;
  int whole() const override { return file_.number(); }
  void give_back() override;

 private:
  explicit LaneFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
  Bytes used_, length_;
};

// Lanes of the host's memory.
class HostLanes final : public LaneSource {
 public:
  Result<std::unique_ptr<LaneMemory>> make(std::uint32_t number) override { return LaneFile::make(number); }
  std::string_view name() const override { return ""; }
  std::string_view in_maps() const override { return "/memfd:carillon-lane-"; }
};

}  // namespace carillon::share
