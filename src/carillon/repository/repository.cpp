#include "carillon/repository/repository.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "carillon/graph/text.h"
#include "carillon/repository/config.h"
#include "carillon/repository/sequence_batching.h"
#include "carillon/repository/warmup.h"

namespace carillon::repository {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t largest_config = 1 << 20;   // bytes of a config.pbtxt
constexpr std::size_t largest_labels = 16 << 20;  // bytes of a file of labels
constexpr std::size_t longest_name = 255;

// The name with whatever is not printable ASCII as \xNN, for a name that is not text.
std::string escaped(std::string_view name) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : name.substr(0, longest_name)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f)
      out += c;
    else
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
  }
  return out;
}

// What tools leave behind, and where a name would lead elsewhere.
bool hidden(std::string_view name) {
  return name.starts_with('.');
}
constexpr std::string_view why_hidden =
    "folders whose names begin with '.' are hidden; a model's name begins otherwise";

// That `path` is there, and that links do not lead it out of `root` (canonical; empty: they may lead
// anywhere).
Result<> check_inside(const fs::path& path, const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory)
    return fail(ErrorCode::not_found, fs::is_symlink(path, error)
                                          ? path.string() + " is a symbolic link to nothing"
                                          : path.string() + " is not there");
  if (error) return invalid(path.string() + " cannot be read: " + error.message());
  const auto [in_root, in_real] = std::ranges::mismatch(root, real);
  if (in_root != root.end())
    return invalid(path.string() + " is a symbolic link that leads out of the repository, to " +
                   real.string() + "; such links are followed with --follow-links");
  return {};
}

Result<> check_file(const fs::path& path, const fs::path& root) {
  if (auto ok = check_inside(path, root); !ok) return ok;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return invalid(path.string() + " is not a regular file");
  if (!std::ifstream(path, std::ios::binary))
    return invalid(path.string() + " cannot be opened: " + std::generic_category().message(errno));
  return {};
}

Result<std::string> read_text(const fs::path& file, const fs::path& root, std::size_t longest) {
  if (auto ok = check_file(file, root); !ok) return std::unexpected(ok.error());
  std::ifstream in(file, std::ios::binary);
  std::string text(longest + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return invalid(file.string() + " cannot be read: " + std::generic_category().message(errno));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > longest)
    return invalid(file.string() + " is longer than " + std::to_string(longest) + " bytes");
  return text;
}

// The text of config.pbtxt, empty where there is none.
Result<std::string> read_config_text(const fs::path& file, const fs::path& root) {
  std::error_code error;
  if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return std::string();
  return read_text(file, root, largest_config);
}

// The version that a folder's name stands for: a positive integer, as one writes it; else 0, and why not.
struct VersionName {
  std::int64_t version = 0;
  std::string_view why_not;
};
VersionName version_of(std::string_view name) {
  VersionName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.version);
  const bool whole = end == name.data() + name.size();
  if (error == std::errc::result_out_of_range && whole)
    return {.why_not = "a version is at most 9223372036854775807"};
  if (error != std::errc{} || !whole) return {.why_not = "a version is a whole number, such as 1"};
  if (out.version < 1) return {.why_not = "a version is 1 or more"};
  if (name[0] == '0') return {.why_not = "a version has no leading zeros"};
  return out;
}

// What a folder has in it, each in the order of names.
struct Contents {
  std::vector<fs::path> folders;
  std::vector<fs::path> files;     // all that is neither a folder nor a link to nothing
  std::vector<fs::path> dangling;  // links to nothing
};
Result<Contents> contents_of(const fs::path& directory) {
  Contents out;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;  // a link to nothing is no folder; one that cannot be looked at is
    const bool folder = at->is_directory(ignored);
    const bool nothing = ignored == std::errc::no_such_file_or_directory;
    (nothing ? out.dangling : folder || ignored ? out.folders : out.files).push_back(at->path());
  }
  if (error) return invalid(directory.string() + " cannot be read: " + error.message());
  for (auto* list : {&out.folders, &out.files, &out.dangling}) std::ranges::sort(*list);
  return out;
}

