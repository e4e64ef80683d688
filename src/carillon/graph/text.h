#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace carillon::graph {

// Well-formed UTF-8 (RFC 3629: shortest forms, no surrogates, up to U+10FFFF); what JSON and protobuf ask of
// strings.
bool is_utf8(std::string_view text);
// A name fit for JSON, metrics and logs: UTF-8 without ASCII control characters.
bool is_text(std::string_view name);

// What an error says, fit to be shown where it quotes a file: what is neither UTF-8 nor a line's end as \xNN,
// and of what is longer than `longest` bytes the beginning and the end.
std::string printable(std::string_view text, std::size_t longest = 2048);

}  // namespace carillon::graph
