/* Rows that are read or written by their number, which the call brings: each is looked at before any row is written. */

static inline int64_t NAME(whole)(const struct operand *from, int64_t place)
{
    return from->type == I64 ? ((const int64_t *)from->data)[place] : ((const int32_t *)from->data)[place];
}

static inline int NAME(are_within)(const struct operand *numbers, int64_t count, int64_t limit)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t number = NAME(whole)(numbers, i * numbers->stride[0]);
        if (number < 0 || number >= limit)
            return 0;
    }
    return 1;
}

/* Operands: result (count, …), rows (limit, …) and their numbers (count,). size[0]: count; whole: limit, bytes of a row;
   strides count bytes. */
static int NAME(index_select)(const struct step *step)
{
    const struct operand *to = step->operand, *rows = to + 1, *numbers = to + 2;
    if (!NAME(are_within)(numbers, step->size[0], step->whole[0]))
        return 0;
    for (int64_t i = 0; i < step->size[0]; i++) {
        int64_t number = NAME(whole)(numbers, i * numbers->stride[0]);
        __builtin_memcpy(to->data + i * to->stride[0], rows->data + number * rows->stride[0], step->whole[1]);
    }
    return 1;
}

/* Operands: what is written (limit, …), the rows' numbers (count,), and the rows (count, …). */
static int NAME(index_copy)(const struct step *step)
{
    const struct operand *to = step->operand, *numbers = to + 1, *rows = to + 2;
    if (!NAME(are_within)(numbers, step->size[0], step->whole[0]))
        return 0;
    for (int64_t i = 0; i < step->size[0]; i++) {
        int64_t number = NAME(whole)(numbers, i * numbers->stride[0]);
        __builtin_memcpy(to->data + number * to->stride[0], rows->data + i * rows->stride[0], step->whole[1]);
    }
    return 1;
}
