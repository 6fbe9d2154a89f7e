"""Which products have few rows: as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices import int8_rows
from ..devices.onednn_product import LibraryWeight
from . import library
from .written import FLOATS, MOST_ROWS, MOST_WIDE, TYPES, Lies, Steps, are_apart, written

_LINEAR_INT8, _LINEAR_BLOCKS = 80, 81
_FEW = {torch.float32: 8, torch.bfloat16: 4}  # rows up to which oneDNN's kernels are slower: `benchmarks.joined`


def linear_int8(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps | None:
    """`air::linear_int8.out` of few rows."""
    try:
        out = int8_rows.check(*args, **kwargs)
    except (ValueError, TypeError):
        return None  # the op says what does not fit
    x, weight, scale = args
    (rows, width), n = x.shape, len(weight)
    fits = 0 < rows <= MOST_ROWS and rows * width <= MOST_WIDE and n > 0 and width > 0
    fits = fits and library.is_wide() and x.dtype in FLOATS and x.stride(1) == weight.stride(1) == out.stride(1) == 1
    if not fits or not are_apart(out, args):
        return None
    lies = [Lies(one.data_ptr(), one.stride()[:1], TYPES[one.dtype]) for one in (out, x, weight, scale)]
    return Steps(written(_LINEAR_INT8, 1, (n, rows, width), lies, 0.0, (0, 0)), 1)


def linear_blocks(
    weight: LibraryWeight,
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Tensor | None] | None,
) -> Steps | None:
    """A product of few rows with a weight in oneDNN's blocks; `targets` are those of `table.steps`."""
    if not weight.block_bytes or not library.is_wide() or (targets is not None and len(targets) != 1):
        return None
    result = None if targets is None else targets[0]
    found = None if targets is not None and result is None else weight.placed(op, args, kwargs, result)
    if found is None:
        return None
    read, out = found
    (rows, width), n = read.x.shape, out.shape[1]
    if rows > _FEW[out.dtype] or rows * width > MOST_WIDE or width % (4 // out.itemsize):
        return None
    kind, bias = TYPES[out.dtype], out if read.bias is None else read.bias
    lies = [Lies(one.data_ptr(), one.stride()[:1], kind) for one in (out, read.x)]
    lies += [Lies(weight.address, (), kind), Lies(bias.data_ptr(), (), kind)]
    sizes = (n, rows, width, weight.block_bytes)
    return Steps(written(_LINEAR_BLOCKS, 1, sizes, lies, 0.0, (int(read.bias is not None), 0)), 1)