// Lines about what is passed over: of one folder as many as a person reads.
class Skipped {
 public:
  explicit Skipped(std::vector<std::string>* lines) : lines_(lines) {}
  ~Skipped() {
    if (left_out_ > 0)
      lines_->push_back(folder_ + ": " + std::to_string(left_out_) +
                        " more are passed over, for such reasons");
  }
  Skipped(const Skipped&) = delete;
  Skipped& operator=(const Skipped&) = delete;

  void add(const fs::path& path, std::string_view why) {
    constexpr int most = 20;
    if (lines_ == nullptr) return;
    folder_ = escaped(path.parent_path().string());
    if (++told_ > most)
      ++left_out_;
    else
      lines_->push_back(folder_ + ": '" + escaped(path.filename().string()) +
                        "' is passed over: " + std::string(why));
  }

 private:
  std::vector<std::string>* const lines_;
  std::string folder_;
  int told_ = 0, left_out_ = 0;
};

// The versions that a model's folder has.
Result<std::set<std::int64_t>> versions_in(const fs::path& folder, std::vector<std::string>* lines) {
  const auto contents = contents_of(folder);
  if (!contents) return std::unexpected(contents.error());
  Skipped skipped(lines);
  std::set<std::int64_t> out;
  for (const fs::path& each : contents->folders) {
    const std::string name = each.filename().string();
    if (name == warmup_folder || name == initial_state_folder) continue;
    const VersionName version = version_of(name);
    if (version.version != 0)
      out.insert(version.version);
    else
      skipped.add(each, version.why_not);
  }
  for (const fs::path& each : contents->files)
    if (version_of(each.filename().string()).version != 0)
      skipped.add(each, "a version is a folder, and this is none");
  for (const fs::path& each : contents->dangling) skipped.add(each, "it is a symbolic link to nothing");
  return out;
}

Result<std::vector<std::int64_t>> select(const VersionPolicy& policy, const std::set<std::int64_t>& there,
                                         const fs::path& folder) {
  if (there.empty()) {
    std::error_code error;
    const bool is_version =
        version_of(folder.filename().string()).version != 0 && fs::exists(folder / default_file, error);
    return fail(ErrorCode::not_found,
                folder.string() + " has no version folder: the model's file belongs there as " +
                    (folder / "1" / default_file).string() +
                    (is_version ? "; where " + folder.string() + " is itself a version, " +
                                      folder.parent_path().string() +
                                      " is a model's folder, and the repository is the folder above"
                                : ""));
  }
  std::vector<std::int64_t> all(there.begin(), there.end());
  switch (policy.kind) {
    case VersionPolicy::Kind::all:
      return all;
    case VersionPolicy::Kind::latest:
      if (static_cast<std::int64_t>(all.size()) > policy.latest)
        all.erase(all.begin(), all.end() - policy.latest);
      return all;
    case VersionPolicy::Kind::specific:
      for (const std::int64_t version : policy.specific)
        if (!there.contains(version))
          return fail(ErrorCode::not_found, "version_policy: there is no version " + std::to_string(version) +
                                                " in " + folder.string());
      return policy.specific;
  }
  return all;
}

