/* What a step is: one small op over tensors whose addresses stay. `aotair_runtime/steps` writes it, and has the same
   numbers (`tests/runtime/test_steps_header.py`); LAYOUT changes with any of them. */

#ifndef AOTAIR_STEP_H
#define AOTAIR_STEP_H

#include <stdint.h>

#define LAYOUT 3
#define DIMS 5

/* What is not written down: who calls has to see to it. */
#define ROW 8192         /* numbers of a row that is held at once */
#define TOGETHER 64      /* queries that meet the same keys and values */
#define WIDTH 256        /* numbers of a query, a key or a value, at the most */
#define MOST_ROWS 16     /* of x in a product */
#define MOST_WIDE 131072 /* numbers of these rows */
#define BLOCK 64         /* rows of a weight that lie together */
#define AHEAD 4096       /* bytes that a weight is asked for before it is read */
#define DEEP 128         /* numbers of a row that meet a part of them while that is near */

enum type { F32, BF16, F16, BOOL, I64, I32, I8 };

/* Of one number of each input, to one of the result. */
enum op {
    COPY, NEG, ABS, SQRT, RSQRT, RECIPROCAL, SQUARE, EXP, TANH, SIGMOID, SILU, RELU, GELU_ERF, GELU_TANH,
    ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM,
    /* Of the same bytes, whatever they mean. */
    WHERE = 32, INDEX_SELECT, INDEX_COPY,
    /* Of rows: the last dimension. */
    MEAN = 48, SUM, SOFTMAX, LAYER_NORM, DYNAMIC_QUANT,
    /* Of heads. */
    ATTENTION = 64, PAGED_ATTENTION,
    /* Of matrices. */
    LINEAR_INT8 = 80, LINEAR_BLOCKS,
    /* Of times. */
    LSTM = 96,
    /* Of images. */
    GROUP_NORM = 112
};

/* A tensor: operand 0 is written. Strides count numbers, and are 0 where a dimension repeats. */
struct operand {
    char *data;
    int64_t stride[DIMS];
    int64_t type;
};

/* `size` is what is gone over; `number` and `whole` are arguments that are no tensors. The next step begins behind the
   operands. */
struct step {
    int32_t op;
    int32_t dims;
    int64_t operands;
    int64_t size[DIMS + 1];
    double number;
    int64_t whole[2];
    struct operand operand[];
};

#endif
