#include "carillon/engine/cpu/byte_product.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/byte_finish.h"
#include "carillon/engine/cpu/byte_panels.h"
#include "carillon/engine/cpu/byte_tiles.h"
#include "carillon/engine/cpu/layout.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/graph/plain/quantised.h"

namespace carillon::engine::cpu {

using namespace panels;

namespace {

// Makes bytes without a sign, and gives their sum.
CARILLON_WIDE std::int32_t flip_and_sum(const std::byte* from, std::uint8_t* to, std::int64_t count,
                                        std::uint8_t mask) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[i]) ^ mask);
    to[i] = value;
    sum += value;
  }
  return static_cast<std::int32_t>(sum);
}

// Pixels of `channels` bytes become pixels of whole steps; what fills them up meets weights of 0.
CARILLON_WIDE void fill_pixels(const std::byte* from, std::uint8_t* to, std::int64_t pixels,
                               std::int64_t channels, std::uint8_t mask, std::uint8_t fill) {
  const std::int64_t filled = up_to(channels, deep);
  if (filled == deep) {  // images
    for (std::int64_t p = 0; p < pixels; ++p, from += channels, to += deep)
      for (std::int64_t c = 0; c < deep; ++c)
        to[c] = c < channels ? static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[c]) ^ mask) : fill;
    return;
  }
  for (std::int64_t p = 0; p < pixels; ++p, from += channels, to += filled) {
    for (std::int64_t c = 0; c < channels; ++c)
      to[c] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[c]) ^ mask);
    std::fill(to + channels, to + filled, fill);
  }
}

// A source that kernels cannot read as it is lies in the room: with a sign (where steps are not sorted, which
// takes it away), with rows that are no whole steps, or with padding. Behind that are the sums of rows, of
// products that are no convolutions.
bool is_copied(const ByteProduct::Shape& shape) {
  if ((shape.signed_source && !shape.sorted) || shape.shifted_weights) return true;
  if (!shape.window) return shape.depth % deep != 0;
  const ByteProduct::Window& w = *shape.window;
  return w.channels != w.filled() || w.padded_height() != w.height || w.padded_width() != w.width;
}
// Of the source as kernels read it, that a row brings.
std::int64_t row_bytes(const ByteProduct::Shape& shape) {
  if (shape.window) return shape.window->filled() * shape.window->strides[0] * shape.window->strides[1];
  return up_to(shape.depth, deep);
}
// Of a line of pixels.
std::int64_t line_bytes(const ByteProduct::Shape& shape) {
  return shape.window->padded_width() * shape.window->filled();
}
std::int64_t sums_at(const ByteProduct::Shape& shape) {
  return up_to(shape.rows * row_bytes(shape), line);
}

}  // namespace

Instructions ByteProduct::of_this_processor() {
#if defined(__x86_64__)
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    const auto bits = static_cast<unsigned>(wanted);
    return (isa & bits) == bits;
  };
  if (has(dnnl::cpu_isa::avx512_core_vnni)) return Instructions::vnni;
  if (has(dnnl::cpu_isa::avx512_core)) return Instructions::avx512;
  if (has(dnnl::cpu_isa::avx2)) return Instructions::avx2;
#endif
  return Instructions::none;
}

std::uint64_t ByteProduct::room(const Shape& shape) {
  if (!is_copied(shape)) return 0;
  if (shape.window)
    return static_cast<std::uint64_t>(shape.window->images * shape.window->padded_height() *
                                      line_bytes(shape));
  return static_cast<std::uint64_t>(sums_at(shape) + shape.rows * 4);
}

