/* Queries meet keys and values: those of a batch, or of a cache where each sequence has blocks. Some tokens at a time,
   with the greatest score so far (Milakov and Gimelshein's online softmax), so that no memory is needed for scores. */

#define AT_A_TIME 64 /* tokens */
#define MANY 6       /* queries for which it pays to turn the keys */

/* Of each query: itself times the scale, its greatest score, the sum of the powers, and the values by these. */
struct NAME(held) {
    float query[TOGETHER][WIDTH], made[TOGETHER][WIDTH], most[TOGETHER], sum[TOGETHER];
    int64_t count, width, wide;
};

/* What is added to the scores of a query: for `type` BOOL 0 or minus infinity. No memory: nothing is added. */
typedef float NAME(lanes) __attribute__((vector_size(64), aligned(4), may_alias));

struct NAME(mask) {
    const char *data;
    int64_t type, start, query, token;
};

static inline void NAME(asked)(struct NAME(held) * held, int64_t one, const struct operand *query, int64_t place,
                               float scale)
{
    float row[WIDTH];
    const float *found = NAME(load)(query->data, query->type, place, 1, held->width, row);
    for (int64_t i = 0; i < held->width; i++) held->query[one][i] = found[i] * scale;
    for (int64_t i = 0; i < held->wide; i++) held->made[one][i] = 0;
    held->most[one] = -__builtin_inff();
    held->sum[one] = 0;
}

static inline void NAME(biases)(const struct NAME(mask) * mask, int64_t query, int64_t tokens, float *into)
{
    float held[AT_A_TIME];
    int64_t start = mask->start + query * mask->query;
    if (!mask->data) {
        for (int64_t i = 0; i < tokens; i++) into[i] = 0;
    } else if (mask->type == BOOL) {
        const uint8_t *seen = (const uint8_t *)mask->data + start;
        for (int64_t i = 0; i < tokens; i++) into[i] = seen[i * mask->token] ? 0.0f : -__builtin_inff();
    } else {
        const float *found = NAME(load)(mask->data, mask->type, start, mask->token, tokens, held);
        for (int64_t i = 0; i < tokens; i++) into[i] = found[i];
    }
}

/* Scores of few queries: a sum for each. */
static inline void NAME(scores_of_few)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                       int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
        const float *found = NAME(load)(keys->data, keys->type, key + token * stride, 1, held->width, row);
        for (int64_t one = 0; one < held->count; one++) {
            const float *query = held->query[one];
            float sum = 0;
            #pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < held->width; i++) sum += query[i] * found[i];
            score[one][token] = score[one][token] == -__builtin_inff() ? -__builtin_inff() : score[one][token] + sum;
        }
    }
}

static inline void NAME(add_scores)(float *score, const float *sums, int64_t tokens)
{
    for (int64_t token = 0; token < tokens; token++)
        score[token] = score[token] == -__builtin_inff() ? -__builtin_inff() : score[token] + sums[token];
}

/* Scores of many: keys are turned, so that all tokens of a number stand beside each other. */
static inline void NAME(scores_of_many)(const struct NAME(held) * held, const struct operand *keys, int64_t key,
                                        int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float row[WIDTH], turned[WIDTH][AT_A_TIME];
    for (int64_t token = 0; token < tokens; token++) {
        const float *found = NAME(load)(keys->data, keys->type, key + token * stride, 1, held->width, row);
        for (int64_t i = 0; i < held->width; i++) turned[i][token] = found[i];
    }
    for (int64_t i = 0; i < held->width; i++)
        for (int64_t token = tokens; token < AT_A_TIME; token++) turned[i][token] = 0;
    for (int64_t one = 0; one < held->count; one += 2) {
        int64_t two = one + 1 < held->count ? one + 1 : one;
        NAME(lanes) sums[8] = {{0}};
        for (int64_t i = 0; i < held->width; i++) {
            const NAME(lanes) *key_of = (const NAME(lanes) *)turned[i];
            float first = held->query[one][i], second = held->query[two][i];
            sums[0] += first * key_of[0], sums[1] += first * key_of[1];
            sums[2] += first * key_of[2], sums[3] += first * key_of[3];
            sums[4] += second * key_of[0], sums[5] += second * key_of[1];
            sums[6] += second * key_of[2], sums[7] += second * key_of[3];
        }
        NAME(add_scores)(score[one], (const float *)sums, tokens);
        if (two != one)
            NAME(add_scores)(score[two], (const float *)(sums + 4), tokens);
    }
}

