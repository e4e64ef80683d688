#include "carillon/frontend/codec/json_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace carillon::frontend {
namespace {

constexpr std::size_t deepest = 1024;  // as the fast parser has it

// What strings that stand for numbers begin with. It is drawn when the process starts, so that no client can
// send a text that begins so, but by guessing 48 bits.
const std::string& mark() {
  static const std::string drawn = [] {
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::random_device device;
    std::string out = "\x7f";
    while (out.size() < 9) out += letters[device() % letters.size()];
    return out;
  }();
  return drawn;
}
// Behind the mark.
constexpr char nan_letter = 'N', plus_infinity_letter = 'P', minus_infinity_letter = 'M';
constexpr char wide_letter = '#';            // and the number
constexpr std::size_t longest_finite = 310;  // digits and a minus

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The length of the UTF-8 character at the front of `text`; 0: it is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second >= 0xa0;
  const bool beyond = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

class Checker {
 public:
  explicit Checker(std::string_view text) : text_(text) {}

  JsonCheck run() {
    JsonCheck out;
    if (!document()) {
      out.fault = place(fault_at_, what_);
    } else if (copied_to_ > 0) {
      rewritten_.append(text_.substr(copied_to_));
      out.rewritten = std::move(rewritten_);
      out.replaced = std::move(replaced_);
    }
    return out;
  }

 private:
  bool wrong(std::size_t at, std::string what) {
    fault_at_ = at;
    what_ = std::move(what);
    return false;
  }

  // "'x'", "the byte 0x1f", "the end"
  std::string shown(std::size_t at) const {
    if (at >= text_.size()) return "the end";
    const char c = text_[at];
    if (c > ' ' && c <= '~') return std::string("'") + c + "'";
    constexpr std::string_view digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    return std::string("the byte 0x") + digits[byte >> 4] + digits[byte & 15];
  }
  bool unexpected(std::string_view wanted) {
    return wrong(at_, shown(at_) + " where " + std::string(wanted) + " should be");
  }

  bool more() const { return at_ < text_.size(); }
  bool next_is(char c) const { return more() && text_[at_] == c; }
  void skip_blank() {
    while (more() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  bool document() {
    skip_blank();
    if (!value_start()) return false;
    while (!open_.empty()) {
      skip_blank();
      if (!member()) return false;
    }
    skip_blank();
    if (more()) return wrong(at_, shown(at_) + " behind the end of the JSON");
    return true;
  }

  // What follows within the innermost array or object: a comma and a member, or the end.
  bool member() {
    const bool object = open_.back() == '{';
    const char close = object ? '}' : ']';
    if (next_is(close)) {
      ++at_;
      open_.pop_back();
      first_ = false;
      return true;
    }
    if (!first_) {
      if (!next_is(',')) return unexpected(object ? "',' or '}'" : "',' or ']'");
      ++at_;
      skip_blank();
    }
    first_ = false;
    if (object) {
      if (!next_is('"')) return unexpected("a name in quotes");
      if (!string()) return false;
      skip_blank();
      if (!next_is(':')) return unexpected("':'");
      ++at_;
      skip_blank();
    }
    return value_start();
  }

  // A whole scalar, or the opening of an array or object.
  bool value_start() {
    if (!more()) return unexpected("a value");
    const char c = text_[at_];
    if (c == '{' || c == '[') {
      if (open_.size() == deepest)
        return wrong(at_, "it is nested more than " + std::to_string(deepest) + " deep");
      open_.push_back(c);
      first_ = true;
      ++at_;
      return true;
    }
    if (c == '"') return string();
    if (c == '-' || is_digit(c) || c == 'N' || c == 'I') return number();
    for (const std::string_view word : {"true", "false", "null"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return true;
      }
    return unexpected("a value");
  }

  bool string() {
    const std::size_t begin = at_++;
    while (more()) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20)
        return wrong(at_, shown(at_) + " in a string, where it must be escaped");
      if (c == '\\') {
        if (!escape()) return false;
        continue;
      }
      const std::size_t length = character_length(text_.substr(at_));
      if (length == 0) return wrong(at_, shown(at_) + " in a string, which is not UTF-8");
      at_ += length;
    }
    return wrong(begin, "a string that does not end");
  }

  bool escape() {
    const std::size_t begin = at_;
    if (begin + 1 >= text_.size()) return wrong(begin, "a broken escape");
    const char kind = text_[begin + 1];
    at_ += 2;
    if (std::string_view("\"\\/bfnrt").find(kind) != std::string_view::npos) return true;
    const auto first = kind == 'u' ? code_unit() : std::nullopt;
    if (!first) return wrong(begin, "a broken escape");
    if (*first < 0xd800 || *first > 0xdfff) return true;
    if (*first > 0xdbff) return wrong(begin, "half of a surrogate pair");
    if (!text_.substr(at_).starts_with("\\u")) return wrong(begin, "half of a surrogate pair");
    at_ += 2;
    const auto second = code_unit();
    if (!second || *second < 0xdc00 || *second > 0xdfff) return wrong(begin, "half of a surrogate pair");
    return true;
  }

  std::optional<unsigned> code_unit() {
    if (text_.size() - at_ < 4) return std::nullopt;
    unsigned value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, value, 16);
    if (error != std::errc{} || end != begin + 4) return std::nullopt;
    at_ += 4;
    return value;
  }

