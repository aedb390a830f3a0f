/* What a decoder on the CPU does between its linear layers, for rows of many sessions in one call.

   Called by layers.py with addresses: tensors lie in one piece, in float32 or bfloat16; everything is computed
   in float32. One thread; the interpreter's lock is let go where a call may take longer than a few dozen
   microseconds. Plain C with the vectors of GCC and Clang (rows.h); on x86 there is a version for each width of
   vectors, chosen when the module is loaded. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#include "arguments.h"
#include "native.h"

#define LONG 1000000 /* products of queries and keys that take longer than handing over the lock */

static const Kernels *kernels = &kernels_any;

static int decimal(PyObject *arg, float *found)
{
    *found = (float)PyFloat_AsDouble(arg);
    return !PyErr_Occurred();
}

static PyObject *py_norm(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t a[8];
    float epsilon;
    if (count < 1 || !decimal(args[0], &epsilon) || !numbers(args + 1, count - 1, 8, a))
        return NULL;
    kernels->norm(POINTER(a[0]), POINTER(a[1]), POINTER(a[2]), POINTER(a[3]), POINTER(a[4]), a[5], a[6], epsilon, (int)a[7]);
    Py_RETURN_NONE;
}

static PyObject *py_gate(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t a[5];
    if (!numbers(args, count, 5, a))
        return NULL;
    kernels->gate(POINTER(a[0]), POINTER(a[1]), a[2], a[3], (int)a[4]);
    Py_RETURN_NONE;
}

static PyObject *py_turn(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t a[15];
    float epsilon;
    if (count < 1 || !decimal(args[0], &epsilon) || !numbers(args + 1, count - 1, 15, a))
        return NULL;
    Turn it = {POINTER(a[0]), POINTER(a[1]), POINTER(a[2]), POINTER(a[3]), POINTER(a[4]), POINTER(a[5]),
               POINTER(a[6]), POINTER(a[7]), POINTER(a[8]), a[9], a[10], a[11], a[12], a[13], epsilon};
    kernels->turn(&it, (int)a[14]);
    Py_RETURN_NONE;
}

static PyObject *py_attend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t a[13];
    float scale;
    if (count < 1 || !decimal(args[0], &scale) || !numbers(args + 1, count - 1, 13, a))
        return NULL;
    Attention it = {POINTER(a[0]), POINTER(a[1]), POINTER(a[2]), POINTER(a[3]), POINTER(a[4]), POINTER(a[5]),
                    a[6], a[7], a[8], a[9], a[10], a[11], scale};
    int64_t longest = 0, most = 0, work = 0;
    for (const Span *span = it.spans; span < it.spans + it.count; span++) {
        longest = span->end + PAGE > longest ? span->end + PAGE : longest;
        work += span->count * span->end * it.heads * it.head;
        if (span->count * it.heads / it.kv >= MANY)
            most = span->end + PAGE > most ? span->end + PAGE : most;
    }
    float *scores = malloc((size_t)(MOST * longest + most * it.head) * sizeof(float));
    if (!scores)
        return PyErr_NoMemory();
    PyThreadState *others = work >= LONG ? PyEval_SaveThread() : NULL;
    kernels->attend(&it, scores, scores + MOST * longest, (int)a[12]);
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
     "epsilon, projected, weights or 0, cosines, sines, queries, keys, values, spans, table, count, heads, kv, "
     "head, stride, is half"},
    {"attend", (PyCFunction)(void (*)(void))py_attend, METH_FASTCALL,
     "scale, queries, out, keys, values, spans, table, count, heads, kv, head, stride, window or 0, is half"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        kernels = &kernels_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kernels = &kernels_avx2;
#endif
    return PyModule_Create(&definition);
}
