#include "carillon/base/trace_context.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace carillon {
namespace {

// Lower case alone, as the recommendation has it; -1: none.
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool read_hex(std::string_view text, std::span<std::uint8_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const int high = hex_value(text[2 * i]);
    const int low = hex_value(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    to[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

char* write_hex(std::span<const std::uint8_t> from, char* to) {
  static constexpr char digits[] = "0123456789abcdef";
  for (const std::uint8_t byte : from) {
    *to++ = digits[byte >> 4];
    *to++ = digits[byte & 15U];
  }
  return to;
}

bool all_zero(std::span<const std::uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 0; });
}

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool in_key(char c) {
  return is_lower(c) || is_digit(c) || c == '_' || c == '-' || c == '*' || c == '/';
}

// "vendor", or "tenant@vendor".
bool is_key(std::string_view key) {
  const std::size_t at = key.find('@');
  const std::string_view system = at == std::string_view::npos ? key : key.substr(at + 1);
  if (at != std::string_view::npos) {
    const std::string_view tenant = key.substr(0, at);
    if (tenant.empty() || tenant.size() > 241 || !(is_lower(tenant[0]) || is_digit(tenant[0])) ||
        !std::ranges::all_of(tenant, in_key) || system.size() > 14)
      return false;
  }
  return !system.empty() && system.size() <= 256 && is_lower(system[0]) &&
         std::ranges::all_of(system, in_key);
}

bool is_value(std::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::ranges::all_of(value, [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < traceparent_size) return std::nullopt;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  std::array<std::uint8_t, 1> version{};
  std::array<std::uint8_t, 1> flags{};
  TraceContext trace;
  if (!read_hex(text, version) || !read_hex(text.substr(3), trace.trace_id) ||
      !read_hex(text.substr(36), trace.parent_id) || !read_hex(text.substr(53), flags))
    return std::nullopt;
  if (version[0] == 0xff || all_zero(trace.trace_id) || all_zero(trace.parent_id)) return std::nullopt;
  if (text.size() > traceparent_size && (version[0] == 0 || text[traceparent_size] != '-'))
    return std::nullopt;
  // What other bits mean is not known here: they are not passed on.
  trace.flags = flags[0] & 1U;
  return trace;
}

std::array<char, traceparent_size> traceparent_of(const TraceContext& trace) {
  std::array<char, traceparent_size> text;
  char* to = text.data();
  for (const char c : {'0', '0', '-'}) *to++ = c;
  to = write_hex(trace.trace_id, to);
  *to++ = '-';
  to = write_hex(trace.span_id, to);
  *to++ = '-';
  write_hex(std::span(&trace.flags, 1), to);
  return text;
}

bool is_tracestate(std::string_view text) {
  if (text.size() > tracestate_most) return false;
  std::array<std::string_view, 32> keys;
  std::size_t count = 0;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view member = trimmed(text.substr(at, comma - at));
    at = comma + 1;
    if (member.empty()) continue;
    const std::size_t equals = member.find('=');
    if (equals == std::string_view::npos || count == keys.size()) return false;
    const std::string_view key = member.substr(0, equals);
    if (!is_key(key) || !is_value(member.substr(equals + 1))) return false;
    if (std::find(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), key) !=
        keys.begin() + static_cast<std::ptrdiff_t>(count))
      return false;
    keys[count++] = key;
  }
  return count > 0;
}

void TraceIds::give_span(TraceContext& trace) {
  std::uint64_t bits = 0;
  while (bits == 0) bits = random_.bits();
  for (auto& byte : trace.span_id) {
    byte = static_cast<std::uint8_t>(bits);
    bits >>= 8;
  }
}

TraceContext TraceIds::begin() {
  TraceContext trace;
  // The halves are spans' ids, none of them zero.
  for (std::size_t half : {0U, 8U}) {
    give_span(trace);
    std::ranges::copy(trace.span_id, trace.trace_id.begin() + static_cast<std::ptrdiff_t>(half));
  }
  give_span(trace);
  trace.flags = 1;
  return trace;
}

}  // namespace carillon
