/* What is made of rows: sums, norms, softmax; and what is chosen of two tensors. */

/* A sum in double: rows whose numbers are large beside what they differ by keep their mean. */
static inline double NAME(sum)(const float *row, int64_t count)
{
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)row[i];
    return sum;
}

static inline float NAME(squares)(const float *row, int64_t count)
{
    double sum = 0;
    for (int64_t begin = 0; begin < count; begin += 256) {
        int64_t end = begin + 256 < count ? begin + 256 : count;
        float part = 0;
        #pragma omp simd reduction(+ : part)
        for (int64_t i = begin; i < end; i++) part += row[i] * row[i];
        sum += part;
    }
    return (float)sum;
}

/* Operands: sums or means, in the places of their rows, and x. */
static void NAME(reduced)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t width = step->size[step->dims - 1];
    const struct operand *x = &step->operand[1], *to = &step->operand[0];
    for (int64_t row = from; row < until; row++) {
        float held[ROW];
        int64_t place[2];
        NAME(places)(step, row, 2, place);
        const float *row_of = NAME(load)(x->data, x->type, place[1], x->stride[step->dims - 1], width, held);
        float made = (float)(NAME(sum)(row_of, width) / (step->op == MEAN ? (double)width : 1.0));
        NAME(store)(to->data, to->type, place[0], 1, 1, &made);
    }
}

static void NAME(softmax)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t last = step->dims - 1, width = step->size[last];
    const struct operand *x = &step->operand[1], *to = &step->operand[0];
    for (int64_t row = from; row < until; row++) {
        float held[ROW], made[ROW], most = -__builtin_inff();
        int64_t place[2];
        NAME(places)(step, row, 2, place);
        const float *row_of = NAME(load)(x->data, x->type, place[1], x->stride[last], width, held);
        #pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < width; i++) most = row_of[i] > most ? row_of[i] : most;
        for (int64_t i = 0; i < width; i++) made[i] = NAME(exp)(row_of[i] - most);
        float sum = (float)NAME(sum)(made, width);
        for (int64_t i = 0; i < width; i++) made[i] /= sum;
        NAME(store)(to->data, to->type, place[0], to->stride[last], width, made);
    }
}

/* Operands: result, x, weight, bias; `number`: eps; `whole[0]`: whether there is a bias. */
static void NAME(layer_norm)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t last = step->dims - 1, width = step->size[last];
    const struct operand *all = step->operand;
    for (int64_t row = from; row < until; row++) {
        float held[ROW], factors[ROW], summands[ROW];
        int64_t place[2];
        NAME(places)(step, row, 2, place);
        const float *x = NAME(load)(all[1].data, all[1].type, place[1], all[1].stride[last], width, held);
        const float *weight = NAME(load)(all[2].data, all[2].type, 0, 1, width, factors);
        const float *bias = step->whole[0] ? NAME(load)(all[3].data, all[3].type, 0, 1, width, summands) : 0;
        double mean = NAME(sum)(x, width) / (double)width;
        float most = (float)mean, rest = (float)(mean - most);
        for (int64_t i = 0; i < width; i++) held[i] = (x[i] - most) - rest;
        float root = 1.0f / __builtin_sqrtf(NAME(squares)(held, width) / (float)width + (float)step->number);
        if (bias)
            for (int64_t i = 0; i < width; i++) held[i] = held[i] * root * weight[i] + bias[i];
        else
            for (int64_t i = 0; i < width; i++) held[i] = held[i] * root * weight[i];
        NAME(store)(all[0].data, all[0].type, place[0], all[0].stride[last], width, held);
    }
}

/* Operands: whole numbers (rows, width), x alike, and scales (rows,): the greatest number over 127, and the least normal
   number more; NaN for a row that is not finite. */
static void NAME(dynamic_quant)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t width = step->size[1];
    const struct operand *to = step->operand, *x = to + 1, *scales = to + 2;
    for (int64_t row = from; row < until; row++) {
        float held[ROW], most = 0, zeros = 0;
        const float *row_of = NAME(load)(x->data, x->type, row * x->stride[0], 1, width, held);
        int8_t *into = (int8_t *)to->data + row * to->stride[0];
        #pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < width; i++) most = __builtin_fabsf(row_of[i]) > most ? __builtin_fabsf(row_of[i]) : most;
        #pragma omp simd reduction(+ : zeros)
        for (int64_t i = 0; i < width; i++) zeros += row_of[i] * 0.0f;
        float scale = __builtin_fmaf(most, 1.0f / 127, 1.17549435e-38f + zeros), by = 1.0f / scale;
        for (int64_t i = 0; i < width; i++) {
            float number = __builtin_rintf(row_of[i] * by);
            number = number > 127.0f ? 127.0f : number < -128.0f ? -128.0f : number;
            into[i] = (int8_t)(number == number ? (int32_t)number : 0);
        }
        ((float *)scales->data)[row * scales->stride[0]] = scale;
    }
}

#define CHOOSE(TYPE)                                                                                                   \
    for (int64_t i = 0; i < width; i++)                                                                                \
        ((TYPE *)to->data)[place[0] + i * to->stride[last]] =                                                          \
            ((const uint8_t *)if_true->data)[place[1] + i * if_true->stride[last]]                                     \
                ? ((const TYPE *)one->data)[place[2] + i * one->stride[last]]                                          \
                : ((const TYPE *)other->data)[place[3] + i * other->stride[last]];

/* Operands: result, what decides, and what is taken where it is true, and where not; `whole[0]`: bytes of a number. */
static void NAME(where)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t last = step->dims - 1, width = step->size[last], bytes = step->whole[0];
    const struct operand *to = step->operand, *if_true = to + 1, *one = to + 2, *other = to + 3;
    for (int64_t row = from; row < until; row++) {
        int64_t place[4];
        NAME(places)(step, row, 4, place);
        int is_true = ((const uint8_t *)if_true->data)[place[1]] != 0;
        const struct operand *taken = is_true ? one : other;
        if (!if_true->stride[last] && taken->stride[last] == 1 && to->stride[last] == 1) {
            __builtin_memmove(to->data + place[0] * bytes, taken->data + place[is_true ? 2 : 3] * bytes, width * bytes);
            continue;
        }
        switch (bytes) {
        case 1: CHOOSE(uint8_t) break;
        case 2: CHOOSE(uint16_t) break;
        case 4: CHOOSE(uint32_t) break;
        default: CHOOSE(uint64_t)
        }
    }
}
