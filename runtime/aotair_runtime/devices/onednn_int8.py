"""Linear layers of int8 by a library of oneDNN: rows are rounded by one kernel, multiplied and scaled by another.

Its kernels of version 3.2 take a factor for each row only as a channel, the second of three dimensions: matrices here
have a first one of 1. The bits are those of `int8_linear`, whose ops this stands for; what follows is done before a
result is rounded to bfloat16.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from typing import Any

import torch

from . import onednn_library as onednn
from .base import Allocates
from .int8_linear import row_scales
from .onednn_library import UNIMPLEMENTED, Kept, Library, OnednnError, library
from .onednn_primitive import KINDS, Follower, Given, Prepared, Step, product_of, where_there_is_one
from .onednn_weight import PROBE, BlockedWeight, bytes_in
from .results import meet

# How the names of kernels begin that sum products of int8 exactly.
_EXACT = ("brg:avx512_core_vnni", "brg:avx512_core_amx", "brg:avx10_1_512", "brg:avx2_vnni")


def has_kernels() -> bool:
    """Whether the library has exact kernels for products of int8 on this processor."""
    return packed_bytes((PROBE, PROBE)) > 0


def packed_bytes(shape: Sequence[int]) -> int:
    """What a weight (out, in) of int8 takes packed by the library, in bytes; 0 where it does not pack such."""
    made = library()
    return _packed_bytes(made, tuple(shape)) if made is not None else 0


@functools.cache
def _packed_bytes(made: Library, shape: tuple[int, ...]) -> int:
    if len(shape) != 2 or not all(shape):
        return 0
    with made.held() as kept:
        return bytes_in(_layout(kept, shape), shape, torch.int8)


def _layout(kept: Kept, shape: Sequence[int]) -> tuple[c_void_p, int] | None:
    """How a weight lies that the exact kernels read, and its bytes; None where there are none."""
    out, width = shape
    x, result = _matrix(kept, (PROBE, width), onednn.S8), _matrix(kept, (PROBE, out), onednn.F32)
    product = kept.matmul(x, kept.desc((1, width, out), onednn.S8), None, result)
    if product is None or not kept.implementation(product).startswith(_EXACT):
        return None
    return kept.weights_desc(product)


def _matrix(kept: Kept, shape: Sequence[int], kind: int) -> c_void_p:
    """How a matrix without gaps lies."""
    rows, columns = shape
    return kept.desc((1, rows, columns), kind, (rows * columns, columns, 1))


class Int8Weight(BlockedWeight, Allocates):
    """The weight (out, in) of a linear layer of int8. Raises ValueError for one that the library does not take."""

    def __init__(self, weight: torch.Tensor):
        made = library()
        if made is None or weight.dtype != torch.int8 or not packed_bytes(weight.shape):
            raise ValueError(f"oneDNN has no packed form for {weight.dtype} {list(weight.shape)}")
        kept = Kept(made)
        found = _layout(kept, weight.shape)
        assert found is not None  # as it was asked before
        super().__init__(kept, onednn.S8, found, weight, dims=3)

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[], object] | None:
        made = Product.of(self, args, kwargs["out"]) if len(args) == 6 and kwargs.keys() == {"out"} else None
        return made or functools.partial(op, *args, **kwargs)  # which looks at what it is given

    def fits(self, x: torch.Tensor, factors: Sequence[torch.Tensor | None], out: torch.Tensor) -> bool:
        """Whether a call is one of the kernel's: dense, of the sizes that it takes for granted."""
        scale, by_token, bias = factors
        rows, (outs, width) = len(x), self._shape
        sizes = [(scale, (outs,)), (by_token, (rows, 1)), (bias, (outs,))]
        dense = all(one is None or _is_dense(one, shape, torch.float32) for one, shape in sizes)
        fits = rows > 0 and scale is not None and _is_dense(x, (rows, width), torch.int8)
        return dense and fits and out.dtype in KINDS and _is_dense(out, (rows, outs), out.dtype)


def _is_dense(given: torch.Tensor, shape: tuple[int, ...], kind: torch.dtype) -> bool:
    return given.shape == shape and given.dtype == kind and given.device.type == "cpu" and given.is_contiguous()


