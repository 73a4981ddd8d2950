// Zen 4 and later, Cooper Lake, Sapphire Rapids and later.
#include <cmath>
#include <cstring>

#include "context.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")
#endif
#define HR_ISA avx512bf16
#define HR_LANES 16
#define HR_AVX512 1
#define HR_AVX512_BF16 1
#include "kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
