#pragma once

#include <string_view>

namespace carillon::graph {

// Well-formed UTF-8 (RFC 3629: shortest forms, no surrogates, up to U+10FFFF); what JSON and protobuf ask of
// strings.
bool is_utf8(std::string_view text);
// A name fit for JSON, metrics and logs: UTF-8 without ASCII control characters.
bool is_text(std::string_view name);

}  // namespace carillon::graph