/* What a query has so far is brought to its new greatest score; scores become powers. */
static inline void NAME(powers_of)(struct NAME(held) * held, int64_t one, float *scores, int64_t tokens)
{
    float most = held->most[one], *made = held->made[one];
    for (int64_t token = 0; token < tokens; token++)
        most = scores[token] > most || scores[token] != scores[token] ? scores[token] : most;
    if (most == -__builtin_inff()) {
        for (int64_t token = 0; token < tokens; token++) scores[token] = 0;
        return;
    }
    float before = NAME(exp)(held->most[one] - most), sum = held->sum[one] * before;
    for (int64_t token = 0; token < tokens; token++) scores[token] = NAME(exp)(scores[token] - most);
    for (int64_t token = 0; token < tokens; token++) sum += scores[token];
    if (before != 1)
        for (int64_t i = 0; i < held->wide; i++) made[i] *= before;
    held->most[one] = most;
    held->sum[one] = sum;
}

/* Add the values by their powers; a value whose power is 0 may be anything. */
static inline void NAME(add_values_of_few)(struct NAME(held) * held, const struct operand *values, int64_t value,
                                           int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float row[WIDTH];
    for (int64_t token = 0; token < tokens; token++) {
        const float *found = NAME(load)(values->data, values->type, value + token * stride, 1, held->wide, row);
        for (int64_t one = 0; one < held->count; one++) {
            float *made = held->made[one], power = score[one][token];
            if (power == 0)
                continue;
            #pragma omp simd
            for (int64_t i = 0; i < held->wide; i++) made[i] += power * found[i];
        }
    }
}

#define BESIDE 32 /* numbers of a value whose sums stay in registers */

static inline void NAME(add_some_values)(struct NAME(held) * held, int64_t one, int64_t begin, int64_t some,
                                         float rows[AT_A_TIME][BESIDE], int64_t tokens,
                                         float score[TOGETHER][AT_A_TIME])
{
    NAME(lanes) sums[8] = {{0}};
    for (int64_t token = 0; token < tokens; token++) {
        const NAME(lanes) *row = (const NAME(lanes) *)rows[token];
        for (int query = 0; query < 4; query++) { /* those beyond the last one are not read */
            float power = score[one + query][token];
            sums[2 * query] += power * row[0], sums[2 * query + 1] += power * row[1];
        }
    }
    for (int query = 0; query < 4 && one + query < held->count; query++)
        for (int64_t i = 0; i < some; i++)
            held->made[one + query][begin + i] += ((const float *)(sums + 2 * query))[i];
}

/* The same for many; a value that no query sees may be anything. */
static inline void NAME(add_values)(struct NAME(held) * held, const struct operand *values, int64_t value,
                                    int64_t stride, int64_t tokens, float score[TOGETHER][AT_A_TIME])
{
    float rows[AT_A_TIME][BESIDE], row[BESIDE];
    for (int64_t begin = 0; begin < held->wide; begin += BESIDE) {
        int64_t some = held->wide - begin < BESIDE ? held->wide - begin : BESIDE;
        for (int64_t token = 0; token < tokens; token++) {
            int is_seen = 0;
            for (int64_t one = 0; one < held->count; one++) is_seen |= score[one][token] != 0;
            const float *found = NAME(load)(values->data, values->type, value + token * stride + begin, 1, some, row);
            for (int64_t i = 0; i < BESIDE; i++) rows[token][i] = is_seen && i < some ? found[i < some ? i : 0] : 0;
        }
        for (int64_t one = 0; one < held->count; one += 4)
            NAME(add_some_values)(held, one, begin, some, rows, tokens, score);
    }
}

/* Some tokens more, whose keys and values begin at these places. What a query does not see may be anything. */
static inline void NAME(attend)(struct NAME(held) * held, const struct operand *keys, int64_t key, int64_t key_stride,
                                const struct operand *values, int64_t value, int64_t value_stride,
                                const struct NAME(mask) * mask, int64_t tokens)
{
    float score[TOGETHER][AT_A_TIME] = {{0}};
    for (int64_t one = 0; one < held->count; one++)
        NAME(biases)(mask, one, tokens, score[one]);
    if (held->count < MANY)
        NAME(scores_of_few)(held, keys, key, key_stride, tokens, score);
    else
        NAME(scores_of_many)(held, keys, key, key_stride, tokens, score);
    for (int64_t one = 0; one < held->count; one++)
        NAME(powers_of)(held, one, score[one], tokens);
    if (held->count < MANY)
        NAME(add_values_of_few)(held, values, value, value_stride, tokens, score);
    else
        NAME(add_values)(held, values, value, value_stride, tokens, score);
}

/* A query that sees nothing gives 0, as torch has it. */
static inline void NAME(answered)(struct NAME(held) * held, int64_t one, const struct operand *to, int64_t place)
{
    float *made = held->made[one], by = held->sum[one] == 0 ? 0.0f : 1.0f / held->sum[one];
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
        held.width = step->size[3], held.wide = step->size[4];
        held.count = rows - first < TOGETHER ? rows - first : TOGETHER;
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
        held.width = step->size[3], held.wide = wide, held.count = share;
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