struct Format {
  std::string_view extension;
  std::string_view text;  // what to do about it
};
constexpr Format others[] = {
    {".pt",
     "a TorchScript or PyTorch file; export it in Python: torch.onnx.export(torch.jit.load('model.pt'), "
     "(example,), 'model.onnx', dynamo=False)"},
    {".pt2",
     "an exported PyTorch program; export it in Python: "
     "torch.onnx.export(torch.export.load('model.pt2').module(), (example,), 'model.onnx')"},
    {".pth",
     "PyTorch's weights alone; export the model in Python: torch.onnx.export(model, (example,), "
     "'model.onnx')"},
    {".plan", "a TensorRT engine, which is for one GPU; serve the ONNX file that it was built from"},
    {".engine", "a TensorRT engine, which is for one GPU; serve the ONNX file that it was built from"},
    {".graphdef",
     "a TensorFlow graph; convert it: python -m tf2onnx.convert --graphdef model.graphdef "
     "--output model.onnx"},
    {".savedmodel",
     "a TensorFlow model; convert it: python -m tf2onnx.convert --saved-model model.savedmodel "
     "--output model.onnx"},
    {".tflite",
     "a TensorFlow Lite model; convert it: python -m tf2onnx.convert --tflite model.tflite --output "
     "model.onnx"},
    {".safetensors",
     "weights alone; export the model in Python: torch.onnx.export(model, (example,), "
     "'model.onnx')"},
};

// What else a file is whose extension says so, and what to do about it; empty: nothing that is known.
std::string_view other_format(const fs::path& file) {
  const auto found = std::ranges::find(others, file.extension().string(), &Format::extension);
  return found == std::end(others) ? std::string_view() : found->text;
}

// Where a version's file is, in one of the formats that are served: ONNX, else OpenVINO's IR.
Result<fs::path> find_file(const fs::path& folder, const std::string& name, const fs::path& root) {
  fs::path file = folder / name;
  std::error_code error;
  if (name != default_file || fs::symlink_status(file, error).type() != fs::file_type::not_found) {
    if (auto ok = check_file(file, root); !ok) return std::unexpected(ok.error());
    // What OpenVINO's IR has its weights in.
    if (file.extension() != ".xml") return file;
  }
  fs::path ir = file.extension() == ".xml" ? file : folder / "model.xml";
  if (fs::symlink_status(ir, error).type() != fs::file_type::not_found) {
    for (const fs::path& part : {ir, fs::path(ir).replace_extension(".bin")})
      if (auto ok = check_file(part, root); !ok) return std::unexpected(ok.error());
    return ir;
  }
  for (const Format& other : others) {
    const fs::path there = folder / ("model" + std::string(other.extension));
    if (fs::symlink_status(there, error).type() != fs::file_type::not_found)
      return fail(ErrorCode::unsupported, file.string() + " is not there, and " + there.filename().string() +
                                              " beside it is " + std::string(other.text));
  }
  auto missing = check_file(file, root);
  return missing ? Result<fs::path>(file) : std::unexpected(missing.error());
}

// The files that label_filename names, in the model's folder: a line for each class.
Result<> read_labels(const fs::path& folder, const fs::path& root, ModelConfig& config) {
  Labels labels;
  for (const auto& [output, name] : config.label_files) {
    const std::string where = "output '" + output + "': label_filename";
    if (fs::path(name).is_absolute() || name.find('\0') != std::string::npos)
      return invalid(where + ": '" + escaped(name) + "' must be a file in the model's folder");
    // Whatever links may do: one step up is the repository.
    if (std::ranges::count(fs::path(name).lexically_normal(), fs::path("..")) > 1)
      return invalid(where + ": '" + escaped(name) + "' leads out of the repository");
    const auto text = read_text(folder / name, root, largest_labels);
    if (!text) return in_context(where, text.error());
    std::vector<std::string>& lines = labels[output];
    std::istringstream in(*text);
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      lines.push_back(std::move(line));
    }
  }
  if (!labels.empty()) config.labels = std::make_shared<const Labels>(std::move(labels));
  return {};
}

// The files that initial states of sequences are in.
Result<> read_initial_states(const fs::path& folder, const fs::path& root, ModelConfig& config) {
  if (config.sequence == nullptr) return {};
  SequenceBatching sequence = *config.sequence;
  for (SequenceBatching::State& state : sequence.states) {
    if (state.file.empty()) continue;
    const auto text = read_text(folder / initial_state_folder / state.file, root, largest_initial_state);
    if (!text) return in_context("sequence_batching: state '" + state.input + "': data_file", text.error());
    const auto bytes = std::as_bytes(std::span(*text));
    state.initial.assign(bytes.begin(), bytes.end());
  }
  config.sequence = std::make_shared<const SequenceBatching>(std::move(sequence));
  return {};
}

