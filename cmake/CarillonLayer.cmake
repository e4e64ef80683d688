# carillon_layer(NAME <name> SOURCES ... [DEPENDS ...] [PRIVATE_DEPENDS ...] [TESTS ...] [TEST_DEPENDS ...])
#
# Makes the library carillon_<name> (an interface library where SOURCES is empty) and, from TESTS, the program
# carillon_<name>_test whose cases ctest knows one by one. DEPENDS names what the layer's headers use.

include(GoogleTest)

add_library(carillon_options INTERFACE)
target_include_directories(carillon_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(carillon_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wold-style-cast -Wcast-qual -Wunused -Woverloaded-virtual -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers
  # GCC 12 sees overlap in std::string concatenation where there is none (its bug 105651).
  -Wno-restrict)
if(CARILLON_WARNINGS_AS_ERRORS)
  target_compile_options(carillon_options INTERFACE -Werror)
endif()
if(CARILLON_SANITIZE)
  target_compile_options(carillon_options INTERFACE -fsanitize=${CARILLON_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=undefined)
  target_link_options(carillon_options INTERFACE -fsanitize=${CARILLON_SANITIZE})
  target_compile_definitions(carillon_options INTERFACE CARILLON_SANITIZED=1)
endif()

# carillon_unity(<target> <sources a compilation>): where CARILLON_UNITY is on, the target's sources are compiled
# several at a time. Headers are then read, and templates compiled, once for all of them.
function(carillon_unity target sources)
  if(CARILLON_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
  endif()
endfunction()

# carillon_apart(<source>...): sources that are never compiled together with others, as their unnamed namespaces have
# names that others have.
function(carillon_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(carillon_layer)
  cmake_parse_arguments(L "" "NAME" "SOURCES;DEPENDS;PRIVATE_DEPENDS;TESTS;TEST_DEPENDS;CHECKERS" ${ARGN})
  set(lib carillon_${L_NAME})
  if(L_SOURCES)
    add_library(${lib} STATIC ${L_SOURCES})
    carillon_unity(${lib} 40)
    target_link_libraries(${lib} PUBLIC carillon_options ${L_DEPENDS} PRIVATE ${L_PRIVATE_DEPENDS})
  else()
    add_library(${lib} INTERFACE)
    target_link_libraries(${lib} INTERFACE carillon_options ${L_DEPENDS})
  endif()
  if(L_TESTS AND CARILLON_BUILD_TESTS)
    # What tests do at every event of thousands of worlds is optimised as the program is.
    if(L_CHECKERS)
      add_library(${lib}_checkers STATIC ${L_CHECKERS})
      carillon_unity(${lib}_checkers 24)
      target_link_libraries(${lib}_checkers PUBLIC ${lib} ${L_TEST_DEPENDS})
    endif()
    carillon_test(NAME ${lib}_test SOURCES ${L_TESTS} DEPENDS $<TARGET_NAME_IF_EXISTS:${lib}_checkers> ${lib} ${L_TEST_DEPENDS})
  endif()
endfunction()

# What most tests include, precompiled once for all of them. (tsan compiles some without __SANITIZE_THREAD__, and
# they cannot use what was compiled with it.)
function(carillon_precompiled test)
  if(CARILLON_SANITIZE)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY carillon_precompiled_by)
  if(owner)
    target_precompile_headers(${test} REUSE_FROM ${owner})
  else()
    set_property(GLOBAL PROPERTY carillon_precompiled_by ${test})
    target_precompile_headers(${test} PRIVATE <gtest/gtest.h> <gmock/gmock.h> <algorithm> <array> <atomic>
      <chrono> <cmath> <condition_variable> <cstdint> <deque> <expected> <filesystem> <fstream> <functional> <limits>
      <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
      <unordered_map> <utility> <variant> <vector>)
  endif()
endfunction()

# Layers whose tests only decide or compute: CTest runs a process for each suite, and runs them beside each other.
# Programs with threads or waits have a process for each case, which runs by itself.
set(CARILLON_TESTED_TOGETHER cluster cuda_kernels device explain figures graph ledger profile provision repository research schedule simulate tune)
list(TRANSFORM CARILLON_TESTED_TOGETHER REPLACE "(.+)" "carillon_\\1_test")

# Of programs with a process for each case, by a filter as GoogleTest's: what runs beside others. These cases have threads,
# or memory of their own to count, but judge no time, and no two of them use one file. Of engine, the pacer and what hangs
# in the second engine judge time.
set(carillon_cuda_driver_test_BESIDE "*")
set(carillon_cuda_engine_test_BESIDE "*")
set(carillon_device_allocation_test_BESIDE "*")
set(carillon_engine_test_BESIDE "-Apart.*:HangLimit.*:Pacer.*:Restarts.*:RunBounds.*")
set(carillon_research_allocation_test_BESIDE "*")
set(carillon_share_client_test_BESIDE "*")
set(carillon_transport_test_BESIDE "-Stream.*")
set(carillon_worker_test_BESIDE "CudaServing.*")

# carillon_suites(<program>): its suites known to ctest, a process each.
function(carillon_suites program)
  set(list ${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.cmake)
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS ${list}
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${program}> -DPREFIX=${program} -DTIMEOUT=3600 -DLIST=${list}
      -P ${CMAKE_SOURCE_DIR}/cmake/DiscoverSuites.cmake
    VERBATIM)
  # Before the program is built its list is not there, and ctest then says so by a test that cannot run.
  set(guard ${CMAKE_CURRENT_BINARY_DIR}/${program}_include.cmake)
  file(WRITE ${guard} "if(EXISTS \"${list}\")\n  include(\"${list}\")\nelse()\n  add_test(${program}_NOT_BUILT ${program}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${guard})
endfunction()

# carillon_test(NAME <program> SOURCES ... DEPENDS ...): a GoogleTest program, its cases known to ctest.
function(carillon_test)
  cmake_parse_arguments(T "" "NAME" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${T_NAME} ${T_SOURCES})
  carillon_unity(${T_NAME} 24)
  # Half of all compilation is tests', and what they test is optimised as ever.
  target_compile_options(${T_NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  carillon_precompiled(${T_NAME})
  target_link_libraries(${T_NAME} PRIVATE carillon_options ${T_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${T_NAME} PRIVATE CARILLON_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(T_NAME IN_LIST CARILLON_TESTED_TOGETHER)
    carillon_suites(${T_NAME})
  else()
    set(beside "${${T_NAME}_BESIDE}")
    if(beside)
      gtest_discover_tests(${T_NAME} DISCOVERY_TIMEOUT 120 TEST_FILTER "${beside}" PROPERTIES TIMEOUT 600)
    endif()
    if(NOT beside STREQUAL "*")
      # The others. Without a filter, or where it says which not: those.
      string(REGEX REPLACE "^-" "" alone "${beside}")
      if(alone STREQUAL beside AND beside)
        set(alone "-${beside}")
      endif()
      gtest_discover_tests(${T_NAME} DISCOVERY_TIMEOUT 120 TEST_FILTER "${alone}" PROPERTIES TIMEOUT 600 RUN_SERIAL TRUE)
    endif()
  endif()
endfunction()
