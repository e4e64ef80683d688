#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "carillon/engine/cuda/library/nvrtc.h"

// A stand-in for NVRTC: what it makes of a source is text that an emulated device takes for a module.
namespace carillon::engine::cuda::testing {

struct NvrtcSays {
  int major = 13, minor = 0;
  bool fails = false;
  std::size_t size = 0;  // what it says that code takes; 0: the truth
  int compiled = 0;      // so far
  int alive = 0;         // programs that are not destroyed
};
inline NvrtcSays& nvrtc_says() {
  static NvrtcSays says;
  return says;
}

struct FakeProgram {
  std::string code, log;
};

inline rtc::Status give(const std::string& text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return 0;
}

inline rtc::Api fake_nvrtc() {
  rtc::Api api;
  api.version = [](int* major, int* minor) -> rtc::Status {
    *major = nvrtc_says().major;
    *minor = nvrtc_says().minor;
    return 0;
  };
  api.architecture_count = [](int* out) -> rtc::Status {
    *out = 2;
    return 0;
  };
  api.architectures = [](int* out) -> rtc::Status {
    out[0] = 75;
    out[1] = 90;
    return 0;
  };
  api.create = [](rtc::Program* out, const char* source, const char*, int headers, const char* const* texts,
                  const char* const*) -> rtc::Status {
    if (std::strstr(source, "CARILLON_CHAIN(carillon_chain,") == nullptr || headers < 5 || texts == nullptr)
      return 3;
    *out = new FakeProgram{"code of " + std::string(source), ""};
    ++nvrtc_says().alive;
    return 0;
  };
  api.destroy = [](rtc::Program* program) -> rtc::Status {
    delete static_cast<FakeProgram*>(*program);
    --nvrtc_says().alive;
    *program = nullptr;
    return 0;
  };
  api.compile = [](rtc::Program program, int count, const char* const* options) -> rtc::Status {
    auto& made = *static_cast<FakeProgram*>(program);
    ++nvrtc_says().compiled;
    for (int i = 0; i < count; ++i) made.code += std::string("\n// ") + options[i];
    if (!nvrtc_says().fails) return 0;
    made.log = "chain.cu(1): error: this stand-in was told to fail\n";
    return 6;
  };
  api.cubin_size = [](rtc::Program program, std::size_t* out) -> rtc::Status {
    *out = nvrtc_says().size != 0 ? nvrtc_says().size : static_cast<FakeProgram*>(program)->code.size();
    return 0;
  };
  api.cubin = [](rtc::Program program, char* out) {
    return give(static_cast<FakeProgram*>(program)->code, out);
  };
  api.ptx_size = [](rtc::Program, std::size_t* out) -> rtc::Status {
    *out = 0;
    return 0;
  };
  api.ptx = [](rtc::Program, char*) -> rtc::Status { return 0; };
  api.log_size = [](rtc::Program program, std::size_t* out) -> rtc::Status {
    *out = static_cast<FakeProgram*>(program)->log.size();
    return 0;
  };
  api.log = [](rtc::Program program, char* out) {
    return give(static_cast<FakeProgram*>(program)->log, out);
  };
  api.error_name = [](rtc::Status) { return "NVRTC_ERROR_COMPILATION"; };
  return api;
}

}  // namespace carillon::engine::cuda::testing
