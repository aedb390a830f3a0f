/* The kernels of native.h for processors without AVX2. */

#define LANES 4
#define SUMS 8
#define KERNELS kernels_any
#include "rows.h"
