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

/* Operands: where rows go, where they come from, and numbers (count,), which are those of the rows that are read or, for
   INDEX_COPY, written. size[0]: count; whole: how many rows there are to choose from, bytes of a row; strides of rows
   count bytes. */
static int NAME(choose)(const struct step *step)
{
    const struct operand *to = step->operand, *from = to + 1, *numbers = to + 2;
    if (!NAME(are_within)(numbers, step->size[0], step->whole[0]))
        return 0;
    for (int64_t i = 0; i < step->size[0]; i++) {
        int64_t number = NAME(whole)(numbers, i * numbers->stride[0]);
        int64_t target = step->op == INDEX_COPY ? number : i, source = step->op == INDEX_COPY ? i : number;
        __builtin_memcpy(to->data + target * to->stride[0], from->data + source * from->stride[0], step->whole[1]);
    }
    return 1;
}
