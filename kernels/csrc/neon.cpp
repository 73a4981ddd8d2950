// arm64.
#include <cmath>
#include <cstring>

#include "context.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#define HR_ISA neon
#define HR_LANES 4
#define HR_NEON 1
#include "kernels.inc"
#endif
