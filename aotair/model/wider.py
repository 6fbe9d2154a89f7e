"""The original with its sums in float64: how far its own answers are from what it would answer without rounding there.

Each op that is no copy and does not treat its elements one by one is made in float64 too, and that result, rounded to
the op's own dtype, goes on. One op's operands at a time are held twice, and no weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from .in_float64 import called

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_MOST = 1 << 23  # numbers: what has more is rare, and memory for it is not kept
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
    """Within it, sums are made in float64. What operands are widened into serves all ops, one after the other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._memory: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        plain = func(*args, **kwargs)
        if not _sums(func) or not any(tensor.dtype in _NARROW for tensor in _tensors(plain)):
            return plain
        try:
            wider = _Operands(self._memory)
            wide = called(func, wider.of(args), {name: wider.of(value) for name, value in kwargs.items()})
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


class _Operands:
    """Those of one op, each in memory of its own: what the system has just given takes longer to fill than to read."""

    def __init__(self, memory: list[torch.Tensor]):
        self._memory, self._count = memory, 0

    def of(self, value: Any) -> Any:
        """The value with what it holds of floats in float64."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.of, value))
        if isinstance(value, torch.dtype):
            return torch.float64 if value in _NARROW else value
        return self._widened(value) if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() > _MOST or not (tensor.is_contiguous() or (tensor.dim() == 2 and tensor.mT.is_contiguous())):
            return tensor.double()
        if self._count == len(self._memory):
            self._memory.append(torch.empty(0, dtype=torch.float64))
        if self._memory[self._count].numel() < tensor.numel():
            self._memory[self._count] = torch.empty(tensor.numel(), dtype=torch.float64)
        self._count += 1
        place = self._memory[self._count - 1][: tensor.numel()]
        return place.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _rounded(wide: Any, plain: Any) -> Any:
    """What was made in float64 in the dtypes, and of what is no float as it was."""
    if isinstance(plain, (tuple, list)):
        return type(plain)(map(_rounded, wide, plain))
    fits = isinstance(plain, torch.Tensor) and plain.dtype in _NARROW and wide.shape == plain.shape
    return wide.to(plain.dtype) if fits else plain