ByteProduct::ByteProduct(const Shape& shape, Instructions with, std::vector<After> behind)
    : shape_(shape), with_(with), behind_(std::move(behind)) {
  CARILLON_ASSERT(with != Instructions::none && behind_.size() <= most_after);
  CARILLON_ASSERT(!shape.window || (!shape.shifted_weights && shape.depth == shape.window->depth()));
  // A unit's rows stay in the second cache while its panels go by; a unit's work is worth a part of its own.
  constexpr std::int64_t most_bytes = 256 << 10, least_products = 1 << 17;
  const std::int64_t panels = panels_of(shape.columns, with),
                     of_row = up_to(shape.depth, deep) * columns_of(with);
  if (shape.sorted) {
    // As many panels as meet a step once it is sorted, so more products.
    const std::int64_t at_once = rows_of(with) * static_cast<std::int64_t>(sorted_tiles);
    panels_of_unit_ = std::min(panels, static_cast<std::int64_t>(sorted_panels));
    rows_of_unit_ = std::min(up_to(shape.rows, at_once),
                             up_to(8 * least_products / (panels_of_unit_ * of_row), at_once) + at_once);
  } else {
    const std::int64_t tile = rows_of(with);
    rows_of_unit_ =
        std::min(up_to(shape.rows, tile), std::max(tile, most_bytes / row_bytes(shape) / tile * tile));
    panels_of_unit_ =
        std::clamp<std::int64_t>(least_products / (std::min(rows_of_unit_, shape.rows) * of_row), 1, panels);
  }
  units_ =
      (panels + panels_of_unit_ - 1) / panels_of_unit_ * ((shape.rows + rows_of_unit_ - 1) / rows_of_unit_);
}

std::unique_ptr<Kernel> ByteProduct::copy(graph::Faults&) const {
  return std::make_unique<ByteProduct>(shape_, with_, behind_);
}

int ByteProduct::pieces() const {
  return static_cast<int>(std::min<std::int64_t>(units_, std::numeric_limits<int>::max()));
}

bool ByteProduct::may_lack(int operand) const {
  switch (operand) {
    case x:
    case w:
    case y:
      return false;
    case factors:
      return shape_.made == Made::whole;
    case steps:
      return !shape_.window;
    case room_at:
      return !is_copied(shape_);
    default:
      break;
  }
  if (operand < after) return true;
  const auto i = static_cast<std::size_t>(operand - after);
  return i >= behind_.size() || behind_[i].kind == After::Kind::relu || behind_[i].kind == After::Kind::clip;
}

void ByteProduct::prepare(std::int64_t first, std::int64_t last) const {
  const std::int64_t bytes = row_bytes(shape_);
  const auto fill = static_cast<std::byte>(zero_of_x());  // times 0, and a narrow step where others are
  auto* const sums = reinterpret_cast<std::int32_t*>(at_[room_at] + sums_at(shape_));
  for (std::int64_t r = first; r < last; ++r) {
    std::byte* const to = at_[room_at] + r * bytes;
    const std::byte* const from = at_[x] + r * shape_.depth;
    const std::uint8_t mask = shape_.signed_source ? 0x80 : 0;
    sums[r] = flip_and_sum(from, reinterpret_cast<std::uint8_t*>(to), shape_.depth, mask);
    std::fill(to + shape_.depth, to + bytes, fill);
  }
}

// As the zero point of bytes without a sign.
std::int32_t ByteProduct::zero_of_x() const {
  std::int32_t zero = shape_.x_zero;
  if (at_[Operand::x_zero] != nullptr)
    zero = shape_.signed_source ? *at_byte<std::int8_t>(at_[Operand::x_zero], 0)
                                : *at_byte<std::uint8_t>(at_[Operand::x_zero], 0);
  return shape_.signed_source ? zero + 128 : zero;
}

// Lines of pixels with their padding, which is the zero point.
void ByteProduct::prepare_lines(std::int64_t first, std::int64_t last) const {
  const Window& window = *shape_.window;
  const std::uint8_t mask = shape_.signed_source ? 0x80 : 0;
  const std::int64_t filled = window.filled();
  const auto zero = static_cast<std::uint8_t>(zero_of_x());
  auto* const to = reinterpret_cast<std::uint8_t*>(at_[room_at]);
  for (std::int64_t l = first; l < last; ++l) {
    const std::int64_t image = l / window.padded_height(),
                       top = l % window.padded_height() - window.before[0];
    std::uint8_t* next = to + l * window.padded_width() * filled;
    if (top < 0 || top >= window.height) {
      std::fill_n(next, window.padded_width() * filled, zero);
      continue;
    }
    next = std::fill_n(next, window.before[1] * filled, zero);
    const std::byte* const from = at_[x] + (image * window.height + top) * window.width * window.channels;
    if (window.channels == filled)
      flip_and_sum(from, next, window.width * filled, mask);
    else
      fill_pixels(from, next, window.width, window.channels, mask, zero);
    std::fill_n(next + window.width * filled, window.behind[1] * filled, zero);
  }
}

