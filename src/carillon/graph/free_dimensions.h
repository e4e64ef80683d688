#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/model.h"

namespace carillon::graph {

// The dimensions of an open model's inputs that nothing fixes, and extents to try them at. Files name them by
// symbols; some exporters write sums and products of others there ("past + 1", "2*s0"), which say what fits
// together.
class FreeDimensions {
 public:
  // The number of the dimension with this symbol; one without is a new one, called `otherwise`. `place` and
  // `rank`: where it is in its tensor, of which follows what it is likely to mean. Error (unsupported): more
  // than most_free_dimensions.
  Result<std::size_t> add(const std::string& symbol, std::string otherwise, std::size_t place,
                          std::size_t rank);

  // That dimension counts the rows of a request, of which one is the commonest number.
  void set_rows(std::size_t number) { rows_ = number; }

  bool any() const { return !names_.empty(); }
  std::span<const std::string> names() const { return names_; }
  // Error (invalid_argument): not one for each, or out of range.
  Result<> check(std::span<const std::int64_t> extents) const;
  // "height = 224, width = 224"
  std::string text(std::span<const std::int64_t> extents) const;

  // What models commonly have, the likeliest first.
  std::vector<Extents> guesses() const;
  // To see what changes with the extents: others than these, among them each alone; and extents of 1 and 0,
  // of all and of each alone, at which operators do what they do at no others (Squeeze, broadcasting, Slice).
  std::vector<Extents> others(const Extents& than) const;

 private:
  // A symbol that is made of others: its extent there. 0: it is not, or not of such as are here.
  std::int64_t value_of(std::string_view symbol, const Extents& extents) const;
  std::int64_t total_of(std::string_view symbol, const Extents& extents) const;
  void complete(Extents& extents) const;

  std::vector<std::string> names_;
  std::vector<bool> has_symbol_;
  std::vector<bool> leading_;  // of the tensor that it was first found in
  std::vector<bool> spatial_;
  std::optional<std::size_t> rows_;
};

}  // namespace carillon::graph
