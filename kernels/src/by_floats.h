/* Queries meet keys, and values are added by the powers, as floats. */

/* Ask for a row before it is read. */
static inline void NAME(ask_for)(const struct operand *from, int64_t place, int64_t width)
{
    const int64_t bytes = from->type == F32 ? 4 : 2;
    for (int64_t i = 0; i < width * bytes; i += 64) __builtin_prefetch(from->data + place * bytes + i);
}

/* Scores of few queries: a sum for each. The values are asked for meanwhile. */
static inline void NAME(scores_of_few)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                       int64_t stride, const struct operand *values, int64_t value,
                                       int64_t value_stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
        NAME(ask_for)(values, value + token * value_stride, held->wide);
        const float *found = NAME(load)(keys->data, keys->type, key + token * stride, 1, held->width, row);
        for (int64_t one = 0; one < held->count; one++) {
            const float *query = held->query + one * held->width;
            float sum = 0;
            #pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < held->width; i++) sum += query[i] * found[i];
            score[one][token] = sum;
        }
    }
}

/* Scores of so many queries by so many times 16 tokens, both known where this is compiled, which stand beside each other
   for each number; those of the other tokens are 0. */
static inline __attribute__((always_inline)) void NAME(scores_by)(const float *query, int64_t width,
                                                                  float turned[WIDTH][AT_A_TIME], const int count,
                                                                  const int parts, float score[][AT_A_TIME])
{
    NAME(lanes) sums[16] = {{0}};
    for (int64_t i = 0; i < width; i++) {
        const NAME(lanes) *key = (const NAME(lanes) *)turned[i];
        #pragma GCC unroll 16
        for (int one = 0; one < count * parts; one++) sums[one] += query[one / parts * width + i] * key[one % parts];
    }
    #pragma GCC unroll 16
    for (int one = 0; one < count * 4; one++)
        ((NAME(lanes) *)score[one / 4])[one % 4] = one % 4 < parts ? sums[one / 4 * parts + one % 4] : (NAME(lanes)){0};
}

/* The same of all queries. */
static inline __attribute__((always_inline)) void NAME(scores_of_all)(const struct NAME(held) * held,
                                                                      float turned[WIDTH][AT_A_TIME], const int parts,
                                                                      float score[TOGETHER][AT_A_TIME])
{
    const int64_t width = held->width;
    int64_t one = 0;
#if LEVEL == 512 /* which has registers for so many */
    for (; one + 4 <= held->count; one += 4)
        NAME(scores_by)(held->query + one * width, width, turned, 4, parts, score + one);
#endif
    for (; one + 2 <= held->count; one += 2)
        NAME(scores_by)(held->query + one * width, width, turned, 2, parts, score + one);
    for (; one < held->count; one++)
        NAME(scores_by)(held->query + one * width, width, turned, 1, parts, score + one);
}

/* Let the tokens of a number stand beside each other, zeros behind them. */
static inline void NAME(turn)(const struct operand *keys, int64_t key, int64_t stride, int64_t tokens, int64_t width,
                              float turned[WIDTH][AT_A_TIME])
{
    static const float none[WIDTH];
    float rows[16 * WIDTH];
    for (int64_t token = 0; token < AT_A_TIME; token += 16) {
        const char *row[16];
        for (int64_t one = 0, its = token; one < 16; one++, its++) {
            const float *found = none;
            if (its < tokens)
                found = NAME(load)(keys->data, keys->type, key + its * stride, 1, width, rows + one * width);
            row[one] = (const char *)found;
        }
        NAME(turn_rows)(row, width, &turned[0][token], AT_A_TIME);
    }
}

/* Scores of many: keys are turned. */
static inline void NAME(scores_of_many)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                        int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float turned[WIDTH][AT_A_TIME];
    NAME(turn)(keys, key, stride, tokens, held->width, turned);
    if (tokens > 32)
        NAME(scores_of_all)(held, turned, 4, score);
    else if (tokens > 16)
        NAME(scores_of_all)(held, turned, 2, score);
    else
        NAME(scores_of_all)(held, turned, 1, score);
}

