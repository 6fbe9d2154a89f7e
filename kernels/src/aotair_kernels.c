/* Small ops that a replay makes one after the other, in one call: for each set of instructions once, chosen when the
   library is loaded. Nothing is written but what the steps say. */

#include <stdint.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "step.h"

#define GRAIN 32768 /* numbers from which on threads share a step, as torch has it */
#define TILE 1024   /* numbers that are worked on at a time */

/* Some of the units that a step consists of. */
typedef void (*part_of)(const struct step *, int64_t from, int64_t until);

static inline int64_t rows_of(const struct step *step)
{
    int64_t rows = 1;
    for (int dim = 0; dim < step->dims - 1; dim++)
        rows *= step->size[dim];
    return rows;
}

static inline int64_t tiles_of(const struct step *step) { return (step->size[step->dims - 1] + TILE - 1) / TILE; }

#define PAIRS 0 /* whether products of two numbers of bfloat16 at a time are there */
#define LEVEL 0
#define NAME(x) x##_plain
#include "level.h"
#undef NAME
#undef LEVEL

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define LEVEL 256
#define NAME(x) x##_avx2
#include "level.h"
#undef NAME
#undef LEVEL
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define LEVEL 512
#define NAME(x) x##_avx512
#include "level.h"
#undef NAME
#undef LEVEL
#pragma GCC pop_options
#undef PAIRS

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#define LEVEL 512
#define PAIRS 1
#define NAME(x) x##_avx512_bf16
#include "level.h"
#undef NAME
#undef LEVEL
#pragma GCC pop_options
#endif

static int64_t (*chosen)(const struct step *, int64_t, int) = run_plain;
static const char *level = "plain";

__attribute__((constructor)) static void choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return;
    chosen = run_avx2, level = "AVX2";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        chosen = run_avx512, level = "AVX-512";
    if (chosen == run_avx512 && __builtin_cpu_supports("avx512bf16"))
        chosen = run_avx512_bf16, level = "AVX-512, bfloat16";
#endif
}

#define PUBLIC __attribute__((visibility("default")))

/* What a step looks like: who calls has to have the same. */
PUBLIC int64_t aotair_kernels_layout(void)
{
    return LAYOUT * 1000000 + (int64_t)sizeof(struct step) * 1000 + (int64_t)sizeof(struct operand);
}

/* The instructions that are used here. */
PUBLIC const char *aotair_kernels_level(void) { return level; }

/* Make `count` steps, the first of which is given, with so many threads; gives how many were made. */
PUBLIC int64_t aotair_kernels_run(const struct step *step, int64_t count, int threads)
{
    return chosen(step, count, threads);
}
