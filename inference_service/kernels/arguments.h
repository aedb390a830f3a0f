/* Checks of numbers, addresses and arrays that Python passes. Include after Python.h.

   Each function returns 1, or 0 with a Python exception set.

   Tensors come as addresses, after tensors.py has checked their dtype, shape, device and contiguity. The
   functions here check sizes and their products, and arrays that are passed by the buffer protocol. */

#include <stdint.h>

#define POINTER(x) ((void *)(intptr_t)(x))
#define MOST_NUMBERS ((int64_t)1 << 46) /* limit for a tensor: more do not fit into an address space */

#if defined(__GNUC__)
#define MAYBE_UNUSED __attribute__((unused))
#else
#define MAYBE_UNUSED
#endif

/* Reads `wanted` integers into `found`. */
MAYBE_UNUSED static int numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, int64_t *found)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "takes %zd numbers, not %zd", wanted, given);
        return 0;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        found[i] = PyLong_AsLongLong(args[i]);
        if (found[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

/* Checks that a tensor of shape [a, b, c] is possible: no size is negative, and it has at most MOST_NUMBERS. */
MAYBE_UNUSED static int is_shape(int64_t a, int64_t b, int64_t c)
{
    int64_t all;
    if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a ? a : 1, b ? b : 1, &all)
        || __builtin_mul_overflow(all, c ? c : 1, &all) || all > MOST_NUMBERS) {
        PyErr_Format(PyExc_ValueError, "there is no tensor of shape [%lld, %lld, %lld]", (long long)a, (long long)b,
                     (long long)c);
        return 0;
    }
    return 1;
}

/* Checks that a tensor of `count` numbers has an address; only an empty one may have address 0. */
MAYBE_UNUSED static int is_there(int64_t address, int64_t count)
{
    if (address > 0 || (address == 0 && count == 0))
        return 1;
    PyErr_SetString(PyExc_ValueError, "a tensor has no address");
    return 0;
}

/* Opens a contiguous array of numbers of `size` bytes: floats for kind 'f', signed integers for 'i'. */
MAYBE_UNUSED static int open_array(PyObject *from, Py_buffer *view, char kind, Py_ssize_t size, int is_written,
                                   const char *name)
{
    if (PyObject_GetBuffer(from, view, PyBUF_ND | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0)))
        return 0;
    char format = view->format && !view->format[1] ? view->format[0] : 0;
    if (view->itemsize == size && (kind == 'f' ? format == 'f' : format == 'i' || format == 'l' || format == 'q'))
        return 1;
    PyErr_Format(PyExc_TypeError, "%s must be %s%zd", name, kind == 'f' ? "float" : "int", 8 * size);
    PyBuffer_Release(view);
    return 0;
}
