#include "carillon/engine/cuda/driver/driver.h"

#include <cstddef>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#if defined(CARILLON_CUDA_HEADER)
#include CARILLON_CUDA_HEADER
#endif

namespace carillon::engine::cuda {
namespace {

#if defined(CARILLON_CUDA_HEADER)
// Our declarations against the toolkit's, where one is installed.
static_assert(sizeof(Properties) == sizeof(CUmemAllocationProp) &&
              alignof(Properties) == alignof(CUmemAllocationProp));
static_assert(offsetof(Properties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(Properties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(Properties, windows) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(Properties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(Access) == sizeof(CUmemAccessDesc) &&
              offsetof(Access, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(Processors) == sizeof(CUdevResource) && alignof(Processors) == alignof(CUdevResource));
static_assert(offsetof(Processors, count) ==
              offsetof(CUdevResource, sm) + offsetof(CUdevSmResource, smCount));
static_assert(offsetof(Processors, least) ==
              offsetof(CUdevResource, sm) + offsetof(CUdevSmResource, minSmPartitionSize));
static_assert(offsetof(Processors, alignment) ==
              offsetof(CUdevResource, sm) + offsetof(CUdevSmResource, smCoscheduledAlignment));
static_assert(sizeof(Uuid) == sizeof(CUuuid) && sizeof(Address) == sizeof(CUdeviceptr));
static_assert(sizeof(Handle) == sizeof(CUmemGenericAllocationHandle) &&
              sizeof(DeviceNumber) == sizeof(CUdevice));
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle) && alignof(IpcHandle) == alignof(CUipcMemHandle));
static_assert(sizeof(Status) == sizeof(CUresult));

TEST(CudaTable, ConstantsAreTheToolkits) {
  EXPECT_EQ(done, CUDA_SUCCESS);
  EXPECT_EQ(invalid_value, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(not_initialized, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(no_device, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(invalid_device, CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(invalid_context, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(map_failed, CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(uncorrectable_memory, CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(invalid_handle, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(not_found, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(not_ready, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT);
  EXPECT_EQ(launch_failed, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(not_supported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(capture_unmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(capture_unjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(Location{}.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(Properties{}.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(Properties{}.handle_types, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(Access{}.flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(Processors{}.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(of_processors, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(smallest_granularity, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  EXPECT_EQ(attribute_clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  EXPECT_EQ(attribute_processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(attribute_bus_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  EXPECT_EQ(attribute_l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  EXPECT_EQ(attribute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(attribute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(attribute_virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(green_default_stream, static_cast<unsigned>(CU_GREEN_CTX_DEFAULT_STREAM));
  EXPECT_EQ(stream_beside_the_default, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(event_without_time, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(host_is_mapped, static_cast<unsigned>(CU_MEMHOSTALLOC_DEVICEMAP));
  EXPECT_EQ(peers_as_needed, static_cast<unsigned>(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(capture_of_this_thread, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

// What the emulated device holds work to (emulated.h), and where the header of CUDA 13.0 says so. Rules that
// it does not have are named in emulated.h.
TEST(CudaTable, TheEmulatedDevicesRulesAreTheHeaders) {
  if (CUDA_VERSION != 13000) GTEST_SKIP() << "lines are those of CUDA 13.0";
  const struct {
    const char* rule;
    std::size_t line;
    const char* words;
  } rows[] = {
      {"memory is made in whole granules", 12782, "allocation must be a multiple of the the value given via"},
      {"addresses are given back as they were reserved", 12753,
       "must match what was given to memAddressReserve"},
      {"only what is not mapped is mapped", 12895, "that are not currently mapped"},
      {"an offset is 0", 12901, "currently must be zero"},
      {"what was mapped has no access", 12885, "does not make the address accessible"},
      {"nor has what is mapped again", 13066, "as all mappings start with no accessibility setup"},
      {"mappings are unmapped as a whole", 13059, "cannot unmap a sub-range"},
      {"released memory stays while it is mapped", 12844, "outstanding mappings made with this handle"},
      {"access is of whole mappings", 13089, "The range must be a fully mapped address range"},
      {"another process' memory is closed as often as it was opened", 9418, "Decrements the reference count"},
      {"what is opened is not freed before it is closed", 9376,
       "on an exported memory region before calling"},
      {"the lower number of a priority goes first", 14960, "lower numbers represent higher priorities"},
      {"a capture ends where it began", 15351, "Capture must be ended on the same stream"},
      {"a stream that is captured is not captured again", 15352, "if the stream is not already in capture"},
      {"a capture that is broken gives no graph", 15488, "a NULL graph will be returned"},
      {"a captured stream waits for nothing from outside", 3101, "crosses the capture sequence boundary"},
      {"two captures do not meet", 3083, "operation would have resulted in a merge"},
      {"forks are joined", 3095, "not joined to the primary stream"},
      {"an event of a capture is not asked", 15465, "necessarily conflict with stream capture"},
      {"unsafe calls end a capture", 15458, "prohibited from potentially unsafe API calls"},
      {"an executable graph runs once at a time", 21050, "may be executing"},
      {"launches of one come one after the other", 21051, "Each launch is ordered behind both"},
      {"there is no time of an event that was not recorded", 16150,
       "has not been called on either event then"},
      {"nor before it is done", 16153, "::cuEventQuery() would return ::CUDA_ERROR_NOT_READY"},
      {"nor of one without", 16155, "the ::CU_EVENT_DISABLE_TIMING flag, then"},
      {"there may be fewer groups than fit", 24993, "This may lead to fewer groups created"},
      {"a green context has a default stream", 24833, "Creates a default stream to use inside"},
      {"its streams go before it does", 24864, "Users must explicitly destroy all such streams"},
      {"its streams do not wait for the default one", 25221, "CU_STREAM_NON_BLOCKING must be specified"},
  };
  std::ifstream in(CARILLON_CUDA_HEADER);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  for (const auto& row : rows) {
    ASSERT_LE(row.line, lines.size()) << row.rule;
    EXPECT_NE(lines[row.line - 1].find(row.words), std::string::npos)
        << row.rule << ": line " << row.line << " is " << lines[row.line - 1];
  }
}

// As many arguments, each of the same size, and pointers where the toolkit has pointers.
template <typename... A, typename... B>
bool takes_the_same(Status (*)(A...), CUresult (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return ((sizeof(A) == sizeof(B) && (std::is_pointer_v<A> == std::is_pointer_v<B>)) && ...);
  else
    return false;
}

TEST(CudaTable, FunctionsTakeWhatTheToolkitsTake) {
#define CARILLON_SAME(member, symbol, arguments) \
  EXPECT_TRUE(takes_the_same(Driver{}.member, static_cast<decltype(&::symbol)>(nullptr))) << #symbol;
  CARILLON_CUDA_DRIVER(CARILLON_SAME)
#undef CARILLON_SAME
}
#else
TEST(CudaTable, IsHeldAgainstTheToolkit) {
  GTEST_SKIP() << "there is no cuda.h on this machine";
}
#endif

TEST(CudaTable, WhatLosesADevice) {
  for (const Status status : {uncorrectable_memory, 700, 702, launch_failed})
    EXPECT_TRUE(is_lost(status)) << status;
  for (const Status status : {done, invalid_value, out_of_memory, not_ready, 701, capture_unsupported})
    EXPECT_FALSE(is_lost(status)) << status;
}

}  // namespace
}  // namespace carillon::engine::cuda
