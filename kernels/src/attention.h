/* Queries meet keys and values: those of a batch, or of a cache where each sequence has blocks. Some tokens at a time,
   with the greatest score so far (Milakov and Gimelshein's online softmax), so that no memory is needed for scores. */

#define AT_A_TIME 64 /* tokens */
#define MANY 6       /* queries for which it pays to turn the keys */
#define BESIDE 16    /* numbers of a value that are made together, or twice as many */

/* Of each query: itself times the scale, its greatest score, the sum of the powers, and the values by these, whose
   places in a row are `pitch`, a multiple of BESIDE. */
struct NAME(held) {
    float query[TOGETHER * WIDTH], made[TOGETHER * WIDTH], most[TOGETHER], sum[TOGETHER];
    int64_t count, width, wide, pitch;
};

/* What is added to the scores of a query: for `type` BOOL 0 or minus infinity. No memory: nothing is added. */
struct NAME(mask) {
    const char *data;
    int64_t type, start, query, token;
};

static inline void NAME(begin)(struct NAME(held) * held, int64_t count, int64_t width, int64_t wide)
{
    held->count = count, held->width = width, held->wide = wide;
    held->pitch = (wide + BESIDE - 1) / BESIDE * BESIDE;
}

static inline void NAME(asked)(struct NAME(held) * held, int64_t one, const struct operand *query, int64_t place,
                               float scale)
{
    float row[WIDTH], *mine = held->query + one * held->width, *made = held->made + one * held->pitch;
    const float *found = NAME(load)(query->data, query->type, place, 1, held->width, row);
    for (int64_t i = 0; i < held->width; i++) mine[i] = found[i] * scale;
    for (int64_t i = 0; i < held->pitch; i++) made[i] = 0;
    held->most[one] = -__builtin_inff();
    held->sum[one] = 0;
}

/* What is added to the scores of tokens: minus infinity beyond the last. */
static inline void NAME(biases)(const struct NAME(mask) * mask, int64_t query, int64_t tokens, float into[AT_A_TIME])
{
    float held[AT_A_TIME];
    int64_t start = mask->start + query * mask->query;
    if (!mask->data) {
        for (int64_t i = 0; i < tokens; i++) into[i] = 0;
    } else if (mask->type == BOOL) {
        const uint8_t *seen = (const uint8_t *)mask->data + start;
        if (mask->token == 1)
            for (int64_t i = 0; i < tokens; i++) into[i] = seen[i] ? 0.0f : -__builtin_inff();
        else
            for (int64_t i = 0; i < tokens; i++) into[i] = seen[i * mask->token] ? 0.0f : -__builtin_inff();
    } else {
        const float *found = NAME(load)(mask->data, mask->type, start, mask->token, tokens, held);
        for (int64_t i = 0; i < tokens; i++) into[i] = found[i];
    }
    for (int64_t i = tokens; i < AT_A_TIME; i++) into[i] = -__builtin_inff();
}

static inline int NAME(are_zero)(const float bias[AT_A_TIME])
{
    int found = 0;
    for (int i = 0; i < AT_A_TIME; i++) found |= bias[i] != 0;
    return !found;
}

/* Scores of few queries: a sum for each. */
static inline void NAME(scores_of_few)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                       int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
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

#if LEVEL == 512
/* Sixteen rows of sixteen numbers as columns. */
static inline void NAME(turn_square)(const float *from, int64_t stride, float *to, int64_t to_stride)
{
    __m512 row[16], pair[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 16; i++) row[i] = _mm512_loadu_ps(from + i * stride);
    #pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        pair[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) /* of four rows: numbers 0, 1, 2 and 3 of each quarter */
        for (int half = 0; half < 2; half++) {
            __m512d one = (__m512d)pair[i + half], two = (__m512d)pair[i + 2 + half];
            row[i + 2 * half] = (__m512)_mm512_unpacklo_pd(one, two);
            row[i + 2 * half + 1] = (__m512)_mm512_unpackhi_pd(one, two);
        }
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* quarters of all rows together */
        __m512 low = _mm512_shuffle_f32x4(row[i], row[i + 4], 0x88), high = _mm512_shuffle_f32x4(row[i], row[i + 4], 0xdd);
        __m512 others = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0x88);
        __m512 highest = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0xdd);
        _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(low, others, 0x88));
        _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(high, highest, 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(low, others, 0xdd));
        _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(high, highest, 0xdd));
    }
}
#endif

