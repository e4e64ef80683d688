#include "carillon/engine/cuda/stream/splits.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace carillon::engine::cuda {

namespace {

struct Groups {
  std::vector<Processors> whole;
  std::optional<Processors> left;  // less than a group
};

Groups split(const Driver& driver, DeviceNumber device) {
  Groups out;
  Processors whole, left;
  if (driver.processors(device, &whole, of_processors) != done || whole.count == 0) return out;
  unsigned count = 0;
  if (driver.split_processors(nullptr, &count, &whole, nullptr, 0, 1) != done || count < 2) return out;
  out.whole.resize(count);
  if (driver.split_processors(out.whole.data(), &count, &whole, &left, 0, 1) != done || count < 2) return {};
  out.whole.resize(count);
  if (left.count > 0) out.left = left;
  return out;
}

// A driver's devices stay as they are.
Groups groups_of(const Driver& driver, DeviceNumber device) {
  static std::mutex mutex;
  static std::map<std::tuple<void*, DeviceNumber, unsigned>, Groups> known;
  const std::lock_guard lock(mutex);
  Processors whole;
  if (driver.processors(device, &whole, of_processors) != done) return {};
  auto& groups = known[{reinterpret_cast<void*>(driver.split_processors), device, whole.count}];
  if (groups.whole.empty()) groups = split(driver, device);
  return groups;
}

}  // namespace

Splits::Splits(const Driver& driver, DeviceNumber device, const Share& share)
    : driver_(driver), device_(device) {
  auto [groups, left] = groups_of(driver, device);
  const std::size_t parts = groups_ = groups.size();
  if (parts < 2) return;
  described_ = std::move(groups);
  const auto count = [&](std::size_t from, std::size_t to) {
    unsigned sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += described_[i].count;
    return sum;
  };
  if (!share.whole()) {
    const auto at = [&](double part) {
      return static_cast<std::size_t>(std::lround(part * static_cast<double>(parts)));
    };
    const std::size_t first = at(share.from), last = std::min(at(share.to), parts);
    if (first < last && make(first, last, all_)) all_.processors = count(first, last);
    return;
  }
  if (left) described_.push_back(*left);  // always of the rest
  all_.processors = count(0, described_.size());
  for (std::size_t k = 1; k < parts; ++k)
    pairs_.push_back(
        {.first = {.processors = count(0, k)}, .rest = {.processors = count(k, described_.size())}});
}

Splits::~Splits() {
  for (const Pair& pair : pairs_)
    for (const Half* each : {&pair.first, &pair.rest})
      if (each->context != nullptr) (void)driver_.green_destroy(each->context);
  if (all_.context != nullptr) (void)driver_.green_destroy(all_.context);
}

bool Splits::make(std::size_t from, std::size_t to, Half& into) {
  if (into.context != nullptr) return true;
  Resources what = nullptr;
  if (driver_.describe(&what, described_.data() + from, static_cast<unsigned>(to - from)) != done)
    return false;
  return driver_.green_create(&into.context, what, device_, green_default_stream) == done;
}

bool Splits::prepare(int pair) {
  const std::lock_guard lock(mutex_);
  const auto k = static_cast<std::size_t>(pair);
  Pair& made = pairs_.at(k - 1);
  return make(0, k, made.first) && make(k, described_.size(), made.rest);
}

const Splits::Half* Splits::half(const Part& part) const {
  if (part.pair == 0) return &all_;
  if (part.pair < 0 || part.pair > count()) return nullptr;
  const Pair& pair = pairs_[static_cast<std::size_t>(part.pair) - 1];
  return part.rest ? &pair.rest : &pair.first;
}
unsigned Splits::processors(const Part& part) const {
  const Half* const found = half(part);
  return found == nullptr ? 0 : found->processors;
}
GreenContext Splits::context(const Part& part) const {
  const Half* const found = half(part);
  return found == nullptr ? nullptr : found->context;
}

int Splits::nearest(double share) const {
  int best = 0;
  double least = 2;
  for (int k = 1; k <= count(); ++k) {
    const double apart = std::abs(static_cast<double>(processors({k, false})) / all_.processors - share);
    if (apart < least) {
      best = k;
      least = apart;
    }
  }
  return best;
}

}  // namespace carillon::engine::cuda
