#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/repository/config.h"

namespace carillon::repository {

// Versions of one model found in its folder, as version_policy (latest 1 by default) selects them.
struct ModelVersion {
  std::int64_t version = 1;
  std::filesystem::path file;  // empty: an ensemble has none
};

struct RepositoryEntry {
  std::string name;
  std::filesystem::path folder;
  Result<ModelConfig> config;          // an error: the entry cannot be served, and why
  std::vector<ModelVersion> versions;  // ascending; empty only where config holds an error
};

// A model that is one file, without a folder and a config.
struct ModelFile {
  std::string name;
  std::filesystem::path file;
};

// "FILE", or "NAME=FILE"; without a name the model is called as the file is, without its extension. Errors:
// there is no such file, it is a folder or of another format than ONNX (.onnx) and OpenVINO's IR (.xml), each
// with what would be right; a name that no model can have.
Result<ModelFile> model_file(const std::string& text);

// That a folder of the repository could have the name, and a model with it: 255 bytes of UTF-8 at most,
// without
// '/' and control characters, and no '.' in front (invalid_argument).
Result<> check_model_name(const std::string& name);

struct ReadOptions {
  // Symbolic links may lead out of the repository. Names never do.
  bool follow_links = false;
  // Where there are any, they are the repository, and DIR is not looked at: one version, 1, of each, whose
  // config follows from the file. Links among them are followed: each was named by whoever started us.
  std::vector<ModelFile> files{};
};

// Reads DIR/<model>/[config.pbtxt] and DIR/<model>/<version>/model.onnx (or OpenVINO's model.xml with
// model.bin) for every model, in name order. One bad model does not spoil the others: its entry holds the
// error. An error of the whole: DIR cannot be read, or two files of the options have one name. Names of
// models and files never lead outside DIR, and symbolic links only where the options say so.
//
// Passed over are plain files in DIR, folders there whose names begin with '.', and folders of a model that
// are not named as a version is: a positive number without sign and leading zeros, of 63 bits. `skipped` (may
// be null) gets a line for each folder that is passed over, and for what only looks like one, with the
// reason.
Result<std::vector<RepositoryEntry>> read_repository(const std::filesystem::path& directory,
                                                     const ReadOptions& options = {},
                                                     std::vector<std::string>* skipped = nullptr);

// The entry of one model, as read_repository() has it. `config`: text to take for its config.pbtxt; none:
// what the folder has. Errors: DIR cannot be read; not_found: there is no such folder, whose name must be the
// model's. What is wrong with the model itself the entry holds.
Result<RepositoryEntry> read_entry(const std::filesystem::path& directory, const std::string& name,
                                   const std::optional<std::string>& config = std::nullopt,
                                   const ReadOptions& options = {},
                                   std::vector<std::string>* skipped = nullptr);

// That read_repository() would find a folder there that it may read.
Result<> check_repository(const std::filesystem::path& directory);

// What a version is made of, in a text that changes when any of it does: the config without its
// version_policy, labels, other files that the config names, and names, sizes and times of all files in the
// version's folder (of 10,000 at most).
std::string stamp_of(const RepositoryEntry& entry, const ModelVersion& version);

}  // namespace carillon::repository
