#include "carillon/repository/given_files.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <stdlib.h>

#include "carillon/base/files.h"
#include "carillon/graph/text.h"
#include "carillon/repository/repository.h"

namespace carillon::repository {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_path = 1024;
constexpr std::size_t longest_part = 255;
constexpr int deepest = 8;

std::string shown(std::string_view path) {
  constexpr std::size_t longest = 100;
  return "file '" + graph::printable(std::string(path.substr(0, longest))) + "'";
}

}  // namespace

Result<> check_given_path(std::string_view path) {
  const auto wrong = [&](const std::string& why) {
    return invalid(shown(path) + ": " + why + "; it is a path in the model's folder, such as 1/model.onnx");
  };
  if (!graph::is_text(path)) return wrong("it is not UTF-8 text without control characters");
  if (path.size() > longest_path)
    return wrong("it is longer than " + std::to_string(longest_path) + " bytes");
  if (path.starts_with('/')) return wrong("it begins with '/'");
  int parts = 0;
  for (std::string_view left = path;;) {
    const std::string_view part = left.substr(0, left.find('/'));
    if (part.empty() || part == "." || part == "..")
      return wrong("it has the part '" + std::string(part) + "'");
    if (part.size() > longest_part) return wrong("a part of it is longer than a name may be");
    if (++parts > deepest) return wrong("it is more than " + std::to_string(deepest) + " deep");
    if (part.size() == left.size()) return {};
    left.remove_prefix(part.size() + 1);
  }
}

Result<GivenFolder> GivenFolder::make(const std::string& model, const GivenFiles& files) {
  if (auto ok = check_model_name(model); !ok) return std::unexpected(ok.error());
  if (files.size() > most_given_files)
    return invalid(std::to_string(files.size()) + " files; at most " + std::to_string(most_given_files));
  for (const auto& [path, bytes] : files)
    if (auto ok = check_given_path(path); !ok) return std::unexpected(ok.error());
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  std::string pattern = ((error ? fs::path("/tmp") : temporary) / "carillon-given-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    return fail(ErrorCode::resource_exhausted, "no folder for the files that were given can be made at " +
                                                   pattern + ": " + std::generic_category().message(errno));
  GivenFolder out(fs::path(pattern), model);
  for (const auto& [path, bytes] : files) {
    const fs::path file = out.root_ / model / path;
    fs::create_directories(file.parent_path(), error);
    if (error == std::errc::not_a_directory || error == std::errc::file_exists || fs::is_directory(file))
      return invalid(shown(path) + ": another of the files has its name, or that of a folder above it");
    const auto written = error ? fail(ErrorCode::internal, error.message()) : write_file(file, bytes);
    if (!written)
      return fail(ErrorCode::resource_exhausted, shown(path) + ": its " + std::to_string(bytes.size()) +
                                                     " bytes cannot be kept below " + temporary.string() +
                                                     ": " + out.in_senders_words(written.error().message));
  }
  return out;
}

std::string GivenFolder::in_senders_words(std::string text) const {
  const auto replace = [&text](const std::string& what, std::string_view by) {
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
      text.replace(at, what.size(), by);
  };
  replace(folder_ + "/", "file:");
  replace(folder_, "the order");
  return text;
}

GivenFolder::GivenFolder(GivenFolder&& other) noexcept
    : root_(std::exchange(other.root_, {})), folder_(std::move(other.folder_)) {}

GivenFolder& GivenFolder::operator=(GivenFolder&& other) noexcept {
  std::swap(root_, other.root_);
  std::swap(folder_, other.folder_);
  return *this;
}

GivenFolder::~GivenFolder() {
  std::error_code ignored;  // what stays behind is in a folder for what may go
  if (!root_.empty()) fs::remove_all(root_, ignored);
}

}  // namespace carillon::repository
