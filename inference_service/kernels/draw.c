/* Samples the next token of one session from scores on the host, in one call. It repeats each operation of
   engine/batch/sampler.py, and the compiler may not change floating-point results: both must draw the same token. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

#define COLDEST 1e-3    /* as in engine/batch/draw.py */
#define SURE 50.0f      /* as in engine/batch/sampler.py */
#define NO_TOKEN (-1)
#define FEW 64          /* up to this many kept scores, a heap is faster than a sort of all */

/* ------------------------------------------------------------------------------------------------- a draw */

typedef struct {
    int32_t *all; /* free_draw frees it */
    Py_ssize_t count;
} Ids;

typedef struct {
    double temperature, top_p, repetition, length, bias, scale, uniforms[2];
    long top_k, first, favoured, sure_within, divides;
    Ids recent, ends;
    Py_buffer allowed;
} Draw;

static PyObject *names[15];
static const char *const spelled[] = {
    "temperature", "top_p", "repetition_penalty", "length_penalty", "bias", "scale", "top_k", "favoured",
    "sure_within", "divides", "uniforms", "first", "recent", "ends", "allowed"};
enum { UNIFORMS = 10, FIRST, RECENT, ENDS, ALLOWED };

/* Reads ids from a contiguous int32 array or any sequence of integers; returns 0 with an exception set on errors. */
static int read_ids(PyObject *from, Ids *ids)
{
    Py_ssize_t count = PyObject_Size(from);
    if (count <= 0)
        return !count;
    ids->all = malloc((size_t)count * sizeof(int32_t));
    if (!ids->all) {
        PyErr_NoMemory();
        return 0;
    }
    ids->count = count;
    if (PyObject_CheckBuffer(from)) {
        Py_buffer view;
        if (!open_array(from, &view, 'i', sizeof(int32_t), 0, "an array of ids"))
            return 0;
        int fits = view.len == count * (Py_ssize_t)sizeof(int32_t);
        if (fits)
            memcpy(ids->all, view.buf, (size_t)view.len);
        else
            PyErr_SetString(PyExc_ValueError, "an array of ids has one dimension");
        PyBuffer_Release(&view);
        return fits;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *id = PySequence_GetItem(from, i);
        long number = id ? PyLong_AsLong(id) : 0;
        Py_XDECREF(id);
        if (PyErr_Occurred())
            return 0;
        ids->all[i] = number < 0 || number > INT32_MAX ? -1 : (int32_t)number; /* is_within refuses -1 */
    }
    return 1;
}

/* Reads the id that is tested before all others; only None becomes NO_TOKEN. */
static void read_first(PyObject *from, long *first)
{
    *first = from == Py_None ? NO_TOKEN : PyLong_AsLong(from);
    if (*first < 0 && from != Py_None && !PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "an id is not in the vocabulary");
}

static int read_draw(PyObject *from, Draw *draw)
{
    double *floats[] = {&draw->temperature, &draw->top_p, &draw->repetition, &draw->length, &draw->bias, &draw->scale};
    long *integers[] = {&draw->top_k, &draw->favoured, &draw->sure_within, &draw->divides};
    for (int i = 0; i < ALLOWED + 1; i++) {
        PyObject *field = PyObject_GetAttr(from, names[i]);
        if (!field)
            return 0;
        if (i < 6)
            *floats[i] = PyFloat_AsDouble(field);
        else if (i < UNIFORMS)
            *integers[i - 6] = PyLong_AsLong(field);
        else if (i == UNIFORMS)
            for (int k = 0; k < 2 && !PyErr_Occurred(); k++) {
                PyObject *number = PySequence_GetItem(field, k);
                draw->uniforms[k] = number ? PyFloat_AsDouble(number) : 0;
                Py_XDECREF(number);
            }
        else if (i == FIRST)
            read_first(field, &draw->first);
        else if (i == RECENT && draw->repetition != 1)
            read_ids(field, &draw->recent);
        else if (i == ENDS && draw->length != 1)
            read_ids(field, &draw->ends);
        else if (i == ALLOWED && field != Py_None)
            open_array(field, &draw->allowed, 'i', 4, 0, "allowed");
        Py_DECREF(field);
        if (PyErr_Occurred())
            return 0;
    }
    return 1;
}

static void free_draw(Draw *draw)
{
    free(draw->recent.all);
    free(draw->ends.all);
    if (draw->allowed.obj)
        PyBuffer_Release(&draw->allowed);
}

