"""What do the kernels compute that multiply and meet other ranks? A product, and a collective of the communicator that
they find by its name: both on the current stream, where a device's kernel does them piece by piece.

They refuse what the documentation of torch_npu's `npu_mm_all_reduce_base`, `npu_mm_reduce_scatter_base` and
`npu_all_gather_base_mm` refuses, and what has no reference here: quantised factors, biases and offsets.
"""

import ctypes
from collections.abc import Collection

import torch
from simcann import cann
from simkernels import stream

_TYPES = {torch.float16: 3, torch.bfloat16: 11}  # HCCL's numbers
_SUM, _MOST_K = 0, 65535
_SIZES, _MODES = (1, 2, 4, 8), (None, "ai_cpu", "aiv")


def mm_all_reduce(x1, x2, hcom, *, reduce_op="sum", **others):
    """`npu::npu_mm_all_reduce_base`."""
    _check(x1, x2, (2, 3), 1, reduce_op, others)
    made = torch.mm(x1.flatten(0, -2), x2).view(*x1.shape[:-1], x2.shape[1])
    found, place = communicator(hcom), made.data_ptr()
    done(cann.HcclAllReduce(place, place, made.numel(), _TYPES[made.dtype], _SUM, found, stream()))
    return made


def mm_reduce_scatter(x, x2, hcom, world_size, *, reduce_op="sum", **others):
    """`npu::npu_mm_reduce_scatter_base`."""
    _check(x, x2, (2,), 256, reduce_op, others)
    whole, found = torch.mm(x, x2), communicator(hcom, world_size)
    if x.shape[0] % world_size:
        raise RuntimeError(f"{x.shape[0]} rows are not {world_size} equal parts")
    made = whole.new_empty(x.shape[0] // world_size, x2.shape[1])
    given = (whole.data_ptr(), made.data_ptr(), made.numel(), _TYPES[made.dtype])
    done(cann.HcclReduceScatter(*given, _SUM, found, stream()))
    return made


def all_gather_mm(x, x2, hcom, world_size, *, gather_index=0, gather_output=True, **others):
    """`npu::npu_all_gather_base_mm`."""
    _check(x, x2, (2,), 256, "sum", others)
    if gather_index:
        raise RuntimeError("the device gathers the first factor alone")
    found, every = communicator(hcom, world_size), x.new_empty(x.shape[0] * world_size, x.shape[1])
    done(cann.HcclAllGather(x.data_ptr(), every.data_ptr(), x.numel(), _TYPES[x.dtype], found, stream()))
    return torch.mm(every, x2), every if gather_output else x.new_empty(0)


def _check(left, right, dims, least_k, reduce_op, others) -> None:
    if others.pop("comm_mode", None) not in _MODES or reduce_op != "sum":
        raise RuntimeError("the device knows no such comm_mode or reduce_op")
    if given := [name for name, value in others.items() if not (value is None or (type(value) is int and not value))]:
        raise NotImplementedError(f"only products of halves have a reference, without {', '.join(given)}")
    if left.dtype not in _TYPES or left.dtype != right.dtype:
        raise RuntimeError(f"the device multiplies no {left.dtype} by {right.dtype} where ranks meet")
    if left.dim() not in dims or right.dim() != 2 or not left.is_contiguous():
        raise RuntimeError(f"the device takes a first factor of {dims} dimensions without gaps, and a matrix")
    if not left.numel() or not right.numel() or not least_k <= left.shape[-1] <= _MOST_K:
        raise RuntimeError(f"the device takes {least_k} to {_MOST_K} columns, and nothing that is empty")


def communicator(name: str, size: int | None = None, known: Collection[int] = _SIZES) -> int:
    """The communicator of that name. Raises RuntimeError where there is none, or not of `size` ranks, of which the
    kernels have to know communicators."""
    found, ranks = cann.sim_communicator(name.encode()), ctypes.c_uint32()
    if not found:
        raise RuntimeError(f"no communicator of this process is called {name!r}")
    done(cann.HcclGetRankSize(found, ctypes.byref(ranks)))
    if ranks.value not in known or size not in (None, ranks.value):
        raise RuntimeError(f"the communicator has {ranks.value} ranks, the call is for {size or known}")
    return found


def done(status: int) -> None:
    if status:
        raise RuntimeError(f"HCCL returned {status}")
