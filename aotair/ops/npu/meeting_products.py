"""Matrix products whose factors or results the ranks of a group exchange.

Source: the documentation of torch_npu's `npu_mm_all_reduce_base`, `npu_mm_reduce_scatter_base` and
`npu_all_gather_base_mm` (aclnnMatmulAllReduce, aclnnMatmulReduceScatterV2, aclnnAllGatherMatmulV2). `hcom` is the name
of the group: a device knows its communicator by it, the host a group of `aotair_runtime.devices.groups`.
"""

import torch
from torch import Tensor

from aotair_runtime.devices.groups import Group, group

from ..registry import HostOp, Unserved, only, refuse

_ALL_REDUCE, _REDUCE_SCATTER = "npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base"
_ALL_GATHER = "npu_all_gather_base_mm"
SIZES = (2, 4, 8)  # of a group, for the kernels of Atlas A2
_MODES = (None, "ai_cpu", "aiv")  # who on the device sends: the numbers are the same


def mm_all_reduce(x1: Tensor, x2: Tensor, hcom: str, *, reduce_op: str = "sum", **unserved: object) -> Tensor:
    """The sum over the ranks of `x1 @ x2`. x1: (..., m, k), of two or three dimensions, x2: (k, n), both float16 or
    bfloat16. Products are summed in float32 and rounded before the ranks' sum, which is in the dtype of x1."""
    made = _all_reduced_shape(x1, x2, hcom, reduce_op=reduce_op, **unserved)
    made.copy_(_product(x1, x2))
    group(hcom).all_reduce(made, reduce_op)
    return made


def _all_reduced_shape(x1: Tensor, x2: Tensor, hcom: str, *, reduce_op: str = "sum", **unserved: object) -> Tensor:
    _check(_ALL_REDUCE, x1, x2, (2, 3), unserved, reduce_op)
    return x1.new_empty((*x1.shape[:-1], x2.shape[1]))


def mm_reduce_scatter(
    input: Tensor, x2: Tensor, hcom: str, world_size: int, *, reduce_op: str = "sum", **unserved: object
) -> Tensor:
    """This rank's rows of the sum over the ranks of `input @ x2`. input: (m, k), x2: (k, n), both float16 or bfloat16;
    the result is (m / world_size, n)."""
    made = _scattered_shape(input, x2, hcom, world_size, reduce_op=reduce_op, **unserved)
    _members(_REDUCE_SCATTER, hcom, world_size).reduce_scatter(made, _product(input, x2), reduce_op)
    return made


def _scattered_shape(
    input: Tensor, x2: Tensor, hcom: str, world_size: int, *, reduce_op: str = "sum", **unserved: object
) -> Tensor:
    _check(_REDUCE_SCATTER, input, x2, (2,), unserved, reduce_op)
    only(_REDUCE_SCATTER, "world_size", world_size, SIZES)
    if input.shape[0] % world_size:
        raise ValueError(f"{_REDUCE_SCATTER}: {input.shape[0]} rows cannot be cut into {world_size} equal parts")
    return input.new_empty((input.shape[0] // world_size, x2.shape[1]))


def all_gather_mm(
    input: Tensor, x2: Tensor, hcom: str, world_size: int, *, gather_output: bool = True, **unserved: object
) -> tuple[Tensor, Tensor]:
    """`every @ x2`, and `every`: the rows of all ranks, one rank's behind the other's. input: (m, k), x2: (k, n), both
    float16 or bfloat16; the results are (m * world_size, n) and (m * world_size, k), the second empty, (0,), without
    gather_output."""
    made, every = _gathered_shapes(input, x2, hcom, world_size, gather_output=gather_output, **unserved)
    gathered = every if gather_output else input.new_empty((input.shape[0] * world_size, input.shape[1]))
    _members(_ALL_GATHER, hcom, world_size).all_gather(gathered, input.contiguous())
    return made.copy_(_product(gathered, x2)), every


def _gathered_shapes(
    input: Tensor, x2: Tensor, hcom: str, world_size: int, *, gather_output: bool = True, **unserved: object
) -> tuple[Tensor, Tensor]:
    _check(_ALL_GATHER, input, x2, (2,), unserved)
    only(_ALL_GATHER, "world_size", world_size, SIZES)
    rows = input.shape[0] * world_size
    return input.new_empty((rows, x2.shape[1])), input.new_empty((rows, input.shape[1]) if gather_output else (0,))


def _check(
    op: str, left: Tensor, right: Tensor, dims: tuple[int, ...], unserved: dict[str, object], reduce_op: str = "sum"
) -> None:
    only(op, "comm_mode", unserved.pop("comm_mode", None), _MODES)
    refuse(op, unserved)
    only(op, "reduce_op", reduce_op, ("sum",))
    if left.dtype not in (torch.float16, torch.bfloat16) or left.dtype != right.dtype:
        raise Unserved(f"{op} takes two factors of float16 or of bfloat16", got=f"{left.dtype} and {right.dtype}")
    if left.dim() not in dims or right.dim() != 2:
        raise Unserved(f"{op} takes factors of {' or '.join(map(str, dims))} and of 2 dimensions")
    if left.shape[-1] != right.shape[0]:
        raise ValueError(f"{op}: {list(left.shape)} and {list(right.shape)} cannot be multiplied")


def _product(left: Tensor, right: Tensor) -> Tensor:
    return (left.float() @ right.float()).to(left.dtype)


def _members(op: str, name: str, size: int) -> Group:
    found = group(name)
    if found.size != size:
        raise ValueError(f"{op}: the group has {found.size} ranks, and world_size is {size}")
    return found


OPS = (
    HostOp(
        f"{_ALL_REDUCE}(Tensor x1, Tensor x2, str hcom, *, str reduce_op='sum', Tensor? bias=None, "
        "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? x3=None, Tensor? dequant_scale=None, "
        "Tensor? pertoken_scale=None, Tensor? comm_quant_scale_1=None, Tensor? comm_quant_scale_2=None, "
        "int antiquant_group_size=0, int comm_turn=0, int[]? group_sizes=None, int? y_dtype=None, int? x1_dtype=None, "
        "int? x2_dtype=None, int? dequant_scale_dtype=None, int? pertoken_scale_dtype=None, int comm_quant_mode=0, "
        "str? comm_mode=None) -> Tensor",
        mm_all_reduce,
        _all_reduced_shape,
    ),
    HostOp(
        f"{_REDUCE_SCATTER}(Tensor input, Tensor x2, str hcom, int world_size, *, str reduce_op='sum', "
        "Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, int comm_turn=0, "
        "ScalarType? output_dtype=None, str? comm_mode=None) -> Tensor",
        mm_reduce_scatter,
        _scattered_shape,
    ),
    HostOp(
        f"{_ALL_GATHER}(Tensor input, Tensor x2, str hcom, int world_size, *, Tensor? bias=None, "
        "Tensor? x1_scale=None, Tensor? x2_scale=None, int gather_index=0, bool gather_output=True, int comm_turn=0, "
        "ScalarType? output_dtype=None, str? comm_mode=None) -> (Tensor, Tensor)",
        all_gather_mm,
        _gathered_shapes,
    ),
)
