#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "carillon/share/cuda/testing/fake_driver.h"

// The stand-in under the driver's own names, as a library that is found in place of CUDA's (LD_LIBRARY_PATH).
// Its memory can be read and written by the host, at the addresses that it has on the device.

using carillon::share::cuda::testing::FakeDriver;
using carillon::share::cuda::testing::FakeDriverOptions;
using namespace carillon::share::cuda;

#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

namespace {

const Driver& table() {
  static const Driver functions = [] {
    FakeDriverOptions options;
    if (const char* const bytes = std::getenv("CARILLON_FAKE_CUDA_MEMORY"))
      options.memory = std::strtoull(bytes, nullptr, 10);
    FakeDriver::here().reset(options);
    return FakeDriver::here().table();
  }();
  return functions;
}

std::size_t copy_text(const std::string& text, char* out, std::size_t size) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
  return text.size();
}

}  // namespace
CARILLON_OUT Status cuInit(unsigned flags) {
  return table().init(flags);
}
CARILLON_OUT Status cuDeviceGetCount(int* out) {
  return table().device_count(out);
}
CARILLON_OUT Status cuDeviceGet(DeviceNumber* out, int ordinal) {
  return table().device_get(out, ordinal);
}
CARILLON_OUT Status cuDeviceGetAttribute(int* out, int attribute, DeviceNumber device) {
  return table().device_attribute(out, attribute, device);
}
CARILLON_OUT Status cuDeviceGetUuid_v2(Uuid* out, DeviceNumber device) {
  return table().device_uuid(out, device);
}
CARILLON_OUT Status cuDeviceTotalMem_v2(std::size_t* out, DeviceNumber device) {
  return table().device_memory(out, device);
}
CARILLON_OUT Status cuDevicePrimaryCtxRetain(Context* out, DeviceNumber device) {
  return table().context_retain(out, device);
}
CARILLON_OUT Status cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  return table().context_release(device);
}
CARILLON_OUT Status cuCtxPushCurrent_v2(Context context) {
  return table().context_push(context);
}
CARILLON_OUT Status cuCtxPopCurrent_v2(Context* out) {
  return table().context_pop(out);
}
CARILLON_OUT Status cuCtxSynchronize() {
  return table().context_synchronize();
}
CARILLON_OUT Status cuMemGetAllocationGranularity(std::size_t* out, const Properties* of, int which) {
  return table().granularity(out, of, which);
}
CARILLON_OUT Status cuMemCreate(Handle* out, std::size_t bytes, const Properties* of,
                                unsigned long long flags) {
  return table().create(out, bytes, of, flags);
}
CARILLON_OUT Status cuMemRelease(Handle memory) {
  return table().release(memory);
}
CARILLON_OUT Status cuMemExportToShareableHandle(void* out, Handle memory, int type,
                                                 unsigned long long flags) {
  return table().export_handle(out, memory, type, flags);
}
CARILLON_OUT Status cuMemImportFromShareableHandle(Handle* out, void* descriptor, int type) {
  return table().import_handle(out, descriptor, type);
}
CARILLON_OUT Status cuMemAddressReserve(Address* out, std::size_t bytes, std::size_t alignment,
                                        Address wanted, unsigned long long flags) {
  return table().reserve(out, bytes, alignment, wanted, flags);
}
CARILLON_OUT Status cuMemAddressFree(Address at, std::size_t bytes) {
  return table().unreserve(at, bytes);
}
CARILLON_OUT Status cuMemMap(Address at, std::size_t bytes, std::size_t offset, Handle memory,
                             unsigned long long flags) {
  return table().map(at, bytes, offset, memory, flags);
}
CARILLON_OUT Status cuMemUnmap(Address at, std::size_t bytes) {
  return table().unmap(at, bytes);
}
CARILLON_OUT Status cuMemSetAccess(Address at, std::size_t bytes, const Access* what, std::size_t count) {
  return table().set_access(at, bytes, what, count);
}
CARILLON_OUT Status cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream stream) {
  return table().copy_async(to, from, bytes, stream);
}
CARILLON_OUT Status cuEventCreate(Event* out, unsigned flags) {
  return table().event_create(out, flags);
}
CARILLON_OUT Status cuEventRecord(Event event, Stream stream) {
  return table().event_record(event, stream);
}
CARILLON_OUT Status cuEventQuery(Event event) {
  return table().event_query(event);
}
CARILLON_OUT Status cuEventSynchronize(Event event) {
  return table().event_synchronize(event);
}
CARILLON_OUT Status cuEventDestroy_v2(Event event) {
  return table().event_destroy(event);
}
CARILLON_OUT Status cuStreamCreate(Stream* out, unsigned flags) {
  return table().stream_create(out, flags);
}
CARILLON_OUT Status cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  return table().stream_wait(stream, event, flags);
}
CARILLON_OUT Status cuStreamSynchronize(Stream stream) {
  return table().stream_synchronize(stream);
}
CARILLON_OUT Status cuStreamDestroy_v2(Stream stream) {
  return table().stream_destroy(stream);
}
CARILLON_OUT Status cuStreamIsCapturing(Stream stream, int* out) {
  return table().stream_capturing(stream, out);
}
CARILLON_OUT Status cuThreadExchangeStreamCaptureMode(int* mode) {
  return table().thread_capture_mode(mode);
}
CARILLON_OUT Status cuStreamBeginCapture_v2(Stream stream, int mode) {
  (void)table();
  return FakeDriver::here().begin_capture(stream, mode);
}
// Without the graph, which nothing here launches.
CARILLON_OUT Status carillon_fake_end_capture(Stream stream) {
  return FakeDriver::here().end_capture(stream);
}
CARILLON_OUT Status cuGetErrorName(Status status, const char** out) {
  return table().error_name(status, out);
}

// For whoever tests: what was done against the rules in this process, and the length of all of it.
CARILLON_OUT std::size_t carillon_fake_violations(char* out, std::size_t size) {
  std::string all;
  for (const std::string& each : FakeDriver::here().violations()) all += each + "\n";
  return copy_text(all, out, size);
}
