"""Products with a packed weight by a library of oneDNN."""

import functools
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass

import torch

from . import onednn_library as onednn
from .onednn_library import UNIMPLEMENTED, Blocks, Kept, Library, OnednnError, library
from .onednn_primitive import KINDS, Follower, Given, Prepared, product_of, where_there_is_one
from .onednn_weight import PROBE, BlockedWeight, bytes_in
from .results import meet

_FAST = {onednn.F32: "brg:avx512_core", onednn.BF16: "brg:avx512_core_"}  # how the names of its fast kernels begin

BLOCK = 64  # outs that lie together, as kernels of our own read them
PRODUCTS = {"aten::mm.out": 2, "aten::addmm.out": 3}  # with how many arguments


def takes(shape: Sequence[int], kind: torch.dtype) -> bool:
    """Whether weights (out, in) of this shape and dtype are packed by the library: it is there, and has a fast kernel
    that does not pad them by much."""
    return packed_bytes(shape, kind) > 0


def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight takes packed by the library, in bytes; 0 where it does not pack such."""
    made = library()
    return _packed_bytes(made, tuple(shape), kind) if made is not None and kind in KINDS else 0


def has_kernels(kind: torch.dtype) -> bool:
    """Whether the library has fast kernels for products of a dtype on this processor."""
    return packed_bytes((PROBE, PROBE), kind) > 0


@functools.cache
def _packed_bytes(made: Library, shape: tuple[int, ...], kind: torch.dtype) -> int:
    if len(shape) != 2 or not all(shape):
        return 0
    with made.held() as kept:
        return bytes_in(_layout(kept, shape, KINDS[kind]), shape, kind)


def _layout(kept: Kept, shape: Sequence[int], kind: int) -> tuple[c_void_p, int] | None:
    """How a weight lies that the fast kernels read, and its bytes; None where there are none."""
    out, width = shape
    x, result = kept.desc((PROBE, width), kind, (width, 1)), kept.desc((PROBE, out), kind, (out, 1))
    product = kept.matmul(x, kept.desc((width, out), kind), None, result)
    if product is None or not kept.implementation(product).startswith(_FAST[kind]):
        return None
    return kept.weights_desc(product)


def _block_bytes(blocks: Blocks, width: int, kind: torch.dtype) -> int:
    """The bytes of a block of 64 outs, where in each those that meet the same number of x, or with bfloat16 two of
    them, lie together; 0 where a weight of rows of `width` lies otherwise."""
    pairs = 4 // kind.itemsize
    deep = blocks.sizes[0] if blocks.sizes else 0
    if (blocks.sizes, blocks.dims) != ((deep, BLOCK, 2)[: 1 + pairs], (0, 1, 0)[: 1 + pairs]):
        return 0
    padded = -(-width // (deep * pairs)) * deep * pairs
    return padded * BLOCK * kind.itemsize if blocks.strides == (deep * pairs * BLOCK, padded * BLOCK) else 0


class LibraryWeight(BlockedWeight):
    """The weight (out, in) of a linear layer of float32 or bfloat16. Raises ValueError for one that the library does
    not take. `block_bytes`: see `_block_bytes`."""

    def __init__(self, weight: torch.Tensor):
        made = library()
        if made is None or not takes(weight.shape, weight.dtype):
            raise ValueError(f"oneDNN has no packed form for {weight.dtype} {list(weight.shape)}")
        kept, kind = Kept(made), KINDS[weight.dtype]
        found = _layout(kept, weight.shape, kind)
        assert found is not None  # as it was asked before
        super().__init__(kept, kind, found, weight)
        self.block_bytes = _block_bytes(self.lies, weight.shape[1], weight.dtype)

    @property
    def outs(self) -> int:
        """How many rows it has: numbers of a result."""
        return self._shape[0]

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], object] | None:
        if op.name() not in PRODUCTS:
            return functools.partial(op, *args, **kwargs) if self._operands(op, args, kwargs) else None
        found = self.placed(op, args, kwargs)
        return found and (product(self, *found, ()) or functools.partial(op, *args, **kwargs))

    def into(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor
    ) -> Callable[[], object] | None:
        found = self.placed(op, args, kwargs, result)
        return found and product(self, *found, ())

    def placed(
        self,
        op: torch._ops.OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        result: torch.Tensor | None = None,
    ) -> "tuple[Operands, torch.Tensor] | None":
        """What a call reads beside the weight, and the rows that it writes, in its out argument or else in `result`;
        None where they do not fit each other or the weight."""
        found, x = self._operands(op, args, kwargs), args[0] if args else None
        if found is None:
            return None
        if result is None:
            out = self._place(kwargs.get("out"), found)
        elif isinstance(x, torch.Tensor) and result.shape == (*x.shape[:-1], self._shape[0]):
            out = self._place(_rows(result), found)
        else:
            return None
        return None if out is None else (found, out)

    def _operands(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> "Operands | None":
        """What a call reads beside the weight, where it fits it."""
        if op.name() not in PRODUCTS:
            if len(args) not in (2, 3) or kwargs.keys() - ({"bias"} if len(args) == 2 else set()):
                return None
            x, bias = args[0], args[2] if len(args) == 3 else kwargs.get("bias")
            return self._fitting(_rows(x), bias) if isinstance(x, torch.Tensor) else None
        if len(args) != PRODUCTS[op.name()] or kwargs.keys() != {"out"}:
            return None
        *biases, x, seen = args
        turned = isinstance(seen, torch.Tensor) and seen.shape == self._shape[::-1] and seen.t().is_contiguous()
        if not turned or any(bias is None for bias in biases):
            return None
        return self._fitting(x, biases[0] if biases else None)

    def _fitting(self, x: object, bias: object) -> "Operands | None":
        if not isinstance(x, torch.Tensor) or x.dim() != 2 or not self._is_dense(x, (len(x), self._shape[1])):
            return None
        if not len(x) or not (bias is None or self._is_dense(bias, self._shape[:1])):
            return None
        return Operands(x, bias if isinstance(bias, torch.Tensor) else None)

    def _place(self, out: object, operands: "Operands") -> torch.Tensor | None:
        """Where the result goes, if it has its shape, lies without gaps, and over nothing that is read."""
        if not isinstance(out, torch.Tensor) or not self._is_dense(out, (len(operands.x), self._shape[0])):
            return None
        read = [one for one in (operands.x, operands.bias) if one is not None]
        return None if any(meet(out, one) for one in read) else out

    def _is_dense(self, given: object, shape: Sequence[int]) -> bool:
        """Whether it is a tensor of this shape without gaps, of the weight's dtype."""
        if not isinstance(given, torch.Tensor) or given.dtype != self._dtype or given.device.type != "cpu":
            return False
        return given.shape == torch.Size(shape) and given.is_contiguous()


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.view(-1, tensor.shape[-1]) if tensor.dim() and tensor.is_contiguous() and tensor.numel() else None


