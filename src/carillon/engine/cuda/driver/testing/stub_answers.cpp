#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

CARILLON_OUT int cuDriverGetVersion(int* out) {
  *out = CARILLON_STUB_VERSION;
  return 0;
}
CARILLON_OUT int cuInit(unsigned) {
  return CARILLON_STUB_INIT;
}
CARILLON_OUT int cuGetErrorName(int status, const char** out) {
  *out = status == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_SUCCESS";
  return 0;
}