  bool number() {
    const std::size_t begin = at_;
    const bool minus = next_is('-');
    if (minus) ++at_;
    if (next_is('N') || next_is('I')) return literal(begin, minus);
    const auto digits = [&] {
      const std::size_t from = at_;
      while (more() && is_digit(text_[at_])) ++at_;
      return at_ - from;
    };
    if (next_is('0') && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))
      return wrong(at_, "a number that begins with 0");
    if (digits() == 0) return unexpected("a digit");
    bool integer = true;
    if (next_is('.')) {
      integer = false;
      ++at_;
      if (digits() == 0) return unexpected("a digit");
    }
    if (next_is('e') || next_is('E')) {
      integer = false;
      ++at_;
      if (next_is('+') || next_is('-')) ++at_;
      if (digits() == 0) return unexpected("a digit");
    }
    return integer ? integer_fits(begin, minus) : real_fits(begin);
  }

  bool integer_fits(std::size_t begin, bool minus) {
    const char* const from = text_.data() + begin;
    const char* const to = text_.data() + at_;
    std::int64_t number = 0;
    std::uint64_t positive = 0;
    const auto error = minus ? std::from_chars(from, to, number).ec : std::from_chars(from, to, positive).ec;
    if (error == std::errc::result_out_of_range) replace_wide(begin, "an integer of more than 64 bits");
    return true;
  }

  bool real_fits(std::size_t begin) {
    double number = 0;
    const auto error = std::from_chars(text_.data() + begin, text_.data() + at_, number).ec;
    // Too small is out of range as well, but is zero then.
    if (error != std::errc::result_out_of_range) return true;
    const std::string copy(text_.substr(begin, at_ - begin));
    if (std::isinf(std::strtod(copy.c_str(), nullptr)))
      replace_wide(begin, "a number that is too large for 64 bits");
    return true;
  }

  void replace_wide(std::size_t begin, std::string_view what) {
    std::string stands_for(1, wide_letter);
    stands_for += text_.substr(begin, std::min(at_ - begin, longest_finite));
    if (at_ - begin > longest_finite) stands_for += "...";
    replace(begin, stands_for, what);
  }

  // What was read from `begin` on, by a string.
  void replace(std::size_t begin, std::string_view stands_for, std::string_view what) {
    if (!replaced_) replaced_ = place(begin, std::string(what));
    rewritten_.append(text_.substr(copied_to_, begin - copied_to_));
    (((rewritten_ += '"') += mark()) += stands_for) += '"';
    copied_to_ = at_;
  }

  bool literal(std::size_t begin, bool minus) {
    const auto rest = text_.substr(at_);
    const auto take = [&](std::string_view word) {
      if (!rest.starts_with(word)) return false;
      at_ += word.size();
      return true;
    };
    char stands_for = nan_letter;
    if (take("Infinity") || take("Inf"))
      stands_for = minus ? minus_infinity_letter : plus_infinity_letter;
    else if (!take("NaN"))
      return unexpected("a value");
    replace(begin, {&stands_for, 1}, "a number that JSON does not have");
    return true;
  }

  JsonFault place(std::size_t at, std::string what) const {
    JsonFault fault{.at = std::min(at, text_.size()), .what = std::move(what)};
    const auto before = text_.substr(0, fault.at);
    fault.line = 1 + static_cast<std::size_t>(std::ranges::count(before, '\n'));
    fault.column = 1 + (before.size() - (before.rfind('\n') + 1));  // npos + 1 is 0
    return fault;
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::vector<char> open_;  // '{' or '[' of all that is not closed yet
  bool first_ = false;      // nothing has been read yet in the innermost of them
  std::size_t fault_at_ = 0;
  std::string what_;
  std::string rewritten_;
  std::optional<JsonFault> replaced_;
  std::size_t copied_to_ = 0;  // of text_; 0: nothing had to be rewritten
};

}  // namespace

std::string JsonFault::text() const {
  return what + ", at byte " + std::to_string(at) + " (line " + std::to_string(line) + ", column " +
         std::to_string(column) + ")";
}

JsonCheck check_json(std::string_view text) {
  return Checker(text).run();
}

std::optional<double> literal_number(std::string_view string) {
  if (string.starts_with(mark()) && string.size() == mark().size() + 1) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (string.back() == nan_letter) return std::numeric_limits<double>::quiet_NaN();
    if (string.back() == plus_infinity_letter) return infinity;
    if (string.back() == minus_infinity_letter) return -infinity;
  }
  const auto wide = wide_number(string);
  if (!wide || wide->size() > longest_finite) return std::nullopt;
  const double number = std::strtod(std::string(*wide).c_str(), nullptr);
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<std::string_view> wide_number(std::string_view string) {
  const std::size_t from = mark().size() + 1;
  if (string.size() < from || !string.starts_with(mark()) || string[from - 1] != wide_letter)
    return std::nullopt;
  return string.substr(from);
}

std::string json_fault_text(std::string_view text) {
  const auto checked = check_json(text);
  const auto& what = checked.fault ? checked.fault : checked.replaced;
  return "the body is not JSON" + (what ? ": " + what->text() : std::string());
}

}  // namespace carillon::frontend
