/* Rows as columns, whatever their four bytes mean. */

#if LEVEL == 512
/* Of sixteen rows sixteen numbers from a place on as columns. */
static inline void NAME(turn_square)(const char *const from[16], int64_t place, float *to, int64_t to_stride)
{
    __m512 row[16], pair[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 16; i++) row[i] = _mm512_loadu_ps(from[i] + 4 * place);
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

/* Of sixteen rows `width` numbers as columns. */
static inline void NAME(turn_rows)(const char *const from[16], int64_t width, float *to, int64_t to_stride)
{
    int64_t i = 0;
#if LEVEL == 512
    for (; i + 16 <= width; i += 16) NAME(turn_square)(from, i, to + i * to_stride, to_stride);
#endif
    for (; i < width; i++)
        for (int one = 0; one < 16; one++) __builtin_memcpy(to + i * to_stride + one, from[one] + 4 * i, 4);
}