/* Returns whether all ids of the draw and the forbidden ones are in a vocabulary of `count`, and top_k is positive. */
static int is_within(const Draw *draw, const Py_buffer *forbidden, long count)
{
    const int64_t *banned = forbidden->buf;
    for (Py_ssize_t i = 0; i < forbidden->len / 8; i++)
        if (banned[i] < 0 || banned[i] >= count)
            return 0;
    const Ids *both[] = {&draw->recent, &draw->ends};
    for (int k = 0; k < 2; k++)
        for (Py_ssize_t i = 0; i < both[k]->count; i++)
            if (both[k]->all[i] < 0 || both[k]->all[i] >= count)
                return 0;
    return draw->first < count && draw->favoured >= 0 && draw->favoured < count && draw->top_k > 0;
}

/* ------------------------------------------------------------------------------------------------- scores */

/* Returns the id of the highest score, the lowest such id; with NaN among the scores, the id of the first NaN. */
static long likeliest(const float *scores, long count)
{
    long best = 0;
    for (long i = 0; i < count; i++) {
        if (scores[i] != scores[i])
            return i;
        if (scores[i] > scores[best])
            best = i;
    }
    return best;
}

/* Returns whether the id that is tested first is drawn, with its probability under the model. */
static int is_first(const float *scores, long count, const Draw *draw, long best)
{
    if (draw->temperature < COLDEST)
        return best == draw->first;
    double highest = scores[best], own = exp(scores[draw->first] - highest), all = 0;
    if (own < draw->uniforms[0]) /* the upper bound of its probability decides */
        return 0;
    for (long i = 0; i < count; i++)
        all += exp(scores[i] - highest);
    return draw->uniforms[0] < own / all;
}

static int penalise(float *scores, const Ids *ids, float by, int divides)
{
    if (!ids->count)
        return 1;
    float *less = malloc((size_t)ids->count * sizeof(float));
    if (!less)
        return 0;
    for (Py_ssize_t i = 0; i < ids->count; i++) {
        float old = scores[ids->all[i]], one = old / by, other = old * by;
        less[i] = divides || (by > 1) == (one < other) ? one : other;
    }
    for (Py_ssize_t i = 0; i < ids->count; i++) /* ids that occur twice are penalised once */
        scores[ids->all[i]] = less[i];
    free(less);
    return 1;
}

static int adjust(float *scores, long count, const Draw *draw, const Py_buffer *forbidden)
{
    const int64_t *banned = forbidden->buf;
    for (Py_ssize_t i = 0; i < forbidden->len / 8; i++)
        scores[banned[i]] = -INFINITY;
    if (!penalise(scores, &draw->recent, (float)draw->repetition, (int)draw->divides)
        || !penalise(scores, &draw->ends, (float)draw->length, 0))
        return 0;
    float *own = scores + draw->favoured;
    if (draw->bias != 0 || draw->scale != 1)
        *own = *own * (float)draw->scale + (float)draw->bias;
    if (draw->sure_within) {
        long better = 0;
        for (long i = 0; i < count; i++)
            better += scores[i] > *own;
        if (better < draw->sure_within)
            *own = scores[likeliest(scores, count)] + SURE;
    }
    if (draw->allowed.obj) {
        const uint32_t *words = draw->allowed.buf;
        for (long i = 0; i < count; i++)
            if (i / 32 >= draw->allowed.len / 4 || !(words[i / 32] >> i % 32 & 1))
                scores[i] = -INFINITY;
    }
    return 1;
}

/* Replaces the least number of a heap. */
static void sift(float *heap, long count, float number)
{
    long at = 0;
    for (long next = 1; next < count; next = 2 * at + 1) {
        if (next + 1 < count && heap[next + 1] < heap[next])
            next++;
        if (!(heap[next] < number))
            break;
        heap[at] = heap[next];
        at = next;
    }
    heap[at] = number;
}

/* Writes the `kept` highest scores into `best`, in descending order, by a heap. */
static void rank_few(const float *scores, long count, float *best, long kept)
{
    for (long i = 0; i < kept; i++)
        best[i] = -INFINITY;
    for (long i = 0; i < count; i++)
        if (scores[i] > best[0])
            sift(best, kept, scores[i]);
    for (long left = kept - 1; left > 0; left--) {
        float least = best[0], last = best[left];
        sift(best, left, last);
        best[left] = least;
    }
}

/* Sorts all scores in descending order into keys[0], by a radix sort of integers that have the reverse order of the
   scores. `keys` is [2, count]. */