// The files that warm-up data are in.
Result<> read_warmup_files(const fs::path& folder, const fs::path& root, ModelConfig& config) {
  if (config.warmup == nullptr) return {};
  std::vector<Warmup> warmups = *config.warmup;
  for (Warmup& warmup : warmups)
    for (Warmup::Input& input : warmup.inputs) {
      if (input.data != Warmup::Input::Data::file) continue;
      const auto text = read_text(folder / warmup_folder / input.file, root, largest_warmup_file);
      if (!text)
        return in_context("model_warmup '" + warmup.name + "': input '" + input.name + "'", text.error());
      const auto bytes = std::as_bytes(std::span(*text));
      input.bytes.assign(bytes.begin(), bytes.end());
    }
  config.warmup = std::make_shared<const std::vector<Warmup>>(std::move(warmups));
  return {};
}

// All that can go wrong in one model's folder.
Result<ModelConfig> read_model(const fs::path& folder, const std::string& name, const fs::path& root,
                               const std::optional<std::string>& config, std::vector<ModelVersion>& versions,
                               std::vector<std::string>* skipped) {
  if (auto ok = check_inside(folder, root); !ok) return std::unexpected(ok.error());
  const fs::path config_path =
      config ? fs::path("the config given for model '" + name + "'") : folder / "config.pbtxt";
  const auto text = config ? Result<std::string>(*config) : read_config_text(config_path, root);
  if (!text) return std::unexpected(text.error());
  auto parsed = parse_config(*text, name);
  if (!parsed) return in_context(config_path.string(), parsed.error());
  auto there = versions_in(folder, skipped);
  if (!there) return std::unexpected(there.error());
  const bool ensemble = !parsed->config.steps.empty();
  if (ensemble && there->empty()) there->insert(1);  // it has no file that would need a folder
  const auto selected = select(parsed->versions, *there, folder);
  if (!selected) return std::unexpected(selected.error());
  for (const std::int64_t version : *selected) {
    if (ensemble) {
      versions.push_back({version, {}});
      continue;
    }
    const auto file = find_file(folder / std::to_string(version), parsed->config.file, root);
    if (!file) return std::unexpected(file.error());
    versions.push_back({version, *file});
  }
  if (auto read = read_labels(folder, root, parsed->config); !read)
    return in_context(config_path.string(), read.error());
  if (auto read = read_initial_states(folder, root, parsed->config); !read)
    return in_context(config_path.string(), read.error());
  if (auto read = read_warmup_files(folder, root, parsed->config); !read)
    return in_context(config_path.string(), read.error());
  return std::move(parsed->config);
}

// That it is a model's file, in a format that is served; links lead where they want.
Result<> check_model_file(const fs::path& file) {
  if (file.empty()) return invalid("a model's file is missing; such as model.onnx");
  std::error_code error;
  if (fs::is_directory(file, error))
    return invalid(file.string() +
                   " is a folder, where one file is wanted; a model repository, with a folder for each "
                   "model, is served with --models");
  if (auto ok = check_file(file, fs::path()); !ok) return ok;
  if (file.extension() == ".xml") return check_file(fs::path(file).replace_extension(".bin"), fs::path());
  if (file.extension() == ".onnx") return {};
  if (const std::string_view text = other_format(file); !text.empty())
    return fail(ErrorCode::unsupported, file.string() + " is " + std::string(text));
  return fail(ErrorCode::unsupported,
              file.string() + " is neither an ONNX file (.onnx) nor OpenVINO's (.xml, with .bin beside it)");
}

