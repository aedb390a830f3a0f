/* Log-mel features of sound, as media/mel.py describes them: 512-point Fourier transforms of frames of 400 samples.

   Eight frames are transformed together, one in each lane of a vector, so that a transform is plain arithmetic of
   vectors. A second of sound takes a few dozen microseconds. The caller passes the tables. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "arguments.h"

#ifndef INSTRUCTIONS
#define INSTRUCTIONS 512 /* the widest vector that may be chosen, in bits */
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if INSTRUCTIONS >= 512
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif INSTRUCTIONS >= 256
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINE static inline __attribute__((always_inline))

#define LANES 8
#define HOP 160
#define WINDOW 400
#define CONTEXT (WINDOW - HOP)
#define HALF 256 /* complex numbers of a transform: the 512 samples of a frame, in pairs */
#define BANDS 80

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {
    float *past;            /* [CONTEXT], the samples before `pcm` */
    const float *pcm;       /* [frames * HOP] */
    const float *window;    /* [WINDOW] */
    const float *turns;     /* [HALF, 2], twiddle factors: e to the power of -2 pi i k / 512 */
    const float *filters;   /* [BANDS, HALF + 1] */
    const int32_t *spans;   /* [BANDS, 2], where each filter begins and ends */
    float *out;             /* [frames, BANDS] */
    long frames;
} Sound;

/* Returns the natural logarithm of normal numbers above 0, within two units in the last place. NaN and infinity stay as
   they are. */
INLINE floats logarithm(floats x)
{
    ints bits = (ints)x, exponent = ((bits - 0x3f3504f3) >> 23);
    floats rest = (floats)(bits - (exponent << 23)) - 1.0f, square = rest * rest;
    floats e = __builtin_convertvector(exponent, floats);
    floats y = 7.0376836292e-2f * rest - 1.1514610310e-1f;
    y = y * rest + 1.1676998740e-1f;
    y = y * rest - 1.2420140846e-1f;
    y = y * rest + 1.4249322787e-1f;
    y = y * rest - 1.6668057665e-1f;
    y = y * rest + 2.0000714765e-1f;
    y = y * rest - 2.4999993993e-1f;
    y = y * rest + 3.3333331174e-1f;
    y = y * rest * square + e * -2.12194440e-4f - 0.5f * square;
    y += rest + e * 0.693359375f;
    ints is_number = x <= 3.4e38f;
    return (floats)((is_number & (ints)y) | (~is_number & (ints)x));
}

/* Returns sample `n`, times `by`, of each of the LANES frames from frame `first` on; lanes after the last frame repeat
   it. */
INLINE floats sample(const Sound *it, long first, long n, float by)
{
    floats found;
    for (long lane = 0; lane < LANES; lane++) {
        long frame = first + lane < it->frames ? first + lane : it->frames - 1;
        long at = frame * HOP + n - CONTEXT;
        found[lane] = at < 0 ? it->past[at + CONTEXT] : it->pcm[at];
    }
    return found * by;
}

/* Does the same as `sample` where all LANES frames exist and begin in `pcm`. */
INLINE floats near_sample(const float *frames, long n, float by)
{
    floats found;
    for (long lane = 0; lane < LANES; lane++)
        found[lane] = frames[lane * HOP + n];
    return found * by;
}

/* Transforms in place, by radix 4; the index of a frequency is then `reversed`: its digits to the base 4 in reverse
   order. */
INLINE void transform(floats (*z)[2], const float *turns)
{
    for (long size = HALF; size > 1; size /= 4) {
        long quarter = size / 4, step = 2 * HALF / size;
        for (long j = 0; j < quarter; j++) {
            float turn[3][2];
            for (long m = 0; m < 3; m++) { /* e to the power of -2 pi i (m + 1) j / size */
                long k = (m + 1) * j * step, is_far = k >= HALF;
                turn[m][0] = is_far ? -turns[2 * (k - HALF)] : turns[2 * k];
                turn[m][1] = is_far ? -turns[2 * (k - HALF) + 1] : turns[2 * k + 1];
            }
            for (long begin = j; begin < HALF; begin += size) {
                floats *a = z[begin], *b = z[begin + quarter], *c = z[begin + 2 * quarter],
                       *d = z[begin + 3 * quarter];
                floats sum[2], difference[2], other[2], turned[2];
                for (int i = 0; i < 2; i++) {
                    sum[i] = a[i] + c[i];
                    difference[i] = a[i] - c[i];
                    other[i] = b[i] + d[i];
                }
                turned[0] = b[1] - d[1];
                turned[1] = d[0] - b[0];
                floats y[3][2];
                for (int i = 0; i < 2; i++) {
                    a[i] = sum[i] + other[i];
                    y[0][i] = difference[i] + turned[i];
                    y[1][i] = sum[i] - other[i];
                    y[2][i] = difference[i] - turned[i];
                }
                floats *to[3] = {b, c, d};
                for (int m = 0; m < 3; m++) {
                    to[m][0] = y[m][0] * turn[m][0] - y[m][1] * turn[m][1];
                    to[m][1] = y[m][0] * turn[m][1] + y[m][1] * turn[m][0];
                }
            }
        }
    }
}

INLINE long reversed(long k)
{
    return (k & 3) << 6 | (k & 12) << 2 | (k >> 2 & 12) | k >> 6;
}

