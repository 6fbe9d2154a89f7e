/* A layer of an LSTM, in one direction or in both. Its weights are laid into blocks first: the four gates of sixteen hidden
   numbers, which one thread then makes at each time. What is multiplied lies in words: floats, or pairs of bfloat16,
   whose sums and whose c are floats too. */

#define FIRST_WEIGHT 6 /* operands before those of the directions, which have four each */

struct NAME(layer) {
    const struct step *step;
    int64_t times, batch, hidden, ways, groups, type;
    int64_t width, deep;                               /* words of a row of x, and of h */
    float *x, *gates, *weight_x, *weight_h, *h[2], *c; /* what is made on the way */
};

static inline int64_t NAME(bytes_of)(const struct NAME(layer) * layer) { return layer->type == BF16 ? 2 : 4; }

/* Of a unit, a group of hidden numbers in one direction. */
static inline int64_t NAME(hidden_of)(const struct NAME(layer) * layer, int64_t unit)
{
    const int64_t rest = layer->hidden - unit % layer->groups * 16;
    return rest < 16 ? rest : 16;
}

/* The rows of the unit's gates as a block of so many words, zeros behind the last. */
static void NAME(block_of)(const struct NAME(layer) * layer, int64_t unit, const struct operand *weight, int64_t words,
                           float *into)
{
    const int64_t count = NAME(hidden_of)(layer, unit), start = unit % layer->groups * 16;
    const int64_t stride = weight->stride[0] * NAME(bytes_of)(layer);
    for (int64_t gate = 0; gate < 4; gate++) {
        const char *rows = weight->data + (gate * layer->hidden + start) * stride, *row[16];
        for (int64_t one = 0; one < 16; one++) row[one] = rows + (one < count ? one : 0) * stride;
        NAME(turn_rows)(row, words, into + gate * 16, BLOCK);
        for (int64_t k = 0; k < words && count < 16; k++)
            __builtin_memset(into + k * BLOCK + gate * 16 + count, 0, (16 - count) * sizeof(float));
    }
}

/* Add rows by a block to the gates. */
static inline void NAME(add_gates)(const struct NAME(layer) * layer, const float *weight, const float *rows,
                                   int64_t words, int64_t count, float *gates)
{
#if PAIRS
    if (layer->type == BF16) {
        NAME(rows_of_pairs_by_block)((const uint32_t *)weight, (const uint32_t *)rows, words, count, gates);
        return;
    }
#endif
    NAME(rows_by_block)((const char *)weight, rows, words, count, 4, 0, gates);
}

/* The gates of a unit at all times, as far as the input makes them. */
static void NAME(begin_unit)(const struct NAME(layer) * layer, int64_t unit)
{
    const int64_t way = unit / layer->groups, count = NAME(hidden_of)(layer, unit), rows = layer->times * layer->batch;
    const struct operand *all = layer->step->operand, *own = all + FIRST_WEIGHT + 4 * way;
    float *weight_x = layer->weight_x + unit * layer->width * BLOCK, *gates = layer->gates + unit * rows * BLOCK;
    const int64_t start = unit % layer->groups * 16, bytes = NAME(bytes_of)(layer);
    float bias[BLOCK] = {0}, held[16];
    NAME(block_of)(layer, unit, own, layer->width, weight_x);
    NAME(block_of)(layer, unit, own + 1, layer->deep, layer->weight_h + unit * layer->deep * BLOCK);
    for (int64_t gate = 0; gate < 4; gate++)
        for (int one = 2; one < 4 && own[2].data; one++) {
            const float *found =
                NAME(load)(own[one].data, own[one].type, gate * layer->hidden + start, 1, count, held);
            for (int64_t i = 0; i < count; i++) bias[gate * 16 + i] += found[i];
        }
    for (int64_t row = 0; row < rows; row++) __builtin_memcpy(gates + row * BLOCK, bias, sizeof bias);
    NAME(add_gates)(layer, weight_x, layer->x, layer->width, rows, gates);
    for (int64_t one = 0; one < layer->batch; one++) {
        const int64_t place = (way * layer->batch + one) * layer->hidden + start;
        const float *found = NAME(load)(all[5].data, layer->type, place, 1, count, held);
        __builtin_memcpy((char *)layer->h[0] + place * bytes, all[4].data + place * bytes, count * bytes);
        __builtin_memcpy(layer->c + (unit * layer->batch + one) * 16, found, count * sizeof(float));
    }
}

