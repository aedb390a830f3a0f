/* What is computed between the linear layers of a decoder, and for whom: see native.c. */

#define PAGE 16 /* rows of a page of the cache, as in device/paged.py */
#define MOST 4  /* queries that are answered together */
#define MANY 16 /* queries of a key head for which its keys are turned first */

typedef struct {
    int64_t row, count;     /* the packed rows of a session */
    int64_t pages;          /* where its pages begin in the table */
    int64_t begin, end;     /* of its context from the beginning of its first page, these rows included */
} Span;

typedef struct {
    const void *projected;          /* [n, heads + 2 kv, head] */
    const void *weights;            /* of the norms of queries and keys, [heads + kv, head], or none */
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

/* Of one kind of processors. What is half lies in bfloat16, all else in float32. */
typedef struct {
    /* Adds `more` to rows [n, width], if there is any, as `total`, and norms that with the weights. */
    void (*norm)(const void *rows, const void *more, void *total, const void *weight, void *out, long n, long width,
                 float epsilon, int half);
    /* Gates and values [n, 2 width] become [n, width]. */
    void (*gate)(const void *rows, void *out, long n, long width, int half);
    void (*turn)(const Turn *it, int half);
    /* There is room for scores [MOST, longest context], and for keys of the longest context. */
    void (*attend)(const Attention *it, float *scores, float *room, int half);
} Kernels;

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#endif
extern const Kernels kernels_any;
