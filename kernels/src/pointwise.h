/* A number of the result from one of each input. */

#define ONE(EXPRESSION) _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) { float x = a[i]; into[i] = EXPRESSION; } break;
#define TWO(EXPRESSION) _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) { float x = a[i], y = b[i]; into[i] = EXPRESSION; } break;

static inline void NAME(compute)(int32_t op, float *into, const float *a, const float *b, int64_t count)
{
    switch (op) {
    case NEG: ONE(-x)
    case ABS: ONE(__builtin_fabsf(x))
    case SQRT: ONE(__builtin_sqrtf(x))
    case RSQRT: ONE(1.0f / __builtin_sqrtf(x))
    case RECIPROCAL: ONE(1.0f / x)
    case SQUARE: ONE(x * x)
    case EXP: ONE(NAME(exp)(x))
    case TANH: ONE(NAME(tanh)(x))
    case SIGMOID: ONE(1.0f / (1.0f + NAME(exp)(-x)))
    case SILU: ONE(x / (1.0f + NAME(exp)(-x)))
    case RELU: ONE(x < 0.0f ? 0.0f : x)
    case GELU_ERF: ONE(x * 0.5f * (1.0f + NAME(erf)(x * 0.70710678f)))
    case GELU_TANH: ONE(0.5f * x * (1.0f + NAME(tanh)(0.79788456f * (x + 0.044715f * x * x * x))))
    case ADD: TWO(x + y)
    case SUB: TWO(x - y)
    case MUL: TWO(x * y)
    case DIV: TWO(x / y)
    case MAXIMUM: TWO(x != x ? x : y != y ? y : x > y ? x : y)
    case MINIMUM: TWO(x != x ? x : y != y ? y : x < y ? x : y)
    default: ONE(x)
    }
}

/* The places of operands where a row of what is gone over begins: all but the last dimension are in `row`. */
static inline void NAME(places)(const struct step *step, int64_t row, int count, int64_t *place)
{
    for (int one = 0; one < count; one++)
        place[one] = 0;
    for (int dim = step->dims - 2; dim >= 0; dim--) {
        int64_t at = row % step->size[dim];
        row /= step->size[dim];
        for (int one = 0; one < count; one++)
            place[one] += at * step->operand[one].stride[dim];
    }
}

static void NAME(pointwise)(const struct step *step, int64_t from, int64_t until)
{
    const int64_t last = step->dims - 1, width = step->size[last], tiles = tiles_of(step);
    const int count = step->op >= ADD ? 3 : 2;
    const struct operand *to = &step->operand[0];
    float first[TILE], second[TILE], made[TILE];
    for (int64_t unit = from; unit < until; unit++) {
        const float *given[2] = {0};
        int64_t place[3], begin = unit % tiles * TILE, some = width - begin < TILE ? width - begin : TILE;
        NAME(places)(step, unit / tiles, count, place);
        for (int one = 1; one < count; one++) {
            const struct operand *read = &step->operand[one];
            int64_t stride = read->stride[last];
            given[one - 1] = NAME(load)(read->data, read->type, place[one] + begin * stride, stride, some,
                                        one == 1 ? first : second);
        }
        int64_t stride = to->stride[last], start = place[0] + begin * stride;
        if (to->type == F32 && stride == 1) {
            NAME(compute)(step->op, (float *)to->data + start, given[0], given[1], some);
        } else {
            NAME(compute)(step->op, made, given[0], given[1], some);
            NAME(store)(to->data, to->type, start, stride, some, made);
        }
    }
}