namespace {

// What is taken from bytes before they are multiplied. A step is narrow if no byte is below this base and no
// pair, less the base, is above 255 in sum. Half the zero point suffices for the second where all bytes are
// zero points. A tenth less makes wide steps rarest for bell-shaped bytes about the middle: 2% of pairs, with
// half 4%.
std::uint8_t base_of(std::int32_t zero) {
  return static_cast<std::uint8_t>((zero + 1) / 2 - std::min(zero, 255 - zero) / 10);
}

// Where the kernel reads the source's rows, one after the other.
class RowsOfSource {
 public:
  RowsOfSource(const ByteProduct::Shape& shape, const std::byte* source, std::int64_t bytes)
      : window_(shape.window ? &*shape.window : nullptr), source_(source), step_(bytes) {
    if (window_ == nullptr) return;
    across_ = window_->places(1);
    down_ = window_->places(0);
    line_ = line_bytes(shape);
    step_ = window_->strides[1] * window_->filled();
  }
  void seek(std::int64_t row) {
    if (window_ == nullptr) {
      next_ = source_ + row * step_;
      return;
    }
    left_ = across_ - row % across_;
    image_ = row / across_ / down_;
    y_ = row / across_ % down_;
    next_ = begin() + row % across_ * step_;
  }
  const std::byte* next() {
    const std::byte* const now = next_;
    next_ += step_;
    if (window_ == nullptr || --left_ > 0) return now;
    left_ = across_;
    if (++y_ == down_) {
      y_ = 0;
      ++image_;
    }
    next_ = begin();
    return now;
  }

 private:
  const std::byte* begin() const {
    return source_ + (image_ * window_->padded_height() + y_ * window_->strides[0]) * line_;
  }

  const ByteProduct::Window* window_;
  const std::byte* source_;
  const std::byte* next_ = nullptr;
  std::int64_t step_, line_ = 0, across_ = 1, down_ = 1, left_ = 0, image_ = 0, y_ = 0;
};

}  // namespace

// What a panel's sums need to become results.
struct ByteProduct::Columns {
  static constexpr auto most = static_cast<std::size_t>(most_columns);
  alignas(line) std::array<std::int32_t, most> less;
  alignas(line) std::array<float, most> units{}, none{};
  std::int64_t column = 0, left = 0;  // its first column, and how many the result has
  const std::int32_t* zeros = nullptr;
  const float* biases = nullptr;
};

// base: what the source's bytes were less by when they were multiplied.
void ByteProduct::open(std::int64_t p, std::int32_t base, Columns& panel) const {
  const std::int64_t columns = columns_of(with_);
  const std::byte* const packed = at_[w];
  const Places places(panels_of(shape_.columns, with_), columns, at_byte<Head>(packed, 0)->steps);
  const std::int32_t zero = zero_of_x() - base;
  const float scale = at_[x_scale] != nullptr ? *at_byte<float>(at_[x_scale], 0) : 1;
  panel.column = p * columns;
  panel.left = std::min(columns, shape_.columns - panel.column);
  const auto* const of_weights = at_byte<std::uint32_t>(packed, places.sums) + panel.column;
  for (std::int64_t c = 0; c < columns; ++c)
    panel.less[static_cast<std::size_t>(c)] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(zero) * of_weights[c]);
  panel.zeros = shape_.shifted_weights ? at_byte<std::int32_t>(packed, places.zeros) + panel.column : nullptr;
  panel.biases = at_[biases] != nullptr ? at_byte<float>(at_[biases], 0) + panel.column : panel.none.data();
  if (at_[factors] == nullptr) return;
  const float* const each = at_byte<float>(at_[factors], 0) + panel.column;
  for (std::int64_t c = 0; c < columns; ++c) panel.units[static_cast<std::size_t>(c)] = each[c] * scale;
}

