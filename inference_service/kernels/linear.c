/* Linear layers for the CPU in float32: rows times packed weights.

   Weights [outputs, depth] are packed into panels of 16 outputs, [outputs / 16, depth, 16]; the last panel is padded
   with zeros. Each output is one sum: the bias, then the products in the order of the depth. The order is the same for
   any number of rows, so the result of a row is the same bit for bit alone and in a batch. The next weights are
   prefetched during a multiplication, so that memory and arithmetic do not wait for each other.

   panels.py passes addresses of contiguous tensors. One thread; the GIL is released where a call may take longer
   than a few dozen microseconds. Plain C with vector extensions of GCC and Clang; on x86 there is a version for
   AVX-512, one for AVX2 and one for other processors. INSTRUCTIONS is the widest vector that may be chosen, in bits. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "arguments.h"

#ifndef INSTRUCTIONS
#define INSTRUCTIONS 512
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

#define WIDE 16     /* outputs of a panel: a cache line */
#define MOST 4      /* panels that are multiplied together */
#define STEP 8      /* numbers of the depth between two prefetches */
#define DEEP 512    /* numbers of one part of the depth: 32 KiB of a panel */
#define BLOCK 128   /* rows of one block */
#define NEAR 16     /* cache lines between a prefetch and its use, where each line is read only once */
#define LONG 250000 /* products that take longer than a handover of the GIL */

typedef struct {
    const float *x;         /* [rows, depth] */
    const float *panels;    /* [outputs / 16, depth, 16] */
    const float *bias;      /* [outputs], or NULL */
    float *y;               /* [rows, outputs] */
    long rows, outputs, depth;
} Product;

#if defined(__x86_64__)
#define LANES 16
#define SUMS 24
#define NAMED(x) x##_avx512
#define FOR_THIS_PROCESSOR __attribute__((target("avx512f,avx2,fma")))
#include "panels.h"

#define LANES 8
#define SUMS 12
#define NAMED(x) x##_avx2
#define FOR_THIS_PROCESSOR __attribute__((target("avx2,fma")))
#include "panels.h"
#endif

#define LANES 4
#if defined(__x86_64__)
#define SUMS 12
#else
#define SUMS 24
#endif
#define NAMED(x) x##_any
#define FOR_THIS_PROCESSOR
#include "panels.h"

static void (*multiply)(const Product *) = multiply_any;

static void pack(const float *weight, float *panels, long outputs, long depth)
{
    for (long n = 0; n < (outputs + WIDE - 1) / WIDE * WIDE; n++)
        for (long k = 0; k < depth; k++)
            panels[(n / WIDE * depth + k) * WIDE + n % WIDE] = n < outputs ? weight[n * depth + k] : 0;
}

/* ------------------------------------------------------------------------------------------------- Python */

static PyObject *py_pack(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { WEIGHT, PANELS, OUTPUTS, DEPTH, ALL };
    int64_t a[ALL];
    if (!numbers(args, count, ALL, a) || !is_shape(a[OUTPUTS], WIDE, a[DEPTH])
        || !is_there(a[WEIGHT], a[OUTPUTS] * a[DEPTH]) || !is_there(a[PANELS], a[OUTPUTS] * a[DEPTH]))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pack(POINTER(a[WEIGHT]), POINTER(a[PANELS]), a[OUTPUTS], a[DEPTH]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { X, PANELS, BIAS, Y, ROWS, OUTPUTS, DEPTH, ALL };
    int64_t a[ALL];
    if (!numbers(args, count, ALL, a) || !is_shape(a[ROWS], a[DEPTH], 1) || !is_shape(a[ROWS], a[OUTPUTS], 1)
        || !is_shape(a[OUTPUTS], WIDE, a[DEPTH]) || !is_there(a[X], a[ROWS] * a[DEPTH])
        || !is_there(a[PANELS], a[OUTPUTS] * a[DEPTH]) || !is_there(a[BIAS], 0)
        || !is_there(a[Y], a[ROWS] * a[OUTPUTS]))
        return NULL;
    Product it = {POINTER(a[X]), POINTER(a[PANELS]), POINTER(a[BIAS]), POINTER(a[Y]), a[ROWS], a[OUTPUTS], a[DEPTH]};
    PyThreadState *others = (double)it.rows * (double)it.outputs * (double)it.depth >= LONG ? PyEval_SaveThread() : NULL;
    multiply(&it);
    if (others)
        PyEval_RestoreThread(others);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"pack", (PyCFunction)(void (*)(void))py_pack, METH_FASTCALL, "weight, panels, outputs, depth"},
    {"multiply", (PyCFunction)(void (*)(void))py_multiply, METH_FASTCALL,
     "x, panels, bias or 0, y, rows, outputs, depth"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "linear", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_linear(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (INSTRUCTIONS >= 512 && __builtin_cpu_supports("avx512f"))
        multiply = multiply_avx512;
    else if (INSTRUCTIONS >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        multiply = multiply_avx2;
#endif
    return PyModule_Create(&definition);
}