static void rank_all(const float *scores, long count, uint32_t *keys)
{
    uint32_t *from = keys, *to = keys + count;
    memcpy(from, scores, (size_t)count * sizeof(float));
    for (long i = 0; i < count; i++)
        from[i] ^= from[i] >> 31 ? 0 : 0x7fffffff;
    for (int shift = 0; shift < 32; shift += 8) {
        long places[256] = {0}, place = 0;
        for (long i = 0; i < count; i++)
            places[from[i] >> shift & 255]++;
        for (int digit = 0; digit < 256; digit++) {
            long here = places[digit];
            places[digit] = place;
            place += here;
        }
        for (long i = 0; i < count; i++)
            to[places[from[i] >> shift & 255]++] = from[i];
        uint32_t *other = from;
        from = to;
        to = other;
    }
    for (long i = 0; i < count; i++)
        from[i] ^= from[i] >> 31 ? 0 : 0x7fffffff;
}

/* Samples from the likeliest ids within top_k and top_p; returns NO_TOKEN without memory. `top` is the likeliest. */
static long sampled(const float *scores, long count, const Draw *draw, long top)
{
    long size = draw->top_k < count ? draw->top_k : count, kept = 1, at = 0;
    double *mass = malloc((size_t)size * sizeof(double) + 2 * (size_t)count * sizeof(float)), total = 0;
    if (!mass)
        return NO_TOKEN;
    float *best = (float *)(mass + size);
    if (size <= FEW)
        rank_few(scores, count, best, size);
    else
        rank_all(scores, count, (uint32_t *)best);
    for (long i = 0; i < size; i++)
        mass[i] = total += exp(((double)best[i] - (double)best[0]) / draw->temperature);
    while (kept < size && mass[kept - 1] < draw->top_p * total)
        kept++;
    while (at < kept - 1 && mass[at] <= draw->uniforms[1] * mass[kept - 1])
        at++;
    long found = top;
    if (at) {
        long before = 0;
        while (before < at && best[at - 1 - before] == best[at])
            before++;
        for (found = 0; scores[found] != best[at] || before--; found++)
            ;
    }
    free(mass);
    return found;
}

/* ------------------------------------------------------------------------------------------------- Python */

static PyObject *choose(const Draw *draw, float *scores, long count, const Py_buffer *forbidden)
{
    if (draw->first != NO_TOKEN) {
        long best = likeliest(scores, count);
        if (!isfinite(scores[best]))
            Py_RETURN_NONE;
        if (is_first(scores, count, draw, best))
            return PyLong_FromLong(draw->first);
    }
    if (!adjust(scores, count, draw, forbidden))
        return PyErr_NoMemory();
    long best = likeliest(scores, count);
    if (!isfinite(scores[best]))
        Py_RETURN_NONE;
    long found = draw->temperature < COLDEST ? best : sampled(scores, count, draw, best);
    return found == NO_TOKEN ? PyErr_NoMemory() : PyLong_FromLong(found);
}

static PyObject *py_choose(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer scores, forbidden = {0};
    Draw draw = {0};
    PyObject *chosen = NULL;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "takes scores, a draw, and forbidden ids or None");
        return NULL;
    }
    if (!open_array(args[0], &scores, 'f', sizeof(float), 1, "scores"))
        return NULL;
    int is_banned = args[2] != Py_None;
    if (is_banned && !open_array(args[2], &forbidden, 'i', sizeof(int64_t), 0, "forbidden")) {
        PyBuffer_Release(&scores);
        return NULL;
    }
    if (scores.ndim != 1)
        PyErr_SetString(PyExc_ValueError, "scores have one dimension");
    else if (read_draw(args[1], &draw)) {
        if (is_within(&draw, &forbidden, scores.len / 4))
            chosen = choose(&draw, scores.buf, scores.len / 4, &forbidden);
        else
            PyErr_SetString(PyExc_IndexError, "an id is not in the vocabulary");
    }
    free_draw(&draw);
    if (is_banned)
        PyBuffer_Release(&forbidden);
    PyBuffer_Release(&scores);
    return chosen;
}

static PyMethodDef methods[] = {
    {"choose", (PyCFunction)(void (*)(void))py_choose, METH_FASTCALL,
     "scores float32 [vocabulary], which it changes, a Draw, forbidden ids int64 [n] or None: the id or None"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "draw", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_draw(void)
{
    for (int i = 0; i < ALLOWED + 1; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(spelled[i])))
            return NULL;
    return PyModule_Create(&definition);
}
