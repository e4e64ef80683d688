#include "carillon/engine/cuda/library/nvrtc.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/symbols.h"
#include "carillon/engine/cuda/kernels/chain_source.h"

namespace carillon::engine::cuda {

namespace {

// More than a chain's code ever was, by far: what a library says of sizes is not believed beyond it.
constexpr std::size_t most_bytes = std::size_t{16} << 20;

Error told(const rtc::Api& api, rtc::Status status, const std::string& what) {
  const char* const name = api.error_name(status);
  return {ErrorCode::internal,
          fmt::format("NVRTC: {}: {} ({})", what, name == nullptr ? "error" : name, status)};
}

// Bytes or text that NVRTC tells the size of first.
template <typename To>
rtc::Status fetch(rtc::Status (*size)(rtc::Program, std::size_t*), rtc::Status (*get)(rtc::Program, char*),
                  rtc::Program program, To& into) {
  std::size_t bytes = 0;
  if (const rtc::Status status = size(program, &bytes); status != 0) return status;
  if (bytes > most_bytes) return -1;
  into.resize(bytes);
  return bytes == 0 ? 0 : get(program, reinterpret_cast<char*>(into.data()));
}

}  // namespace

Result<rtc::Api> rtc::find_api(const Library& library) {
  Api api;
  Symbols find([&](const char* name) { return library.symbol(name); });
#define CARILLON_NVRTC_FIND(member, symbol, arguments) find(#symbol, api.member);
  CARILLON_NVRTC_FUNCTIONS(CARILLON_NVRTC_FIND)
#undef CARILLON_NVRTC_FIND
  find("nvrtcGetErrorString", api.error_name);
  if (!find.missing().empty())
    return fail(ErrorCode::unavailable,
                fmt::format("{} is no NVRTC of 13.0 or newer: it has no {}", library.path(), find.missing()));
  return api;
}

std::string architecture_of(const DeviceFacts& facts) {
  return fmt::format("sm_{}{}{}", facts.major, facts.minor, facts.major == 9 && facts.minor == 0 ? "a" : "");
}

Nvrtc::Nvrtc(const rtc::Api& api, std::string architecture)
    : api_(api), architecture_(std::move(architecture)) {
  int major = 0, minor = 0;
  (void)api_.version(&major, &minor);
  version_ = fmt::format("NVRTC {}.{}", major, minor);
  // Divisions, roots and sums are as nvcc makes them for our other kernels, which is the default.
  options_ = {"--gpu-architecture=" + architecture_, "--std=c++20", "--device-as-default-execution-space"};
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::open(const std::filesystem::path& folder,
                                                 const std::vector<std::filesystem::path>& site_packages,
                                                 const std::string& architecture) {
  const auto library = open_library(nvrtc, folder, site_packages);
  if (!library) return std::unexpected(library.error());
  const auto api = rtc::find_api(*library);
  if (!api) return std::unexpected(api.error());
  auto made = std::make_shared<const Nvrtc>(*api, architecture);
  // NVRTC opens a second library by its name alone; one that is open already is found wherever it lies. Where
  // it is not, compiling says so.
  if (const std::filesystem::path beside = std::filesystem::path(library->path()).parent_path();
      !beside.empty()) {
    int major = 0, minor = 0;
    (void)api->version(&major, &minor);
    const std::string builtins = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
    (void)open_library({.soname = builtins, .package = nvrtc.package}, beside, {});
  }
  int count = 0;
  std::vector<int> known;
  if (api->architecture_count(&count) == 0 && count > 0 && count < 1000) {
    known.resize(static_cast<std::size_t>(count));
    if (api->architectures(known.data()) != 0) known.clear();
  }
  if (std::ranges::none_of(known, [&](int each) {
        const std::string name = fmt::format("sm_{}", each);
        return architecture == name || architecture == name + "a";
      }))
    return fail(ErrorCode::unsupported,
                fmt::format("{} ({}) makes no code for {}", made->version(), library->path(), architecture));
  return made;
}

Result<Nvrtc::Compiled> Nvrtc::compile(const std::string& source,
                                       const std::vector<std::string>& further) const {
  std::vector<const char*> texts, names, options;
  for (const auto headers : {kernels::chain_headers(), kernels::standard_headers()})
    for (const kernels::SourceHeader& each : headers) {
      texts.push_back(each.text.data());  // all end with a zero: they are literals
      names.push_back(each.name.data());
    }
  for (const auto* each : {&options_, &further})
    for (const std::string& option : *each) options.push_back(option.c_str());
  rtc::Program program = nullptr;
  if (const rtc::Status status = api_.create(&program, source.c_str(), "chain.cu",
                                             static_cast<int>(texts.size()), texts.data(), names.data());
      status != 0)
    return std::unexpected(told(api_, status, "no program"));
  Compiled out;
  const rtc::Status compiled = api_.compile(program, static_cast<int>(options.size()), options.data());
  (void)fetch(api_.log_size, api_.log, program, out.log);
  rtc::Status status = compiled;
  if (status == 0) status = fetch(api_.cubin_size, api_.cubin, program, out.cubin);
  if (status == 0) status = fetch(api_.ptx_size, api_.ptx, program, out.ptx);
  (void)api_.destroy(&program);
  for (std::string* text : {&out.ptx, &out.log})
    while (!text->empty() && (text->back() == '\0' || text->back() == '\n')) text->pop_back();
  if (status != 0)
    return std::unexpected(told(api_, status, "a chain is refused: " + out.log.substr(0, 2000)));
  if (out.cubin.empty()) return fail(ErrorCode::internal, "NVRTC made no code of a chain");
  return out;
}

}  // namespace carillon::engine::cuda
