/* The kernels between the linear layers of a decoder, and their arguments; native.c calls them. */

#define PAGE 16 /* rows of a page of the cache, as in device/paged.py */
#define MOST 4  /* queries whose attention is computed together */
#define MANY 16 /* queries of a key head from which on its keys are transposed first */

typedef struct {
    int64_t row, count;     /* the packed rows of a session */
    int64_t pages;          /* index of its first page in the table */
    int64_t begin, end;     /* of its context, counted from the start of its first page; includes these rows */
} Span;

typedef struct {
    const void *projected;          /* [n, heads + 2 kv, head] */
    const void *weights;            /* of the norms of queries and keys, [heads + kv, head], or NULL */
    const void *cosines, *sines;    /* [n, head] */
    void *queries;                  /* [n, heads, head] */
    void *keys, *values;            /* [kv, stride] */
    const Span *spans;
    const int32_t *table;
    long count, heads, kv, head, stride;
    float epsilon;
} Turn;

typedef struct {
    const void *queries;        /* [n, heads, head] */
    void *out;                  /* [n, heads, head] */
    const void *keys, *values;  /* [kv, stride] */
    const Span *spans;
    const int32_t *table;
    long count, heads, kv, head, stride, window;
    float scale;
} Attention;

/* The kernels for one kind of processor. With `half`, tensors are in bfloat16, otherwise in float32. */
typedef struct {
    /* Writes the weighted RMS norm of rows [n, width] to `out`. If `more` is not NULL, it is added to the rows first,
       and the sum is written to `total`. */
    void (*norm)(const void *rows, const void *more, void *total, const void *weight, void *out, long n, long width,
                 float epsilon, int half);
    /* Writes SiLU(gates) * values to `out` [n, width]; each row [2 width] holds gates, then values. */
    void (*gate)(const void *rows, void *out, long n, long width, int half);
    /* Rotates queries and keys by their positions; writes queries to `queries`, keys and values into the cache. */
    void (*turn)(const Turn *it, int half);
    /* Writes the attention output to `out`. `scores` is [MOST, longest context]; `room` holds the transposed keys of
       the longest context with at least MANY queries of a key head. */
    void (*attend)(const Attention *it, float *scores, float *room, int half);
} Kernels;

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#endif
extern const Kernels kernels_any;