/* The numbers of a unit at the time that comes as number `turn`. */
static void NAME(step_unit)(const struct NAME(layer) * layer, int64_t unit, int64_t turn)
{
    const int64_t way = unit / layer->groups, start = unit % layer->groups * 16, count = NAME(hidden_of)(layer, unit);
    const int64_t time = way ? layer->times - 1 - turn : turn, batch = layer->batch, hidden = layer->hidden;
    const struct operand *all = layer->step->operand;
    float *gates = layer->gates + (unit * layer->times + time) * batch * BLOCK;
    const float *before = layer->h[turn % 2] + way * batch * layer->deep;
    NAME(add_gates)(layer, layer->weight_h + unit * layer->deep * BLOCK, before, layer->deep, batch, gates);
    for (int64_t one = 0; one < batch; one++, gates += BLOCK) {
        float *c = layer->c + (unit * batch + one) * 16, h[16];
        for (int i = 0; i < 16; i++) {
            float in = 1.0f / (1.0f + NAME(exp)(-gates[i])), kept = 1.0f / (1.0f + NAME(exp)(-gates[16 + i]));
            c[i] = kept * c[i] + in * NAME(tanh)(gates[32 + i]);
        }
        for (int i = 0; i < 16; i++) h[i] = NAME(tanh)(c[i]) / (1.0f + NAME(exp)(-gates[48 + i]));
        const int64_t state = (way * batch + one) * hidden + start;
        const int64_t place = time * all->stride[0] + one * all->stride[1] + way * hidden + start;
        NAME(store)((char *)layer->h[(turn + 1) % 2], layer->type, state, 1, count, h);
        NAME(store)(all->data, layer->type, place, 1, count, h);
        if (turn == layer->times - 1 && all[2].data)
            NAME(store)(all[2].data, layer->type, state, 1, count, h);
        if (turn == layer->times - 1 && all[3].data)
            NAME(store)(all[3].data, layer->type, state, 1, count, c);
    }
}

static void NAME(input_row)(const struct NAME(layer) * layer, int64_t row)
{
    const struct operand *x = layer->step->operand + 1;
    const int64_t place = row / layer->batch * x->stride[0] + row % layer->batch * x->stride[1];
    __builtin_memcpy(layer->x + row * layer->width, x->data + place * NAME(bytes_of)(layer),
                     layer->width * sizeof(float));
}

/* Where `numbers` lie in whole lines, behind those that are there already. */
static inline float *NAME(taken)(float *memory, int64_t *end, int64_t numbers)
{
    const int64_t start = *end;
    *end += (numbers + 15) / 16 * 16;
    return memory ? memory + start : 0;
}

/* Where everything lies that is made on the way, in `memory` if there is some; gives how many numbers these are. */
static int64_t NAME(lay_out)(struct NAME(layer) * layer, float *memory)
{
    const int64_t units = layer->ways * layer->groups, rows = layer->times * layer->batch;
    int64_t end = 0;
    layer->x = NAME(taken)(memory, &end, rows * layer->width);
    layer->gates = NAME(taken)(memory, &end, units * rows * BLOCK);
    layer->weight_x = NAME(taken)(memory, &end, units * layer->width * BLOCK);
    layer->weight_h = NAME(taken)(memory, &end, units * layer->deep * BLOCK);
    for (int one = 0; one < 2; one++)
        layer->h[one] = NAME(taken)(memory, &end, layer->ways * layer->batch * layer->deep);
    layer->c = NAME(taken)(memory, &end, units * layer->batch * 16);
    return end;
}

/* Operands: result (times, batch, directions * hidden), x (times, batch, width), the last h and c (directions, batch,
   hidden) or no memory, the first h and c alike; of each direction the weights of x (4 * hidden, width) and of h
   (4 * hidden, hidden), and their biases (4 * hidden,) or no memory. size: times, batch, width, hidden, directions. All
   of float32 or, where there are products of pairs and width and hidden are even, of bfloat16. Whether it was made: not
   where there is no memory for it. */
static int NAME(lstm)(const struct step *step, int threads)
{
    const int64_t *size = step->size, type = step->operand[1].type, of_word = type == BF16 ? 2 : 1;
    if (type == BF16 && (!PAIRS || size[2] % 2 || size[3] % 2))
        return 0;
    struct NAME(layer) layer = {
        .step = step, .times = size[0], .batch = size[1], .hidden = size[3], .ways = size[4], .type = type,
        .groups = (size[3] + 15) / 16, .width = size[2] / of_word, .deep = size[3] / of_word,
    };
    const int64_t rows = size[0] * size[1], units = size[4] * layer.groups;
    float *memory = aligned_alloc(64, NAME(lay_out)(&layer, 0) * sizeof(float));
    if (!memory)
        return 0;
    NAME(lay_out)(&layer, memory);
    const int shared = threads > 1 && rows * units * (size[2] + size[3]) > GRAIN;
    #pragma omp parallel num_threads(threads) if (shared)
    {
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) NAME(input_row)(&layer, row);
        #pragma omp for schedule(static)
        for (int64_t unit = 0; unit < units; unit++) NAME(begin_unit)(&layer, unit);
        for (int64_t turn = 0; turn < layer.times; turn++) {
            #pragma omp for schedule(static)
            for (int64_t unit = 0; unit < units; unit++) NAME(step_unit)(&layer, unit, turn);
        }
    }
    free(memory);
    return 1;
}
