#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "carillon/base/result.h"

namespace carillon::graph {

// What an element of type string is wherever tensors are: a number in 8 bytes that stands for a text. So
// plans give texts their place as they give it to numbers, and kernels that move elements need not know.
using TextHandle = std::int64_t;

// A text that no model names, and that nothing will ask for: a key of no table, a word of no pool.
inline constexpr TextHandle unknown_text = 0;
// Handles from here on are texts of one request that no model names: whoever sent them on knows them by what is
// added. Those of two requests may be alike, which rows of a batch never find out.
inline constexpr TextHandle first_own_text = TextHandle{1} << 62;

// The texts that models' files name (labels, keys, categories, words), each once, for as long as the process
// lives: what one model of an ensemble gives is what the next one takes. Requests add none. Safe from any
// thread; find() and at() share a lock that only add() holds alone, for no longer than a text takes.
class KnownTexts {
 public:
  // `most`: bytes of all texts together, with what each takes beside them.
  explicit KnownTexts(std::size_t most) : most_(most) {}

  // The text's handle, never unknown_text. Error (resource_exhausted): there is no room for one more.
  Result<TextHandle> add(std::string_view text);
  // unknown_text where no model names it.
  TextHandle find(std::string_view text) const;
  // The text, which stays where it is; "" for unknown_text. Error (internal): it gave no such handle.
  Result<std::string_view> at(TextHandle handle) const;

 private:
  const std::size_t most_;
  std::size_t taken_ = 0;
  mutable std::shared_mutex mutex_;
  std::deque<std::string> texts_;  // that of handle h at h - 1
  std::unordered_map<std::string_view, TextHandle> handles_;
};

// The process's own: at most 256 MiB.
KnownTexts& known_texts();

}  // namespace carillon::graph
