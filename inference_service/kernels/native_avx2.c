/* The kernels of native.h for x86 processors with AVX2. */

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define LANES 8
#define SUMS 8
#define KERNELS kernels_avx2
#include "rows.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
