#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// The functions of CUDA's driver that the engine uses, as a table: filled from libcuda.so.1 where there is
// one (real.h), or by a device inside this process (emulated.h). Nothing links with CUDA and no header of it
// is needed, so the program builds and starts without; driver_test.cpp holds what is declared here against
// cuda.h where there is one.
//
// A table does not change once it is filled; its functions may be called from any thread. Each is what the
// driver's documentation says of its symbol.
namespace carillon::engine::cuda {

using Status = int;             // CUresult
using DeviceNumber = int;       // CUdevice
using Context = void*;          // CUcontext
using Stream = void*;           // CUstream; nullptr is the default stream, which nothing here uses
using Event = void*;            // CUevent
using Address = std::uint64_t;  // CUdeviceptr
using Handle = std::uint64_t;   // CUmemGenericAllocationHandle: physical memory
using Module = void*;           // CUmodule
using Function = void*;         // CUfunction
using Graph = void*;            // CUgraph
using GraphExec = void*;        // CUgraphExec
using GreenContext = void*;     // CUgreenCtx
using Resources = void*;        // CUdevResourceDesc

// CUresult, of what is told apart here.
inline constexpr Status done = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3, no_device = 100,
                        invalid_device = 101, invalid_context = 201, map_failed = 205,
                        uncorrectable_memory = 214, invalid_handle = 400, not_found = 500, not_ready = 600,
                        launch_timeout = 702, launch_failed = 719, not_supported = 801,
                        capture_unsupported = 900, capture_invalidated = 901, capture_unmatched = 903,
                        capture_unjoined = 904;
// After one of these a context answers nothing else any more: the device is lost to the process.
constexpr bool is_lost(Status status) {
  return status == uncorrectable_memory ||
         (status >= 700 && status <= 719 && status != 701 && status != 704 && status != 705 &&
          status != 708 && status != 709 && status != 711 && status != 712 && status != 713);
}

struct Location {  // CUmemLocation
  int type = 1;    // a device
  int id = 0;
};
struct Properties {  // CUmemAllocationProp
  int type = 1;      // pinned: it stays on its device
  int handle_types = 0;
  Location location;
  void* windows = nullptr;
  struct Flags {
    unsigned char compression = 0, rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
struct Access {  // CUmemAccessDesc
  Location location;
  int flags = 3;  // read and write
};
struct Uuid {  // CUuuid
  unsigned char bytes[16] = {};
};
struct IpcHandle {  // CUipcMemHandle: by which another process opens an allocation
  char bytes[64] = {};
};
struct Processors {  // CUdevResource of streaming multiprocessors
  int type = 1;
  unsigned char padding[92] = {};
  unsigned count = 0, least = 0, alignment = 0;
  unsigned char rest[36] = {};
};

// CUdevice_attribute
inline constexpr int attribute_clock_khz = 13, attribute_processors = 16, attribute_bus_bits = 37,
                     attribute_l2_bytes = 38, attribute_major = 75, attribute_minor = 76,
                     attribute_virtual_memory = 102;
inline constexpr int smallest_granularity = 0;            // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr int of_processors = 1;                   // CU_DEV_RESOURCE_TYPE_SM
inline constexpr unsigned green_default_stream = 1;       // CU_GREEN_CTX_DEFAULT_STREAM
inline constexpr unsigned stream_beside_the_default = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned event_without_time = 2;         // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned host_is_mapped = 2;             // CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned peers_as_needed = 1;            // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int capture_of_this_thread = 1;          // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

// X(member, the driver's symbol, arguments)
#define CARILLON_CUDA_DRIVER(X)                                                                             \
  X(init, cuInit, (unsigned flags))                                                                         \
  X(driver_version, cuDriverGetVersion, (int* out))                                                         \
  X(device_count, cuDeviceGetCount, (int* out))                                                             \
  X(device_get, cuDeviceGet, (DeviceNumber * out, int ordinal))                                             \
  X(device_attribute, cuDeviceGetAttribute, (int* out, int attribute, DeviceNumber device))                 \
  X(device_name, cuDeviceGetName, (char* out, int bytes, DeviceNumber device))                              \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid * out, DeviceNumber device))                                     \
  X(device_memory, cuDeviceTotalMem_v2, (std::size_t * out, DeviceNumber device))                           \
  X(context_retain, cuDevicePrimaryCtxRetain, (Context * out, DeviceNumber device))                         \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (DeviceNumber device))                                   \
  X(context_push, cuCtxPushCurrent_v2, (Context context))                                                   \
  X(context_pop, cuCtxPopCurrent_v2, (Context * out))                                                       \
  X(context_synchronize, cuCtxSynchronize, ())                                                              \
  X(memory_info, cuMemGetInfo_v2, (std::size_t * left, std::size_t * all))                                  \
  X(granularity, cuMemGetAllocationGranularity, (std::size_t * out, const Properties* of, int which))       \
  X(create, cuMemCreate, (Handle * out, std::size_t bytes, const Properties* of, unsigned long long flags)) \
  X(release, cuMemRelease, (Handle memory))                                                                 \
  X(reserve, cuMemAddressReserve,                                                                           \
    (Address * out, std::size_t bytes, std::size_t alignment, Address wanted, unsigned long long flags))    \
  X(unreserve, cuMemAddressFree, (Address at, std::size_t bytes))                                           \
  X(map, cuMemMap,                                                                                          \
    (Address at, std::size_t bytes, std::size_t offset, Handle memory, unsigned long long flags))           \
  X(unmap, cuMemUnmap, (Address at, std::size_t bytes))                                                     \
  X(set_access, cuMemSetAccess, (Address at, std::size_t bytes, const Access* what, std::size_t count))     \
  X(allocate, cuMemAlloc_v2, (Address * out, std::size_t bytes))                                            \
  X(free, cuMemFree_v2, (Address at))                                                                       \
  X(address_range, cuMemGetAddressRange_v2, (Address * base, std::size_t * bytes, Address at))              \
  X(ipc_export, cuIpcGetMemHandle, (IpcHandle * out, Address at))                                           \
  X(ipc_open, cuIpcOpenMemHandle_v2, (Address * out, IpcHandle handle, unsigned flags))                     \
  X(ipc_close, cuIpcCloseMemHandle, (Address at))                                                           \
  X(host_allocate, cuMemHostAlloc, (void** out, std::size_t bytes, unsigned flags))                         \
  X(host_free, cuMemFreeHost, (void* memory))                                                               \
  X(host_address, cuMemHostGetDevicePointer_v2, (Address * out, void* host, unsigned flags))                \
  X(copy_in, cuMemcpyHtoDAsync_v2, (Address to, const void* from, std::size_t bytes, Stream stream))        \
  X(copy_out, cuMemcpyDtoHAsync_v2, (void* to, Address from, std::size_t bytes, Stream stream))             \
  X(copy, cuMemcpyDtoDAsync_v2, (Address to, Address from, std::size_t bytes, Stream stream))               \
  X(fill, cuMemsetD8Async, (Address to, unsigned char value, std::size_t bytes, Stream stream))             \
  X(write_value, cuStreamWriteValue32_v2, (Stream stream, Address at, std::uint32_t value, unsigned flags)) \
  X(stream_create, cuStreamCreateWithPriority, (Stream * out, unsigned flags, int priority))                \
  X(priority_range, cuCtxGetStreamPriorityRange, (int* least, int* greatest))                               \
  X(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                                    \
  X(stream_query, cuStreamQuery, (Stream stream))                                                           \
  X(stream_synchronize, cuStreamSynchronize, (Stream stream))                                               \
  X(stream_wait, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                           \
  X(event_create, cuEventCreate, (Event * out, unsigned flags))                                             \
  X(event_record, cuEventRecord, (Event event, Stream stream))                                              \
  X(event_query, cuEventQuery, (Event event))                                                               \
  X(event_synchronize, cuEventSynchronize, (Event event))                                                   \
  X(event_elapsed, cuEventElapsedTime, (float* milliseconds, Event start, Event end))                       \
  X(event_destroy, cuEventDestroy_v2, (Event event))                                                        \
  X(module_load, cuModuleLoadData, (Module * out, const void* image))                                       \
  X(module_unload, cuModuleUnload, (Module module))                                                         \
  X(module_function, cuModuleGetFunction, (Function * out, Module module, const char* name))                \
  X(launch, cuLaunchKernel,                                                                                 \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,           \
     void** extra))                                                                                         \
  X(capture_begin, cuStreamBeginCapture_v2, (Stream stream, int mode))                                      \
  X(capture_end, cuStreamEndCapture, (Stream stream, Graph * out))                                          \
  X(graph_destroy, cuGraphDestroy, (Graph graph))                                                           \
  X(graph_instantiate, cuGraphInstantiateWithFlags,                                                         \
    (GraphExec * out, Graph graph, unsigned long long flags))                                               \
  X(graph_launch, cuGraphLaunch, (GraphExec graph, Stream stream))                                          \
  X(graph_exec_destroy, cuGraphExecDestroy, (GraphExec graph))                                              \
  X(processors, cuDeviceGetDevResource, (DeviceNumber device, Processors * out, int type))                  \
  X(split_processors, cuDevSmResourceSplitByCount,                                                          \
    (Processors * parts, unsigned* count, const Processors* of, Processors* rest, unsigned flags,           \
     unsigned least))                                                                                       \
  X(describe, cuDevResourceGenerateDesc, (Resources * out, Processors * parts, unsigned count))             \
  X(green_create, cuGreenCtxCreate,                                                                         \
    (GreenContext * out, Resources what, DeviceNumber device, unsigned flags))                              \
  X(green_destroy, cuGreenCtxDestroy, (GreenContext context))                                               \
  X(green_stream, cuGreenCtxStreamCreate,                                                                   \
    (Stream * out, GreenContext context, unsigned flags, int priority))                                     \
  X(error_name, cuGetErrorName, (Status status, const char** out))

struct Driver {
#define CARILLON_CUDA_MEMBER(member, symbol, arguments) Status(*member) arguments = nullptr;
  CARILLON_CUDA_DRIVER(CARILLON_CUDA_MEMBER)
#undef CARILLON_CUDA_MEMBER
};

// "CUDA_ERROR_OUT_OF_MEMORY (2)", or the number alone where the driver has no name for it.
std::string name_of(const Driver& driver, Status status);

}  // namespace carillon::engine::cuda
