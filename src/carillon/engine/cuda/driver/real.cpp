#include "carillon/engine/cuda/driver/real.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fmt/core.h>

#include "carillon/base/symbols.h"

namespace carillon::engine::cuda {
namespace {

namespace fs = std::filesystem;

std::string version_of(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string last_of_loader() {
  const char* const said = dlerror();
  return said == nullptr ? "it cannot be loaded" : said;
}

}  // namespace

std::string name_of(const Driver& driver, Status status) {
  const char* name = nullptr;
  if (driver.error_name == nullptr || driver.error_name(status, &name) != done || name == nullptr)
    return fmt::format("CUDA error {}", status);
  return fmt::format("{} ({})", name, status);
}

Result<Driver> open_driver(const std::string& library) {
  const std::string path = library.empty() ? "libcuda.so.1" : library;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return fail(
        ErrorCode::unavailable,
        fmt::format(
            "there is no CUDA driver ({}): NVIDIA's driver, which brings libcuda.so.1, has to be installed "
            "on the machine, or given to the container",
            last_of_loader()));
  Driver driver;
  Symbols find([handle](const char* name) { return dlsym(handle, name); });
  find("cuDriverGetVersion", driver.driver_version);
  if (driver.driver_version != nullptr) {
    int version = 0;
    if (driver.driver_version(&version) == done && version < least_driver)
      return fail(
          ErrorCode::unavailable,
          fmt::format(
              "the CUDA driver {} is too old: it supports CUDA {}, and {} is needed (release 580 or newer)",
              path, version_of(version), version_of(least_driver)));
  }
  Symbols all([handle](const char* name) { return dlsym(handle, name); });
#define CARILLON_CUDA_FIND(member, symbol, arguments) all(#symbol, driver.member);
  CARILLON_CUDA_DRIVER(CARILLON_CUDA_FIND)
#undef CARILLON_CUDA_FIND
  if (!all.missing().empty())
    return fail(ErrorCode::unavailable, fmt::format("{} is no CUDA driver of {} or newer: it has no {}", path,
                                                    version_of(least_driver), all.missing()));
  if (const Status status = driver.init(0); status != done)
    return fail(ErrorCode::unavailable,
                fmt::format("the CUDA driver {} does not start: {}", path, name_of(driver, status)));
  return driver;
}

Result<DeviceFacts> find_device(const Driver& driver, int ordinal) {
  int count = 0;
  if (const Status status = driver.device_count(&count); status != done)
    return fail(ErrorCode::unavailable,
                "the CUDA driver does not tell its devices: " + name_of(driver, status));
  if (ordinal < 0 || ordinal >= count)
    return fail(
        ErrorCode::not_found,
        count == 0
            ? fmt::format("there is no device cuda:{}: the driver sees no GPU (CUDA_VISIBLE_DEVICES?)",
                          ordinal)
            : fmt::format("there is no device cuda:{}: there are cuda:0 to cuda:{}", ordinal, count - 1));
  DeviceFacts facts;
  std::array<char, 256> name{};
  int maps = 0;
  std::size_t memory = 0;
  const auto attribute = [&](int which, int& to) {
    return driver.device_attribute(&to, which, facts.device);
  };
  for (const Status status :
       {driver.device_get(&facts.device, ordinal),
        driver.device_name(name.data(), name.size() - 1, facts.device),
        attribute(attribute_major, facts.major), attribute(attribute_minor, facts.minor),
        attribute(attribute_processors, facts.processors), attribute(attribute_virtual_memory, maps),
        driver.device_memory(&memory, facts.device)})
    if (status != done)
      return fail(ErrorCode::unavailable,
                  fmt::format("cuda:{} does not tell what it is: {}", ordinal, name_of(driver, status)));
  facts.name = name.data();
  facts.memory = memory;
  if (facts.major * 10 + facts.minor < 75)
    return fail(ErrorCode::unsupported,
                fmt::format("cuda:{}, {}, has compute capability {}.{}: 7.5 (Turing) is the least", ordinal,
                            facts.name, facts.major, facts.minor));
  if (maps == 0)
    return fail(ErrorCode::unsupported,
                fmt::format("cuda:{}, {}, cannot map memory page by page (virtual memory management)",
                            ordinal, facts.name));
  return facts;
}

std::optional<int> device_in(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return std::nullopt;
  text.remove_prefix(5);
  int out = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size() || out < 0) return std::nullopt;
  return out;
}

void* Library::symbol(const char* name) const {
  return dlsym(handle_, name);
}

Result<Library> open_library(const LibraryName& name, const fs::path& folder,
                             const std::vector<fs::path>& site_packages) {
  std::vector<std::string> places;
  if (!folder.empty()) {
    places.push_back((folder / name.soname).string());
  } else {
    places.emplace_back(name.soname);
    for (const fs::path& site : site_packages)
      places.push_back((site / "nvidia" / name.package / "lib" / name.soname).string());
  }
  std::string looked;
  for (const std::string& place : places) {
    const bool by_loader = place.find('/') == std::string::npos;
    std::error_code wrong;
    if (!by_loader && !fs::exists(place, wrong)) {
      looked += fmt::format("\n  {}: no such file", place);
      continue;
    }
    if (void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL); handle != nullptr)
      return Library(handle, place);
    looked += fmt::format("\n  {}: {}", by_loader ? "where the loader looks" : place, last_of_loader());
  }
  return fail(ErrorCode::unavailable,
              fmt::format("{} was not found; --cuda-libraries names the folder that has it. Looked at:{}",
                          name.soname, looked));
}

std::vector<fs::path> known_site_packages() {
  std::vector<fs::path> out;
  if (const char* const listed = std::getenv("CARILLON_SITE_PACKAGES"); listed != nullptr)
    for (std::string_view rest = listed; !rest.empty();) {
      const std::size_t end = std::min(rest.find(':'), rest.size());
      if (end > 0) out.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  if (const char* const environment = std::getenv("VIRTUAL_ENV"); environment != nullptr) {
    std::error_code wrong;
    for (fs::directory_iterator at(fs::path(environment) / "lib", wrong), end; !wrong && at != end;
         at.increment(wrong))
      if (at->path().filename().string().starts_with("python")) out.push_back(at->path() / "site-packages");
  }
  return out;
}

}  // namespace carillon::engine::cuda
