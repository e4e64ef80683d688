#include "carillon/device/lanes/lanes.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::device {

const Lanes::Held& Lanes::held(JobId job) const {
  const auto index = table_.find(job.value);
  CARILLON_ASSERT(index.has_value());
  return held_[*index];
}

bool Lanes::fits(Bytes persistent, Bytes ephemeral) const {
  return persistent <= most_job_bytes * 1024 && ephemeral <= most_job_bytes * 1024 &&
         persistent + ephemeral <= capacity_ &&
         (persistent <= persistent_ || persistent + edge_ <= capacity_);
}

std::optional<LanePlace> Lanes::find(JobMemory needs) const {
  if (fits(persistent_ + needs.persistent, ephemeral_ + needs.ephemeral))
    return LanePlace{LanePlace::Kind::open, no_lane};
  if (!fits(persistent_ + needs.persistent, ephemeral_)) return std::nullopt;  // no lane can help

  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i)
    if (usable(i) && lanes_[i].size >= needs.ephemeral && (!best || lanes_[i].size < lanes_[*best].size))
      best = i;
  if (best) return LanePlace{LanePlace::Kind::join, {*best}};

  // All are too small here. The paper takes the smallest that may grow; a smaller one leaves less where it
  // was, so the first that may is found by going up.
  std::optional<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i)
    if (usable(i) && fits(persistent_ + needs.persistent, ephemeral_ - lanes_[i].size + needs.ephemeral) &&
        (!chosen || lanes_[i].size < lanes_[*chosen].size))
      chosen = i;
  if (chosen) return LanePlace{LanePlace::Kind::grow, {*chosen}};
  return std::nullopt;
}

std::optional<LanePlace> Lanes::find_shared(JobMemory needs) const {
  std::optional<std::uint32_t> shared;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i)
    if (usable(i) && (!shared || lanes_[i].opened < lanes_[*shared].opened)) shared = i;
  if (!shared) return find_apart(needs);
  const Lane& lane = lanes_[*shared];
  const Bytes size = std::max(lane.size, needs.ephemeral);
  if (!fits(persistent_ + needs.persistent, ephemeral_ - lane.size + size)) return std::nullopt;
  return LanePlace{size == lane.size ? LanePlace::Kind::join : LanePlace::Kind::grow, {*shared}};
}

std::optional<LanePlace> Lanes::find_apart(JobMemory needs) const {
  if (!fits(persistent_ + needs.persistent, ephemeral_ + needs.ephemeral)) return std::nullopt;
  return LanePlace{LanePlace::Kind::open, no_lane};
}

LaneId Lanes::move(JobId job, const LanePlace& place) {
  const JobMemory memory = held(job).memory;
  remove(job);
  return admit(job, memory, place);
}

LaneId Lanes::admit(JobId job, JobMemory needs, const LanePlace& place) {
  LaneId lane = place.lane;
  if (place.kind == LanePlace::Kind::open) {
    lane = LaneId{lanes_.take()};
    lanes_[lane.value] =
        Lane{.open = true, .size = {}, .offset = {}, .jobs = 0, .opened = opened_++, .sealed = false};
    if (lane.index() >= first_.size()) first_.resize(lane.index() + 1);
    first_[lane.index()] = none_;
    arranged_ = false;
  }
  CARILLON_ASSERT(lane.value < lanes_.size() && lanes_[lane.value].open);
  if (lanes_[lane.value].size < needs.ephemeral) resize(lane, needs.ephemeral);
  CARILLON_ASSERT(persistent_ + needs.persistent + ephemeral_ <= capacity_);

  const std::uint32_t index = held_.take();
  table_.insert(job.value, index);
  const std::uint32_t after = first_[lane.index()];
  held_[index] = {.job = job, .memory = needs, .lane = lane, .before = none_, .after = after};
  if (after != none_) held_[after].before = index;
  first_[lane.index()] = index;
  persistent_ = persistent_ + needs.persistent;
  ++lanes_[lane.value].jobs;
  return lane;
}

void Lanes::remove(JobId job) {
  const auto index = table_.find(job.value);
  CARILLON_ASSERT(index.has_value());
  const Held gone = held_[*index];
  if (gone.before != none_)
    held_[gone.before].after = gone.after;
  else
    first_[gone.lane.index()] = gone.after;
  if (gone.after != none_) held_[gone.after].before = gone.before;
  persistent_ = persistent_ - gone.memory.persistent;
  table_.erase(job.value);
  held_.give_back(*index);
  Lane& lane = lanes_[gone.lane.value];
  if (--lane.jobs > 0) return;
  ephemeral_ = ephemeral_ - lane.size;
  lane = {};
  lanes_.give_back(gone.lane.value);
}

