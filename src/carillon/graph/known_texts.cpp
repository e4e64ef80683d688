#include "carillon/graph/known_texts.h"

#include <mutex>
#include <utility>

#include "carillon/base/bytes.h"

namespace carillon::graph {

Result<TextHandle> KnownTexts::add(std::string_view text) {
  if (const TextHandle known = find(text); known != unknown_text) return known;
  constexpr std::size_t beside = 128;  // the string, its place in the table
  const std::unique_lock lock(mutex_);
  if (const auto found = handles_.find(text); found != handles_.end()) return found->second;
  if (text.size() + beside > most_ - taken_)
    return fail(ErrorCode::resource_exhausted,
                "texts of models may take " + to_text(Bytes{most_}) + " together, and " +
                    to_text(Bytes{taken_}) + " are taken: there is no room for one of " +
                    std::to_string(text.size()) + " bytes");
  taken_ += text.size() + beside;
  const std::string& kept = texts_.emplace_back(text);
  const auto handle = static_cast<TextHandle>(texts_.size());
  handles_.emplace(kept, handle);
  return handle;
}

TextHandle KnownTexts::find(std::string_view text) const {
  const std::shared_lock lock(mutex_);
  const auto found = handles_.find(text);
  return found == handles_.end() ? unknown_text : found->second;
}

Result<std::string_view> KnownTexts::at(TextHandle handle) const {
  if (handle == unknown_text) return std::string_view();
  const std::shared_lock lock(mutex_);
  if (handle < 0 || std::cmp_greater(handle, texts_.size()))
    return fail(ErrorCode::internal, "no text has the number " + std::to_string(handle));
  return texts_[static_cast<std::size_t>(handle - 1)];
}

KnownTexts& known_texts() {
  static KnownTexts all(std::size_t{256} << 20);
  return all;
}

}  // namespace carillon::graph
