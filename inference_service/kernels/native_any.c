/* The kernels of native.h for all other processors. */

#define LANES 4
#define SUMS 8
#define KERNELS kernels_any
#include "rows.h"
