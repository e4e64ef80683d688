#pragma once

#include <string>
#include <string_view>

namespace carillon {

// `text` as XML and SVG take it between tags: '&', '<' and '>' escaped, without control characters.
std::string xml_escaped(std::string_view text);

}  // namespace carillon
