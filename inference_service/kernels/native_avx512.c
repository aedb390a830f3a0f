/* The kernels of native.h for x86 processors with AVX-512. */

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma")
#endif

#define LANES 16
#define SUMS 16
#define KERNELS kernels_avx512
#include "rows.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
