/* Numbers of a dtype as floats, and back; sixteen at a time. */

typedef float NAME(lanes) __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t NAME(whole_lanes) __attribute__((vector_size(64), aligned(4), may_alias));

/* `one` where `which` is set, else `other`. */
static inline __attribute__((always_inline)) NAME(lanes) NAME(blended)(NAME(whole_lanes) which, NAME(lanes) one,
                                                                       NAME(lanes) other)
{
    return (NAME(lanes))((which & (NAME(whole_lanes))one) | (~which & (NAME(whole_lanes))other));
}

/* The greater of each two; `other` where one of them is no number. */
static inline __attribute__((always_inline)) NAME(lanes) NAME(greater)(NAME(lanes) one, NAME(lanes) other)
{
#if LEVEL == 512
    return (NAME(lanes))_mm512_max_ps((__m512)one, (__m512)other);
#else
    return NAME(blended)(one > other, one, other);
#endif
}

static inline __attribute__((always_inline)) float NAME(total)(NAME(lanes) all)
{
#if LEVEL == 512
    return _mm512_reduce_add_ps((__m512)all);
#else
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) all[i] += all[i + half];
    return all[0];
#endif
}


static inline __attribute__((always_inline)) float NAME(greatest)(NAME(lanes) all)
{
#if LEVEL == 512
    return _mm512_reduce_max_ps((__m512)all);
#else
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) all[i] = all[i + half] > all[i] ? all[i + half] : all[i];
    return all[0];
#endif
}

static inline float NAME(wide)(uint16_t half)
{
    union { uint32_t bits; float number; } both = {(uint32_t)half << 16};
    return both.number;
}

/* To the nearest, of two that are as near to the even one; NaN stays NaN. */
static inline uint16_t NAME(narrow)(float number)
{
    union { float number; uint32_t bits; } both = {number};
    uint32_t bits = both.bits, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

#define GATHER(TYPE, EXPRESSION)                                                                                       \
    {                                                                                                                  \
        const TYPE *from = (const TYPE *)data + start;                                                                 \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < count; i++) { TYPE one = from[i]; into[i] = EXPRESSION; }                          \
        else if (stride == 0) {                                                                                        \
            TYPE one = from[0];                                                                                        \
            float same = EXPRESSION;                                                                                   \
            for (int64_t i = 0; i < count; i++) into[i] = same;                                                        \
        } else                                                                                                         \
            for (int64_t i = 0; i < count; i++) { TYPE one = from[i * stride]; into[i] = EXPRESSION; }                 \
        break;                                                                                                         \
    }

/* `count` numbers from `start` on as floats: where they lie, or in `into`. */
static inline const float *NAME(load)(const char *data, int32_t type, int64_t start, int64_t stride, int64_t count,
                                      float *restrict into)
{
    if (type == F32 && stride == 1)
        return (const float *)data + start;
    switch (type) {
    case F32: GATHER(float, one)
    case BF16: GATHER(uint16_t, NAME(wide)(one))
    case F16: GATHER(_Float16, (float)one)
    case BOOL: GATHER(uint8_t, (float)(one != 0))
    case I64: GATHER(int64_t, (float)one)
    case I32: GATHER(int32_t, (float)one)
    default: GATHER(int8_t, (float)one)
    }
    return into;
}

#define SCATTER(TYPE, EXPRESSION)                                                                                      \
    {                                                                                                                  \
        TYPE *to = (TYPE *)data + start;                                                                               \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < count; i++) { float one = from[i]; to[i] = EXPRESSION; }                           \
        else                                                                                                           \
            for (int64_t i = 0; i < count; i++) { float one = from[i]; to[i * stride] = EXPRESSION; }                  \
        break;                                                                                                         \
    }

static inline void NAME(store)(char *data, int32_t type, int64_t start, int64_t stride, int64_t count,
                               const float *restrict from)
{
    switch (type) {
    case F32: SCATTER(float, one)
    case BF16: SCATTER(uint16_t, NAME(narrow)(one))
    default: SCATTER(_Float16, (_Float16)one)
    }
}

/* e to the power of x: 2^n times a polynomial over half a binary step on either side of 0, whose coefficients are those
   of the series of e^x. */
static inline float NAME(exp)(float x)
{
    float held = x > 88.8f ? 88.8f : x;
    held = held < -104.0f ? -104.0f : held;
    float n = __builtin_rintf(held * 1.44269504f);
    float r = held - n * 0.693359375f + n * 2.12194440e-4f;
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    int32_t whole = (int32_t)n, first = whole / 2; /* in two factors: neither is below the least normal number */
    union { int32_t bits; float number; } one = {(first + 127) << 23}, other = {(whole - first + 127) << 23};
    float made = sum * one.number * other.number;
    made = x > 88.72284f ? __builtin_inff() : made;
    return x != x ? x : made;
}

/* e to the power of what is 0 or less, or no number; 0 for what is below the least normal number. */
static inline NAME(lanes) NAME(powers)(NAME(lanes) x)
{
#if LEVEL == 512
    const __m512 given = (__m512)x;
    const __mmask16 counts = _mm512_cmp_ps_mask(given, _mm512_set1_ps(-87.336544f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(given, _mm512_set1_ps(1.44269504f)), 8);
    const __m512 most = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), given);
    const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), most), one = _mm512_set1_ps(1.0f);
    __m512 sum = _mm512_set1_ps(1.0f / 5040);
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 720));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 120));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 24));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 6));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(_mm512_fmadd_ps(sum, r, one), r, one);
    return (NAME(lanes))_mm512_maskz_scalef_ps(counts, sum, n);
#else
    for (int i = 0; i < 16; i++) x[i] = NAME(exp)(x[i]);
    return x;
#endif
}

/* The same, off by less than a part in ten thousand: for powers that become bfloat16. */
static inline NAME(lanes) NAME(rough_powers)(NAME(lanes) x)
{
#if LEVEL == 512
    const __m512 given = (__m512)x, one = _mm512_set1_ps(1.0f);
    const __mmask16 counts = _mm512_cmp_ps_mask(given, _mm512_set1_ps(-87.336544f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(given, _mm512_set1_ps(1.44269504f)), 8);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.69314718f), given);
    __m512 sum = _mm512_fmadd_ps(_mm512_set1_ps(1.0f / 24), r, _mm512_set1_ps(1.0f / 6));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(_mm512_fmadd_ps(sum, r, one), r, one);
    return (NAME(lanes))_mm512_maskz_scalef_ps(counts, sum, n);
#else
    return NAME(powers)(x);
#endif
}

/* Near 0 the series, which loses nothing where 1 - 2 / (e^2x + 1) does. */
static inline float NAME(tanh)(float x)
{
    float square = x * x, sum = 0.00358f;
    sum = -17.0f / 315 + square * (62.0f / 2835 + square * (-1382.0f / 155925 + square * sum));
    float near = x + x * square * (-1.0f / 3 + square * (2.0f / 15 + square * sum));
    float far = 1.0f - 2.0f / (NAME(exp)(2.0f * x) + 1.0f);
    return square < 0.25f ? near : far;
}

/* Abramowitz and Stegun 7.1.26: off by 1.5e-7 at the most. */
static inline float NAME(erf)(float x)
{
    float size = __builtin_fabsf(x), t = 1.0f / (1.0f + 0.3275911f * size);
    float sum = 1.061405429f;
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    return __builtin_copysignf(1.0f - sum * t * NAME(exp)(-size * size), x);
}
