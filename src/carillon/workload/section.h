#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <toml++/toml.h>

#include "carillon/base/bytes.h"
#include "carillon/base/time.h"
#include "carillon/workload/scenario_files.h"

// How the TOML files of this folder and of a static cluster are read: for their sources alone. Whatever is
// wrong is thrown as a Problem that names file, line, key and what would be right.
namespace carillon::workload {

inline std::string place_of(const std::filesystem::path& file, const toml::source_region& where) {
  return file.string() + ":" + std::to_string(where.begin.line);
}

// One table of a file: takes keys out by name and type, and then says which it did not know.
class Section {
 public:
  Section(const toml::table& table, std::string name, const std::filesystem::path& file)
      : table_(table), name_(std::move(name)), file_(file) {}

  [[noreturn]] void wrong(const toml::node* node, const std::string& what) const {
    throw Problem{place_of(file_, node != nullptr ? node->source() : table_.source()) + ": " + what};
  }
  bool has(const char* key) const { return table_.contains(key); }
  const toml::node* find(const char* key) {
    known_.insert(key);
    return table_.get(key);
  }
  double number(const char* key, double otherwise, double low, double high) {
    const toml::node* node = find(key);
    if (node == nullptr) return otherwise;
    const auto value = node->value<double>();
    if (!node->is_number() || !value || !(*value >= low && *value <= high))
      wrong(node, describe(key) + " must be a number from " + text_of(low) + " to " + text_of(high));
    return *value;
  }
  std::int64_t whole(const char* key, std::int64_t otherwise, std::int64_t low, std::int64_t high) {
    const toml::node* node = find(key);
    if (node == nullptr) return otherwise;
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < low || *value > high)
      wrong(node, describe(key) + " must be a whole number from " + std::to_string(low) + " to " +
                      std::to_string(high));
    return *value;
  }
  bool yes(const char* key) {
    const toml::node* node = find(key);
    if (node == nullptr) return false;
    const auto value = node->value_exact<bool>();
    if (!value) wrong(node, describe(key) + " must be true or false");
    return *value;
  }
  std::string text(const char* key, std::string otherwise) {
    const toml::node* node = find(key);
    if (node == nullptr) return otherwise;
    const auto value = node->value_exact<std::string>();
    if (!value) wrong(node, describe(key) + " must be a text in quotes");
    return *value;
  }
  // A list of at least two and at most a thousand.
  std::vector<Duration> milliseconds(const char* key, double low, double high) {
    const toml::array& list = *find(key)->as_array();
    std::vector<Duration> values;
    for (const toml::node& node : list) {
      const auto value = node.value<double>();
      if (!node.is_number() || !value || !(*value >= low && *value <= high)) break;
      values.push_back(from_ms(*value));
    }
    if (values.size() < list.size() || list.size() < 2 || list.size() > 1000)
      wrong(&list, describe(key) + " as a list must have 2 to 1000 numbers from " + text_of(low) + " to " +
                       text_of(high));
    return values;
  }
  std::optional<Bytes> bytes(const char* key, std::string_view suffix = "") {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (const auto count = node->value_exact<std::int64_t>(); count && *count >= 0)
      return Bytes{static_cast<std::uint64_t>(*count)};
    auto value = node->value_exact<std::string>();
    if (!value) wrong(node, describe(key) + " must be a size in quotes, such as \"16 GB\"");
    if (!suffix.empty() && value->ends_with(suffix)) value->resize(value->size() - suffix.size());
    const auto parsed = parse_bytes(*value);
    if (!parsed) wrong(node, describe(key) + ": " + parsed.error().message);
    return *parsed;
  }
  Section section(const char* key) {
    const toml::node* node = find(key);
    static const toml::table none;
    if (node == nullptr) return {none, key, file_};
    if (!node->is_table()) wrong(node, describe(key) + " must be a table");
    return {*node->as_table(), key, file_};
  }
  // Keys that are right here whether or not they are asked for.
  void knows(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }
  std::string describe(const char* key) const { return name_.empty() ? key : name_ + "." + key; }
  // Call it when all keys have been asked for.
  void done() const {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      std::string all;
      for (const std::string& k : known_) all += (all.empty() ? "" : ", ") + k;
      wrong(&node, (name_.empty() ? "the file" : "[" + name_ + "]") + " has no key '" +
                       std::string(key.str()) + "'; there are " + all);
    }
  }
  const std::filesystem::path& file() const { return file_; }

 private:
  static std::string text_of(double value) {
    std::ostringstream out;
    out << value;
    return out.str();
  }
  const toml::table& table_;
  std::string name_;
  const std::filesystem::path& file_;
  std::set<std::string> known_;
};

// `name` as a file says it: relative to that file.
inline std::filesystem::path beside(const std::filesystem::path& scenario, const std::string& name) {
  const std::filesystem::path path(name);
  return path.is_absolute() ? path : scenario.parent_path() / path;
}

}  // namespace carillon::workload
