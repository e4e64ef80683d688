#include "carillon/engine/cuda/stream/lane.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::engine::cuda {

Lane::Lane(std::shared_ptr<const Device> device, Class cls) : device_(std::move(device)), cls_(cls) {}

Result<std::unique_ptr<Lane>> Lane::make(std::shared_ptr<const Device> device, Class cls, bool ends_early) {
  const Device::Current current(*device);
  std::unique_ptr<Lane> lane(new Lane(std::move(device), cls));
  if (ends_early)
    if (auto made = lane->make_words(); !made) return std::unexpected(made.error());
  return lane;
}

Lane::~Lane() {
  const Device::Current current(*device_);
  const Driver& driver = device_->driver;
  if (control_ != nullptr) (void)driver.stream_synchronize(control_);
  for (const Event event : {set_, reset_})
    if (event != nullptr) (void)driver.event_destroy(event);
  for (const auto& [part, stream] : streams_) {
    if (dirty_) (void)driver.stream_synchronize(stream);
    (void)driver.stream_destroy(stream);
  }
  if (control_ != nullptr) (void)driver.stream_destroy(control_);
  if (mark_ != nullptr) (void)driver.host_free(mark_);
  flag_.reset();
}

// Real-time work goes first where both may begin; what runs is never displaced by that.
int Lane::priority() const {
  int least = 0, greatest = 0;
  if (device_->driver.priority_range(&least, &greatest) != done) return 0;
  return cls_ == Class::real_time ? greatest : cls_ == Class::normal ? (least + greatest) / 2 : least;
}

Result<Stream> Lane::stream(const Part& part) {
  if (const auto found = streams_.find(part); found != streams_.end()) return found->second;
  Stream made = nullptr;
  const Splits* const splits = device_->splits();
  const GreenContext within = splits == nullptr ? nullptr : splits->context(part);
  CARILLON_ASSERT(within != nullptr || part == Part{});
  const Status status =
      within != nullptr ? device_->driver.green_stream(&made, within, stream_beside_the_default, priority())
                        : device_->driver.stream_create(&made, stream_beside_the_default, priority());
  if (auto checked = device_->check(status, "a stream"); !checked) return std::unexpected(checked.error());
  streams_.emplace(part, made);
  return made;
}

Result<> Lane::make_words() {
  const Driver& driver = device_->driver;
  flag_ = std::make_unique<Scratch>(driver, device_->number());
  if (auto taken = device_->check(flag_->take(sizeof(std::uint32_t)), "memory"); !taken) return taken;
  void* host = nullptr;
  if (auto made = device_->check(driver.host_allocate(&host, sizeof *mark_, host_is_mapped), "pinned memory");
      !made)
    return made;
  mark_ = static_cast<std::uint32_t*>(host);
  *mark_ = 0;
  if (auto found = device_->check(driver.host_address(&mark_address_, mark_, 0), "pinned memory"); !found)
    return found;
  int least = 0, greatest = 0;
  (void)driver.priority_range(&least, &greatest);
  if (auto made =
          device_->check(driver.stream_create(&control_, stream_beside_the_default, greatest), "a stream");
      !made)
    return made;
  for (Event* event : {&set_, &reset_})
    if (auto made = device_->check(driver.event_create(event, event_without_time), "an event"); !made)
      return made;
  Status cleared = driver.write_value(control_, flag(), 0, 0);
  if (cleared == done) cleared = driver.event_record(reset_, control_);
  if (cleared == done) cleared = driver.stream_synchronize(control_);
  return device_->check(cleared, "the flag");
}

// After what `after` was recorded for, and `tell` is recorded behind it.
Result<> Lane::write_flag(Stream stream, Event after, std::uint32_t value, Event tell) {
  const Driver& driver = device_->driver;
  Status status = driver.stream_wait(stream, after, 0);
  if (status == done) status = driver.write_value(stream, flag(), value, 0);
  if (status == done) status = driver.event_record(tell, stream);
  return device_->check(status, "the flag");
}

Result<> Lane::begin(Stream stream, std::uint32_t marked) {
  *static_cast<volatile std::uint32_t*>(mark_) = marked;
  return std::exchange(dirty_, false) ? write_flag(stream, set_, 0, reset_) : Result<>();
}

Result<> Lane::end_early() {
  return std::exchange(dirty_, true) ? Result<>() : write_flag(control_, reset_, 1, set_);
}

}  // namespace carillon::engine::cuda
