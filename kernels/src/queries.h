/* What queries hold while they meet tokens, some at a time, with the greatest score so far (Milakov and Gimelshein's online
   softmax), so that no memory is needed for scores. */

#define AT_A_TIME 64 /* tokens */
#define MANY 6       /* queries for which it pays to turn the keys */
#define BESIDE 16    /* numbers of a value that are made together, or twice as many */

/* Of each query: itself times the scale, its greatest score, the sum of the powers, and the values by these, whose
   places in a row are `pitch`, a multiple of BESIDE. With `pairs` products are of two numbers of bfloat16 at a time, and
   the query is held as it is. */
struct NAME(held) {
    float query[TOGETHER * WIDTH], made[TOGETHER * WIDTH], most[TOGETHER], sum[TOGETHER];
    int64_t count, width, wide, pitch;
    float scale;
    int many, pairs;
};

/* What is added to the scores of a query: for `type` BOOL 0 or minus infinity. No memory: nothing is added. */
struct NAME(mask) {
    const char *data;
    int64_t type, start, query, token;
};

/* `count` of `all` queries. `query` and two more operands: keys and values. */
static inline void NAME(begin)(struct NAME(held) * held, int64_t count, int64_t all, int64_t width, int64_t wide,
                               float scale, const struct operand *query)
{
    held->count = count, held->width = width, held->wide = wide, held->scale = scale;
    held->pitch = (wide + BESIDE - 1) / BESIDE * BESIDE;
    held->many = all >= MANY;
    held->pairs = PAIRS && held->many && width % 2 == 0;
    for (int one = 0; one < 3; one++) held->pairs &= query[one].type == BF16;
    for (int one = 0; one < TOGETHER; one++) held->most[one] = -__builtin_inff();
}

static inline void NAME(asked)(struct NAME(held) * held, int64_t one, const struct operand *query, int64_t place)
{
    float row[WIDTH], *mine = held->query + one * held->width, *made = held->made + one * held->pitch;
    if (held->pairs)
        __builtin_memcpy(mine, (const uint16_t *)query->data + place, held->width * sizeof(uint16_t));
    else {
        const float *found = NAME(load)(query->data, query->type, place, 1, held->width, row);
        for (int64_t i = 0; i < held->width; i++) mine[i] = found[i] * held->scale;
    }
    for (int64_t i = 0; i < held->pitch; i++) made[i] = 0;
    held->sum[one] = 0;
}

/* Whether a query sees all tokens of a whole part, as far as that is fast to see. */
static inline int NAME(hides_nothing)(const struct NAME(mask) * mask, int64_t query, int64_t tokens)
{
    if (tokens < AT_A_TIME || !mask->data)
        return tokens == AT_A_TIME;
    if (mask->type != BOOL || mask->token != 1)
        return 0;
    const uint8_t *seen = (const uint8_t *)mask->data + mask->start + query * mask->query;
    int hidden = 0;
    for (int i = 0; i < AT_A_TIME; i++) hidden |= seen[i] == 0;
    return !hidden;
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

/* The greatest of the scores of a query that are numbers, and of what it was. */
static inline float NAME(most_of)(float so_far, const float score[AT_A_TIME])
{
    const NAME(lanes) *scores = (const NAME(lanes) *)score, least = (NAME(lanes)){0} - __builtin_inff();
    NAME(lanes) all = scores[0];
    for (int part = 1; part < 4; part++) all = NAME(greater)(scores[part], all);
    float own = NAME(greatest)(NAME(blended)(all == all, all, least));
    return own > so_far ? own : so_far;
}

/* Scores of a query become powers, after what it has so far was brought to its new greatest score by a factor. */
static inline void NAME(powers_of)(struct NAME(held) * held, int64_t one, float factor, float score[AT_A_TIME])
{
    NAME(lanes) *scores = (NAME(lanes) *)score, sums = {0};
    float most = held->most[one];
    if (most == -__builtin_inff()) { /* nothing is seen so far, unless it is no number */
        int is_nan = 0;
        for (int i = 0; i < AT_A_TIME; i++) is_nan |= score[i] != score[i];
        if (!is_nan) {
            for (int i = 0; i < AT_A_TIME; i++) score[i] = 0;
            return;
        }
        most = 0, factor = 1;
    }
    for (int part = 0; part < 4; part++) {
        const NAME(lanes) below = scores[part] - most;
        sums += scores[part] = held->pairs ? NAME(rough_powers)(below) : NAME(powers)(below);
    }
    if (factor != 1.0f) {
        NAME(lanes) *made = (NAME(lanes) *)(held->made + one * held->pitch);
        for (int64_t part = 0; part < held->pitch / 16; part++) made[part] *= factor;
        held->sum[one] *= factor;
    }
    held->sum[one] += NAME(total)(sums);
}

/* The same of all queries. */
static inline void NAME(powers_of_all)(struct NAME(held) * held, float score[TOGETHER][AT_A_TIME])
{
    float factor[TOGETHER];
    NAME(lanes) *factors = (NAME(lanes) *)factor, *most = (NAME(lanes) *)held->most;
    const int64_t parts = (held->count + 15) / 16;
    for (int64_t part = 0; part < parts; part++) factors[part] = most[part];
    for (int64_t one = 0; one < held->count; one++) held->most[one] = NAME(most_of)(held->most[one], score[one]);
    for (int64_t part = 0; part < parts; part++) factors[part] = NAME(powers)(factors[part] - most[part]);
    for (int64_t one = 0; one < held->count; one++) NAME(powers_of)(held, one, factor[one], score[one]);
}

/* A query that sees nothing gives 0, as torch has it. */
static inline void NAME(answered)(struct NAME(held) * held, int64_t one, const struct operand *to, int64_t place)
{
    float *made = held->made + one * held->pitch, by = held->sum[one] == 0 ? 0.0f : 1.0f / held->sum[one];
    for (int64_t i = 0; i < held->wide; i++) made[i] *= by;
    NAME(store)(to->data, to->type, place, 1, held->wide, made);
}
