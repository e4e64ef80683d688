#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"

// Where CUDA's driver and NVIDIA's libraries are found. All by dlopen, at run time: a machine without them
// can start the program, and is told what is missing when it asks for a CUDA device.
namespace carillon::engine::cuda {

// Of CUDA 13.0, by whose ptxas our kernels are made: a driver that supports less does not load them.
inline constexpr int least_driver = 13000;

// The table of libcuda.so.1, initialised. `library`: a path in its place; empty: as the loader finds it.
// Errors (unavailable): there is none, with the loader's words; it lacks a function, or supports a CUDA older
// than `least_driver`, with both versions; it does not start (no device, a device that others hold alone),
// with its own name for that. The library stays loaded: the driver cannot be unloaded safely. From any
// thread.
Result<Driver> open_driver(const std::string& library = {});

// A device of the driver by its number. Errors (not_found): there is no such device, with how many there are;
// (unsupported): it cannot map memory piece by piece, or its compute capability is below 7.5.
struct DeviceFacts {
  DeviceNumber device = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
  int processors = 0;
  std::uint64_t memory = 0;  // bytes
};
Result<DeviceFacts> find_device(const Driver& driver, int ordinal);
// Its number by its name: "cuda" is 0, "cuda:3" is 3; anything else is none.
std::optional<int> device_in(std::string_view text);

// A shared library of NVIDIA's, as PyPI packages it.
struct LibraryName {
  std::string_view soname;   // "libcudnn.so.9"
  std::string_view package;  // its folder in site-packages/nvidia: "cudnn"; since CUDA 13 also "cu13"
};
inline constexpr LibraryName cudnn{"libcudnn.so.9", "cudnn"}, cublaslt{"libcublasLt.so.13", "cu13"},
    nvrtc{"libnvrtc.so.13", "cu13"};

class Library {
 public:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  const std::string& path() const { return path_; }  // as it was found
  // nullptr: it has none of that name.
  void* symbol(const char* name) const;

 private:
  void* handle_;  // stays open
  std::string path_;
};

// The first that is there: in `folder`, where one is named, and nowhere else then; as the loader finds it; in
// the packages of the Pythons in `site_packages`. Errors (unavailable): none is, with all places that were
// looked at, and what the loader said of each that has the file.
Result<Library> open_library(const LibraryName& name, const std::filesystem::path& folder,
                             const std::vector<std::filesystem::path>& site_packages);

// Of the virtual environment that the process runs in (VIRTUAL_ENV), and of CARILLON_SITE_PACKAGES (a list
// with colons).
std::vector<std::filesystem::path> known_site_packages();

}  // namespace carillon::engine::cuda
