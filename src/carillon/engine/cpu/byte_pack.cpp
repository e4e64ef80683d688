#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/byte_panels.h"

namespace carillon::engine::cpu {

using namespace panels;

namespace {

// The zero point of a column's weights, made bytes with a sign as these.
std::int32_t zero_of(const graph::Tensor& weights, const graph::Tensor* zeros, std::int64_t column) {
  const bool is_signed = weights.type().type == graph::DataType::i8;
  if (zeros == nullptr) return is_signed ? 0 : -128;
  const std::byte value =
      zeros->bytes()[zeros->type().elements() == 1 ? 0 : static_cast<std::size_t>(column)];
  return is_signed ? static_cast<std::int8_t>(value) : static_cast<std::int32_t>(value) - 128;
}

}  // namespace

bool ByteProduct::shifts(const graph::Tensor& weights, const graph::Tensor* zeros) {
  const std::byte middle{weights.type().type == graph::DataType::i8 ? std::uint8_t{0} : std::uint8_t{128}};
  if (zeros == nullptr) return middle != std::byte{0};
  return std::ranges::any_of(zeros->bytes(), [&](std::byte zero) { return zero != middle; });
}

namespace {

// Weights of one panel, [depth filled up to whole steps, columns of a panel], as bytes with a sign; and which
// of them can be added in 16 bits.
class Panel {
 public:
  Panel(const graph::Tensor& weights, std::int64_t first, std::int64_t width)
      : width_(width),
        depth_(up_to(weights.type().shape[0], deep)),
        numbers_(static_cast<std::size_t>(depth_ * width)),
        sums_(static_cast<std::size_t>(width)) {
    const std::int64_t columns = weights.type().shape[1], count = std::min(width, columns - first);
    const std::uint8_t mask = weights.type().type == graph::DataType::i8 ? 0 : 0x80;
    for (std::int64_t k = 0; k < weights.type().shape[0]; ++k) {
      const std::byte* const from = weights.bytes().data() + k * columns + first;
      for (std::int64_t c = 0; c < count; ++c) {
        const auto value = static_cast<std::int8_t>(static_cast<std::uint8_t>(from[c]) ^ mask);
        numbers_[static_cast<std::size_t>(k * width + c)] = value;
        sums_[static_cast<std::size_t>(c)] += value;
      }
    }
  }
  std::int64_t groups() const { return depth_ / deep; }
  std::int8_t at(std::int64_t k, std::int64_t c) const {
    return numbers_[static_cast<std::size_t>(k * width_ + c)];
  }
  std::int32_t sum(std::int64_t c) const { return sums_[static_cast<std::size_t>(c)]; }
  // Whether the products of these neighbours, each with a byte without a sign, fit 16 bits in sum: 255 * 128
  // does, 255 * 129 does not.
  bool fits(std::int64_t k, std::int64_t c) const { return is_small({at(k, c), at(k + 1, c), 0, 0}); }
  // Whether those of a group do, in [first, last) of the columns.
  bool fits(std::int64_t group, std::int64_t first, std::int64_t last) const {
    bool all = true;
    for (std::int64_t k = group * deep; k < (group + 1) * deep; k += 2)
      for (std::int64_t c = first; c < last; ++c) all = all && fits(k, c);
    return all;
  }
  // Whether those of two groups do, added up.
  bool fit(std::int64_t a, std::int64_t b) const {
    bool all = true;
    for (std::int64_t i = 0; i < deep; i += 2)
      for (std::int64_t c = 0; c < width_; ++c)
        all = all && is_small({at(a * deep + i, c), at(a * deep + i + 1, c), at(b * deep + i, c),
                               at(b * deep + i + 1, c)});
    return all;
  }

 private:
  static bool is_small(const std::array<std::int32_t, 4>& weights) {
    std::int32_t up = 0, down = 0;
    for (const std::int32_t w : weights) {
      up += std::max(w, 0);
      down += std::min(w, 0);
    }
    return up <= 128 && down >= -128;
  }

