/* Few rows of floats times the transpose of a weight, which is read once, as it lies: of int8, or in oneDNN's blocks. */

/* Sixteen numbers of int8 as floats. */
static inline __attribute__((always_inline)) NAME(lanes) NAME(widened)(const int8_t *from)
{
#if LEVEL == 512
    return (NAME(lanes))_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif LEVEL == 256
    union { __m256 half[2]; NAME(lanes) all; } both;
    for (int half = 0; half < 2; half++)
        both.half[half] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from + 8 * half))));
    return both.all;
#else
    NAME(lanes) all;
    for (int i = 0; i < 16; i++) all[i] = from[i];
    return all;
#endif
}

/* A row of the weight by `count` rows of x, known where this is compiled: 1, 2, 4 or 8. */
static inline __attribute__((always_inline)) void NAME(by_rows)(const int8_t *weight, const float *x, int64_t width,
                                                                const int count, float *made)
{
    const int ways = count == 1 ? 4 : count == 2 ? 2 : 1; /* sums of their own: none waits for another */
    NAME(lanes) sums[8] = {{0}};
    int64_t i = 0;
    for (; i + 16 * ways <= width; i += 16 * ways) {
        #pragma GCC unroll 4
        for (int way = 0; way < ways; way++) {
            NAME(lanes) wide = NAME(widened)(weight + i + 16 * way);
            #pragma GCC unroll 8
            for (int row = 0; row < count; row++)
                sums[row * ways + way] += wide * *(const NAME(lanes) *)(x + row * width + i + 16 * way);
        }
    }
    #pragma GCC unroll 8
    for (int row = 0; row < count; row++) {
        NAME(lanes) all = sums[row * ways];
        #pragma GCC unroll 4
        for (int way = 1; way < ways; way++) all += sums[row * ways + way];
        float sum = NAME(total)(all);
        for (int64_t rest = i; rest < width; rest++) sum += (float)weight[rest] * x[row * width + rest];
        made[row] = sum;
    }
}

/* Operands: result (rows, n), x (rows, width) as floats without gaps, weight (n, width) of int8, scale (n,). size: n,
   rows, width. */
static void NAME(linear_int8)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t rows = step->size[1], width = step->size[2];
    const struct operand *to = step->operand, *weight = to + 2, *scale = to + 3;
    const float *x = (const float *)to[1].data;
    for (int64_t n = from; n < until; n++) {
        const int8_t *row_of = (const int8_t *)weight->data + n * weight->stride[0];
        float made[MOST_ROWS], held;
        for (int64_t row = 0; row < rows;) {
            const float *given = x + row * width;
            int64_t count = rows - row >= 8 ? 8 : rows - row >= 4 ? 4 : rows - row >= 2 ? 2 : 1;
            switch (count) {
            case 8: NAME(by_rows)(row_of, given, width, 8, made + row); break;
            case 4: NAME(by_rows)(row_of, given, width, 4, made + row); break;
            case 2: NAME(by_rows)(row_of, given, width, 2, made + row); break;
            default: NAME(by_rows)(row_of, given, width, 1, made + row);
            }
            row += count;
        }
        float factor = *NAME(load)(scale->data, scale->type, n * scale->stride[0], 1, 1, &held);
        for (int64_t row = 0; row < rows; row++) {
            float one = made[row] * factor;
            NAME(store)(to->data, to->type, row * to->stride[0] + n, 1, 1, &one);
        }
    }
}

/* Numbers of `deep` rows of x, of which there are `count`, by `across` vectors of a block, of bfloat16 where `halves`:
   what `count`, `across` and `halves` are is known where this is compiled. Sums lie a block apart. */
static inline __attribute__((always_inline)) void NAME(by_block)(const char *weight, const float *x, int64_t width,
                                                                 int64_t deep, const int count, const int across,
                                                                 const int halves, float *sums)
{
    NAME(lanes) made[4 * 4];
    #pragma GCC unroll 16
    for (int i = 0; i < count * across; i++)
        made[i] = *(const NAME(lanes) *)(sums + i / across * BLOCK + i % across * 16);
    for (int64_t k = 0; k < deep; k += halves ? 2 : 1, weight += 4 * BLOCK) {
        #pragma GCC unroll 4
        for (int i = 0; i < across; i++) {
            NAME(whole_lanes) found = *(const NAME(whole_lanes) *)(weight + 64 * i);
            __builtin_prefetch(weight + 64 * i + AHEAD);
            #pragma GCC unroll 4
            for (int row = 0; row < count; row++)
                made[row * across + i] += (halves ? (NAME(lanes))(found << 16) : (NAME(lanes))found) * x[row * width + k];
            #pragma GCC unroll 4
            for (int row = 0; halves && row < count; row++)
                made[row * across + i] += (NAME(lanes))(found & (int32_t)0xffff0000) * x[row * width + k + 1];
        }
    }
    #pragma GCC unroll 16
    for (int i = 0; i < count * across; i++)
        *(NAME(lanes) *)(sums + i / across * BLOCK + i % across * 16) = made[i];
}

