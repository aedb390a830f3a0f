/* Numbers and addresses that Python gives. Include after Python.h. */

#include <stdint.h>

#define POINTER(x) ((void *)(intptr_t)(x))

static int numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, int64_t *found)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "takes %zd numbers, not %zd", wanted, given);
        return 0;
    }
    for (Py_ssize_t i = 0; i < given; i++)
        found[i] = PyLong_AsLongLong(args[i]);
    return !PyErr_Occurred();
}
