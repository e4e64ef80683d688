# Writes SOURCE: C++ in which NAMESPACE::FUNCTION() returns the text of FILE. Run by carillon_embed.
file(READ ${FILE} text)
if(text MATCHES "\\)carillon\"")
  message(FATAL_ERROR "${FILE} has )carillon\", which ends the literal that it is put into")
endif()
file(WRITE ${SOURCE} "#include <string_view>

namespace ${NAMESPACE} {

std::string_view ${FUNCTION}();

std::string_view ${FUNCTION}() {
  return R\"carillon(${text})carillon\";
}

}  // namespace ${NAMESPACE}
")
