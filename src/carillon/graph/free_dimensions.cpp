#include "carillon/graph/free_dimensions.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace carillon::graph {
namespace {

// Far more than any tensor that fits memory has, and products of two of them are no overflow.
constexpr std::int64_t largest_extent = std::int64_t{1} << 30;

// What is between the separators, without blanks around it.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

Result<std::size_t> FreeDimensions::add(const std::string& symbol, std::string otherwise, std::size_t place,
                                        std::size_t rank) {
  constexpr std::size_t longest = 100;
  if (!symbol.empty())
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (has_symbol_[i] && names_[i] == symbol.substr(0, longest)) return i;
  if (names_.size() == most_free_dimensions)
    return fail(ErrorCode::unsupported,
                otherwise + ": more than " + std::to_string(most_free_dimensions) +
                    " dimensions of the inputs are open; fix some in the dims of the model's config");
  names_.push_back(symbol.empty() ? std::move(otherwise) : symbol.substr(0, longest));
  has_symbol_.push_back(!symbol.empty());
  leading_.push_back(place == 0);
  const std::string lower = lower_case(names_.back());
  spatial_.push_back(contains_any(lower, {"height", "width"}) || lower == "h" || lower == "w" ||
                     (rank == 4 && place >= 2 && symbol.empty()));
  return names_.size() - 1;
}

Result<> FreeDimensions::check(std::span<const std::int64_t> extents) const {
  if (extents.size() != names_.size())
    return invalid(std::to_string(extents.size()) + " extents are given, and the model has " +
                   std::to_string(names_.size()) + " free dimensions");
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (extents[i] < 0 || extents[i] > largest_extent)
      return invalid("extent " + std::to_string(extents[i]) + " of '" + names_[i] + "': it must be 0 to " +
                     std::to_string(largest_extent));
  return {};
}

std::string FreeDimensions::text(std::span<const std::int64_t> extents) const {
  std::string out;
  for (std::size_t i = 0; i < extents.size(); ++i)
    out += (i == 0 ? "" : ", ") + names_[i] + " = " + std::to_string(extents[i]);
  return out;
}

std::int64_t FreeDimensions::value_of(std::string_view symbol, const Extents& extents) const {
  std::int64_t sum = 0;
  const auto terms = split(symbol, '+');
  for (const std::string_view term : terms) {
    std::int64_t product = 1;
    const auto factors = split(term, '*');
    for (const std::string_view factor : factors) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(factor.data(), factor.data() + factor.size(), value);
      if (error != std::errc{} || end != factor.data() + factor.size()) {
        if (terms.size() == 1 && factors.size() == 1) return 0;  // a plain symbol
        const auto known = std::ranges::find(names_, factor);
        if (known == names_.end()) return 0;
        value = extents[static_cast<std::size_t>(known - names_.begin())];
      }
      if (value < 1 || value > largest_extent || product > largest_extent / value) return 0;
      product *= value;
    }
    sum += product;
    if (sum > largest_extent) return 0;
  }
  return sum;
}

// A mask over what was there before and what comes now is called "total" ("total_sequence_length") by some
// exporters, which do not say that it is a sum.
std::int64_t FreeDimensions::total_of(std::string_view symbol, const Extents& extents) const {
  if (!contains_any(lower_case(symbol), {"total"})) return 0;
  std::int64_t past = 0, now = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const std::string name = lower_case(names_[i]);
    if (contains_any(name, {"total"})) continue;
    if (contains_any(name, {"past"})) {
      past = extents[i];
    } else if (contains_any(name, {"seq", "length", "tokens"})) {
      now = extents[i];
    }
  }
  return past > 0 && now > 0 ? past + now : 0;
}

// Those that are made of others, from these.
void FreeDimensions::complete(Extents& extents) const {
  const Extents base = extents;
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (has_symbol_[i]) {
      if (const std::int64_t value = value_of(names_[i], base)) extents[i] = value;
      if (const std::int64_t value = total_of(names_[i], base)) extents[i] = value;
    }
}

std::vector<Extents> FreeDimensions::guesses() const {
  std::vector<Extents> out;
  const auto add = [&](const Extents& extents) {
    Extents completed = extents;
    complete(completed);
    for (Extents each : {completed, extents}) {
      if (rows_) each[*rows_] = 1;
      if (std::ranges::find(out, each) == out.end()) out.push_back(std::move(each));
    }
  };
  Extents likely(names_.size());
  for (std::size_t i = 0; i < likely.size(); ++i)
    likely[i] = spatial_[i] ? 224 : leading_[i] && contains_any(lower_case(names_[i]), {"batch"}) ? 4 : 64;
  add(likely);
  // Multiples of large powers of two fit strides; small ones fit tables of positions; the last are sounds'.
  for (const std::int64_t extent : {64, 128, 256, 32, 16, 224, 8, 4, 2, 1, 3, 512, 640, 1024, 3000, 16000})
    add(Extents(names_.size(), extent));
  // A file that keeps a state for one sequence takes no more of them, whatever it says of its first
  // dimension.
  for (const std::int64_t extent : {64, 128, 256, 32, 16, 512, 1024, 16000}) {
    Extents one(names_.size());
    for (std::size_t i = 0; i < one.size(); ++i) one[i] = leading_[i] ? 1 : spatial_[i] ? 224 : extent;
    add(one);
  }
  return out;
}

std::vector<Extents> FreeDimensions::others(const Extents& than) const {
  std::vector<Extents> out;
  const auto add = [&](Extents extents) {
    complete(extents);
    if (extents != than) out.push_back(std::move(extents));
  };
  for (const bool twice : {true, false}) {
    Extents all = than;
    for (std::int64_t& extent : all) extent = twice ? 2 * extent : std::max<std::int64_t>(1, extent / 2);
    add(all);
    if (names_.size() == 1) continue;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      Extents one = than;
      one[i] = all[i];
      add(one);
    }
  }
  for (const std::int64_t few : {1, 0}) {
    add(Extents(names_.size(), few));
    for (std::size_t i = 0; names_.size() > 1 && i < names_.size(); ++i) {
      Extents one = than;
      one[i] = few;
      add(one);
    }
  }
  return out;
}

}  // namespace carillon::graph
