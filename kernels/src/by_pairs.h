/* Queries meet keys, and values are added by the powers, in products of two numbers of bfloat16 at a time, whose sums are
   floats. */

/* Scores of so many queries by so many times 16 tokens, both known where this is compiled, which stand beside each other
   for each pair of numbers; those of the other tokens are 0. `query` has a row of pairs every `pitch` places. */
static inline __attribute__((always_inline)) void NAME(pair_scores_by)(const uint32_t *query, int64_t pitch,
                                                                       int64_t pairs, float scale,
                                                                       float turned[WIDTH / 2][AT_A_TIME],
                                                                       const int count, const int parts,
                                                                       float score[][AT_A_TIME])
{
    __m512 sums[16], none = _mm512_setzero_ps();
    #pragma GCC unroll 16
    for (int one = 0; one < count * parts; one++) sums[one] = none;
    for (int64_t i = 0; i < pairs; i++) {
        #pragma GCC unroll 16
        for (int one = 0; one < count * parts; one++)
            sums[one] = _mm512_dpbf16_ps(sums[one], (__m512bh)_mm512_set1_epi32(query[one / parts * pitch + i]),
                                         (__m512bh)_mm512_loadu_ps(turned[i] + one % parts * 16));
    }
    #pragma GCC unroll 16
    for (int one = 0; one < count * 4; one++)
        _mm512_storeu_ps(score[one / 4] + one % 4 * 16,
                         one % 4 < parts ? _mm512_mul_ps(sums[one / 4 * parts + one % 4], _mm512_set1_ps(scale)) : none);
}

/* The same of all queries. */
static inline __attribute__((always_inline)) void NAME(pair_scores_of)(const struct NAME(held) * held,
                                                                       float turned[WIDTH / 2][AT_A_TIME],
                                                                       const int parts,
                                                                       float score[TOGETHER][AT_A_TIME])
{
    const int64_t pitch = held->width, pairs = held->width / 2;
    const uint32_t *query = (const uint32_t *)held->query;
    int64_t one = 0;
    for (; one + 4 <= held->count; one += 4)
        NAME(pair_scores_by)(query + one * pitch, pitch, pairs, held->scale, turned, 4, parts, score + one);
    for (; one < held->count; one++)
        NAME(pair_scores_by)(query + one * pitch, pitch, pairs, held->scale, turned, 1, parts, score + one);
}

/* The tokens of a pair of numbers stand beside each other, zeros behind them. */
static inline void NAME(turn_pairs)(const struct operand *keys, int64_t key, int64_t stride, int64_t tokens,
                                    int64_t pairs, float turned[WIDTH / 2][AT_A_TIME])
{
    static const uint16_t none[WIDTH];
    for (int64_t token = 0; token < AT_A_TIME; token += 16) {
        const char *row[16];
        for (int64_t one = 0, its = token; one < 16; one++, its++)
            row[one] = (const char *)(its < tokens ? (const uint16_t *)keys->data + key + its * stride : none);
        NAME(turn_rows)(row, pairs, &turned[0][token], AT_A_TIME);
    }
}

static inline void NAME(scores_of_pairs)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                         int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float turned[WIDTH / 2][AT_A_TIME];
    NAME(turn_pairs)(keys, key, stride, tokens, held->width / 2, turned);
    if (tokens > 32)
        NAME(pair_scores_of)(held, turned, 4, score);
    else if (tokens > 16)
        NAME(pair_scores_of)(held, turned, 2, score);
    else
        NAME(pair_scores_of)(held, turned, 1, score);
}

/* So many times 16 numbers of the values by the powers of so many queries, both known where this is compiled. */
static inline __attribute__((always_inline)) void NAME(add_pairs_by)(float *made, int64_t pitch, const uint32_t *rows,
                                                                     int64_t pairs, const int count, const int parts,
                                                                     uint32_t power[][AT_A_TIME / 2])
{
    __m512 sums[16];
    #pragma GCC unroll 16
    for (int i = 0; i < count * parts; i++) sums[i] = _mm512_loadu_ps(made + i / parts * pitch + i % parts * 16);
    for (int64_t pair = 0; pair < pairs; pair++) {
        const uint32_t *row = rows + pair * pitch;
        #pragma GCC unroll 16
        for (int i = 0; i < count * parts; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_set1_epi32(power[i / parts][pair]),
                                       (__m512bh)_mm512_loadu_si512(row + i % parts * 16));
    }
    #pragma GCC unroll 16
    for (int i = 0; i < count * parts; i++) _mm512_storeu_ps(made + i / parts * pitch + i % parts * 16, sums[i]);
}

/* The same of all queries. */
static inline __attribute__((always_inline)) void NAME(add_pairs_of)(const struct NAME(held) * held, float *made,
                                                                     const uint32_t *rows, int64_t pairs,
                                                                     const int parts,
                                                                     uint32_t power[TOGETHER][AT_A_TIME / 2])
{
    const int64_t pitch = held->pitch;
    int64_t one = 0;
    for (; one + 8 <= held->count; one += 8)
        NAME(add_pairs_by)(made + one * pitch, pitch, rows, pairs, 8, parts, power + one);
    for (; one + 4 <= held->count; one += 4)
        NAME(add_pairs_by)(made + one * pitch, pitch, rows, pairs, 4, parts, power + one);
    for (; one < held->count; one++)
        NAME(add_pairs_by)(made + one * pitch, pitch, rows, pairs, 1, parts, power + one);
}

/* The numbers of two tokens beside each other; a value that no query may see may be anything. */
static inline void NAME(lay_pairs)(const struct NAME(held) * held, const struct operand *values, int64_t value,
                                   int64_t stride, int64_t tokens, const NAME(whole_lanes) seen[4], uint32_t *rows)
{
    static const uint16_t none[WIDTH];
    for (int64_t token = 0; token < tokens; token += 2, rows += held->pitch) {
        const uint16_t *of[2];
        for (int64_t one = 0, its = token; one < 2; one++, its++)
            of[one] = its < tokens && seen[its / 16][its % 16] ? (const uint16_t *)values->data + value + its * stride
                                                               : none;
        const uint16_t *first = of[0], *second = of[1];
        int64_t i = 0;
        for (; i + 16 <= held->wide; i += 16) {
            __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(first + i)));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(second + i)));
            _mm512_storeu_si512(rows + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
        for (; i < held->wide; i++) rows[i] = first[i] | (uint32_t)second[i] << 16;
        for (; i < held->pitch; i++) rows[i] = 0;
    }
}

static inline void NAME(add_pairs)(struct NAME(held) * held, const struct operand *values, int64_t value,
                                   int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME],
                                   const NAME(whole_lanes) seen[4])
{
    uint32_t rows[AT_A_TIME / 2 * WIDTH], power[TOGETHER][AT_A_TIME / 2];
    const int64_t pitch = held->pitch, pairs = (tokens + 1) / 2;
    NAME(lay_pairs)(held, values, value, stride, tokens, seen, rows);
    for (int64_t one = 0; one < held->count; one++)
        for (int part = 0; part < AT_A_TIME; part += 32) {
            __m512 low = _mm512_loadu_ps(score[one] + part), high = _mm512_loadu_ps(score[one] + part + 16);
            _mm512_storeu_si512(power[one] + part / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    int64_t begin = 0;
    for (; begin + 2 * BESIDE <= pitch; begin += 2 * BESIDE)
        NAME(add_pairs_of)(held, held->made + begin, rows + begin, pairs, 2, power);
    if (begin < pitch)
        NAME(add_pairs_of)(held, held->made + begin, rows + begin, pairs, 1, power);
}