void ByteProduct::put(const Columns& panel, std::int64_t first, std::int64_t rows,
                      const std::int32_t* sums) const {
  const std::int64_t columns = columns_of(with_);
  Finish f{.sums = sums, .rows = rows, .columns = columns, .less = panel.less.data()};
  f.units = panel.units.data();
  f.biases = panel.biases;
  f.zeros = panel.zeros;
  f.of_row = static_cast<std::uint32_t>(shape_.depth * zero_of_x());
  f.y_zero = shape_.y_zero;
  if (f.zeros != nullptr) f.row_sums = at_byte<std::uint32_t>(at_[room_at], sums_at(shape_)) + first;
  // Results go straight to their place where a whole panel's are there.
  const auto into = [&]<typename To>(To* all) {
    To* const to = all + first * shape_.columns + panel.column;
    if (panel.left == columns) return finish(f, to, shape_.columns);
    constexpr auto of_tile = static_cast<std::size_t>(most_rows * most_columns);
    alignas(line) std::array<To, of_tile> made;
    finish(f, made.data(), columns);
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(made.data() + r * columns, panel.left, to + r * shape_.columns);
  };
  switch (shape_.made) {
    case Made::whole:
      into(reinterpret_cast<std::int32_t*>(at_[y]));
      break;
    case Made::real:
      into(reinterpret_cast<float*>(at_[y]));
      break;
    case Made::bytes:
      into(reinterpret_cast<std::uint8_t*>(at_[y]));
      break;
    case Made::signed_bytes:
      into(reinterpret_cast<std::int8_t*>(at_[y]));
      break;
  }
  for (std::size_t i = 0; i < behind_.size(); ++i)
    for (std::int64_t r = first; r < first + rows; ++r) {
      const float* operand = nullptr;
      if (const std::byte* const at = at_[after + i]; at != nullptr)
        operand = at_byte<float>(at, 0) + r * behind_[i].row_step + panel.column * behind_[i].column_step;
      apply(behind_[i], operand, reinterpret_cast<float*>(at_[y]) + r * shape_.columns + panel.column,
            panel.left);
    }
}

void ByteProduct::multiply(std::int64_t unit) const {
  const std::int64_t panels = panels_of(shape_.columns, with_);
  const std::int64_t across = (panels + panels_of_unit_ - 1) / panels_of_unit_;
  const std::int64_t first_panel = unit % across * panels_of_unit_,
                     last_panel = std::min(panels, first_panel + panels_of_unit_);
  const std::int64_t first_row = unit / across * rows_of_unit_,
                     last_row = std::min(shape_.rows, first_row + rows_of_unit_);
  if (shape_.sorted) {
    if (with_ == Instructions::avx2)
      multiply_sorted<4>(first_panel, last_panel, first_row, last_row);
    else
      multiply_sorted<8>(first_panel, last_panel, first_row, last_row);
    return;
  }
  const bool copied = is_copied(shape_);
  RowsOfSource source(shape_, at_[copied ? room_at : x], copied ? row_bytes(shape_) : shape_.depth);
  const std::byte* const packed = at_[w];
  const Places places(panels, columns_of(with_), at_byte<Head>(packed, 0)->steps);
  const auto* const heads = at_byte<PanelHead>(packed, places.panels);
  const auto* const offsets = at_[steps] != nullptr ? at_byte<std::uint32_t>(at_[steps], 0)
                                                    : at_byte<std::uint32_t>(packed, places.offsets);

  alignas(line) std::array<std::int32_t, static_cast<std::size_t>(most_rows * most_columns)> sums;
  Columns panel;
  for (std::int64_t p = first_panel; p < last_panel; ++p) {
    Tile tile{.weights = packed + places.weights + heads[p].weights,
              .offsets = offsets + heads[p].offsets,
              .panel = &heads[p],
              .sums = sums.data()};
    open(p, 0, panel);
    source.seek(first_row);
    for (std::int64_t first = first_row; first < last_row; first += rows_of(with_)) {
      const std::int64_t rows = std::min(rows_of(with_), last_row - first);
      for (std::int64_t r = 0; r < rows; ++r) tile.rows[static_cast<std::size_t>(r)] = source.next();
      find_tile(with_, rows)(tile);
      put(panel, first, rows, sums.data());
    }
  }
}

