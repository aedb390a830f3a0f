/* Operations of a decoder on the CPU between its linear layers, for rows of many sessions in one call: norms, rotary
   positions, attention and gates.

   layers.py passes addresses of contiguous tensors in float32 or bfloat16; everything is computed in float32.
   One thread; the GIL is released where a call may take longer than a few dozen microseconds. Plain C with
   vector extensions of GCC and Clang (rows.h); on x86 there is a version for each width of vectors, chosen when the
   module is loaded. INSTRUCTIONS is the widest vector that may be chosen, in bits: `make sanitize` builds each. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#include "arguments.h"
#include "native.h"

#ifndef INSTRUCTIONS
#define INSTRUCTIONS 512
#endif

#define LONGEST_HEAD 1024 /* limit of a head's size, because a head is kept on the stack */
#define WIDEST 16         /* numbers of the widest vector; sizes of heads and gates are multiples of it */
#define LONG 1000000      /* products of queries and keys that take longer than a handover of the GIL */

static const Kernels *kernels = &kernels_any;

/* Reads a float and then `wanted` integers. */
static int decimal_and_numbers(PyObject *const *args, Py_ssize_t given, float *first, Py_ssize_t wanted, int64_t *found)
{
    if (given < 1) {
        PyErr_SetString(PyExc_TypeError, "takes a float first");
        return 0;
    }
    double number = PyFloat_AsDouble(args[0]);
    if (number == -1 && PyErr_Occurred())
        return 0;
    *first = (float)number;
    return numbers(args + 1, given - 1, wanted, found);
}

/* Checks that packed rows, entries of the table and pages of the cache exist wherever spans refer to them. */
static int are_places(const Span *spans, int64_t count, const int32_t *table, int64_t entries, int64_t rows,
                      int64_t pages)
{
    for (int64_t i = 0; i < entries; i++)
        if (table[i] < 0 || table[i] >= pages) {
            PyErr_Format(PyExc_IndexError, "page %d is not among the %lld of the cache", (int)table[i],
                         (long long)pages);
            return 0;
        }
    for (const Span *span = spans; span < spans + count; span++) {
        const char *wrong = NULL;
        if (span->count < 0 || span->row < 0 || span->row > rows - span->count)
            wrong = "rows are not among those that were passed";
        else if (span->end < span->count || span->begin < 0 || span->begin > span->end - span->count)
            wrong = "context does not include its rows";
        else if (span->pages < 0 || span->pages > entries || span->end > (entries - span->pages) * PAGE)
            wrong = "pages are not in the table";
        if (wrong) {
            PyErr_Format(PyExc_IndexError, "span %lld: its %s", (long long)(span - spans), wrong);
            return 0;
        }
    }
    return 1;
}

/* Checks the numbers of heads and of key heads, and the size of a head. */
static int are_heads(int64_t heads, int64_t kv, int64_t head)
{
    if (kv > 0 && heads > 0 && heads % kv == 0 && head > 0 && head % WIDEST == 0 && head <= LONGEST_HEAD)
        return 1;
    PyErr_Format(PyExc_ValueError, "there are no %lld heads of %lld numbers for %lld of keys", (long long)heads,
                 (long long)head, (long long)kv);
    return 0;
}

static PyObject *py_norm(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { ROWS, MORE, TOTAL, WEIGHT, OUT, N, WIDTH, HALF, ALL };
    int64_t a[ALL];
    float epsilon;
    if (!decimal_and_numbers(args, count, &epsilon, ALL, a) || !is_shape(a[N], a[WIDTH], 1))
        return NULL;
    int64_t all = a[N] * a[WIDTH];
    if (!is_there(a[ROWS], all) || !is_there(a[WEIGHT], a[WIDTH]) || !is_there(a[OUT], all)
        || !is_there(a[MORE], 0) || !is_there(a[TOTAL], a[MORE] ? all : 0))
        return NULL;
    kernels->norm(POINTER(a[ROWS]), POINTER(a[MORE]), POINTER(a[TOTAL]), POINTER(a[WEIGHT]), POINTER(a[OUT]), a[N],
                  a[WIDTH], epsilon, a[HALF] != 0);
    Py_RETURN_NONE;
}

static PyObject *py_gate(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { ROWS, OUT, N, WIDTH, HALF, ALL };
    int64_t a[ALL];
    if (!numbers(args, count, ALL, a) || !is_shape(a[N], a[WIDTH], 2))
        return NULL;
    if (a[WIDTH] % WIDEST) {
        PyErr_Format(PyExc_ValueError, "a gate's width is a multiple of %d, not %lld", WIDEST, (long long)a[WIDTH]);
        return NULL;
    }
    if (!is_there(a[ROWS], a[N] * a[WIDTH]) || !is_there(a[OUT], a[N] * a[WIDTH]))
        return NULL;
    kernels->gate(POINTER(a[ROWS]), POINTER(a[OUT]), a[N], a[WIDTH], a[HALF] != 0);
    Py_RETURN_NONE;
}

