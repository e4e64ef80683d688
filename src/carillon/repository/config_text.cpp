#include "carillon/repository/config_text.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include "carillon/graph/text.h"
#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

using google::protobuf::Descriptor;
using graph::is_utf8;
using std::to_string;

constexpr int deepest_config = 32;  // nested messages; the schema has 6 levels

// How many characters are to be changed, added or left out to make one of the other.
std::size_t distance_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, corner + 1});
    }
  }
  return row.back();
}

// What the message has in place of `name`: the nearest, or all where none is near.
std::string meant(const Descriptor& message, std::string_view name) {
  std::string all;
  std::vector<std::string_view> fields;
  for (int i = 0; i < message.field_count(); ++i) {
    all += (all.empty() ? "" : ", ") + message.field(i)->name();
    fields.push_back(message.field(i)->name());
  }
  if (const std::string near = nearest(name, fields); !near.empty()) return "the nearest is '" + near + "'";
  return "it has " + all;
}

// The parts of protobuf's 'Message type "TYPE" has no field named "NAME".', or nothing.
struct Unknown {
  std::string type;
  std::string name;
};
std::optional<Unknown> unknown_in(const std::string& message) {
  constexpr std::string_view before = "Message type \"", between = "\" has no field named \"", after = "\".";
  if (!message.starts_with(before) || !message.ends_with(after)) return std::nullopt;
  const std::size_t middle = message.find(between);
  if (middle == std::string::npos) return std::nullopt;
  const std::size_t name = middle + between.size();
  return Unknown{message.substr(before.size(), middle - before.size()),
                 message.substr(name, message.size() - after.size() - name)};
}

class Collector final : public google::protobuf::io::ErrorCollector {
 public:
  explicit Collector(std::string_view text) : text_(text) {}
  void AddError(int line, int column, const std::string& message) override {
    if (!error.empty()) return;
    const auto unknown = unknown_in(message);
    const Descriptor* type =
        unknown ? google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(unknown->type)
                : nullptr;
    if (type == nullptr) {
      error = place(line, column) + message;
      return;
    }
    // The parser is behind the name by then.
    constexpr std::size_t shown = 100;
    error = place(line, column_of(unknown->name, line, column)) + type->name() + " has no field '" +
            unknown->name.substr(0, shown) + "'; " + meant(*type, unknown->name.substr(0, shown));
  }
  void AddWarning(int, int, const std::string&) override {}
  std::string error;

 private:
  static std::string place(int line, int column) {
    if (line < 0) return "";
    return "line " + to_string(line + 1) + ", column " + to_string(column + 1) + ": ";
  }

  // Where `name` begins, which ends at `column` or before.
  int column_of(const std::string& name, int line, int column) const {
    std::size_t begin = 0;
    for (int i = 0; i < line && begin != std::string_view::npos; ++i) {
      begin = text_.find('\n', begin);
      if (begin != std::string_view::npos) ++begin;
    }
    if (begin == std::string_view::npos) return column;
    const std::string_view rest = text_.substr(begin, text_.find('\n', begin) - begin);
    const std::size_t at = rest.rfind(name, static_cast<std::size_t>(std::max(0, column)));
    return at == std::string_view::npos ? column : static_cast<int>(at);
  }

  std::string_view text_;
};

// Why the text is nested too deep to be a config, or 0: the parsers go as deep as the text does, by
// recursion.
int line_too_deep(std::string_view text) {
  int line = 1;
  int depth = 0;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      quote = 0;  // strings end with their line
    } else if (quote != 0) {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '{' || c == '<' || c == '[') {
      if (++depth > deepest_config) return line;
    } else if (c == '}' || c == '>' || c == ']') {
      depth = std::max(0, depth - 1);
    }
  }
  return 0;
}

// That all strings, however deep, are UTF-8: the text format's escapes can make others. Depth is bounded by
// line_too_deep().
Result<> check_strings(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  std::vector<const FieldDescriptor*> set;
  const auto* reflection = message.GetReflection();
  reflection->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        std::string scratch;
        const std::string& text = field->is_repeated()
                                      ? reflection->GetRepeatedStringReference(message, field, i, &scratch)
                                      : reflection->GetStringReference(message, field, &scratch);
        if (!is_utf8(text)) return invalid(field->name() + " holds bytes that are not UTF-8");
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const auto& inner = field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                                 : reflection->GetMessage(message, field);
        if (auto ok = check_strings(inner); !ok) return ok;
      }
    }
  }
  return {};
}

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string_view> known) {
  constexpr std::size_t near = 2;
  std::string_view found;
  std::size_t least = name.size();
  for (const std::string_view each : known)
    if (const std::size_t distance = distance_between(name, each); distance < least) {
      least = distance;
      found = each;
    }
  return std::string(least <= std::max(near, name.size() / 3) ? found : std::string_view());
}

Result<inference::ModelConfig> message_of(std::string_view text) {
  if (const int line = line_too_deep(text); line != 0)
    return invalid("line " + to_string(line) + ": messages nested deeper than " + to_string(deepest_config));
  inference::ModelConfig message;
  Collector collector(text);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.SetRecursionLimit(deepest_config);
  if (!parser.ParseFromString(std::string(text), &message))
    return invalid(collector.error.empty() ? "not a model config in protobuf text format" : collector.error);
  if (auto ok = check_strings(message); !ok) return std::unexpected(ok.error());
  return message;
}

std::string bytes_of(const inference::ModelConfig& message) {
  std::string out;
  {
    google::protobuf::io::StringOutputStream stream(&out);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return out;
}

Result<std::string> config_from_json(std::string_view json) {
  constexpr std::size_t largest = 1 << 20;
  if (json.size() > largest)
    return invalid("the config has " + to_string(json.size()) + " bytes; at most " + to_string(largest));
  if (const int line = line_too_deep(json); line != 0)
    return invalid("the config is nested deeper than " + to_string(deepest_config) + " messages");
  inference::ModelConfig message;
  const auto status = google::protobuf::util::JsonStringToMessage(std::string(json), &message);
  if (!status.ok())
    return invalid("the config is not an inference.ModelConfig in JSON: " + std::string(status.message()));
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(message, &text))
    return invalid("the config cannot be written as text");
  return text;
}

}  // namespace carillon::repository
