#pragma once

#include <cstddef>
#include <cstdint>

// The functions of CUDA's driver that lanes on a GPU need, as a table: filled from libcuda.so.1 where there
// is one, or by a test's stand-in (testing/fake_driver.h). Nothing links with CUDA, so that the program
// starts without it.
//
// The few types are declared here, with the layout that cuda.h gives them (driver_test.cpp holds them against
// it where there is one). Plain types, and no code of the program: jobs have this in a library of their own.
namespace carillon::share::cuda {

using Status = int;             // CUresult; 0: done
using DeviceNumber = int;       // CUdevice
using Context = void*;          // CUcontext
using Stream = void*;           // CUstream; nullptr: the default stream of the context
using Event = void*;            // CUevent
using Address = std::uint64_t;  // CUdeviceptr
using Handle = std::uint64_t;   // CUmemGenericAllocationHandle: physical memory

inline constexpr Status done = 0, out_of_memory = 2, no_device = 100, invalid_context = 201, not_ready = 600;
inline constexpr Status not_while_capturing = 900;       // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
inline constexpr Status default_stream_is_barred = 906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

struct Location {  // CUmemLocation
  int type = 1;    // a device
  int id = 0;
};
struct Properties {      // CUmemAllocationProp
  int type = 1;          // pinned: stays on its device
  int handle_types = 1;  // a POSIX file descriptor
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

inline constexpr int file_descriptor = 1;          // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int smallest_granularity = 0;     // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr int has_virtual_memory = 102;     // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
inline constexpr int has_descriptors = 103;        // ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
inline constexpr unsigned event_sleeps = 1;        // CU_EVENT_BLOCKING_SYNC: who waits for it leaves its core
inline constexpr unsigned event_without_time = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned stream_beside_the_default = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr int is_not_capturing = 0;                // CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr int forbids_nothing = 2;                 // CU_STREAM_CAPTURE_MODE_RELAXED

// X(member, the driver's symbol, arguments)
#define CARILLON_CUDA_FUNCTIONS(X)                                                                          \
  X(init, cuInit, (unsigned flags))                                                                         \
  X(device_count, cuDeviceGetCount, (int* out))                                                             \
  X(device_get, cuDeviceGet, (DeviceNumber * out, int ordinal))                                             \
  X(device_attribute, cuDeviceGetAttribute, (int* out, int attribute, DeviceNumber device))                 \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid * out, DeviceNumber device))                                     \
  X(device_memory, cuDeviceTotalMem_v2, (std::size_t * out, DeviceNumber device))                           \
  X(context_retain, cuDevicePrimaryCtxRetain, (Context * out, DeviceNumber device))                         \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (DeviceNumber device))                                   \
  X(context_push, cuCtxPushCurrent_v2, (Context context))                                                   \
  X(context_pop, cuCtxPopCurrent_v2, (Context * out))                                                       \
  X(context_synchronize, cuCtxSynchronize, ())                                                              \
  X(granularity, cuMemGetAllocationGranularity, (std::size_t * out, const Properties* of, int which))       \
  X(create, cuMemCreate, (Handle * out, std::size_t bytes, const Properties* of, unsigned long long flags)) \
  X(release, cuMemRelease, (Handle memory))                                                                 \
  X(export_handle, cuMemExportToShareableHandle,                                                            \
    (void* out, Handle memory, int type, unsigned long long flags))                                         \
  X(import_handle, cuMemImportFromShareableHandle, (Handle * out, void* descriptor, int type))              \
  X(reserve, cuMemAddressReserve,                                                                           \
    (Address * out, std::size_t bytes, std::size_t alignment, Address wanted, unsigned long long flags))    \
  X(unreserve, cuMemAddressFree, (Address at, std::size_t bytes))                                           \
  X(map, cuMemMap,                                                                                          \
    (Address at, std::size_t bytes, std::size_t offset, Handle memory, unsigned long long flags))           \
  X(unmap, cuMemUnmap, (Address at, std::size_t bytes))                                                     \
  X(set_access, cuMemSetAccess, (Address at, std::size_t bytes, const Access* what, std::size_t count))     \
  X(copy_async, cuMemcpyDtoDAsync_v2, (Address to, Address from, std::size_t bytes, Stream stream))         \
  X(event_create, cuEventCreate, (Event * out, unsigned flags))                                             \
  X(event_record, cuEventRecord, (Event event, Stream stream))                                              \
  X(event_query, cuEventQuery, (Event event))                                                               \
  X(event_synchronize, cuEventSynchronize, (Event event))                                                   \
  X(event_destroy, cuEventDestroy_v2, (Event event))                                                        \
  X(stream_create, cuStreamCreate, (Stream * out, unsigned flags))                                          \
  X(stream_wait, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                           \
  X(stream_synchronize, cuStreamSynchronize, (Stream stream))                                               \
  X(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                                    \
  X(stream_capturing, cuStreamIsCapturing, (Stream stream, int* out))                                       \
  X(thread_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                                    \
  X(error_name, cuGetErrorName, (Status status, const char** out))

struct Driver {
#define CARILLON_CUDA_MEMBER(member, symbol, arguments) Status(*member) arguments = nullptr;
  CARILLON_CUDA_FUNCTIONS(CARILLON_CUDA_MEMBER)
#undef CARILLON_CUDA_MEMBER
};

// libcuda.so.1, initialised. False: `why` (of `size` bytes) says what is missing.
bool open_driver(Driver& out, char* why, std::size_t size);

// "CUDA_ERROR_OUT_OF_MEMORY", or the number.
struct StatusName {
  char text[64];
};
StatusName name_of(const Driver& driver, Status status);

}  // namespace carillon::share::cuda
