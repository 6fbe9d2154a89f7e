/* Queries meet keys and values: those of a batch, or of a cache where each sequence has blocks. */

/* Some tokens more, whose keys and values begin at these places. What a query does not see may be anything. */
static inline void NAME(attend)(struct NAME(held) * held, const struct operand *keys, int64_t key, int64_t key_stride,
                                const struct operand *values, int64_t value, int64_t value_stride,
                                const struct NAME(mask) * mask, int64_t tokens)
{
    float score[TOGETHER][AT_A_TIME], bias[AT_A_TIME];
    NAME(whole_lanes) seen[4] = {{0}};
    int is_nothing = 0; /* what is added, and all is seen */
    if (!held->many)
        NAME(scores_of_few)(held, keys, key, key_stride, values, value, value_stride, tokens, score);
#if PAIRS
    else if (held->pairs)
        NAME(scores_of_pairs)(held, keys, key, key_stride, tokens, score);
#endif
    else
        NAME(scores_of_many)(held, keys, key, key_stride, tokens, score);
    for (int64_t one = 0; one < held->count; one++) {
        if ((!one || (mask->data && mask->query)) && !(is_nothing = NAME(hides_nothing)(mask, one, tokens))) {
            NAME(biases)(mask, one, tokens, bias);
            is_nothing = NAME(are_zero)(bias);
        }
        if (is_nothing)
            __builtin_memset(seen, 255, sizeof seen);
        else
            NAME(add_biases)(score[one], bias, seen);
    }
    NAME(powers_of_all)(held, score);
    if (!held->many)
        NAME(add_values_of_few)(held, keys, key + tokens * key_stride, key_stride, values, value, value_stride, tokens,
                                score, seen);
#if PAIRS
    else if (held->pairs)
        NAME(add_pairs)(held, values, value, value_stride, tokens, score, seen);
#endif
    else
        NAME(add_values)(held, values, value, value_stride, tokens, score, seen);
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
        NAME(begin)(&held, rows - first < TOGETHER ? rows - first : TOGETHER, rows, step->size[3], step->size[4],
                    (float)step->number, query);
        for (int64_t one = 0; one < held.count; one++)
            NAME(asked)(&held, one, query, item * query->stride[0] + head * query->stride[1] +
                        (first + one) * query->stride[2]);
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
        NAME(begin)(&held, share, share, step->size[3], wide, (float)step->number, query);
        for (int64_t one = 0; one < share; one++)
            NAME(asked)(&held, one, query, item * query->stride[0] + (group * share + one) * query->stride[1]);
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