// Some tiles at a time: their steps of part of the depth are sorted, then multiplied by each panel.
template <std::int64_t rows>
void ByteProduct::multiply_sorted(std::int64_t first_panel, std::int64_t last_panel, std::int64_t first_row,
                                  std::int64_t last_row) const {
  constexpr std::int64_t columns = 4 * rows, of_tile = rows * columns;
  constexpr std::int64_t step_bytes = columns * deep;
  const bool copied = is_copied(shape_);
  RowsOfSource source(shape_, at_[copied ? room_at : x], copied ? row_bytes(shape_) : shape_.depth);
  const std::byte* const packed = at_[w];
  const Places places(panels_of(shape_.columns, with_), columns, at_byte<Head>(packed, 0)->steps);
  const auto* const heads = at_byte<PanelHead>(packed, places.panels);
  // The panels' steps are alike.
  const auto* const offsets = at_[steps] != nullptr ? at_byte<std::uint32_t>(at_[steps], 0)
                                                    : at_byte<std::uint32_t>(packed, places.offsets);
  const std::int64_t depth = heads[0].single;

  Unsorted<rows> from;
  from.mask = !copied && shape_.signed_source ? 0x80 : 0;
  from.base = base_of(zero_of_x());
  std::array<Columns, sorted_panels> panels;
  for (std::int64_t p = first_panel; p < last_panel; ++p)
    open(p, from.base, panels[static_cast<std::size_t>(p - first_panel)]);
  std::array<Sorted<rows>, sorted_tiles> sorted;
  alignas(line) std::array<std::int32_t, sorted_panels * sorted_tiles* static_cast<std::size_t>(of_tile)>
      sums;
  const auto sums_of = [&](std::int64_t p, std::int64_t t) {
    return sums.data() + ((p - first_panel) * static_cast<std::int64_t>(sorted_tiles) + t) * of_tile;
  };

  constexpr std::int64_t at_once = static_cast<std::int64_t>(sorted_tiles) * rows;
  for (std::int64_t first = first_row; first < last_row; first += at_once) {
    const std::int64_t count = std::min(at_once, last_row - first), tiles = (count + rows - 1) / rows;
    std::array<const std::byte*, static_cast<std::size_t>(at_once)> lines;
    source.seek(first);
    // A tile that is not full has its last row more than once.
    for (std::int64_t r = 0; r < tiles * rows; ++r)
      lines[static_cast<std::size_t>(r)] = r < count ? source.next() : lines[static_cast<std::size_t>(r - 1)];
    for (std::int64_t step = 0; step < depth; step += Sorted<rows>::most) {
      const std::int64_t of_part = std::min(Sorted<rows>::most, depth - step);
      from.offsets = offsets + step;
      from.first_weights = static_cast<std::uint32_t>(step * step_bytes);
      for (std::int64_t t = 0; t < tiles; ++t) {
        std::copy_n(lines.begin() + t * rows, rows, from.row.begin());
        sort_steps(from, of_part, step_bytes, sorted[static_cast<std::size_t>(t)]);
      }
      for (std::int64_t p = first_panel; p < last_panel; ++p)
        for (std::int64_t t = 0; t < tiles; ++t)
          find_sorted(sorted[static_cast<std::size_t>(t)], std::min(rows, count - t * rows))(
              sorted[static_cast<std::size_t>(t)], step == 0, packed + places.weights + heads[p].weights,
              sums_of(p, t));
    }
    for (std::int64_t p = first_panel; p < last_panel; ++p)
      for (std::int64_t t = 0; t < tiles; ++t)
        put(panels[static_cast<std::size_t>(p - first_panel)], first + t * rows,
            std::min(rows, count - t * rows), sums_of(p, t));
  }
}

Result<> ByteProduct::run(dnnl::stream&) {
  const auto share = [](std::int64_t count, const auto& body) {
    if (count > 1)
      in_parts(count, body);
    else
      body(std::int64_t{0});
  };
  if (is_copied(shape_)) {
    constexpr std::int64_t least_bytes = 64 << 10;
    const std::int64_t lines =
        shape_.window ? shape_.window->images * shape_.window->padded_height() : shape_.rows;
    const std::int64_t all = lines * (shape_.window ? line_bytes(shape_) : shape_.depth);
    const std::int64_t parts = std::clamp<std::int64_t>(all / least_bytes, 1, lines);
    share(parts, [&](std::int64_t i) {
      if (shape_.window)
        prepare_lines(lines * i / parts, lines * (i + 1) / parts);
      else
        prepare(lines * i / parts, lines * (i + 1) / parts);
    });
    if (parts > 1 && tbb::is_current_task_group_canceling()) return {};  // the kernel runs again
  }
  share(units_, [&](std::int64_t unit) { multiply(unit); });
  return {};
}

}  // namespace carillon::engine::cpu
