/* Rows times panels with vectors of LANES numbers, of which SUMS stay in a processor's registers.

   linear.c includes it once for each width of vectors; NAMED gives the functions of each width their own names. */

#define VECTORS (WIDE / LANES)                              /* of a row of a panel */
#define TALLEST (SUMS / VECTORS / (VECTORS == 1 ? 2 : 1))   /* rows of x that are multiplied together */

typedef float NAMED(vector) __attribute__((vector_size(4 * LANES), aligned(4)));

/* Adds the products of `rows` rows of x with `panels` adjacent panels, over `depth` numbers, to the sums in `from`;
   writes the results to `to`.

   Meanwhile `lines` cache lines of each panel are prefetched every STEP numbers, from `ahead` on. */
INLINE void NAMED(tile)(int rows, int panels, const float *x, long across, const float *weights, long panel,
                        const float *from, long below_from, float *to, long below, long depth, const float *ahead,
                        int lines)
{
    NAMED(vector) sums[TALLEST][MOST * VECTORS];
    int vectors = panels * VECTORS;
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int v = 0; v < vectors; v++)
            sums[r][v] = *(const NAMED(vector) *)(from + r * below_from + v * LANES);
    long k = 0;
    for (; k + STEP <= depth; k += STEP) {
        for (int line = 0; line < lines; line++, ahead += WIDE)
            UNROLLED for (int p = 0; p < panels; p++)
                __builtin_prefetch(ahead + p * panel, 0, 2);
        UNROLLED for (int i = 0; i < STEP; i++) {
            NAMED(vector) seen[MOST * VECTORS];
            UNROLLED for (int v = 0; v < vectors; v++)
                seen[v] = *(const NAMED(vector) *)(weights + (k + i) * WIDE + v / VECTORS * panel + v % VECTORS * LANES);
            UNROLLED for (int r = 0; r < rows; r++) {
                float number = x[r * across + k + i];
                UNROLLED for (int v = 0; v < vectors; v++)
                    sums[r][v] += number * seen[v];
            }
        }
    }
    for (; k < depth; k++)
        UNROLLED for (int r = 0; r < rows; r++)
            UNROLLED for (int v = 0; v < vectors; v++)
                sums[r][v] += x[r * across + k] *
                              *(const NAMED(vector) *)(weights + k * WIDE + v / VECTORS * panel + v % VECTORS * LANES);
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int v = 0; v < vectors; v++)
            *(NAMED(vector) *)(to + r * below + v * LANES) = sums[r][v];
}

/* Returns how many adjacent panels are multiplied with `rows` rows at once: as many sums as registers hold, because
   independent sums hide the latency of an addition. */
INLINE int NAMED(panels_at_once)(long rows)
{
    return rows * 4 * VECTORS <= SUMS ? 4 : rows * 2 * VECTORS <= SUMS ? 2 : 1;
}

/* Calls `tile` with a number of rows that is not known at compile time. */
INLINE void NAMED(piece)(int panels, long rows, const float *x, long across, const float *weights, long panel,
                         const float *from, long below_from, float *to, long below, long depth, const float *ahead,
                         int lines)
{
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (n <= TALLEST && n * panels * VECTORS <= SUMS)                                                              \
            NAMED(tile)(n <= TALLEST ? n : 1, panels, x, across, weights, panel, from, below_from, to, below, depth,   \
                        ahead, lines);                                                                                 \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
#undef CASE
}

/* Multiplies `panels` adjacent panels, from panel `p` on, with a block of `count` rows: one part of the depth after the
   other, so that the part stays in the processor's cache, and in each part one piece of rows after the other.

   Each piece prefetches its share of the next part. */
INLINE void NAMED(group)(const Product *it, int panels, long first, long count, long p)
{
    float biases[MOST * WIDE] = {0}, edge[BLOCK * WIDE];
    long depth = it->depth, panel = depth * WIDE, left = it->outputs - p * WIDE;
    int is_whole = left >= panels * WIDE;
    if (it->bias)
        memcpy(biases, it->bias + p * WIDE, (size_t)(is_whole ? panels * WIDE : left) * sizeof(float));
    float *out = is_whole ? it->y + first * it->outputs + p * WIDE : edge;
    long below = is_whole ? it->outputs : WIDE;
    long pieces = (count + TALLEST - 1) / TALLEST, parts = depth > DEEP ? (depth + DEEP - 1) / DEEP : 1;
    int share = (int)((STEP + pieces - 1) / pieces);
    for (long part = 0; part < parts; part++) {
        long begin = depth * part / parts, deep = depth * (part + 1) / parts - begin;
        const float *weights = it->panels + p * panel + begin * WIDE;
        for (long i = 0; i < pieces; i++) {
            long top = count * i / pieces, rows = count * (i + 1) / pieces - top;
            long asked = pieces == 1 ? NEAR : deep + i * (deep / STEP) * share;
            NAMED(piece)(panels, rows, it->x + (first + top) * depth + begin, depth, weights, panel,
                         part ? out + top * below : biases, part ? below : 0, out + top * below, below, deep,
                         weights + asked * WIDE, asked < 2 * deep ? share : 0);
        }
    }
    if (!is_whole)
        for (long row = 0; row < count; row++)
            memcpy(it->y + (first + row) * it->outputs + p * WIDE, edge + row * WIDE, (size_t)left * sizeof(float));
}

FOR_THIS_PROCESSOR
static void NAMED(multiply)(const Product *it)
{
    long blocks = (it->rows + BLOCK - 1) / BLOCK, all = (it->outputs + WIDE - 1) / WIDE;
    for (long block = 0; block < blocks; block++) {
        long first = it->rows * block / blocks, count = it->rows * (block + 1) / blocks - first, p = 0;
        long pieces = (count + TALLEST - 1) / TALLEST;
        int panels = NAMED(panels_at_once)((count + pieces - 1) / pieces);
        for (; panels == 4 && p + 4 <= it->outputs / WIDE; p += 4)
            NAMED(group)(it, 4, first, count, p);
        for (; panels >= 2 && p + 2 <= it->outputs / WIDE; p += 2)
            NAMED(group)(it, 2, first, count, p);
        for (; p < all; p++)
            NAMED(group)(it, 1, first, count, p);
    }
}

#undef VECTORS
#undef TALLEST
#undef LANES
#undef SUMS
#undef NAMED
#undef FOR_THIS_PROCESSOR