/* Let the tokens of a number stand beside each other. */
static inline void NAME(turn)(const struct operand *keys, int64_t key, int64_t stride, int64_t tokens, int64_t width,
                              float turned[WIDTH][AT_A_TIME])
{
    float row[WIDTH];
    int64_t token = 0;
#if LEVEL == 512
    float rows[16 * WIDTH];
    for (; token + 16 <= tokens && width >= 16; token += 16) {
        const float *from = (const float *)keys->data + key + token * stride;
        int64_t own = stride, i = 0;
        if (keys->type != F32) {
            for (int one = 0; one < 16; one++)
                NAME(load)(keys->data, keys->type, key + (token + one) * stride, 1, width, rows + one * width);
            from = rows, own = width;
        }
        for (; i + 16 <= width; i += 16) NAME(turn_square)(from + i, own, &turned[i][token], AT_A_TIME);
        for (; i < width; i++)
            for (int one = 0; one < 16; one++) turned[i][token + one] = from[one * own + i];
    }
#endif
    for (; token < tokens; token++) {
        const float *found = NAME(load)(keys->data, keys->type, key + token * stride, 1, width, row);
        for (int64_t i = 0; i < width; i++) turned[i][token] = found[i];
    }
    for (int64_t i = 0; i < width; i++)
        for (token = tokens; token < AT_A_TIME; token++) turned[i][token] = 0;
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

/* Add the biases to the scores of a query, and note what it may see. */
static inline void NAME(add_biases)(float score[AT_A_TIME], const float bias[AT_A_TIME], NAME(whole_lanes) seen[4])
{
    NAME(lanes) *scores = (NAME(lanes) *)score;
    const NAME(lanes) *added = (const NAME(lanes) *)bias;
    const float least = -__builtin_inff();
    for (int part = 0; part < 4; part++) {
        NAME(lanes) sum = scores[part] + added[part]; /* what is not seen may be anything */
        scores[part] = NAME(blended)(added[part] == least, added[part], sum);
        seen[part] |= added[part] != least;
    }
}

/* What a query has so far is brought to its new greatest score; scores become powers. */
static inline void NAME(powers_of)(struct NAME(held) * held, int64_t one, float score[AT_A_TIME])
{
    NAME(lanes) *scores = (NAME(lanes) *)score, all = scores[0], sums = {0};
    const float least = -__builtin_inff();
    for (int part = 1; part < 4; part++) all = NAME(greater)(scores[part], all);
    float own = NAME(greatest)(NAME(blended)(all == all, all, least - (NAME(lanes)){0})), most = held->most[one];
    most = own > most ? own : most;
    if (most == least) { /* nothing is seen so far, unless it is no number */
        int is_nan = 0;
        for (int i = 0; i < AT_A_TIME; i++) is_nan |= score[i] != score[i];
        if (!is_nan) {
            for (int i = 0; i < AT_A_TIME; i++) score[i] = 0;
            return;
        }
        most = 0;
    }
    for (int part = 0; part < 4; part++) sums += scores[part] = NAME(powers)(scores[part] - most);
    if (held->most[one] != most) {
        float before = NAME(exp)(held->most[one] - most), *made = held->made + one * held->pitch;
        for (int64_t i = 0; i < held->pitch; i++) made[i] *= before;
        held->most[one] = most;
        held->sum[one] *= before;
    }
    held->sum[one] += NAME(total)(sums);
}

/* Add the values by their powers; a value that no query may see may be anything. */
static inline void NAME(add_values_of_few)(struct NAME(held) * held, const struct operand *values, int64_t value,
                                           int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME],
                                           const NAME(whole_lanes) seen[4])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
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

/* Some tokens more, whose keys and values begin at these places. What a query does not see may be anything. */
static inline void NAME(attend)(struct NAME(held) * held, const struct operand *keys, int64_t key, int64_t key_stride,
                                const struct operand *values, int64_t value, int64_t value_stride,
                                const struct NAME(mask) * mask, int64_t tokens)
{
    float score[TOGETHER][AT_A_TIME], bias[AT_A_TIME];
    NAME(whole_lanes) seen[4] = {{0}};
    int is_nothing = 0; /* what is added, and all is seen */
    if (held->count < MANY)
        NAME(scores_of_few)(held, keys, key, key_stride, tokens, score);
    else
        NAME(scores_of_many)(held, keys, key, key_stride, tokens, score);
    for (int64_t one = 0; one < held->count; one++) {
        if (!one || (mask->data && mask->query)) {
            NAME(biases)(mask, one, tokens, bias);
            is_nothing = NAME(are_zero)(bias);
        }
        if (is_nothing)
            __builtin_memset(seen, 255, sizeof seen);
        else
            NAME(add_biases)(score[one], bias, seen);
        NAME(powers_of)(held, one, score[one]);
    }
    if (held->count < MANY)
        NAME(add_values_of_few)(held, values, value, value_stride, tokens, score, seen);
    else
        NAME(add_values)(held, values, value, value_stride, tokens, score, seen);
}

/* A query that sees nothing gives 0, as torch has it. */
static inline void NAME(answered)(struct NAME(held) * held, int64_t one, const struct operand *to, int64_t place)
{
    float *made = held->made + one * held->pitch, by = held->sum[one] == 0 ? 0.0f : 1.0f / held->sum[one];
    for (int64_t i = 0; i < held->wide; i++) made[i] *= by;
    NAME(store)(to->data, to->type, place, 1, held->wide, made);
}

