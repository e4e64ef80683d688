// A management library that says the same of one GPU always. CARILLON_NVML_INIT: what it starts with.
// CARILLON_NVML_LACKS: one function is not there. What it does not know of the GPU: its power's limit.
#include <cstring>

extern "C" {
__attribute__((visibility("default"))) int nvmlInit_v2() {
  return CARILLON_NVML_INIT;
}
__attribute__((visibility("default"))) int nvmlShutdown() {
  return 0;
}
__attribute__((visibility("default"))) const char* nvmlErrorString(int status) {
  return status == 9 ? "Driver Not Loaded" : "Not Found";
}
__attribute__((visibility("default"))) int nvmlDeviceGetHandleByUUID(const char* uuid, void** out) {
  static int device = 0;
  *out = &device;
  return std::strcmp(uuid, "GPU-01000000-0000-0000-0000-000000000000") == 0 ? 0 : 6;
}
__attribute__((visibility("default"))) int nvmlDeviceGetUtilizationRates(void*, unsigned* out) {
  out[0] = 37;
  out[1] = 5;
  return 0;
}
__attribute__((visibility("default"))) int nvmlDeviceGetMemoryInfo(void*, unsigned long long* out) {
  out[0] = 85899345920ULL;
  out[1] = 80000000000ULL;
  out[2] = 5899345920ULL;
  return 0;
}
__attribute__((visibility("default"))) int nvmlDeviceGetPowerUsage(void*, unsigned* out) {
  *out = 123456;
  return 0;
}
__attribute__((visibility("default"))) int nvmlDeviceGetPowerManagementLimit(void*, unsigned*) {
  return 3;  // NVML_ERROR_NOT_SUPPORTED
}
#if !defined(CARILLON_NVML_LACKS)
__attribute__((visibility("default"))) int nvmlDeviceGetTotalEnergyConsumption(void*,
                                                                               unsigned long long* out) {
  *out = 5500;
  return 0;
}
#endif
__attribute__((visibility("default"))) int nvmlDeviceGetTemperature(void*, int sensor, unsigned* out) {
  *out = sensor == 0 ? 41 : 0;
  return 0;
}
}