bool Lanes::update(JobId job, JobMemory needs) {
  const auto index = table_.find(job.value);
  CARILLON_ASSERT(index.has_value());
  Held& held = held_[*index];
  const Lane& lane = lanes_[held.lane.value];
  const Bytes size = std::max(lane.size, needs.ephemeral);
  const Bytes persistent = persistent_ - held.memory.persistent + needs.persistent;
  // Less of everything is granted even where the capacity fell below what there is.
  const bool more = needs.persistent > held.memory.persistent || size > lane.size;
  if (more && !fits(persistent, ephemeral_ - lane.size + size)) return false;
  persistent_ = persistent;
  held.memory = needs;
  if (size > lane.size) resize(held.lane, size);
  return true;
}

Bytes Lanes::largest_in(LaneId lane) const {
  Bytes most;
  for (std::uint32_t i = first_[lane.index()]; i != none_; i = held_[i].after)
    most = std::max(most, held_[i].memory.ephemeral);
  return most;
}

bool Lanes::fit(LaneId id) {
  Lane& lane = lanes_[id.value];
  const Bytes size = largest_in(id);
  if (size >= lane.size) return false;
  ephemeral_ = ephemeral_ - lane.size + size;
  lane.size = size;
  return true;
}

Bytes Lanes::left(Bytes ephemeral) const {
  const Bytes used = persistent_ + ephemeral;
  return used < capacity_ ? capacity_ - used : Bytes{};
}

JobMemory Lanes::room_of(JobId job) const {
  const Held& mine = held(job);
  return {mine.memory.persistent + left(std::max(ephemeral_, edge_)),
          lanes_[mine.lane.value].size + left(ephemeral_)};
}

JobMemory Lanes::room() const {
  Bytes largest;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i)
    if (usable(i)) largest = std::max(largest, lanes_[i].size);
  return {left(std::max(ephemeral_, edge_)), largest + left(ephemeral_)};
}

void Lanes::resize(LaneId id, Bytes size) {
  Lane& lane = lanes_[id.value];
  ephemeral_ = ephemeral_ - lane.size + size;
  lane.size = size;
  arranged_ = false;
}

bool Lanes::gapless(LaneId id) const {
  const Bytes at = *lanes_[id.value].offset;
  Bytes before;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].open && lanes_[i].offset && *lanes_[i].offset < at) before = before + lanes_[i].size;
  return at <= before;
}

bool Lanes::grows_in_place(LaneId id, Bytes size, Bytes persistent,
                           const std::function<bool(LaneId)>& pinned) const {
  const Lane& lane = lanes_[id.value];
  if (!lane.offset) return true;
  const Bytes end = *lane.offset + size;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& other = lanes_[i];
    if (i == id.value || !other.open || !other.offset || !pinned({i})) continue;
    if (*other.offset < end && *lane.offset < *other.offset + other.size) return false;
  }
  return end + persistent <= capacity_;
}

bool Lanes::arrange(const std::function<bool(LaneId)>& pinned, const std::function<void(LaneId)>& changed) {
  order_.clear();
  taken_.clear();
  arranged_ = true;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (!lane.open) continue;
    if (lane.offset && pinned({i})) {
      taken_.push_back({*lane.offset, *lane.offset + lane.size});
      if (taken_.back().to + persistent_ > capacity_) arranged_ = false;
    } else {
      order_.push_back({i});
    }
  }
  std::ranges::sort(taken_, {}, &Taken::from);
  for (std::size_t i = 1; i < taken_.size(); ++i)
    if (taken_[i - 1].to > taken_[i].from) arranged_ = false;  // one grew under its job
  // Those that have a place first, from the end of the memory on: where nothing grew, each finds room at its
  // own place at the latest. What is without a place comes in the order of its number.
  std::ranges::sort(order_, [&](LaneId a, LaneId b) {
    const auto &x = lanes_[a.value].offset, &y = lanes_[b.value].offset;
    if (x.has_value() != y.has_value()) return x.has_value();
    return x && *x != *y ? *x < *y : a < b;
  });
  for (const LaneId id : order_) {
    Lane& lane = lanes_[id.value];
    Bytes at;
    auto next = taken_.begin();
    for (; next != taken_.end() && at + lane.size > next->from; ++next) at = std::max(at, next->to);
    if (at + lane.size + persistent_ > capacity_) {
      arranged_ = false;
      if (!lane.offset) continue;
      lane.offset.reset();
      changed(id);
      continue;
    }
    taken_.insert(next, {at, at + lane.size});
    if (lane.offset == at) continue;
    lane.offset = at;
    changed(id);
  }
  return arranged_;
}

Bytes Lanes::over() const {
  const Bytes used = persistent_ + std::max(ephemeral_, edge_);
  return used > capacity_ ? used - capacity_ : Bytes{};
}

}  // namespace carillon::device
