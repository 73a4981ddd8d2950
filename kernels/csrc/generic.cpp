// Any processor: what the compiler makes of plain vectors of four floats.
#include <cmath>
#include <cstring>

#include "context.h"

#define HR_ISA generic
#define HR_LANES 4
#include "kernels.inc"
