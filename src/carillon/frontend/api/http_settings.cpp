#include "carillon/frontend/api/http_settings.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/frontend/http/http_body.h"

namespace carillon::frontend {
namespace {

using SettingsJson = nlohmann::ordered_json;

std::string dump_settings(const SettingsJson& settings) {
  return settings.dump(-1, ' ', false, SettingsJson::error_handler_t::replace);
}

// What only asks changes nothing, whatever its body.
Result<nlohmann::json> changes_of(const HttpRequest& request, std::string_view example) {
  if (request.method != "POST") return nlohmann::json::object();
  return object_body(request, example);
}

Result<LogSettings::Value> log_value(const std::string& name, const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer())
    return invalid("log setting '" + name.substr(0, 64) + "' is " + value.dump() + ", below 0");
  return invalid("log setting '" + name.substr(0, 64) + "' must be true, false, a whole number or text");
}

// One value of a trace setting.
std::optional<std::string> trace_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  return std::nullopt;
}

Result<std::vector<std::string>> trace_value(const std::string& name, const nlohmann::json& value) {
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  const auto wrong = [&] {
    return invalid("trace setting '" + name.substr(0, 64) + "' must be text, an array of texts or null");
  };
  if (!value.is_array()) {
    auto text = trace_text(value);
    if (!text) return wrong();
    texts.push_back(std::move(*text));
    return texts;
  }
  for (const auto& each : value) {
    auto text = trace_text(each);
    if (!text) return wrong();
    texts.push_back(std::move(*text));
  }
  return texts;
}

}  // namespace

HttpReply log_settings_reply(LogSettings& settings, const HttpRequest& request) {
  const auto body = changes_of(request, R"({"log_verbose_level":1})");
  if (!body) return error_reply(body.error());
  LogSettings::Values changes;
  for (const auto& [name, value] : body->items()) {
    auto read = log_value(name, value);
    if (!read) return error_reply(read.error());
    changes.emplace(name, std::move(*read));
  }
  if (!changes.empty())
    if (const auto changed = settings.change(changes); !changed) return error_reply(changed.error());
  const auto all = settings.all();
  if (!all) return error_reply(all.error());
  SettingsJson reply = SettingsJson::object();
  for (const auto& [name, value] : *all) std::visit([&](const auto& v) { reply[name] = v; }, value);
  return {.body = dump_settings(reply)};
}

HttpReply trace_settings_reply(TraceSettings& settings, std::string_view model, const HttpRequest& request) {
  const auto body = changes_of(request, R"({"trace_level":["OFF"]})");
  if (!body) return error_reply(body.error());
  TraceSettings::Values changes;
  for (const auto& [name, value] : body->items()) {
    auto read = trace_value(name, value);
    if (!read) return error_reply(read.error());
    changes.emplace(name, std::move(*read));
  }
  if (!changes.empty())
    if (const auto changed = settings.change(model, changes); !changed) return error_reply(changed.error());
  SettingsJson reply = SettingsJson::object();
  for (const auto& [name, value] : settings.all(model)) {
    if (name == "trace_level")
      reply[name] = value;
    else
      reply[name] = value.front();
  }
  return {.body = dump_settings(reply)};
}

}  // namespace carillon::frontend
