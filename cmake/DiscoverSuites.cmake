# Writes LIST: one CTest entry for each test suite of the GoogleTest program PROGRAM, named PREFIX. followed by the suite.
# Run after the program was linked, by carillon_test.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status TIMEOUT 120)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${status}")
endif()
# A suite's line begins its name in the first column and ends it with a dot; parameters stand behind a #.
string(REGEX MATCHALL "(^|\n)[A-Za-z_][^ \n#]*\\." suites "${listed}")
set(text "")
foreach(suite ${suites})
  string(REGEX REPLACE "[\n.]" "" suite "${suite}")
  string(APPEND text "add_test([=[${PREFIX}.${suite}]=] [=[${PROGRAM}]=] --gtest_brief=1 [=[--gtest_filter=${suite}.*]=])\n"
    "set_tests_properties([=[${PREFIX}.${suite}]=] PROPERTIES TIMEOUT ${TIMEOUT})\n")
  # Most of a minute each: begun first, so that none is left to run alone at the end. CTest goes by what it has
  # measured itself, where it has.
  if(suite MATCHES "^All/(Faulty|Policies)$")
    string(APPEND text "set_tests_properties([=[${PREFIX}.${suite}]=] PROPERTIES COST 60)\n")
  endif()
endforeach()
if(text STREQUAL "")
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests names no suite")
endif()
file(WRITE ${LIST} "${text}")