/* Arguments that `turn` and `attend` share, in this order. */
enum { KEYS, VALUES, SPANS, TABLE, COUNT, ENTRIES, ROWS, HEADS, KV, HEAD, STRIDE, PLACES };

/* Checks the shared arguments. */
static int is_place(const int64_t *a)
{
    if (!are_heads(a[HEADS], a[KV], a[HEAD]) || !is_shape(a[ROWS], a[HEADS] + 2 * a[KV], a[HEAD])
        || !is_shape(a[KV], a[STRIDE], 1) || !is_shape(a[COUNT], 5, 1) || !is_shape(a[ENTRIES], PAGE, 1))
        return 0;
    if (a[STRIDE] % (PAGE * a[HEAD])) {
        PyErr_SetString(PyExc_ValueError, "a head's keys are not in whole pages");
        return 0;
    }
    return is_there(a[KEYS], a[STRIDE]) && is_there(a[VALUES], a[STRIDE]) && is_there(a[SPANS], a[COUNT])
        && is_there(a[TABLE], a[ENTRIES])
        && are_places(POINTER(a[SPANS]), a[COUNT], POINTER(a[TABLE]), a[ENTRIES], a[ROWS],
                      a[STRIDE] / (PAGE * a[HEAD]));
}

static PyObject *py_turn(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { PROJECTED, WEIGHTS, COSINES, SINES, QUERIES, FIRST, HALF = FIRST + PLACES, ALL };
    int64_t a[ALL], *p = a + FIRST;
    float epsilon;
    if (!decimal_and_numbers(args, count, &epsilon, ALL, a) || !is_place(p))
        return NULL;
    if (!is_there(a[PROJECTED], p[ROWS]) || !is_there(a[WEIGHTS], 0) || !is_there(a[COSINES], p[ROWS])
        || !is_there(a[SINES], p[ROWS]) || !is_there(a[QUERIES], p[ROWS]))
        return NULL;
    Turn it = {POINTER(a[PROJECTED]), POINTER(a[WEIGHTS]), POINTER(a[COSINES]), POINTER(a[SINES]),
               POINTER(a[QUERIES]), POINTER(p[KEYS]), POINTER(p[VALUES]), POINTER(p[SPANS]), POINTER(p[TABLE]),
               p[COUNT], p[HEADS], p[KV], p[HEAD], p[STRIDE], epsilon};
    kernels->turn(&it, a[HALF] != 0);
    Py_RETURN_NONE;
}

static PyObject *py_attend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { QUERIES, OUT, FIRST, WINDOW = FIRST + PLACES, HALF, ALL };
    int64_t a[ALL], *p = a + FIRST;
    float scale;
    if (!decimal_and_numbers(args, count, &scale, ALL, a) || !is_place(p))
        return NULL;
    if (!is_there(a[QUERIES], p[ROWS]) || !is_there(a[OUT], p[ROWS]))
        return NULL;
    if (a[WINDOW] < 0) {
        PyErr_SetString(PyExc_ValueError, "a window is 0 or more");
        return NULL;
    }
    Attention it = {POINTER(a[QUERIES]), POINTER(a[OUT]), POINTER(p[KEYS]), POINTER(p[VALUES]), POINTER(p[SPANS]),
                    POINTER(p[TABLE]), p[COUNT], p[HEADS], p[KV], p[HEAD], p[STRIDE], a[WINDOW], scale};
    int64_t longest = 0, most = 0;
    double work = 0;
    for (const Span *span = it.spans; span < it.spans + it.count; span++) {
        longest = span->end + PAGE > longest ? span->end + PAGE : longest;
        if (span->count * it.heads / it.kv >= MANY)
            most = span->end + PAGE > most ? span->end + PAGE : most;
        work += (double)span->count * (double)span->end * (double)(it.heads * it.head);
    }
    float *scores = malloc((size_t)(MOST * longest + most * it.head) * sizeof(float));
    if (!scores)
        return PyErr_NoMemory();
    PyThreadState *others = work >= LONG ? PyEval_SaveThread() : NULL;
    kernels->attend(&it, scores, scores + MOST * longest, a[HALF] != 0);
    if (others)
        PyEval_RestoreThread(others);
    free(scores);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"norm", (PyCFunction)(void (*)(void))py_norm, METH_FASTCALL,
     "epsilon, rows, more or 0, total or 0, weight, out, n, width, is half"},
    {"gate", (PyCFunction)(void (*)(void))py_gate, METH_FASTCALL, "rows, out, n, width, is half"},
    {"turn", (PyCFunction)(void (*)(void))py_turn, METH_FASTCALL,
     "epsilon, projected, weights or 0, cosines, sines, queries, keys, values, spans, table, count, entries, rows, "
     "heads, kv, head, stride, is half"},
    {"attend", (PyCFunction)(void (*)(void))py_attend, METH_FASTCALL,
     "scale, queries, out, keys, values, spans, table, count, entries, rows, heads, kv, head, stride, window or 0, "
     "is half"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (INSTRUCTIONS >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl"))
        kernels = &kernels_avx512;
    else if (INSTRUCTIONS >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kernels = &kernels_avx2;
#endif
    return PyModule_Create(&definition);
}
