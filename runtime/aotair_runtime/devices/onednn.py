"""Weights of linear layers as oneDNN's kernels read them: in blocks that depend on the processor."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence

import torch

_ops = torch.ops.mkldnn
_NEEDED = ("_reorder_linear_weight", "_linear_pointwise", "_nbytes", "data_ptr")


class OnednnWeight:
    """The weight (out, in) of a linear layer, in memory of its own that it keeps; bfloat16."""

    def __init__(self, weight: torch.Tensor):
        self._packed: torch.Tensor = _ops._reorder_linear_weight(weight)
        self.nbytes: int = _ops._nbytes(self._packed)

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of that shape, at the same addresses. Raises RuntimeError where oneDNN lays
        it out otherwise."""
        made = OnednnWeight(weight)
        if made.nbytes != self.nbytes:
            raise RuntimeError(
                f"oneDNN packs a weight {list(weight.shape)} into {made.nbytes} bytes, then {self.nbytes}"
            )
        ctypes.memmove(_ops.data_ptr(self._packed), _ops.data_ptr(made._packed), self.nbytes)

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], torch.Tensor] | None:
        x, _, bias = (*args, kwargs.get("bias"))[:3]
        if len(args) > 3 or kwargs.keys() - {"bias"} or not _fit(x, self._packed, bias):
            return None
        return functools.partial(_ops._linear_pointwise, x, self._packed, bias, "none", (), "")


def _fit(x: object, weight: torch.Tensor, bias: object) -> bool:
    """Whether the arguments of a linear layer are (…, in) and (out,) or None, of the weight's dtype."""
    fits = isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[-1:] == weight.shape[1:] and x.dtype == weight.dtype
    if bias is None:
        return fits
    return fits and isinstance(bias, torch.Tensor) and bias.shape == weight.shape[:1] and bias.dtype == weight.dtype


def packs(kind: torch.dtype) -> bool:
    """Whether weights of a dtype are read faster so on this processor."""
    return kind == torch.bfloat16 and _has_kernels()


@functools.cache
def _has_kernels() -> bool:
    there = torch.backends.mkldnn.is_available() and all(hasattr(_ops, name) for name in _NEEDED)
    return bool(there and _ops._is_mkldnn_bf16_supported())


@functools.cache
def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight of that shape takes, packed. It takes as much for a moment to find out: only oneDNN knows."""
    return OnednnWeight(torch.empty(tuple(shape), dtype=kind)).nbytes