// What links must not lead out of: see check_inside().
Result<fs::path> root_of(const fs::path& directory, const ReadOptions& options) {
  std::error_code error;
  fs::path root = fs::canonical(directory, error);
  if (error)
    return fail(
        error == std::errc::no_such_file_or_directory ? ErrorCode::not_found : ErrorCode::invalid_argument,
        "model repository '" + directory.string() + "': " + error.message());
  if (!fs::is_directory(root, error))
    return invalid("model repository '" + directory.string() +
                   "' is not a directory; it is one with a folder for each model" +
                   (root.extension() == ".onnx" || root.extension() == ".xml"
                        ? ", and a model that is one file is served with --model"
                        : ""));
  return options.follow_links ? fs::path() : root;
}

RepositoryEntry entry_of(const fs::path& folder, const fs::path& root,
                         const std::optional<std::string>& config, std::vector<std::string>* skipped) {
  const std::string name = folder.filename().string();
  RepositoryEntry entry{name, folder, invalid("not read"), {}};
  if (graph::is_text(name)) {
    entry.config = read_model(folder, name, root, config, entry.versions, skipped);
    if (!entry.config) entry.versions.clear();
  } else {
    entry.name = escaped(name);
    entry.config =
        invalid("the folder's name, " + entry.name + ", is not UTF-8 text without control characters");
  }
  return entry;
}

RepositoryEntry entry_of(const ModelFile& model) {
  RepositoryEntry entry{model.name, model.file.parent_path(), invalid("not read"), {}};
  auto parsed = parse_config("", model.name);
  if (!parsed) {
    entry.config = std::unexpected(parsed.error());
  } else if (auto there = check_model_file(model.file); !there) {
    entry.config = std::unexpected(there.error());
  } else {
    entry.config = std::move(parsed->config);
    entry.versions.push_back({1, model.file});
  }
  return entry;
}

Result<std::vector<RepositoryEntry>> entries_of(const std::vector<ModelFile>& files) {
  std::vector<RepositoryEntry> out;
  for (const ModelFile& model : files) {
    const auto twin = std::ranges::find(
        files.begin(), files.begin() + static_cast<std::ptrdiff_t>(out.size()), model.name, &ModelFile::name);
    if (twin != files.begin() + static_cast<std::ptrdiff_t>(out.size()))
      return invalid("two models are called '" + model.name + "', of " + twin->file.string() + " and of " +
                     model.file.string() + "; give one another name: NAME=" + model.file.string());
    out.push_back(entry_of(model));
  }
  std::ranges::sort(out, {}, &RepositoryEntry::name);
  return out;
}

}  // namespace

Result<> check_model_name(const std::string& name) {
  if (!name.empty() && hidden(name))
    return invalid("model '" + escaped(name) + "' cannot be: " + std::string(why_hidden));
  if (name.empty() || name.size() > longest_name || name.find('/') != std::string::npos ||
      !graph::is_text(name))
    return invalid("'" + escaped(name) + "' cannot be a model's name: it is the name of a folder");
  return {};
}

Result<ModelFile> model_file(const std::string& text) {
  ModelFile out{.name = {}, .file = text};
  std::error_code error;
  // A path may have an '=', too.
  if (const auto equals = text.find('=');
      equals != std::string::npos && text.find('/') > equals && !fs::exists(text, error))
    out = {.name = text.substr(0, equals), .file = text.substr(equals + 1)};
  else
    out.name = out.file.stem().string();
  if (auto there = check_model_file(out.file); !there) return std::unexpected(there.error());
  if (out.name.empty() || out.name.starts_with('.') || out.name.size() > longest_name ||
      out.name.find('/') != std::string::npos || !graph::is_text(out.name))
    return invalid("'" + escaped(out.name) +
                   "' cannot be a model's name; give it one: NAME=" + escaped(out.file.string()));
  return out;
}

Result<> check_repository(const fs::path& directory) {
  if (auto root = root_of(directory, {}); !root) return std::unexpected(root.error());
  std::error_code error;
  const fs::directory_iterator contents(directory, error);
  if (error)
    return invalid("model repository '" + directory.string() + "' cannot be read: " + error.message());
  return {};
}

