#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace carillon::frontend {

// Where JSON goes wrong, and how.
struct JsonFault {
  std::size_t at = 0;      // bytes before it
  std::size_t line = 1;    // of that place, from 1
  std::size_t column = 1;  // in bytes, from 1
  std::string what;        // "'}' where a value should be"

  std::string text() const;  // "'}' where a value should be, at byte 17 (line 2, column 5)"
};

// A slow second look at JSON that the fast parser refused: it finds the place of the fault, and takes what
// the fast parser does not, but clients send and Triton takes: NaN, Infinity and Inf as numbers, with a minus
// or without, which RFC 8259 has no word for, and integers of more than 64 bits. It takes numbers beyond
// FP64, too, so that whoever reads them can say where they stand.
struct JsonCheck {
  std::optional<JsonFault> fault;
  // Where there is no fault but there are such numbers: the text with each replaced by a string, for the fast
  // parser. Empty otherwise.
  std::string rewritten;
  std::optional<JsonFault> replaced;  // the first of these numbers
};
JsonCheck check_json(std::string_view text);

// What stands for a number in JsonCheck::rewritten; nothing for any other string, and for numbers beyond
// FP64.
std::optional<double> literal_number(std::string_view string);

// As it stood in the text, cut where it is long: an integer of more than 64 bits, or a number beyond FP64, in
// JsonCheck::rewritten. Nothing for any other string.
std::optional<std::string_view> wide_number(std::string_view string);

// "the body is not JSON: ..." with the place, as far as it is known.
std::string json_fault_text(std::string_view text);

}  // namespace carillon::frontend
