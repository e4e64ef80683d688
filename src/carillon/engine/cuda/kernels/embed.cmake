# Writes OUT: the texts of the headers HEADERS (names of this folder, with commas between) as string views of
# header_texts.
set(text "#pragma once\n\n#include <string_view>\n\nnamespace carillon::engine::cuda::kernels::header_texts {\n\n")
string(REPLACE "," ";" names "${HEADERS}")
foreach(name ${names})
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${name}.h content)
  string(APPEND text "inline constexpr std::string_view ${name} = R\"~~(${content})~~\";\n")
endforeach()
string(APPEND text "\n}  // namespace carillon::engine::cuda::kernels::header_texts\n")
file(WRITE ${OUT} "${text}")