Result<std::vector<RepositoryEntry>> read_repository(const fs::path& directory, const ReadOptions& options,
                                                     std::vector<std::string>* skipped) {
  if (!options.files.empty()) return entries_of(options.files);
  const auto root = root_of(directory, options);
  if (!root) return std::unexpected(root.error());
  const auto contents = contents_of(directory);
  if (!contents) return in_context("model repository", contents.error());
  std::vector<RepositoryEntry> out;
  Skipped here(skipped);
  for (const fs::path& folder : contents->folders) {
    if (hidden(folder.filename().string()))
      here.add(folder, why_hidden);
    else
      out.push_back(entry_of(folder, *root, std::nullopt, skipped));
  }
  for (const fs::path& each : contents->dangling) here.add(each, "it is a symbolic link to nothing");
  // Who has only files of models has not heard of repositories yet.
  for (const fs::path& each : contents->files)
    if (each.extension() == ".onnx" || each.extension() == ".xml")
      here.add(each,
               "it is a file, and a model is a folder here: " +
                   escaped((directory / each.stem() / "1" / ("model" + each.extension().string())).string()) +
                   ", or --model " + escaped(each.string()) + " without a repository");
  std::ranges::sort(out, {}, &RepositoryEntry::name);
  return out;
}

Result<RepositoryEntry> read_entry(const fs::path& directory, const std::string& name,
                                   const std::optional<std::string>& config, const ReadOptions& options,
                                   std::vector<std::string>* skipped) {
  if (!options.files.empty()) {
    const auto found = std::ranges::find(options.files, name, &ModelFile::name);
    if (found == options.files.end())
      return fail(ErrorCode::not_found, "model '" + escaped(name) + "' is none of the files that are served");
    return entry_of(*found);
  }
  const auto root = root_of(directory, options);
  if (!root) return std::unexpected(root.error());
  const fs::path folder = directory / name;
  std::error_code error;
  const bool plain = !name.empty() && name.size() <= longest_name && name.find('/') == std::string::npos &&
                     name.find('\0') == std::string::npos;
  if (plain && hidden(name))
    return fail(ErrorCode::not_found,
                "model '" + escaped(name) + "' is not served: " + std::string(why_hidden));
  if (!plain || !fs::is_directory(folder, error))
    return fail(ErrorCode::not_found, "model '" + escaped(name) + "' is not in the repository '" +
                                          directory.string() + "': a model is a folder of that name there");
  return entry_of(folder, *root, config, skipped);
}

std::string stamp_of(const RepositoryEntry& entry, const ModelVersion& version) {
  constexpr int most = 10'000;
  std::string out = version.file.filename().string() + "|";
  if (entry.config) {
    out += without_version_policy(*entry.config);
    if (entry.config->labels != nullptr)
      for (const auto& [output, labels] : *entry.config->labels)
        for (const std::string& label : labels) out += "|" + label;
    const auto add = [&](const std::vector<std::byte>& data) {
      const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
      out += "|" + std::to_string(std::hash<std::string_view>{}(text));
    };
    if (entry.config->sequence != nullptr)
      for (const SequenceBatching::State& state : entry.config->sequence->states) add(state.initial);
    if (entry.config->warmup != nullptr)
      for (const Warmup& warmup : *entry.config->warmup)
        for (const Warmup::Input& input : warmup.inputs) add(input.bytes);
  }
  if (version.file.empty()) return out;  // an ensemble
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(version.file.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    if (files.size() >= most) break;
    std::error_code ignored;
    const auto time = fs::last_write_time(at->path(), ignored);
    const auto size = fs::file_size(at->path(), ignored);
    files.push_back(at->path().filename().string() + ":" + std::to_string(size) + ":" +
                    std::to_string(time.time_since_epoch().count()));
  }
  std::ranges::sort(files);
  for (const std::string& file : files) out += "|" + file;
  return out;
}

}  // namespace carillon::repository
