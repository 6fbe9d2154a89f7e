"""Weights of linear layers as oneDNN's kernels read them: in blocks that depend on the processor."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

_ops = torch.ops.mkldnn
_NEEDED = ("_reorder_linear_weight", "_linear_pointwise", "_nbytes", "data_ptr", "_get_mkldnn_serialized_md")


class OnednnWeight:
    """The weight (out, in) of a linear layer, in memory of its own that it keeps; bfloat16."""

    def __init__(self, weight: torch.Tensor):
        self._threads = torch.get_num_threads()  # the layout depends on it
        self._packed: torch.Tensor = _ops._reorder_linear_weight(weight)
        self.nbytes: int = _ops._nbytes(self._packed)

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of that shape, at the same addresses. Raises RuntimeError where oneDNN lays
        it out otherwise."""
        with _threads(self._threads):
            made: torch.Tensor = _ops._reorder_linear_weight(weight)
        one, other = (_ops._get_mkldnn_serialized_md(item) for item in (made, self._packed))
        if not torch.equal(one, other):
            raise RuntimeError(f"oneDNN packs a weight {list(weight.shape)} otherwise than at the load")
        ctypes.memmove(_ops.data_ptr(self._packed), _ops.data_ptr(made), self.nbytes)

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], torch.Tensor] | None:
        x, _, bias = (*args, kwargs.get("bias"))[:3]
        if len(args) > 3 or kwargs.keys() - {"bias"} or not _fit(x, self._packed, bias):
            return None
        return functools.partial(_ops._linear_pointwise, x, self._packed, bias, "none", (), "")


def _fit(x: object, weight: torch.Tensor, bias: object) -> bool:
    """Whether the arguments of a linear layer are (…, in) and (out,) or None, of the weight's dtype and without gaps:
    oneDNN reads a bias as if it had none."""
    return _alike(x, weight) and _alike(bias, weight, weight.shape[:1])


def _alike(given: object, weight: torch.Tensor, shape: torch.Size | None = None) -> bool:
    if given is None:
        return shape is not None
    if not isinstance(given, torch.Tensor) or given.dtype != weight.dtype or not given.is_contiguous():
        return False
    return given.dim() > 0 and (given.shape[-1:] == weight.shape[1:] if shape is None else given.shape == shape)


def packs(kind: torch.dtype) -> bool:
    """Whether weights of a dtype are read faster so on this processor."""
    return kind == torch.bfloat16 and _has_kernels()


@functools.cache
def _has_kernels() -> bool:
    there = torch.backends.mkldnn.is_available() and all(hasattr(_ops, name) for name in _NEEDED)
    return bool(there and _ops._is_mkldnn_bf16_supported())


def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight that it packs takes. It takes as much for a moment to find out: only oneDNN knows."""
    return _packed_bytes(tuple(shape), kind, torch.get_num_threads())


@functools.cache
def _packed_bytes(shape: tuple[int, ...], kind: torch.dtype, threads: int) -> int:
    return OnednnWeight(torch.empty(shape, dtype=kind)).nbytes


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