class Product(Prepared):
    """`out = (x @ weight.T) * by_token * scale + bias`, and what its followers do to that."""

    @classmethod
    def of(cls, weight: Int8Weight, args: Sequence[Any], out: torch.Tensor) -> Prepared | None:
        """The kernel for a call of `air::quant_matmul.out`; None where there is none."""
        x, _, scale, by_token, bias, _ = args
        factors = [one for one in (by_token, scale, bias) if one is not None]
        if not weight.fits(x, (scale, by_token, bias), out) or any(meet(out, one) for one in (x, *factors)):
            return None
        ops = [*(onednn.MUL for one in (by_token, scale) if one is not None), onednn.ADD][: len(factors)]
        return where_there_is_one(lambda: cls(weight, x, tuple(zip(ops, factors)), out, ()))

    def __init__(
        self,
        weight: Int8Weight,
        x: torch.Tensor,
        factors: tuple[tuple[int, torch.Tensor], ...],
        out: torch.Tensor,
        followers: tuple[Follower, ...],
    ):
        self._weight, self._x, self._factors = weight, x, factors
        super().__init__(weight.library, out, followers)

    def _with(self, followers: tuple[Follower, ...]) -> Prepared | None:
        return where_there_is_one(lambda: Product(self._weight, self._x, self._factors, self._result, followers))

    def _steps(self, kept: Kept) -> list[Step]:
        rows, outs = self._result.shape
        made = list[Step]()
        for op, factor in self._factors:
            shape = (1, rows, 1) if factor.dim() == 2 else (1, 1, outs)
            made.append((op, kept.desc(shape, onednn.F32, (factor.numel(), shape[2], 1))))
        return [*made, *super()._steps(kept)]

    def _beside(self) -> list[torch.Tensor | None]:
        return [*(factor for _, factor in self._factors), *super()._beside()]

    def _looks(self) -> tuple[object, ...]:
        factors = tuple((op, factor.dim()) for op, factor in self._factors)
        return self._weight.lies, self._x.shape, self._result.shape, self._result.dtype, factors

    def _given_to(self) -> list[Given]:
        return product_of(self._x, self._weight.memory, self._result)

    def _desc(self, kept: Kept) -> c_void_p:
        return _matrix(kept, self._result.shape, KINDS[self._result.dtype])

    def _described(self, kept: Kept) -> tuple[c_void_p, Mapping[int, c_void_p]]:
        x, out = _matrix(kept, self._x.shape, onednn.S8), self._desc(kept)
        attr, beside = self._attr(kept)
        desc = kept.matmul(x, self._weight.desc, None, out, attr)
        if desc is None or not kept.implementation(desc).startswith(_EXACT):
            raise OnednnError("an exact kernel", UNIMPLEMENTED)
        return desc, {onednn.SRC: x, onednn.DST: out} | beside


class Rounding(Prepared):
    """A call of `air::dynamic_quant.out`: torch finds the scales, oneDNN rounds."""

    def __init__(self, made: Library, x: torch.Tensor, tokens: torch.Tensor, scale: torch.Tensor):
        self._x, self._scale = x, scale
        super().__init__(made, tokens, ())

    def __call__(self) -> None:
        row_scales(self._x, self._scale)
        super().__call__()

    def _with(self, followers: tuple[Follower, ...]) -> None:
        return None

    def _looks(self) -> tuple[object, ...]:
        return self._x.dtype, self._x.shape, self._x.stride()

    def _given_to(self) -> list[Given]:
        return [(onednn.SRC, self._x), (onednn.DST, self._result), (onednn.SCALES | onednn.DST, self._scale)]

    def _described(self, kept: Kept) -> tuple[c_void_p, Mapping[int, c_void_p]]:
        rows = len(self._x)
        source = kept.desc(self._x.shape, KINDS[self._x.dtype], self._x.stride())
        target = kept.desc(self._x.shape, onednn.S8, self._x.stride())
        factors = kept.desc((rows,), onednn.F32, (1,))
        lies = {onednn.SRC: source, onednn.DST: target, onednn.SCALES | onednn.DST: factors}
        return kept.reorder(source, target, kept.divided_for_each(0)), lies


def rounding(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], object] | None:
    """A call of `air::dynamic_quant.out` by the library; None where the op itself makes it."""
    made = library()
    if made is None or len(args) != 1 or kwargs.keys() != {"tokens", "scale"}:
        return None
    x, tokens, scale = args[0], kwargs["tokens"], kwargs["scale"]
    fits = x.dim() == 2 and x.numel() > 0 and x.dtype in KINDS and _is_dense(x, tuple(x.shape), x.dtype)
    fits = fits and _is_dense(tokens, tuple(x.shape), torch.int8) and _is_dense(scale, (len(x), 1), torch.float32)
    if not fits or meet(tokens, x) or meet(scale, x) or meet(tokens, scale):
        return None
    return where_there_is_one(lambda: Rounding(made, x, tokens, scale))
