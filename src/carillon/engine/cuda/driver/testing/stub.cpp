// A library with the names of CUDA's driver that does nothing (stub_answers.cpp has the little that it says),
// for what open_driver() makes of one. CARILLON_STUB_LACKS: one function is not there.
#include "carillon/engine/cuda/driver/driver.h"

#if defined(CARILLON_STUB_LACKS)
#define cuGreenCtxStreamCreate carillon_is_not_there
#endif
// In two steps, so that the name above is replaced.
#define CARILLON_STUB_OF(symbol)                                         \
  extern "C" __attribute__((weak, visibility("default"))) int symbol() { \
    return 0;                                                            \
  }
#define CARILLON_STUB(member, symbol, arguments) CARILLON_STUB_OF(symbol)
CARILLON_CUDA_DRIVER(CARILLON_STUB)