#define BY_BLOCK(NAME_OF, COUNT, HALVES)                                                                               \
    static __attribute__((noinline)) void NAME(NAME_OF)(const char *weight, const float *x, int64_t width,            \
                                                        int64_t deep, int across, float *sums)                         \
    {                                                                                                                  \
        switch (across) {                                                                                              \
        case 4: NAME(by_block)(weight, x, width, deep, COUNT, 4, HALVES, sums); break;                                 \
        case 3: NAME(by_block)(weight, x, width, deep, COUNT, 3, HALVES, sums); break;                                 \
        case 2: NAME(by_block)(weight, x, width, deep, COUNT, 2, HALVES, sums); break;                                 \
        default: NAME(by_block)(weight, x, width, deep, COUNT, 1, HALVES, sums);                                       \
        }                                                                                                              \
    }
BY_BLOCK(one_row, 1, 0)
BY_BLOCK(two_rows, 2, 0)
BY_BLOCK(four_rows, 4, 0)
BY_BLOCK(one_row_of_halves, 1, 1)
BY_BLOCK(two_rows_of_halves, 2, 1)
BY_BLOCK(four_rows_of_halves, 4, 1)

/* Rows of x by `across` vectors of a block: a part of the block meets all rows while it is near. */
static inline void NAME(rows_by_block)(const char *weight, const float *x, int64_t width, int64_t rows, int across,
                                       int halves, float *sums)
{
    for (int64_t k = 0; k < width; k += DEEP) {
        const int64_t deep = width - k < DEEP ? width - k : DEEP;
        const char *part = weight + k * BLOCK * (halves ? 2 : 4);
        for (int64_t row = 0; row < rows;) {
            const int64_t together = rows - row >= 4 ? 4 : rows - row >= 2 ? 2 : 1;
            const float *given = x + row * width + k;
            float *made = sums + row * BLOCK;
            if (together == 4)
                (halves ? NAME(four_rows_of_halves) : NAME(four_rows))(part, given, width, deep, across, made);
            else if (together == 2)
                (halves ? NAME(two_rows_of_halves) : NAME(two_rows))(part, given, width, deep, across, made);
            else
                (halves ? NAME(one_row_of_halves) : NAME(one_row))(part, given, width, deep, across, made);
            row += together;
        }
    }
}

#if PAIRS
/* Rows of pairs, of which there are `count`, by the four vectors of a block; sums lie a block apart. */
static inline __attribute__((always_inline)) void NAME(pairs_by_block)(const uint32_t *weight, const uint32_t *x,
                                                                       int64_t width, int64_t deep, const int count,
                                                                       float *sums)
{
    __m512 made[4 * 4];
    #pragma GCC unroll 16
    for (int i = 0; i < count * 4; i++) made[i] = _mm512_loadu_ps(sums + i / 4 * BLOCK + i % 4 * 16);
    for (int64_t k = 0; k < deep; k++, weight += BLOCK) {
        #pragma GCC unroll 16
        for (int i = 0; i < count * 4; i++)
            made[i] = _mm512_dpbf16_ps(made[i], (__m512bh)_mm512_set1_epi32(x[i / 4 * width + k]),
                                       (__m512bh)_mm512_loadu_si512(weight + i % 4 * 16));
    }
    #pragma GCC unroll 16
    for (int i = 0; i < count * 4; i++) _mm512_storeu_ps(sums + i / 4 * BLOCK + i % 4 * 16, made[i]);
}

/* The same of any number of rows: a part of the block meets all rows while it is near. */
static void NAME(rows_of_pairs_by_block)(const uint32_t *weight, const uint32_t *x, int64_t width, int64_t rows,
                                         float *sums)
{
    for (int64_t k = 0; k < width; k += DEEP) {
        const int64_t deep = width - k < DEEP ? width - k : DEEP;
        const uint32_t *part = weight + k * BLOCK;
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4)
            NAME(pairs_by_block)(part, x + row * width + k, width, deep, 4, sums + row * BLOCK);
        for (; row < rows; row++)
            NAME(pairs_by_block)(part, x + row * width + k, width, deep, 1, sums + row * BLOCK);
    }
}
#endif

/* Operands: result (rows, n), x (rows, width) as floats without gaps, weight in blocks of 64 rows: in each lie, for each
   number of a row of x, or two of bfloat16, those of the block that meet them; bias (n,). size: n, rows, width, bytes of
   a block; whole[0]: whether there is a bias. A unit are 16 rows of the weight. */
static void NAME(linear_blocks)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t n = step->size[0], rows = step->size[1], width = step->size[2];
    const struct operand *to = step->operand, *weight = to + 2, *bias = to + 3;
    const float *x = (const float *)to[1].data;
    const int halves = weight->type == BF16;
    for (int64_t unit = from; unit < until;) {
        const int64_t block = unit / 4, within = unit % 4;
        const int64_t across = until - unit < 4 - within ? until - unit : 4 - within;
        const int64_t first = unit * 16, count = n - first < across * 16 ? n - first : across * 16;
        const char *start = weight->data + block * step->size[3] + within * 64;
        float sums[MOST_ROWS * BLOCK] __attribute__((aligned(64))), held[BLOCK];
        __builtin_memset(sums, 0, rows * BLOCK * sizeof(float));
        if (step->whole[0]) {
            const float *summands = NAME(load)(bias->data, bias->type, first, 1, count, held);
            for (int64_t row = 0; row < rows; row++)
                __builtin_memcpy(sums + row * BLOCK, summands, count * sizeof(float));
        }
        NAME(rows_by_block)(start, x, width, rows, across, halves, sums);
        for (int64_t row = 0; row < rows; row++)
            NAME(store)(to->data, to->type, row * to->stride[0] + first, 1, count, sums + row * BLOCK);
        unit += across;
    }
}
