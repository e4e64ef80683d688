# Everything that Carillon links to, found once. tools/setup installs all of it.

find_package(Threads REQUIRED)
set(TBB_FIND_RELEASE_ONLY ON)  # oneDNN's is, in any build
find_package(dnnl 3.2 CONFIG QUIET)
if(NOT dnnl_FOUND)
  message(FATAL_ERROR
    "oneDNN 3.2 was not found in ${CMAKE_SOURCE_DIR}/.venv. Run tools/setup first "
    "(it installs Debian packages and a Python environment inside the checkout).")
endif()
# libdnnl names no folder for what it needs itself (the runtime of its compiler), which lies beside it. A program's
# RPATH is looked at for that too, its RUNPATH is not.
add_link_options(-Wl,--disable-new-dtags)

# OpenVINO's C++ libraries and headers, as its Python package has them. The program runs without.
file(GLOB carillon_openvino_home ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/openvino)
file(GLOB carillon_openvino_library ${carillon_openvino_home}/libs/libopenvino.so*)
if(carillon_openvino_library)
  add_library(OpenVINO::runtime SHARED IMPORTED GLOBAL)
  set_target_properties(OpenVINO::runtime PROPERTIES
    IMPORTED_LOCATION ${carillon_openvino_library}
    INTERFACE_INCLUDE_DIRECTORIES ${carillon_openvino_home}/include)
else()
  message(STATUS "OpenVINO was not found in ${CMAKE_SOURCE_DIR}/.venv: models that the engine lacks operators for will "
    "not be served (tools/setup installs it)")
endif()

# onnxruntime's, where the distribution has its development files (Debian 13: libonnxruntime-dev); tools/setup
# --with-onnxruntime puts them into .onnxruntime where it has none.
if(CARILLON_ONNXRUNTIME)
  find_path(CARILLON_ONNXRUNTIME_HEADERS onnxruntime_cxx_api.h
    PATHS ${CMAKE_SOURCE_DIR}/.onnxruntime PATH_SUFFIXES include onnxruntime include/onnxruntime)
  find_library(CARILLON_ONNXRUNTIME_LIBRARY onnxruntime PATHS ${CMAKE_SOURCE_DIR}/.onnxruntime PATH_SUFFIXES lib)
  if(NOT CARILLON_ONNXRUNTIME_HEADERS OR NOT CARILLON_ONNXRUNTIME_LIBRARY)
    message(FATAL_ERROR
      "CARILLON_ONNXRUNTIME is ON, but onnxruntime's headers (onnxruntime_cxx_api.h: "
      "${CARILLON_ONNXRUNTIME_HEADERS}) or its library (libonnxruntime.so: ${CARILLON_ONNXRUNTIME_LIBRARY}) were not "
      "found. Debian 13 has them in libonnxruntime-dev; elsewhere tools/setup --with-onnxruntime puts them into "
      "${CMAKE_SOURCE_DIR}/.onnxruntime, or CMAKE_PREFIX_PATH says where they are.")
  endif()
  add_library(onnxruntime::runtime SHARED IMPORTED GLOBAL)
  set_target_properties(onnxruntime::runtime PROPERTIES
    IMPORTED_LOCATION ${CARILLON_ONNXRUNTIME_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${CARILLON_ONNXRUNTIME_HEADERS})
endif()

find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2>=1.52)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(ONNX REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_path(CARILLON_XXHASH_HEADERS xxhash.h REQUIRED)  # libxxhash-dev; inlined
if(CARILLON_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(CARILLON_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
