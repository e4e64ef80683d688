# carillon_embed(<target> NAMESPACE <ns> FILES <function>=<file> ...): compiles text files into a target. For each, the
# target has a function `std::string_view <ns>::<function>()` with the file's text; who calls it declares it.

function(carillon_embed target)
  cmake_parse_arguments(E "" "NAMESPACE" "FILES" ${ARGN})
  foreach(entry ${E_FILES})
    string(REGEX MATCH "^([^=]+)=(.+)$" _ ${entry})
    set(function ${CMAKE_MATCH_1})
    set(file ${CMAKE_MATCH_2})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
    add_custom_command(OUTPUT ${source}
      COMMAND ${CMAKE_COMMAND} -DFILE=${file} -DSOURCE=${source} -DNAMESPACE=${E_NAMESPACE} -DFUNCTION=${function}
        -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFile.cmake
      DEPENDS ${file} ${CMAKE_SOURCE_DIR}/cmake/EmbedFile.cmake
      COMMENT "Embedding ${function}" VERBATIM)
    target_sources(${target} PRIVATE ${source})
  endforeach()
endfunction()
