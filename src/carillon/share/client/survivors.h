#pragma once

#include <cstdint>

// Which allocations of an iteration outlive it, learned: one is known again by its size and by how many of that
// size came before it in the iteration. A wrong guess costs a copy, or a little shared memory. Pure.
namespace carillon::share::client {

class Survivors {
 public:
  // The key of an allocation of `bytes` now.
  std::uint32_t key(std::uint64_t bytes) {
    const std::uint64_t mixed = bytes * 0x9e3779b97f4a7c15ULL;
    Ordinal& of = ordinals_[mixed >> 52U];
    if (of.iteration != iteration_) of = {iteration_, 0};
    return static_cast<std::uint32_t>((mixed + ++of.count * 0xd6e8feb86659fd93ULL) >> 48U);
  }
  bool expected(std::uint32_t key) const { return score_[key] > 0; }
  void survived(std::uint32_t key) { score_[key] = most; }
  // It was expected to, and did not.
  void died(std::uint32_t key) {
    if (score_[key] > 0) --score_[key];
  }
  void next_iteration() { ++iteration_; }
  std::uint32_t iteration() const { return iteration_; }

 private:
  static constexpr std::uint8_t most = 3;
  struct Ordinal {
    std::uint32_t iteration, count;
  };
  std::uint32_t iteration_ = 1;
  Ordinal ordinals_[4096] = {};
  std::uint8_t score_[65536] = {};
};

}  // namespace carillon::share::client
