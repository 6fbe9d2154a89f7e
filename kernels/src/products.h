/* Few rows of floats times the transpose of a weight of int8, which is read once, as it lies. */

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