/* Writes the powers of the real transform; its even samples were the real parts of `z`, its odd ones the imaginary
   parts. */
INLINE void powers(floats (*z)[2], const float *turns, floats *power)
{
    floats *first = z[0];
    power[0] = (first[0] + first[1]) * (first[0] + first[1]);
    power[HALF] = (first[0] - first[1]) * (first[0] - first[1]);
    for (long k = 1; k <= HALF / 2; k++) {
        floats *a = z[reversed(k)], *b = z[reversed(HALF - k)];
        floats even_real = (a[0] + b[0]) * 0.5f, even = (a[1] - b[1]) * 0.5f;
        floats odd_real = (a[1] + b[1]) * 0.5f, odd = (b[0] - a[0]) * 0.5f;
        floats real = odd_real * turns[2 * k] - odd * turns[2 * k + 1];
        floats imaginary = odd_real * turns[2 * k + 1] + odd * turns[2 * k];
        floats sums[2] = {even_real + real, even + imaginary};
        floats differences[2] = {even_real - real, even - imaginary};
        power[k] = sums[0] * sums[0] + sums[1] * sums[1];
        power[HALF - k] = differences[0] * differences[0] + differences[1] * differences[1];
    }
}

FOR_EACH_PROCESSOR
static void hear(const Sound *it)
{
    floats z[HALF][2], power[HALF + 1];
    for (long first = 0; first < it->frames; first += LANES) {
        const float *frames = it->pcm + first * HOP - CONTEXT;
        int is_near = first * HOP >= CONTEXT && first + LANES <= it->frames;
        for (long n = 0; n < WINDOW; n++)
            z[n / 2][n % 2] = is_near ? near_sample(frames, n, it->window[n]) : sample(it, first, n, it->window[n]);
        memset(z + WINDOW / 2, 0, sizeof z - WINDOW / 2 * sizeof z[0]);
        transform(z, it->turns);
        powers(z, it->turns, power);
        for (long band = 0; band < BANDS; band++) {
            floats heard = {0};
            for (long k = it->spans[2 * band]; k < it->spans[2 * band + 1]; k++)
                heard += power[k] * it->filters[band * (HALF + 1) + k];
            floats told = (logarithm(heard + 1e-8f) + 6.0f) * 0.25f;
            for (long lane = 0; lane < LANES && first + lane < it->frames; lane++)
                it->out[(first + lane) * BANDS + band] = told[lane];
        }
    }
}

/* Keeps the last samples for the next chunk. NaN becomes 0, and samples are clipped to -1 and 1, so that broken sound
   affects only the frames of its own chunk. */
static void remember(const Sound *it)
{
    long kept = it->frames * HOP < CONTEXT ? CONTEXT - it->frames * HOP : 0;
    memmove(it->past, it->past + CONTEXT - kept, (size_t)kept * sizeof(float));
    for (long i = kept; i < CONTEXT; i++) {
        float x = it->pcm[it->frames * HOP - CONTEXT + i];
        it->past[i] = x >= -1 ? (x <= 1 ? x : 1) : (x < -1 ? -1 : 0);
    }
}

/* ------------------------------------------------------------------------------------------------- Python */

/* Checks that each filter begins and ends within a spectrum. */
static int are_spans(const int32_t *spans)
{
    for (int band = 0; band < BANDS; band++)
        if (spans[2 * band] < 0 || spans[2 * band + 1] > HALF + 1) {
            PyErr_Format(PyExc_IndexError, "filter %d is not within the %d frequencies", band, HALF + 1);
            return 0;
        }
    return 1;
}

static PyObject *py_feed(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { PAST, PCM, SPANS = 5, OUT, ALL };
    static const char *const called[] = {"past", "pcm", "window", "turns", "filters", "spans", "out"};
    Py_ssize_t sizes[] = {CONTEXT, 0, WINDOW, 2 * HALF, BANDS * (HALF + 1), 2 * BANDS, 0};
    Py_buffer views[ALL];
    Py_ssize_t open = 0, frames = 0;
    if (count != ALL) {
        PyErr_SetString(PyExc_TypeError, "takes past, pcm, window, turns, filters, spans and out");
        return NULL;
    }
    while (open < ALL) {
        Py_buffer *view = &views[open];
        if (!open_array(args[open], view, open == SPANS ? 'i' : 'f', 4, open == PAST || open == OUT, called[open]))
            break;
        Py_ssize_t has = view->len / 4;
        if (open == PCM) {
            frames = has / HOP;
            sizes[PCM] = frames * HOP;
            sizes[OUT] = frames * BANDS;
        }
        if (has != sizes[open++]) {
            PyErr_Format(PyExc_ValueError, "%s must have %zd numbers, not %zd", called[open - 1], sizes[open - 1], has);
            break;
        }
    }
    if (!PyErr_Occurred() && are_spans(views[SPANS].buf)) {
        Sound it = {views[0].buf, views[1].buf, views[2].buf, views[3].buf,
                    views[4].buf, views[5].buf, views[6].buf, frames};
        hear(&it);
        remember(&it);
    }
    while (open--)
        PyBuffer_Release(&views[open]);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"feed", (PyCFunction)(void (*)(void))py_feed, METH_FASTCALL, "past, pcm, window, turns, filters, spans, out"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "mel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_mel(void)
{
    return PyModule_Create(&definition);
}
