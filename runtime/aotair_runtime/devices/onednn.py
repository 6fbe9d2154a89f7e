"""Weights of linear layers as oneDNN's kernels read them: in blocks that depend on the processor."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from . import onednn_int8, onednn_product
from .base import Allocates, Packed
from .threads import threads

_ops = torch.ops.mkldnn
_MKL_IS_SLOW_ON = ("AuthenticAMD", "HygonGenuine")  # vendors, as the system names them
_NEEDED = ("_reorder_linear_weight", "_linear_pointwise", "_nbytes")


class OnednnWeight(Allocates):
    """The weight (out, in) of a linear layer, in memory of its own that it keeps; bfloat16 or float32."""

    def __init__(self, weight: torch.Tensor):
        self._threads = torch.get_num_threads()  # the layout depends on it
        self._packed: torch.Tensor = _ops._reorder_linear_weight(weight)
        self.nbytes: int = _ops._nbytes(self._packed)

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of that shape, at the same addresses: oneDNN copies into the layout that is
        there."""
        with threads(self._threads):
            self._packed.copy_(_ops._reorder_linear_weight(weight))

    @property
    def address(self) -> int:
        return int(_ops.data_ptr(self._packed))

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], torch.Tensor] | None:
        if op.name() in onednn_product.PRODUCTS:
            return self._product(op, args, kwargs)
        x, _, bias = (*args, kwargs.get("bias"))[:3]
        if len(args) > 3 or kwargs.keys() - {"bias"} or not _fit(x, self._packed, bias):
            return None
        return self._linear(x, bias)

    def _linear(self, x: object, bias: object) -> Callable[[], torch.Tensor]:
        return functools.partial(_ops._linear_pointwise, x, self._packed, bias, "none", (), "")

    def _product(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], torch.Tensor] | None:
        """A product of matrices, the second of which is the weight with its dimensions swapped, copied to its place."""
        if len(args) != onednn_product.PRODUCTS[op.name()] or kwargs.keys() != {"out"}:
            return None
        *biases, x, seen = args
        bias, out = biases[0] if biases else None, kwargs["out"]
        if not isinstance(x, torch.Tensor) or not isinstance(seen, torch.Tensor) or not isinstance(out, torch.Tensor):
            return None
        turned = seen.dim() == 2 and seen.shape == self._packed.shape[::-1] and seen.t().is_contiguous()
        if x.dim() != 2 or not turned or not _fit(x, self._packed, bias):
            return None
        product = self._linear(x, bias)
        return lambda: out.copy_(product())


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


def packs(op: str, kind: torch.dtype) -> bool:
    """Whether an op reads weights of a dtype faster so on this processor."""
    if op == "air::quant_matmul.out":
        return kind == torch.int8 and onednn_int8.has_kernels()
    if op in onednn_product.PRODUCTS:
        return onednn_product.has_kernels(kind) or (kind == torch.float32 and _torch_packs(kind))
    wanted = op == "aten::linear" and kind == torch.bfloat16
    return wanted and (onednn_product.has_kernels(kind) or _torch_packs(kind))


def packed(weight: torch.Tensor) -> Packed | None:
    """A weight of a dtype that is packed: by a library of oneDNN where one is installed, else by torch's own; None
    where it is read faster as it is."""
    if weight.dtype == torch.int8:
        return onednn_int8.Int8Weight(weight) if onednn_int8.packed_bytes(weight.shape) else None
    if onednn_product.takes(weight.shape, weight.dtype):
        return onednn_product.LibraryWeight(weight)
    return OnednnWeight(weight) if _torch_packs(weight.dtype) else None


def _torch_packs(kind: torch.dtype) -> bool:
    """Whether torch's own oneDNN is faster with packed weights of a dtype."""
    return _has_kernels() and (_is_amd() if kind == torch.float32 else _multiplies_bfloat16())


@functools.cache
def _is_amd() -> bool:
    """Whether torch's products of float32, which are MKL's, take more than twice as long as oneDNN's: MKL looks at who
    made the processor. On Intel's they are as fast, once caches do not hold the weights (`benchmarks.packed`)."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(vendor in text for vendor in _MKL_IS_SLOW_ON) and torch.backends.mkl.is_available()


@functools.cache
def _has_kernels() -> bool:
    return torch.backends.mkldnn.is_available() and all(hasattr(_ops, name) for name in _NEEDED)


@functools.cache
def _multiplies_bfloat16() -> bool:
    return bool(_ops._is_mkldnn_bf16_supported())


def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight takes packed; 0 where it stays as it is. It may take as much for a moment to find out: only oneDNN
    knows."""
    if kind == torch.int8:
        return onednn_int8.packed_bytes(shape)
    if nbytes := onednn_product.packed_bytes(shape, kind):
        return nbytes
    return _packed_bytes(tuple(shape), kind, torch.get_num_threads()) if _torch_packs(kind) else 0


@functools.cache
def _packed_bytes(shape: tuple[int, ...], kind: torch.dtype, threads: int) -> int:
    return OnednnWeight(torch.empty(shape, dtype=kind, device="cpu")).nbytes
