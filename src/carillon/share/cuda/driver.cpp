#include "carillon/share/cuda/driver.h"

#include <cstdio>
#include <cstring>

#include <dlfcn.h>

namespace carillon::share::cuda {
namespace {

template <typename F>
bool find_in(void* library, const char* symbol, F& to) {
  void* const found = dlsym(library, symbol);
  if (found == nullptr) return false;
  static_assert(sizeof found == sizeof to);
  std::memcpy(&to, &found, sizeof to);
  return true;
}

}  // namespace

bool open_driver(Driver& out, char* why, std::size_t size) {
  // Stays loaded: CUDA's driver cannot be unloaded safely.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::snprintf(why, size, "there is no CUDA driver: %s", dlerror());
    return false;
  }
  Driver found;
  const char* missing = nullptr;
#define CARILLON_CUDA_FIND(member, symbol, arguments) \
  if (!find_in(library, #symbol, found.member)) missing = #symbol;
  CARILLON_CUDA_FUNCTIONS(CARILLON_CUDA_FIND)
#undef CARILLON_CUDA_FIND
  if (missing != nullptr) {
    std::snprintf(why, size,
                  "the CUDA driver is too old: its libcuda.so.1 has no %s (CUDA 11.4 and later have it)",
                  missing);
    return false;
  }
  if (const Status status = found.init(0); status != done) {
    std::snprintf(why, size, "the CUDA driver does not start: %s", name_of(found, status).text);
    return false;
  }
  out = found;
  return true;
}

StatusName name_of(const Driver& driver, Status status) {
  StatusName out{};
  const char* known = nullptr;
  if (driver.error_name != nullptr && driver.error_name(status, &known) == done && known != nullptr)
    std::snprintf(out.text, sizeof out.text, "%s", known);
  else
    std::snprintf(out.text, sizeof out.text, "CUDA error %d", status);
  return out;
}

}  // namespace carillon::share::cuda
