#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace carillon::schedule {

// Things in an order, each with a size: which is the first of those whose size lies between two bounds?
// Things are numbered from 0 on in their order. assign() costs O(n log n), all else O(log n). Not
// thread-safe.
class FirstThatFits {
 public:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  // Thing i has the size sizes[i]. All count.
  void assign(const std::vector<std::uint64_t>& sizes) {
    const std::size_t count = sizes.size();
    std::vector<std::uint32_t> by_size(count);
    std::iota(by_size.begin(), by_size.end(), 0U);
    std::ranges::stable_sort(by_size, {}, [&](std::uint32_t thing) { return sizes[thing]; });
    sizes_.clear();
    place_.resize(count);
    for (std::uint32_t at = 0; const std::uint32_t thing : by_size) {
      sizes_.push_back(sizes[thing]);
      place_[thing] = at++;
    }
    least_.assign(2 * count, none);
    for (std::uint32_t thing = 0; thing < count; ++thing) least_[count + place_[thing]] = thing;
    for (std::size_t i = count; i-- > 1;) least_[i] = std::min(least_[2 * i], least_[2 * i + 1]);
    counted_ = count;
  }
  // The thing counts, or does not.
  void count(std::uint32_t thing, bool in) {
    std::size_t i = sizes_.size() + place_[thing];
    if ((least_[i] != none) == in) return;
    in ? ++counted_ : --counted_;
    least_[i] = in ? thing : none;
    for (i /= 2; i > 0; i /= 2) least_[i] = std::min(least_[2 * i], least_[2 * i + 1]);
  }
  // How many count.
  std::size_t counted() const { return counted_; }
  // Among those that count, of a size in [least, most]. none: there is none.
  std::uint32_t first(std::uint64_t least, std::uint64_t most) const {
    const auto place_of = [&](auto found) { return static_cast<std::size_t>(found - sizes_.begin()); };
    std::size_t begin = sizes_.size() + place_of(std::ranges::lower_bound(sizes_, least));
    std::size_t end = sizes_.size() + place_of(std::ranges::upper_bound(sizes_, most));
    std::uint32_t found = none;
    for (; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) found = std::min(found, least_[begin++]);
      if (end % 2 == 1) found = std::min(found, least_[--end]);
    }
    return found;
  }
  // How many steps first() takes at most.
  std::size_t steps() const { return 2 * static_cast<std::size_t>(std::bit_width(sizes_.size())); }

 private:
  std::vector<std::uint64_t> sizes_;  // in their own order
  std::vector<std::uint32_t> place_;  // by thing: in sizes_
  // A tree over sizes_, whose leaves are its last half: the first thing below each node.
  std::vector<std::uint32_t> least_;
  std::size_t counted_ = 0;
};

}  // namespace carillon::schedule
