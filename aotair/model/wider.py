"""The original with its sums in float64: how far its own answers are from what it would answer without rounding there.

Each op that is no copy and does not treat its elements one by one is made in float64 too, and that result, rounded to
the op's own dtype, goes on. One op's operands at a time are held twice, and no weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
# Ops that move numbers or choose among them.
_EXACT = frozenset(
    [
        "embedding",
        "index",
        "index_select",
        "gather",
        "cat",
        "stack",
        "constant_pad_nd",
        "clone",
        "copy",
        "_to_copy",
        "repeat",
        "roll",
        "flip",
        "sort",
        "topk",
        "amax",
        "amin",
        "aminmax",
        "max",
        "min",
        "argmax",
        "argmin",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "scatter",
        "slice_scatter",
        "select_scatter",
        "index_put",
        "index_copy",
        "masked_fill",
        "tril",
        "triu",
        "contiguous",
        "full_like",
        "zeros_like",
        "ones_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "fill",
        "detach",
        "upsample_nearest2d",
    ]
)


class Wider(TorchDispatchMode):
    """Within it, sums are made in float64."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        plain = func(*args, **kwargs)
        if not _sums(func) or not any(tensor.dtype in _NARROW for tensor in _tensors(plain)):
            return plain
        try:
            wide = func(*_widened(args), **{name: _widened(value) for name, value in kwargs.items()})
        except RuntimeError:  # no kernel takes float64: what it answers is left as it is
            return plain
        return _rounded(wide, plain)


def _sums(op: OpOverload) -> bool:
    schema = op._schema
    return (
        op.namespace == "aten"
        and torch.Tag.pointwise not in op.tags
        and not schema.is_mutable
        and not any(result.alias_info for result in schema.returns)
        and schema.name.removeprefix("aten::") not in _EXACT
    )


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _widened(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_widened, value))
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else value
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


def _rounded(wide: Any, plain: Any) -> Any:
    """What was made in float64 in the dtypes, and of what is no float as it was."""
    if isinstance(plain, (tuple, list)):
        return type(plain)(map(_rounded, wide, plain))
    fits = isinstance(plain, torch.Tensor) and plain.dtype in _NARROW and wide.shape == plain.shape
    return wide.to(plain.dtype) if fits else plain
