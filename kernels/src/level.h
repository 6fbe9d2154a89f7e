/* All kernels for one set of instructions: this is read once for each, with another NAME. */

#include "numbers.h"
#include "turned.h"
#include "pointwise.h"
#include "rows.h"
#include "chosen.h"
#include "queries.h"
#include "by_floats.h"
#if PAIRS
#include "by_pairs.h"
#endif
#include "attention.h"
#include "products.h"
#include "recurrent.h"
#include "groups.h"

/* Make `count` units of a step, by several threads where it is `work` enough. */
static void NAME(shared)(part_of part, const struct step *step, int64_t count, int64_t work, int threads)
{
    if (threads < 2 || work <= GRAIN || count < 2) {
        part(step, 0, count);
        return;
    }
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t one = 0; one < threads; one++)
        part(step, count * one / threads, count * (one + 1) / threads);
}

/* Units that take longer than others are handed out one by one. */
static void NAME(handed_out)(part_of part, const struct step *step, int64_t count, int64_t products, int threads)
{
    if (threads < 2 || products <= GRAIN * 4 || count < 2) {
        part(step, 0, count);
        return;
    }
    #pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t unit = 0; unit < count; unit++)
        part(step, unit, unit + 1);
}

/* Let x lie as floats without gaps, once for all threads, and multiply. */
static void NAME(multiply)(part_of part, const struct step *step, int64_t count, int threads)
{
    static _Thread_local float wide[MOST_WIDE] __attribute__((aligned(64))); /* rows of whole vectors stay in line */
    struct { struct step head; struct operand operand[4]; } own;
    const int64_t n = step->size[0], rows = step->size[1], width = step->size[2];
    const struct operand *x = step->operand + 1;
    for (int64_t row = 0; row < rows; row++) {
        const float *found = NAME(load)(x->data, x->type, row * x->stride[0], 1, width, wide + row * width);
        if (found != wide + row * width)
            __builtin_memcpy(wide + row * width, found, width * sizeof(float));
    }
    own.head = *step;
    for (int one = 0; one < 4; one++) own.operand[one] = step->operand[one];
    own.operand[1].data = (char *)wide;
    NAME(shared)(part, &own.head, count, n * rows * width / 4, threads);
}

/* Whether a step was made: not where its numbers are beyond its tensors, there is no memory for it, or no such op. */
static int NAME(make)(const struct step *step, int threads)
{
    const int64_t rows = rows_of(step), all = rows * step->size[step->dims - 1], *size = step->size;
    int64_t products;
    switch (step->op) {
    case WHERE: NAME(shared)(NAME(where), step, rows, all, threads); return 1;
    case INDEX_SELECT:
    case INDEX_COPY: return NAME(choose)(step);
    case MEAN:
    case SUM: NAME(shared)(NAME(reduced), step, rows, all, threads); return 1;
    case SOFTMAX: NAME(shared)(NAME(softmax), step, rows, all * 8, threads); return 1;
    case LAYER_NORM: NAME(shared)(NAME(layer_norm), step, rows, all, threads); return 1;
    case DYNAMIC_QUANT: NAME(shared)(NAME(dynamic_quant), step, rows, all, threads); return 1;
    case ATTENTION:
        products = size[0] * size[1] * size[2] * size[5] * (size[3] + size[4]);
        NAME(handed_out)(NAME(attention), step, size[0] * size[1] * ((size[2] + TOGETHER - 1) / TOGETHER), products,
                         threads);
        return 1;
    case PAGED_ATTENTION:
        products = NAME(paged_products)(step);
        if (products >= 0)
            NAME(handed_out)(NAME(paged_attention), step, size[0] * size[1], products, threads);
        return products >= 0;
    case LINEAR_INT8: NAME(multiply)(NAME(linear_int8), step, size[0], threads); return 1;
    case LINEAR_BLOCKS: NAME(multiply)(NAME(linear_blocks), step, (size[0] + 15) / 16, threads); return 1;
    case LSTM: return NAME(lstm)(step, threads);
    case GROUP_NORM: return NAME(group_norm)(step, threads);
    default:
        if (step->op < COPY || step->op > MINIMUM)
            return 0;
        NAME(shared)(NAME(pointwise), step, rows * tiles_of(step), all, threads);
        return 1;
    }
}

/* The number of steps that were made: less than `count` where one was not. */
static int64_t NAME(run)(const struct step *step, int64_t count, int threads)
{
    for (int64_t done = 0; done < count; done++) {
        if (!NAME(make)(step, threads))
            return done;
        step = (const struct step *)&step->operand[step->operands];
    }
    return count;
}
