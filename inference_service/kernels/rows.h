/* The kernels of native.h with vectors of LANES numbers, of which SUMS stay in a processor's registers.

   Included once for each kind of processor, because a compiler passes vectors that are wider than the registers
   through memory. KERNELS is the name of the struct of kernels. */

#include <stdint.h>
#include <string.h>

#include "native.h"

#define INLINE static inline __attribute__((always_inline))
#define NEAR 1024 /* entries of a context that stay in the processor's cache between prefetch and use */

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

/* Interleave the lower halves of two vectors, or the upper halves. */
#if LANES == 16
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define SHUFFLES 4
#elif LANES == 8
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define SHUFFLES 3
#else
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define UPPER(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define SHUFFLES 2
#endif

/* ------------------------------------------------------------------------------------------------ numbers */

INLINE float get(const void *from, long at, int half)
{
    if (!half)
        return ((const float *)from)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

INLINE uint16_t rounded(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, 4);
    uint32_t even = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return number == number ? (uint16_t)even : 0x7fc0;
}

INLINE void put(void *to, long at, float number, int half)
{
    if (half)
        ((uint16_t *)to)[at] = rounded(number);
    else
        ((float *)to)[at] = number;
}

/* Returns a number as `get` would read it after `put`. */
INLINE float as_kept(float number, int half)
{
    if (!half)
        return number;
    uint16_t kept = rounded(number);
    return get(&kept, 0, 1);
}

INLINE floats load(const void *from, long at, int half)
{
    if (!half)
        return *(const floats *)((const float *)from + at);
    words wide = __builtin_convertvector(*(const halves *)((const uint16_t *)from + at), words) << 16;
    floats numbers;
    memcpy(&numbers, &wide, sizeof numbers);
    return numbers;
}

/* Returns numbers rounded to bfloat16, each in the upper half of its word. */
INLINE words rounded_all(floats numbers)
{
    words bits = (words)numbers, none = (words)(numbers != numbers);
    return (~none & (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000) | (none & 0x7fc00000);
}

INLINE floats as_kept_all(floats numbers, int half)
{
    return half ? (floats)rounded_all(numbers) : numbers;
}

INLINE void store(void *to, long at, floats numbers, int half)
{
    if (half)
        *(halves *)((uint16_t *)to + at) = __builtin_convertvector(rounded_all(numbers) >> 16, halves);
    else
        *(floats *)((float *)to + at) = numbers;
}

INLINE float sum(floats v)
{
    typedef float four __attribute__((vector_size(16)));
#if LANES == 16
    typedef float eight __attribute__((vector_size(32)));
    eight e = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)
            + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    floats e = v;
#endif
#if LANES == 4
    four f = e;
#else
    four f = __builtin_shufflevector(e, e, 0, 1, 2, 3) + __builtin_shufflevector(e, e, 4, 5, 6, 7);
#endif
    return (f[0] + f[2]) + (f[1] + f[3]);
}

INLINE floats chosen(ints which, floats yes, floats no)
{
    return (floats)((which & (ints)yes) | (~which & (ints)no));
}

/* Returns exp(x) within two units in the last place: 0 below -87, exp(88) above 88. NaN stays NaN. */
INLINE floats power(floats x)
{
    ints vanishes = x < -87.0f;
    x = chosen(vanishes, x - x, x);
    x = chosen(x > 88.0f, (floats){0} + 88.0f, x);
    ints exponent = __builtin_convertvector(x * 1.44269504f + 256.5f, ints) - 256; /* rounded */
    floats whole = __builtin_convertvector(exponent, floats);
    floats rest = x - whole * 0.693359375f;
    rest += whole * 2.12194440e-4f;
    floats y = 1.9875691500e-4f * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    return (floats)(~vanishes & (ints)(y * (floats)((exponent + 127) << 23)));
}

/* ----------------------------------------------------------------------------------------- norms and gates */

/* Divides a row by the root of its mean square, and multiplies it by weights. */
INLINE void norm_row(const void *row, const void *weight, void *out, long width, float epsilon, int half,
                     int half_out)
{
    float squares = 0;
    for (long i = 0; i < width; i++) {
        float x = get(row, i, half);
        squares += x * x;
    }
    float scale = 1.0f / __builtin_sqrtf(squares / (float)width + epsilon);
    for (long i = 0; i < width; i++)
        put(out, i, as_kept(as_kept(get(row, i, half) * scale, half) * get(weight, i, half), half), half_out);
}

INLINE const void *at(const void *base, long index, int half)
{
    return (const char *)base + index * (half ? 2 : 4);
}

INLINE void norm_rows(const void *rows, const void *more, void *total, const void *weight, void *out, long n,
                      long width, float epsilon, int half)
{
    for (long row = 0; row < n; row++) {
        const void *from = at(rows, row * width, half);
        if (more) {
            const void *added = at(more, row * width, half);
            void *to = (void *)at(total, row * width, half);
            for (long i = 0; i < width; i++)
                put(to, i, get(from, i, half) + get(added, i, half), half);
            from = to;
        }
        norm_row(from, weight, (void *)at(out, row * width, half), width, epsilon, half, half);
    }
}

static void norm(const void *rows, const void *more, void *total, const void *weight, void *out, long n,
                 long width, float epsilon, int half)
{
    if (half)
        norm_rows(rows, more, total, weight, out, n, width, epsilon, 1);
    else
        norm_rows(rows, more, total, weight, out, n, width, epsilon, 0);
}

INLINE void gate_rows(const void *rows, void *out, long n, long width, int half)
{
    for (long row = 0; row < n; row++) {
        const void *gates = at(rows, 2 * row * width, half), *values = at(gates, width, half);
        void *to = (void *)at(out, row * width, half);
        for (long i = 0; i < width; i += LANES) {
            floats x = load(gates, i, half), activated = as_kept_all(x / (1.0f + power(-x)), half);
            store(to, i, activated * load(values, i, half), half);
        }
    }
}

static void gate(const void *rows, void *out, long n, long width, int half)
{
    if (half)
        gate_rows(rows, out, n, width, 1);
    else
        gate_rows(rows, out, n, width, 0);
}

/* --------------------------------------------------------------------------------------- rotary positions */

/* Rotates queries and keys of one row, and writes its keys and values into entry `cell` of the cache. */
INLINE void turn_row(const Turn *it, long row, long cell, int half)
{
    long head = it->head, middle = head / 2, whole = it->heads + 2 * it->kv;
    float normed[head], rotated[head];
    const void *cosines = at(it->cosines, row * head, half), *sines = at(it->sines, row * head, half);
    for (long h = 0; h < it->heads + it->kv; h++) {
        const void *from = at(it->projected, (row * whole + h) * head, half);
        if (it->weights)
            norm_row(from, at(it->weights, h * head, half), normed, head, it->epsilon, half, 0);
        else
            for (long i = 0; i < head; i++)
                normed[i] = get(from, i, half);
        for (long i = 0; i < middle; i++) {
            float first = normed[i], second = normed[i + middle];
            rotated[i] = first * get(cosines, i, half) - second * get(sines, i, half);
            rotated[i + middle] = second * get(cosines, i + middle, half) + first * get(sines, i + middle, half);
        }
        void *to = h < it->heads ? (void *)at(it->queries, (row * it->heads + h) * head, half)
                                 : (void *)at(it->keys, (h - it->heads) * it->stride + cell * head, half);
        for (long i = 0; i < head; i++)
            put(to, i, rotated[i], half);
    }
    for (long h = 0; h < it->kv; h++)
        memcpy((void *)at(it->values, h * it->stride + cell * head, half),
               at(it->projected, (row * whole + it->heads + it->kv + h) * head, half),
               (size_t)head * (half ? 2 : 4));
}

INLINE void turn_rows(const Turn *it, int half)
{
    for (const Span *span = it->spans; span < it->spans + it->count; span++)
        for (long i = 0; i < span->count; i++) {
            long entry = span->end - span->count + i;
            turn_row(it, span->row + i, it->table[span->pages + entry / PAGE] * (long)PAGE + entry % PAGE, half);
        }
}

static void turn(const Turn *it, int half)
{
    if (half)
        turn_rows(it, 1);
    else
        turn_rows(it, 0);
}

/* ---------------------------------------------------------------------------------------------- attention */

/* Prefetches a page: pages lie anywhere in the cache, so a processor cannot predict the next one. */
INLINE void fetch_page(const void *base, long row, long head, int half)
{
    const char *page = at(base, row, half);
    for (long byte = 0; byte < PAGE * head * (half ? 2 : 4); byte += 64)
        __builtin_prefetch(page + byte, 0, 2);
}

/* Computes the scores of `asked` queries against the keys of a page, for `beside` keys at a time. */
INLINE void score_page(const float *queries, const void *keys, long head, float *scores, long width, int asked,
                       int beside, int half)
{
    for (int key = 0; key < PAGE; key += beside) {
        floats sums[MOST][4];
        for (int q = 0; q < asked; q++)
            for (int k = 0; k < beside; k++)
                sums[q][k] = (floats){0};
        for (long i = 0; i < head; i += LANES) {
            floats seen[4];
            for (int k = 0; k < beside; k++)
                seen[k] = load(keys, (key + k) * head + i, half);
            for (int q = 0; q < asked; q++) {
                floats mine = load(queries, q * head + i, 0);
                for (int k = 0; k < beside; k++)
                    sums[q][k] += mine * seen[k];
            }
        }
        for (int q = 0; q < asked; q++)
            for (int k = 0; k < beside; k++)
                scores[q * width + key + k] = sum(sums[q][k]);
    }
}

/* Transposes the keys of a page to [head, 16], in float32. */
INLINE void transpose_page(const void *keys, long head, float *transposed, int half)
{
    for (int first = 0; first < PAGE; first += LANES)
        for (long i = 0; i < head; i += LANES) {
            floats rows[LANES], mixed[LANES];
            for (int key = 0; key < LANES; key++)
                rows[key] = load(keys, (first + key) * head + i, half);
            for (int step = 0; step < SHUFFLES; step++) { /* perfect shuffles transpose a square */
                for (int k = 0; k < LANES / 2; k++) {
                    mixed[2 * k] = LOWER(rows[k], rows[k + LANES / 2]);
                    mixed[2 * k + 1] = UPPER(rows[k], rows[k + LANES / 2]);
                }
                memcpy(rows, mixed, sizeof rows);
            }
            for (int k = 0; k < LANES; k++)
                memcpy(transposed + (i + k) * PAGE + first, &rows[k], sizeof rows[k]);
        }
}

/* Does the same as `score_page` with transposed keys; each score is the sum of `beside` partial sums. */
INLINE void score_transposed(const float *queries, const float *transposed, long head, float *scores, long width,
                             int asked, int beside)
{
    floats sums[MOST][PAGE / LANES][2]; /* independent sums hide the latency of an addition */
    for (int q = 0; q < asked; q++)
        for (int v = 0; v < PAGE / LANES; v++)
            sums[q][v][0] = sums[q][v][1] = (floats){0};
    for (long i = 0; i < head; i += beside)
        for (int k = 0; k < beside; k++) {
            floats keys[PAGE / LANES];
            for (int v = 0; v < PAGE / LANES; v++)
                keys[v] = load(transposed, (i + k) * PAGE + v * LANES, 0);
            for (int q = 0; q < asked; q++)
                for (int v = 0; v < PAGE / LANES; v++)
                    sums[q][v][k] += queries[q * head + i + k] * keys[v];
        }
    for (int q = 0; q < asked; q++)
        for (int v = 0; v < PAGE / LANES; v++) {
            if (beside == 2)
                sums[q][v][0] += sums[q][v][1];
            memcpy(scores + q * width + v * LANES, &sums[q][v][0], sizeof sums[q][v][0]);
        }
}

/* Adds the weighted values of rows `first` to `last` - 1 of a page to `vectors` vectors of each query's output. */
INLINE void add_values(const float *weights, long width, const void *values, long head, long first, long last,
                       floats (*sums)[4], int asked, int vectors, int half)
{
    for (long row = first; row < last; row++) {
        floats seen[4];
        for (int v = 0; v < vectors; v++)
            seen[v] = load(values, row * head + v * LANES, half);
        for (int q = 0; q < asked; q++) {
            float weight = weights[q * width + row];
            for (int v = 0; v < vectors; v++)
                sums[q][v] += weight * seen[v];
        }
    }
}

INLINE long larger(long a, long b)
{
    return a > b ? a : b;
}

INLINE long smaller(long a, long b)
{
    return a < b ? a : b;
}

/* Prefetches page `p` of the keys that are read after those of this span and key head. */
INLINE void fetch_next(const Attention *it, const Span *span, long kv, long p, int half)
{
    if (++kv == it->kv) {
        kv = 0;
        if (++span == it->spans + it->count)
            return;
    }
    if (p * PAGE < smaller(span->end, NEAR))
        fetch_page(it->keys, kv * it->stride + (long)it->table[span->pages + p] * PAGE * it->head, it->head, half);
}

/* Computes the attention output of `asked` queries of a span, from query `first` of those that share key head `kv`. */
INLINE void attend_some(const Attention *it, const Span *span, long kv, long first, float *scores,
                        const float *transposed, int asked, int half)
{
    int beside = SUMS / asked > 4 ? 4 : SUMS / asked, together = SUMS * LANES >= 2 * PAGE * asked ? 2 : 1;
    long head = it->head, groups = it->heads / it->kv;
    const int32_t *pages = it->table + span->pages;
    float queries[MOST * head], scale[MOST];
    long begins[MOST], ends[MOST], from = span->end, to = 0;
    void *out[MOST];
    for (int q = 0; q < asked; q++) {
        long row = (first + q) / groups, h = kv * groups + (first + q) % groups;
        long place = ((span->row + row) * it->heads + h) * head;
        for (long i = 0; i < head; i++)
            queries[q * head + i] = get(it->queries, place + i, half) * it->scale;
        out[q] = (void *)at(it->out, place, half);
        ends[q] = span->end - span->count + row + 1;
        begins[q] = it->window ? larger(span->begin, ends[q] - it->window) : span->begin;
        from = smaller(from, begins[q]);
        to = larger(to, ends[q]);
    }
    long page = from / PAGE, last = (to + PAGE - 1) / PAGE, width = (last - page) * PAGE, left = page * PAGE;
    const void *keys = at(it->keys, kv * it->stride, half), *values = at(it->values, kv * it->stride, half);
    for (long p = page; p < last; p++) {
        float *mine = scores + p * PAGE - left;
        if (!first)
            fetch_page(values, (long)pages[p] * PAGE * head, head, half);
        if (transposed)
            score_transposed(queries, transposed + p * PAGE * head, head, mine, width, asked, together);
        else
            score_page(queries, at(keys, (long)pages[p] * PAGE * head, half), head, mine, width, asked, beside, half);
    }
    for (int q = 0; q < asked; q++) {
        float *mine = scores + q * width, none = -__builtin_inff();
        for (long i = 0; i < begins[q] - left; i++)
            mine[i] = none;
        for (long i = ends[q] - left; i < width; i++)
            mine[i] = none;
        floats most = (floats){0} + none, totals = {0};
        for (long i = 0; i < width; i += LANES) {
            floats x = load(mine, i, 0);
            most = chosen(x > most, x, most);
        }
        for (int lane = 1; lane < LANES; lane++)
            most[0] = most[lane] > most[0] ? most[lane] : most[0];
        for (long i = 0; i < width; i += LANES) {
            floats x = power(load(mine, i, 0) - most[0]);
            memcpy(mine + i, &x, sizeof x);
            totals += x;
        }
        float total = sum(totals);
        scale[q] = 1.0f / total;
    }
    for (long i = 0; i < head;) {
        int vectors = head - i >= beside * LANES ? beside : 1;
        floats sums[MOST][4];
        for (int q = 0; q < asked; q++)
            for (int v = 0; v < 4; v++)
                sums[q][v] = (floats){0};
        for (long p = page; p < last; p++) {
            const void *from_page = at(values, (long)pages[p] * PAGE * head + i, half);
            long begin = larger(from - p * PAGE, 0), end = smaller(to - p * PAGE, PAGE);
            if (!first && !i)
                fetch_next(it, span, kv, p, half);
            if (vectors == beside)
                add_values(scores + p * PAGE - left, width, from_page, head, begin, end, sums, asked, beside, half);
            else
                add_values(scores + p * PAGE - left, width, from_page, head, begin, end, sums, asked, 1, half);
        }
        for (int q = 0; q < asked; q++)
            for (int v = 0; v < vectors; v++)
                store(out[q], i + v * LANES, sums[q][v] * scale[q], half);
        i += vectors * LANES;
    }
}

INLINE void attend_all(const Attention *it, float *scores, float *room, int half)
{
    long groups = it->heads / it->kv;
    for (const Span *span = it->spans; span < it->spans + it->count; span++)
        for (long kv = 0; kv < it->kv; kv++) {
            long asked = span->count * groups, first = 0;
            float *transposed = asked >= MANY ? room : NULL;
            for (long p = 0; transposed && p * PAGE < span->end; p++) {
                long row = kv * it->stride + (long)it->table[span->pages + p] * PAGE * it->head;
                if ((p + 1) * PAGE < span->end)
                    fetch_page(it->keys, kv * it->stride + (long)it->table[span->pages + p + 1] * PAGE * it->head,
                               it->head, half);
                transpose_page(at(it->keys, row, half), it->head, transposed + p * PAGE * it->head, half);
            }
            for (; asked - first >= 4; first += 4)
                attend_some(it, span, kv, first, scores, transposed, 4, half);
            if (asked - first >= 2) {
                attend_some(it, span, kv, first, scores, transposed, 2, half);
                first += 2;
            }
            if (asked - first >= 1)
                attend_some(it, span, kv, first, scores, transposed, 1, half);
        }
}

static void attend(const Attention *it, float *scores, float *room, int half)
{
    if (half)
        attend_all(it, scores, room, 1);
    else
        attend_all(it, scores, room, 0);
}

const Kernels KERNELS = {norm, gate, turn, attend};