@dataclass(frozen=True)
class Operands:
    """Tensors without gaps: x (rows, in), and the bias (out,)."""

    x: torch.Tensor
    bias: torch.Tensor | None


class Product(Prepared):
    """`out = x @ weight.t() + bias`, and what its followers do to that."""

    def __init__(self, weight: LibraryWeight, operands: Operands, out: torch.Tensor, followers: tuple[Follower, ...]):
        self._weight, self._operands = weight, operands
        super().__init__(weight.library, out, followers)

    def _with(self, followers: tuple[Follower, ...]) -> Prepared | None:
        return product(self._weight, self._operands, self._result, followers)

    def _looks(self) -> tuple[object, ...]:
        sizes = self._operands.x.shape, self._result.shape
        return self._weight.kind, self._weight.lies, sizes, self._operands.bias is None

    def _given_to(self) -> list[Given]:
        return product_of(self._operands.x, self._weight.memory, self._result, self._operands.bias)

    def _described(self, kept: Kept) -> tuple[c_void_p, Mapping[int, c_void_p]]:
        weight, given, result = self._weight, self._operands, self._result
        kind, (rows, width), outs = weight.kind, given.x.shape, result.shape[1]
        x, out = kept.desc((rows, width), kind, (width, 1)), kept.desc((rows, outs), kind, (outs, 1))
        bias = None if given.bias is None else kept.desc((1, outs), kind, (outs, 1))
        attr, beside = self._attr(kept)
        desc = kept.matmul(x, weight.desc, bias, out, attr)
        if desc is None or not kept.implementation(desc).startswith(_FAST[kind]):
            raise OnednnError("a fast kernel", UNIMPLEMENTED)
        lies = {onednn.SRC: x, onednn.DST: out} | beside
        return desc, lies if bias is None else lies | {onednn.BIAS: bias}


def product(
    weight: LibraryWeight, operands: Operands, out: torch.Tensor, followers: tuple[Follower, ...]
) -> Prepared | None:
    """The call; None where the library has no fast kernel for that."""
    return where_there_is_one(lambda: Product(weight, operands, out, followers))
