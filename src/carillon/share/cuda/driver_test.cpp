#include "carillon/share/cuda/driver.h"

#include <cstddef>
#include <string_view>
#include <type_traits>

#include <gtest/gtest.h>

#if defined(CARILLON_CUDA_HEADER)
#include CARILLON_CUDA_HEADER
#endif

namespace carillon::share::cuda {
namespace {

#if defined(CARILLON_CUDA_HEADER)
// Our declarations against the toolkit's, where one is installed. Its macros give functions the names of the
// versions that they now have, so the table is held against those.
static_assert(sizeof(Properties) == sizeof(CUmemAllocationProp) &&
              alignof(Properties) == alignof(CUmemAllocationProp));
static_assert(offsetof(Properties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(Properties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(Properties, windows) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(Properties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(Access) == sizeof(CUmemAccessDesc) &&
              offsetof(Access, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(Uuid) == sizeof(CUuuid) && sizeof(Address) == sizeof(CUdeviceptr));
static_assert(sizeof(Handle) == sizeof(CUmemGenericAllocationHandle) &&
              sizeof(DeviceNumber) == sizeof(CUdevice));
static_assert(sizeof(Status) == sizeof(CUresult));

TEST(CudaDriver, ConstantsAreTheToolkits) {
  EXPECT_EQ(done, CUDA_SUCCESS);
  EXPECT_EQ(out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(no_device, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(invalid_context, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(not_ready, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(not_while_capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(default_stream_is_barred, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(is_not_capturing, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(forbids_nothing, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(Location{}.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(Properties{}.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(Properties{}.handle_types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(Access{}.flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(file_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(smallest_granularity, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  EXPECT_EQ(has_virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(has_descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  EXPECT_EQ(event_without_time, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(stream_beside_the_default, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
}

// As many arguments, each of the same size, and pointers where the toolkit has pointers.
template <typename... A, typename... B>
bool same_call(Status (*)(A...), CUresult (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  else
    return false;
}

TEST(CudaDriver, FunctionsTakeWhatTheToolkitsTake) {
#define CARILLON_CUDA_SAME(member, symbol, arguments) \
  EXPECT_TRUE(same_call(decltype(Driver::member){}, decltype(&::symbol){})) << #symbol;
  CARILLON_CUDA_FUNCTIONS(CARILLON_CUDA_SAME)
#undef CARILLON_CUDA_SAME
}
#endif

TEST(CudaDriver, WhereThereIsNoneSaysSo) {
  Driver driver;
  char why[256] = {};
  if (open_driver(driver, why, sizeof why)) GTEST_SKIP() << "this machine has a CUDA driver";
  EXPECT_NE(std::string_view(why).find("CUDA driver"), std::string_view::npos) << why;
  EXPECT_EQ(driver.create, nullptr);
  EXPECT_STREQ(name_of(driver, 2).text, "CUDA error 2");
}

}  // namespace
}  // namespace carillon::share::cuda
