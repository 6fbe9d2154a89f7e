"""`torch.ops.air.mm_sum_rows`, `all_rows_mm`: products beside ranks of which each has some of the rows.

They are `sum_rows` behind a product and `all_rows` before one, as kernels of NPUs make them, which send some rows while
they multiply others. Those take as many rows of each rank, and two dimensions: what is missing is filled up, and what
filled it up is cut off. No node has to know these ops: a program has those of which the kernels here are made.
"""

from collections.abc import Sequence

from torch import Tensor, ops

from . import npu as _npu  # noqa: F401 (defines what they are made of)
from .registry import HostOp, define_op
from .rows import filled_up, first, rows_of_one


def mm_sum_rows(x: Tensor, right: Tensor, ranks: int, axis: str) -> Tensor:
    """The rows of one rank, of the sum of all ranks' `x @ right`.

    x: (…, k), right: (k, n), of each rank other ones, both float16 or bfloat16. Returns (ceil(rows / ranks), n).
    """
    own: Tensor = ops.npu.npu_mm_reduce_scatter_base(filled_up(x, ranks), right, axis, ranks, comm_mode="aiv")
    return own


def all_rows_mm(
    x: Tensor, right: Tensor, sizes: Sequence[int], ranks: int, axis: str, *, gather_output: bool = True
) -> tuple[Tensor, Tensor]:
    """`every @ right`, and `every`: the rows of all ranks.

    x: (…, k), the rank's rows, right: (k, n), both float16 or bfloat16. Returns (*sizes, n) and (*sizes, k), the second
    empty, (0,), without gather_output.
    """
    op, own = ops.npu.npu_all_gather_base_mm, x.flatten(0, -2)
    made, every = op(own, right, axis, ranks, gather_output=gather_output, comm_mode="aiv")
    return first(made, sizes), first(every, sizes) if gather_output else every


def _sum(x: Tensor, right: Tensor, ranks: int, axis: str) -> Tensor:
    return x.new_empty(rows_of_one(x, ranks), right.shape[1])


def _both(
    x: Tensor, right: Tensor, sizes: Sequence[int], ranks: int, axis: str, *, gather_output: bool = True
) -> tuple[Tensor, Tensor]:
    every = (*sizes, x.shape[-1]) if gather_output else (0,)
    return x.new_empty(*sizes, right.shape[1]), x.new_empty(every)


define_op(
    "air",
    [
        HostOp("mm_sum_rows(Tensor x, Tensor right, int ranks, str axis) -> Tensor", mm_sum_rows, _sum),
        HostOp(
            "all_rows_mm(Tensor x, Tensor right, SymInt[] sizes, int ranks, str axis, *, bool gather_output=True) "
            "-> (Tensor, Tensor)",
            all_rows_mm,
            _both,
        ),
    ],
)
SUM, ALL = ops.air.mm_sum_rows.default, ops.air.all_rows_mm.default
TAKEN_APART = frozenset({SUM, ALL})  # no node has them
