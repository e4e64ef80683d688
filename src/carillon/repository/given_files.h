#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::repository {

// Files that somebody sends in place of a model's folder, by their paths in that folder.
using GivenFiles = std::map<std::string, std::string>;

inline constexpr std::size_t most_given_files = 1000;

// That the path is one of a file below the model's folder, such as "1/model.onnx": relative, of names that
// are neither "", "." nor "..", at most 8 deep. Nothing of it is trusted.
Result<> check_given_path(std::string_view path);

// A private folder (of this user alone, where temporary files go) with one model's folder in it, which has
// these files. It goes with this object.
class GivenFolder {
 public:
  // Errors: invalid_argument for a name that no model can have, for a path (check_given_path()), for a file
  // where another file has its folder, and for too many files; resource_exhausted where they cannot be
  // written.
  static Result<GivenFolder> make(const std::string& model, const GivenFiles& files);

  GivenFolder(GivenFolder&& other) noexcept;
  GivenFolder& operator=(GivenFolder&& other) noexcept;
  GivenFolder(const GivenFolder&) = delete;
  GivenFolder& operator=(const GivenFolder&) = delete;
  ~GivenFolder();

  // A model repository of this one model.
  const std::filesystem::path& repository() const { return root_; }

  // What is said about files of this folder, in words that mean something to who sent them:
  // "file:1/model.onnx" in the place of a path of the server's.
  std::string in_senders_words(std::string text) const;

 private:
  GivenFolder(std::filesystem::path root, const std::string& model)
      : root_(std::move(root)), folder_((root_ / model).string()) {}

  std::filesystem::path root_;  // empty: moved away
  std::string folder_;          // the model's
};

}  // namespace carillon::repository
