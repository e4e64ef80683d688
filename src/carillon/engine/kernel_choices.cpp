#include "carillon/engine/kernel_choices.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "carillon/base/replace_file.h"

namespace carillon::engine {

namespace {

bool is_text(std::string_view text, std::size_t longest) {
  return !text.empty() && text.size() <= longest &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

KernelChoices::KernelChoices(std::filesystem::path file, std::string header, std::string* problem)
    : file_(std::move(file)), header_(std::move(header)) {
  if (auto done = read(); !done) {
    names_.clear();
    if (problem != nullptr) *problem = done.error().message + "; it is not heeded, and written anew";
    return;
  }
  const auto folder = std::filesystem::absolute(file_).parent_path();
  if (problem != nullptr && ::access(folder.c_str(), W_OK | X_OK) != 0)
    *problem = "kernel choices " + file_.string() + ": " + folder.string() + " cannot be written to (" +
               std::generic_category().message(errno) + "): they are not kept";
}

Result<> KernelChoices::read() {
  const std::string where = "kernel choices " + file_.string() + ": ";
  std::error_code error;
  const auto status = std::filesystem::status(file_, error);
  if (status.type() == std::filesystem::file_type::not_found) return {};
  if (!std::filesystem::is_regular_file(status)) return invalid(where + "is not a file");
  const std::uintmax_t size = std::filesystem::file_size(file_, error);
  if (error) return invalid(where + error.message());
  if (size > largest_file)
    return invalid(where + std::to_string(size) + " bytes; at most " + std::to_string(largest_file) +
                   " are read");
  std::string all(static_cast<std::size_t>(size), '\0');
  std::ifstream in(file_, std::ios::binary);
  in.read(all.data(), static_cast<std::streamsize>(all.size()));
  if (!in) return invalid(where + "cannot be read: " + std::generic_category().message(errno));
  std::istringstream lines(all);
  std::string line;
  if (!std::getline(lines, line) || line != header_)
    return invalid(where + "is another machine's or version's, or no such file; it should begin with \"" +
                   header_ + "\"");
  for (int number = 2; std::getline(lines, line); ++number) {
    const std::string at = where + "line " + std::to_string(number) + " ";
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos || lines.eof()) return invalid(at + "is cut off");
    const std::string_view key = std::string_view(line).substr(0, tab),
                           name = std::string_view(line).substr(tab + 1);
    if (!is_text(key, longest_key) || !is_text(name, longest_name))
      return invalid(at + "is not a key, a tab and a name");
    if (names_.size() == most)
      return invalid(at + "is beyond the " + std::to_string(most) + " that are kept");
    if (!names_.emplace(key, name).second) return invalid(at + "says something a second time");
  }
  return {};
}

std::optional<std::string> KernelChoices::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(key);
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

void KernelChoices::keep(const std::string& key, const std::string& name) {
  if (!is_text(key, longest_key) || !is_text(name, longest_name)) return;
  const std::lock_guard lock(mutex_);
  ++measured_;
  if (names_.size() < most || names_.contains(key)) names_[key] = name;
}

std::size_t KernelChoices::size() const {
  const std::lock_guard lock(mutex_);
  return names_.size();
}

std::uint64_t KernelChoices::measured() const {
  const std::lock_guard lock(mutex_);
  return measured_;
}

Result<> KernelChoices::save() {
  const std::lock_guard saving(saving_);
  std::string text = header_ + "\n";
  std::uint64_t now = 0;
  {
    const std::lock_guard lock(mutex_);
    if (file_.empty() || measured_ == saved_) return {};
    now = measured_;
    for (const auto& [key, name] : names_) text.append(key).append("\t").append(name).append("\n");
  }
  if (const std::error_code error = replace_file(file_, {text}))
    return fail(ErrorCode::unavailable,
                "kernel choices " + file_.string() + ": cannot be written: " + error.message());
  const std::lock_guard lock(mutex_);
  saved_ = now;
  return {};
}

}  // namespace carillon::engine
