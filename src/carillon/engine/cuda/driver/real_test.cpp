#include "carillon/engine/cuda/driver/real.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string stub(const char* which) {
  return std::string(CARILLON_CUDA_STUBS) + "/libcarillon_cuda_stub_" + which + ".so";
}

TEST(CudaReal, WhereThereIsNoDriverSaysSo) {
  const auto driver = open_driver("/nowhere/libcuda.so.1");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::unavailable);
  EXPECT_THAT(driver.error().message, HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(driver.error().message, HasSubstr("there is no CUDA driver"));
}

TEST(CudaReal, WhatIsNoDriverSaysWhatItLacks) {
  const auto driver = open_driver("libc.so.6");
  ASSERT_FALSE(driver);
  EXPECT_THAT(driver.error().message, HasSubstr("cuInit"));
}

struct StubCase {
  const char* which;
  std::vector<const char*> says;
};

TEST(CudaReal, DriversAreToldWhatIsWrongWithThem) {
  const StubCase cases[] = {{"old", {"too old", "12.4", "13.0", "580"}},
                            {"lacks", {"cuGreenCtxStreamCreate", "13.0"}},
                            {"dead", {"does not start", "CUDA_ERROR_NO_DEVICE (100)"}}};
  for (const StubCase& each : cases) {
    SCOPED_TRACE(each.which);
    const auto driver = open_driver(stub(each.which));
    ASSERT_FALSE(driver);
    EXPECT_EQ(driver.error().code, ErrorCode::unavailable);
    for (const char* text : each.says) EXPECT_THAT(driver.error().message, HasSubstr(text));
  }
}

TEST(CudaReal, AWholeDriverIsTaken) {
  const auto driver = open_driver(stub("whole"));
  ASSERT_TRUE(driver) << driver.error().message;
#define CARILLON_THERE(member, symbol, arguments) EXPECT_NE(driver->member, nullptr) << #symbol;
  CARILLON_CUDA_DRIVER(CARILLON_THERE)
#undef CARILLON_THERE
}

TEST(CudaReal, DevicesThatCannotBeUsedSayWhy) {
  struct Case {
    EmulatedOptions options;
    int ordinal;
    ErrorCode code;
    const char* says;
  };
  const auto with = [](auto&& change) {
    EmulatedOptions options;
    change(options);
    return options;
  };
  const Case cases[] = {
      {with([](auto& o) { o.devices = 2; }), 2, ErrorCode::not_found, "cuda:0 to cuda:1"},
      {with([](auto& o) { o.devices = 2; }), -1, ErrorCode::not_found, "cuda:0 to cuda:1"},
      {with([](auto& o) { o.devices = 0; }), 0, ErrorCode::not_found, "no GPU"},
      {with([](auto& o) { o.major = 7; }), 0, ErrorCode::unsupported, "7.0"},
      {with([](auto& o) { o.virtual_memory = false; }), 0, ErrorCode::unsupported, "page by page"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.says);
    const Emulated emulated(each.options);
    const auto found = find_device(Emulated::table(), each.ordinal);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, each.code);
    EXPECT_THAT(found.error().message, HasSubstr(each.says));
  }
  const Emulated emulated;
  const auto found = find_device(Emulated::table(), 0);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->name, "emulated H100");
  EXPECT_EQ(found->processors, 132);
  EXPECT_EQ(found->memory, std::uint64_t{1} << 32);
}

TEST(CudaReal, DevicesAreNamedAsTorchDoes) {
  EXPECT_EQ(device_in("cuda"), 0);
  EXPECT_EQ(device_in("cuda:0"), 0);
  EXPECT_EQ(device_in("cuda:12"), 12);
  for (const char* text : {"", "cpu", "cuda:", "cuda:-1", "cuda:1 ", "cuda:x", "cuda:99999999999", "CUDA"})
    EXPECT_EQ(device_in(text), std::nullopt) << text;
}

class LibrariesTest : public ::testing::Test {
 protected:
  LibrariesTest() {
    char name[] = "/tmp/carillon-libraries-XXXXXX";
    folder = mkdtemp(name);
  }
  ~LibrariesTest() override { fs::remove_all(folder); }
  fs::path folder;
};

TEST_F(LibrariesTest, WhatIsMissingIsNamedWithAllPlaces) {
  const LibraryName none{"libcarillon_none.so.9", "none"};
  const auto found = open_library(none, {}, {folder / "a", folder / "b"});
  ASSERT_FALSE(found);
  for (const std::string& text :
       {std::string("libcarillon_none.so.9"), std::string("where the loader looks"),
        (folder / "a/nvidia/none/lib/libcarillon_none.so.9").string(),
        (folder / "b/nvidia/none/lib/libcarillon_none.so.9").string(), std::string("--cuda-libraries")})
    EXPECT_THAT(found.error().message, HasSubstr(text));
  const auto here = open_library(none, folder, {folder / "a"});
  ASSERT_FALSE(here);
  EXPECT_THAT(here.error().message, HasSubstr((folder / "libcarillon_none.so.9").string()));
  EXPECT_THAT(here.error().message, Not(HasSubstr("loader"))) << "who names a folder means it";
}

TEST_F(LibrariesTest, PackagesOfPythonAreLookedAt) {
  const LibraryName name{"libcarillon_packaged.so.9", "packaged"};
  const fs::path place = folder / "nvidia/packaged/lib";
  fs::create_directories(place);
  std::ofstream(place / name.soname) << std::string(4096, 'x');
  const auto broken = open_library(name, {}, {folder});
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr("invalid ELF header")) << "what the loader says of it";
  fs::copy_file(stub("whole"), place / name.soname, fs::copy_options::overwrite_existing);
  const auto found = open_library(name, {}, {folder});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->path(), place / name.soname);
  EXPECT_NE(found->symbol("cuInit"), nullptr);
  EXPECT_EQ(found->symbol("cudnnCreate"), nullptr);
}

TEST_F(LibrariesTest, PythonsThatAreKnown) {
  fs::create_directories(folder / "lib/python3.11/site-packages");
  const char* const before = std::getenv("VIRTUAL_ENV");
  const std::string was = before == nullptr ? "" : before;
  setenv("VIRTUAL_ENV", folder.c_str(), 1);
  setenv("CARILLON_SITE_PACKAGES", "/a::/b", 1);
  EXPECT_THAT(known_site_packages(), ::testing::ElementsAre(fs::path("/a"), fs::path("/b"),
                                                            folder / "lib/python3.11/site-packages"));
  unsetenv("CARILLON_SITE_PACKAGES");
  if (before == nullptr)
    unsetenv("VIRTUAL_ENV");
  else
    setenv("VIRTUAL_ENV", was.c_str(), 1);
}

}  // namespace
}  // namespace carillon::engine::cuda
