#include "carillon/engine/made_up.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/graph/known_texts.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::engine {
namespace {

using graph::DataType;

enum : int { zeros, ones, any_shape, first_mixed, first_drawn = first_mixed + 3 };

// One element: whole numbers that the type does not have become 1.
void write(DataType type, float value, std::byte* to) {
  if (type == DataType::string) {
    const auto text = graph::known_texts().add(value == 0 ? "0" : "1");
    if (text) std::memcpy(to, &*text, sizeof *text);
    return;
  }
  if (type == DataType::boolean) {
    *to = static_cast<std::byte>(value != 0);
    return;
  }
  const bool has_sign =
      type != DataType::u8 && type != DataType::u16 && type != DataType::u32 && type != DataType::u64;
  const graph::Tensor number = graph::scalar_of(type, value < 0 && !has_sign ? 1 : value);
  std::ranges::copy(number.bytes(), to);
}

// Waits for what compiles the model anew: loading one takes no longer than that, or its process is ended.
Result<> wait_until_usable(const MadeUpModel& model) {
  constexpr auto pause = std::chrono::milliseconds{5};
  constexpr auto longest = std::chrono::minutes{5};
  for (auto waited = pause; waited < longest; waited += pause) {
    if (model.usable()) return {};
    std::this_thread::sleep_for(pause);
  }
  return model.usable();
}

}  // namespace

void make_up(int way, std::size_t input, DataType type, std::span<std::byte> to) {
  CARILLON_ASSERT(0 <= way && way < made_up_ways);
  std::ranges::fill(to, std::byte{0});
  Random random(static_cast<std::uint64_t>(way) * 64 + input);
  const bool real = graph::belongs(type, graph::TypeClass::floating);
  const bool all_ones = way == ones || (way == any_shape && real) ||
                        (first_mixed <= way && way < first_drawn && random.below(2) == 1);
  if (way == zeros || (way != any_shape && way < first_drawn && !all_ones)) return;
  const std::size_t element = graph::size_of(type);
  for (std::size_t at = 0; at + element <= to.size(); at += element) {
    if (way >= first_drawn)
      write(type,
            static_cast<float>(real ? random.uniform() * 4 - 2
                                    : static_cast<double>(random.below(type == DataType::u8 ? 256 : 4))),
            to.data() + at);
    else if (at == 0 || (at == element && !all_ones))
      write(type, all_ones || at > 0 ? 1.0F : -1.0F, to.data() + at);
    else
      std::memcpy(to.data() + at, to.data() + at - element, element);
  }
}

Result<std::vector<Duration>> measure_on_made_up(const MadeUpModel& model, int repeats, MadeUpChoice& choice,
                                                 std::string* refused) {
  CARILLON_ASSERT(repeats >= 1 && model.faults != nullptr && model.faults->results_unwanted);
  const auto timed = [&](Result<>& done) {
    model.faults->clear();
    const TimePoint begin = model.now();
    done = model.run();
    return std::max(Duration{1}, model.now() - begin);
  };
  std::optional<Error> why;
  Duration shortest = Duration::max();
  std::vector<Duration> took;
  std::optional<int> with_faults;
  bool clean = false;
  const int first = choice.way;
  for (int n = 0; n < made_up_ways && !clean; ++n) {
    const int way = (first + n) % made_up_ways;
    model.fill(way);
    Result<> done;
    const Duration time = timed(done);
    if (!done) {
      if (done.error().code != ErrorCode::invalid_argument) return std::unexpected(done.error());
      if (!why) why = done.error();
      shortest = std::min(shortest, time);
      if (auto usable = wait_until_usable(model); !usable) return std::unexpected(usable.error());
      continue;
    }
    clean = model.faults->empty() || (choice.settled && n == 0);
    if (!clean && with_faults) continue;
    if (!clean) with_faults = way;
    choice.way = way;
    took = {time};
  }
  if (took.empty()) {
    if (refused == nullptr) return std::unexpected(*why);
    *refused = why->message;
    return std::vector{shortest};
  }
  choice.settled = true;
  if (!clean) model.fill(choice.way);
  while (took.size() < static_cast<std::size_t>(repeats)) {
    Result<> done;
    const Duration time = timed(done);
    if (!done) return std::unexpected(done.error());
    took.push_back(time);
  }
  return took;
}

}  // namespace carillon::engine