  std::int64_t width_, depth_;
  std::vector<std::int8_t> numbers_;
  std::vector<std::int32_t> sums_;
};

// The steps of a panel, by groups of the depth.
struct Steps {
  std::vector<std::int64_t> merged, single;  // of merged two each
  std::array<std::vector<std::int64_t>, 2> extra;

  Steps(const Panel& panel, std::int64_t width, Instructions with) {
    std::int64_t waiting = -1;
    for (std::int64_t g = 0; g < panel.groups(); ++g) {
      if (with == Instructions::vnni) {
        single.push_back(g);
        continue;
      }
      bool whole = true;
      for (std::int64_t v = 0; v < 2; ++v)
        if (!panel.fits(g, v * width / 2, (v + 1) * width / 2)) {
          whole = false;
          extra[static_cast<std::size_t>(v)].push_back(g);
        }
      if (!whole) {
        single.push_back(g);
      } else if (waiting < 0) {
        waiting = g;
      } else if (panel.fit(waiting, g)) {
        merged.insert(merged.end(), {waiting, g});
        waiting = -1;
      } else {
        single.push_back(std::exchange(waiting, g));
      }
    }
    if (waiting >= 0) single.push_back(waiting);
  }
  std::size_t offsets() const { return merged.size() + single.size() + extra[0].size() + extra[1].size(); }
  // In halves of a step.
  std::size_t halves() const {
    return 2 * (merged.size() + single.size()) + extra[0].size() + extra[1].size();
  }
};

}  // namespace

graph::Tensor ByteProduct::pack(const graph::Tensor& weights, const graph::Tensor* zeros, Instructions with) {
  const auto& shape = weights.type().shape;
  CARILLON_ASSERT(with != Instructions::none && shape.size() == 2);
  const std::int64_t columns = shape[1], width = columns_of(with), panels = panels_of(columns, with),
                     half = width / 2;
  std::vector<Panel> all;
  std::vector<Steps> steps;
  std::size_t halves = 0, least = 0;
  for (std::int64_t p = 0; p < panels; ++p) {
    all.emplace_back(weights, p * width, width);
    steps.emplace_back(all.back(), width, with);
    halves += steps.back().halves();
    least += static_cast<std::size_t>(2 * all.back().groups());
  }
  const bool sorted = 2 * halves > 3 * least;
  if (sorted)
    for (std::size_t p = 0; p < steps.size(); ++p) {
      steps[p].merged.clear();
      steps[p].single.clear();
      steps[p].extra = {};
      for (std::int64_t g = 0; g < all[p].groups(); ++g) steps[p].single.push_back(g);
    }
  std::size_t count = 0;
  halves = 0;
  for (const Steps& s : steps) {
    count += s.offsets();
    halves += up_to(static_cast<std::int64_t>(s.halves()), 2);
  }

  const Places places(panels, width, static_cast<std::int64_t>(count));
  graph::Tensor made(
      {graph::DataType::u8, {places.weights + static_cast<std::int64_t>(halves) * half * deep}});
  std::byte* const to = made.bytes().data();
  const Head head{.sorted = sorted ? 1U : 0U, .steps = static_cast<std::uint32_t>(count)};
  std::memcpy(to, &head, sizeof head);
  std::int64_t step = 0, place = 0;
  for (std::int64_t p = 0; p < panels; ++p) {
    const Panel& panel = all[static_cast<std::size_t>(p)];
    const Steps& of = steps[static_cast<std::size_t>(p)];
    const PanelHead about{.weights = static_cast<std::uint64_t>(place),
                          .offsets = static_cast<std::uint32_t>(step),
                          .merged = static_cast<std::uint32_t>(of.merged.size() / 2),
                          .single = static_cast<std::uint32_t>(of.single.size()),
                          .extra = {static_cast<std::uint32_t>(of.extra[0].size()),
                                    static_cast<std::uint32_t>(of.extra[1].size())}};
    std::memcpy(to + places.panels + p * static_cast<std::int64_t>(sizeof about), &about, sizeof about);
    std::byte* next = to + places.weights + place;
    // Writes one vector's weights of a group. Without `left` these are the weights of the ordinary step. With
    // `left` they are those of the extra step: the second of each two neighbours whose sum does not fit 16
    // bits.
    const auto put = [&](std::int64_t group, std::int64_t v, bool left) {
      for (std::int64_t c = 0; c < half; ++c)
        for (std::int64_t i = 0; i < deep; ++i) {
          const std::int64_t k = group * deep + i, column = v * half + c;
          const bool later =
              with != Instructions::vnni && !sorted && i % 2 == 1 && !panel.fits(k - 1, column);
          if (later == left) next[c * deep + i] = static_cast<std::byte>(panel.at(k, column));
        }
      next += half * deep;
    };
    const auto offset = [&](std::int64_t group) {
      const auto at = static_cast<std::uint32_t>(group * deep);
      std::memcpy(to + places.offsets + step++ * 4, &at, sizeof at);
    };
    for (const auto* groups : {&of.merged, &of.single})
      for (const std::int64_t g : *groups) {
        offset(g);
        put(g, 0, false);
        put(g, 1, false);
      }
    for (std::int64_t v = 0; v < 2; ++v)
      for (const std::int64_t g : of.extra[static_cast<std::size_t>(v)]) {
        offset(g);
        put(g, v, true);
      }
    place += up_to(static_cast<std::int64_t>(of.halves()), 2) * half * deep;
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t column = p * width + c;
      const std::int32_t sum = panel.sum(c), zero = column < columns ? zero_of(weights, zeros, column) : 0;
      std::memcpy(to + places.sums + column * 4, &sum, sizeof sum);
      std::memcpy(to + places.zeros + column * 4, &zero, sizeof zero);
    }
  }
  return made;
}

