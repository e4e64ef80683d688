#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/real.h"

namespace carillon::engine::cuda {

// What is used of NVRTC, NVIDIA's compiler as a library, as a table; declared here, so that no header of it
// is needed. headers_test.cpp holds it against nvrtc.h where there is one.
namespace rtc {

using Status = int;     // nvrtcResult; 0: success
using Program = void*;  // nvrtcProgram

// X(member, NVRTC's name, arguments); what a function gives is a Status.
#define CARILLON_NVRTC_FUNCTIONS(X)                                                              \
  X(version, nvrtcVersion, (int* major, int* minor))                                             \
  X(architecture_count, nvrtcGetNumSupportedArchs, (int* out))                                   \
  X(architectures, nvrtcGetSupportedArchs, (int* out))                                           \
  X(create, nvrtcCreateProgram,                                                                  \
    (Program * out, const char* source, const char* name, int headers, const char* const* texts, \
     const char* const* names))                                                                  \
  X(destroy, nvrtcDestroyProgram, (Program * program))                                           \
  X(compile, nvrtcCompileProgram, (Program program, int count, const char* const* options))      \
  X(cubin_size, nvrtcGetCUBINSize, (Program program, std::size_t * out))                         \
  X(cubin, nvrtcGetCUBIN, (Program program, char* out))                                          \
  X(ptx_size, nvrtcGetPTXSize, (Program program, std::size_t * out))                             \
  X(ptx, nvrtcGetPTX, (Program program, char* out))                                              \
  X(log_size, nvrtcGetProgramLogSize, (Program program, std::size_t * out))                      \
  X(log, nvrtcGetProgramLog, (Program program, char* out))

struct Api {
#define CARILLON_NVRTC_MEMBER(member, symbol, arguments) Status(*member) arguments = nullptr;
  CARILLON_NVRTC_FUNCTIONS(CARILLON_NVRTC_MEMBER)
#undef CARILLON_NVRTC_MEMBER
  const char* (*error_name)(Status status) = nullptr;  // nvrtcGetErrorString
};

// Errors (unavailable): it lacks a function, or is older than 13.0, whose code our driver may be too old for
// to be sure.
Result<Api> find_api(const Library& library);

}  // namespace rtc

// For a device of this compute capability: "sm_80"; "sm_90a" of 9.0, as our other kernels.
std::string architecture_of(const DeviceFacts& facts);

class Nvrtc {
 public:
  // Errors: as of open_library() and find_api(); unsupported: it makes no code for `architecture`.
  static Result<std::shared_ptr<const Nvrtc>> open(const std::filesystem::path& folder,
                                                   const std::vector<std::filesystem::path>& site_packages,
                                                   const std::string& architecture);
  Nvrtc(const rtc::Api& api, std::string architecture);

  const std::string& version() const { return version_; }  // "NVRTC 13.0"
  const std::string& architecture() const { return architecture_; }
  const std::vector<std::string>& options() const { return options_; }

  struct Compiled {
    std::vector<std::byte> cubin;
    std::string ptx, log;
  };
  // A source of kernels/chain_source.h. One at a time in the process (NVRTC holds a lock itself). Errors
  // (internal): it is refused, with NVRTC's words. `say`: further options, for tests.
  Result<Compiled> compile(const std::string& source, const std::vector<std::string>& further = {}) const;

 private:
  rtc::Api api_;
  std::string version_, architecture_;
  std::vector<std::string> options_;
};

}  // namespace carillon::engine::cuda