/* Add the values by their powers; a value that no query may see may be anything. The keys behind these tokens' are asked
   for meanwhile. */
static inline void NAME(add_values_of_few)(struct NAME(held) * held, const struct operand *keys, int64_t next,
                                           int64_t key_stride, const struct operand *values, int64_t value,
                                           int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME],
                                           const NAME(whole_lanes) seen[4])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
        NAME(ask_for)(keys, next + token * key_stride, held->width);
        if (!seen[token / 16][token % 16])
            continue;
        const float *found = NAME(load)(values->data, values->type, value + token * stride, 1, held->wide, row);
        for (int64_t one = 0; one < held->count; one++) {
            float *made = held->made + one * held->pitch, power = score[one][token];
            #pragma omp simd
            for (int64_t i = 0; i < held->wide; i++) made[i] += power * found[i];
        }
    }
}

/* So many times BESIDE numbers of the values by the powers of so many queries, both known where this is compiled. */
static inline __attribute__((always_inline)) void NAME(add_by)(float *made, int64_t pitch, const float *rows,
                                                               int64_t tokens, const int count, const int parts,
                                                               float score[][AT_A_TIME])
{
    NAME(lanes) sums[16];
    #pragma GCC unroll 16
    for (int i = 0; i < count * parts; i++) sums[i] = ((NAME(lanes) *)(made + i / parts * pitch))[i % parts];
    for (int64_t token = 0; token < tokens; token++) {
        const NAME(lanes) *row = (const NAME(lanes) *)(rows + token * pitch);
        #pragma GCC unroll 16
        for (int i = 0; i < count * parts; i++) sums[i] += score[i / parts][token] * row[i % parts];
    }
    #pragma GCC unroll 16
    for (int i = 0; i < count * parts; i++) ((NAME(lanes) *)(made + i / parts * pitch))[i % parts] = sums[i];
}

/* The same of all queries. */
static inline __attribute__((always_inline)) void NAME(add_some)(const struct NAME(held) * held, float *made,
                                                                 const float *rows, int64_t tokens, const int parts,
                                                                 float score[][AT_A_TIME])
{
    const int64_t pitch = held->pitch;
    int64_t one = 0;
#if LEVEL == 512
    for (; one + 8 <= held->count; one += 8)
        NAME(add_by)(made + one * pitch, pitch, rows, tokens, 8, parts, score + one);
#endif
    for (; one + 4 <= held->count; one += 4)
        NAME(add_by)(made + one * pitch, pitch, rows, tokens, 4, parts, score + one);
    for (; one < held->count; one++) NAME(add_by)(made + one * pitch, pitch, rows, tokens, 1, parts, score + one);
}

/* The same for many. */
static inline void NAME(add_values)(struct NAME(held) * held, const struct operand *values, int64_t value,
                                    int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME],
                                    const NAME(whole_lanes) seen[4])
{
    float rows[AT_A_TIME * WIDTH], row[WIDTH];
    const int64_t pitch = held->pitch;
    for (int64_t token = 0; token < tokens; token++) {
        float *mine = rows + token * pitch;
        int64_t own = seen[token / 16][token % 16] ? held->wide : 0;
        if (own) {
            const float *found = NAME(load)(values->data, values->type, value + token * stride, 1, own, row);
            for (int64_t i = 0; i < own; i++) mine[i] = found[i];
        }
        for (int64_t i = own; i < pitch; i++) mine[i] = 0;
    }
    int64_t begin = 0;
    for (; begin + 2 * BESIDE <= pitch; begin += 2 * BESIDE)
        NAME(add_some)(held, held->made + begin, rows + begin, tokens, 2, score);
    if (begin < pitch)
        NAME(add_some)(held, held->made + begin, rows + begin, tokens, 1, score);
}