bool ByteProduct::is_sorted(const graph::Tensor& packed) {
  return at_byte<Head>(packed.bytes().data(), 0)->sorted != 0;
}

graph::Tensor ByteProduct::by_depth(const graph::Tensor& weights, const Window& window) {
  const std::int64_t columns = weights.type().shape[0], taps = window.kernel[0] * window.kernel[1],
                     filled = window.filled();
  graph::Tensor made({weights.type().type, {window.depth(), columns}});
  if (weights.type().type == graph::DataType::u8)
    std::ranges::fill(made.bytes(), std::byte{128});  // stands for 0
  const std::byte* from = weights.bytes().data();
  for (std::int64_t o = 0; o < columns; ++o)
    for (std::int64_t c = 0; c < window.channels; ++c)
      for (std::int64_t tap = 0; tap < taps; ++tap)
        made.bytes()[static_cast<std::size_t>((tap * filled + c) * columns + o)] = *from++;
  return made;
}

graph::Tensor ByteProduct::offsets(const graph::Tensor& packed, const Window& window, std::int64_t columns,
                                   Instructions with) {
  const std::int64_t count = at_byte<Head>(packed.bytes().data(), 0)->steps, filled = window.filled();
  const Places places(panels_of(columns, with), columns_of(with), count);
  const auto* const from = at_byte<std::uint32_t>(packed.bytes().data(), places.offsets);
  graph::Tensor made({graph::DataType::i32, {count}});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t tap = from[i] / filled, y = tap / window.kernel[1] * window.dilations[0],
                       x = tap % window.kernel[1] * window.dilations[1];
    made.as<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>((y * window.padded_width() + x) * filled + from[i] % filled);
  }
  return made;
}

graph::Tensor ByteProduct::by_column(std::span<const float> values, std::int64_t columns, Instructions with) {
  graph::Tensor made({graph::DataType::f32, {panels_of(columns, with) * columns_of(with)}});
  const auto to = made.as<float>();
  for (std::int64_t c = 0; c < columns; ++c)
    to[static_cast<std::size_t>(c)] = values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
  return made;
}

}  // namespace carillon::engine::cpu