/* Operands: result and query (batch, heads, rows, …), keys and values (batch, groups, tokens, …), and a mask (batch,
   heads, rows, tokens), if there is one. size: batch, heads, rows, width, wide, tokens; whole: heads of a group. */
static void NAME(attention)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t heads = step->size[1], rows = step->size[2], tokens = step->size[5];
    const int64_t parts = (rows + TOGETHER - 1) / TOGETHER;
    const struct operand *to = step->operand, *query = to + 1, *keys = to + 2, *values = to + 3, *mask = to + 4;
    for (int64_t unit = from; unit < until; unit++) {
        int64_t item = unit / parts / heads, head = unit / parts % heads, first = unit % parts * TOGETHER;
        int64_t group = head / step->whole[0];
        struct NAME(held) held;
        struct NAME(mask) seen = {0};
        NAME(begin)(&held, rows - first < TOGETHER ? rows - first : TOGETHER, step->size[3], step->size[4]);
        for (int64_t one = 0; one < held.count; one++)
            NAME(asked)(&held, one, query, item * query->stride[0] + head * query->stride[1] +
                        (first + one) * query->stride[2], (float)step->number);
        for (int64_t begin = 0; begin < tokens; begin += AT_A_TIME) {
            if (step->operands > 4)
                seen = (struct NAME(mask)){mask->data, mask->type, item * mask->stride[0] + head * mask->stride[1] +
                                           first * mask->stride[2] + begin * mask->stride[3],
                                           mask->stride[2], mask->stride[3]};
            NAME(attend)(&held, keys,
                         item * keys->stride[0] + group * keys->stride[1] + begin * keys->stride[2], keys->stride[2],
                         values,
                         item * values->stride[0] + group * values->stride[1] + begin * values->stride[2],
                         values->stride[2], &seen, tokens - begin < AT_A_TIME ? tokens - begin : AT_A_TIME);
        }
        for (int64_t one = 0; one < held.count; one++)
            NAME(answered)(&held, one, to, item * to->stride[0] + head * to->stride[1] + (first + one) * to->stride[2]);
    }
}

static inline int64_t NAME(length)(const struct step *step, int64_t item)
{
    const struct operand *lengths = step->operand + 6;
    int64_t length = NAME(whole)(lengths, item * lengths->stride[0]);
    return length < 1 ? 1 : length > step->size[5] ? step->size[5] : length;
}

/* One token of each sequence. Operands: result (batch, heads, wide), query (batch, heads, width), keys and values (rows,
   groups * width), table (batch, columns), mask (batch, most) and lengths (batch,). size: batch, groups, heads of a
   group, width, wide, most. whole: rows of a block, blocks. */
static void NAME(paged_attention)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t groups = step->size[1], share = step->size[2], wide = step->size[4], block = step->whole[0];
    const struct operand *to = step->operand, *query = to + 1, *keys = to + 2, *values = to + 3;
    const struct operand *table = to + 4, *mask = to + 5;
    for (int64_t unit = from; unit < until; unit++) {
        int64_t item = unit / groups, group = unit % groups, length = NAME(length)(step, item), some;
        struct NAME(held) held;
        NAME(begin)(&held, share, step->size[3], wide);
        for (int64_t one = 0; one < share; one++)
            NAME(asked)(&held, one, query, item * query->stride[0] + (group * share + one) * query->stride[1],
                        (float)step->number);
        for (int64_t begin = 0; begin < length; begin += some) {
            int64_t column = begin / block, within = begin % block;
            int64_t row = NAME(whole)(table, item * table->stride[0] + column * table->stride[1]) * block + within;
            struct NAME(mask) seen = {mask->data, mask->type, item * mask->stride[0] + begin * mask->stride[1], 0,
                                      mask->stride[1]};
            some = block - within < AT_A_TIME ? block - within : AT_A_TIME;
            some = length - begin < some ? length - begin : some;
            NAME(attend)(&held, keys, row * keys->stride[0] + group * held.width, keys->stride[0], values,
                         row * values->stride[0] + group * wide, values->stride[0], &seen, some);
        }
        for (int64_t one = 0; one < share; one++)
            NAME(answered)(&held, one, to, item * to->stride[0] + (group * share + one) * to->stride[1]);
    }
}

/* How many products a call makes; -1 where a block of a sequence does not exist. */
static int64_t NAME(paged_products)(const struct step *step)
{
    const int64_t block = step->whole[0], blocks = step->whole[1];
    const struct operand *table = step->operand + 4;
    int64_t all = 0;
    for (int64_t item = 0; item < step->size[0]; item++) {
        int64_t length = NAME(length)(step, item);
        for (int64_t column = 0; column * block < length; column++) {
            int64_t number = NAME(whole)(table, item * table->stride[0] + column * table->stride[1]);
            if (number < 0 || number >= blocks)
                return -1;
        }
        all += length * step->size[1] * step->size[2] * (step->size[3] + step->size[4]);
    }
    return all;
}
