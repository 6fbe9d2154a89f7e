"""Convolutions in channels-last with packed weights: by a library of oneDNN, else by torch's own.

How a weight is to lie depends on the processor, and on the sizes of an image too: it is packed when a call is bound,
once for all calls that want it alike.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, replace

import torch

from ..format.packed import CONVOLUTION
from . import large_pages
from . import onednn_library as onednn
from .onednn_library import UNIMPLEMENTED, Kept, Library, OnednnError, library
from .onednn_primitive import KINDS, Follower, Given, Prepared, product_of, where_there_is_one
from .results import meet

_ops = torch.ops.mkldnn
_NEEDED = ("_reorder_convolution_weight", "_convolution_pointwise", "_nbytes")
_DENSE = torch.channels_last
_MOST = (
    1 << 20
)  # of a stride, a padding or a dilation: none that anybody wants is larger, and the library's numbers end


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution of images (batch, channels, height, width) with a weight (out, in / groups, height,
    width)."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype

    @property
    def grouped(self) -> tuple[int, ...]:
        """The weight's sizes as oneDNN wants them: with the groups first, where there are several."""
        out, *rest = self.weight
        return self.weight if self.groups == 1 else (self.groups, out // self.groups, *rest)


def shape_of(x: Sequence[int], weight: Sequence[int], args: Sequence[object], dtype: torch.dtype) -> Shape | None:
    """The sizes of a call of `aten::convolution` with these arguments after the bias; None where it is no convolution
    of images, where they fit neither each other nor what is packed, and where torch's kernels for channels-last are
    wrong: the image is smaller than the kernel reaches, the padding as large, or a group reads one channel."""
    if len(args) != 6 or len(x) != 4 or len(weight) != 4 or not all((*x, *weight)) or dtype not in KINDS:
        return None
    *lists, transposed, _, groups = args
    steps = [tuple(one) if isinstance(one, (tuple, list)) and len(one) in (1, 2) else () for one in lists]
    if transposed is not False or type(groups) is not int or groups < 1:
        return None
    if not all(steps) or any(type(size) is not int for one in steps for size in one):
        return None
    stride, padding, dilation = (one * (2 // len(one)) for one in steps)
    if min(*stride, *dilation) < 1 or min(padding) < 0 or max(*stride, *padding, *dilation) > _MOST:
        return None
    if weight[0] % groups or x[1] != weight[1] * groups:
        return None
    reach = [gap * (size - 1) + 1 for size, gap in zip(weight[2:], dilation)]
    small = any(far > size or pad >= far for far, size, pad in zip(reach, x[2:], padding))
    if small or is_of_single_channels(weight, groups):
        return None  # torch's kernels for channels-last read past the image there, or multiply other numbers
    image = [(size + 2 * pad - far) // step + 1 for size, far, step, pad in zip(x[2:], reach, stride, padding)]
    return Shape(tuple(x), tuple(weight), (x[0], weight[0], *image), stride, padding, dilation, groups, dtype)


def is_of_single_channels(weight: Sequence[int], groups: int) -> bool:
    """Whether each group reads one channel, but for a depthwise convolution, of as many channels as it reads."""
    return weight[1] == 1 and (groups == 1 or groups != weight[0])


def packs(kind: torch.dtype) -> bool:
    """Whether weights of a dtype are packed for convolutions here."""
    return kind in KINDS and (_library(kind) is not None or _torch_packs(kind))


def packed_bytes(shapes: Iterable[Shape]) -> int:
    """What one weight takes packed for convolutions of these sizes, in bytes."""
    shapes = set(shapes)
    made = next((_library(shape.dtype) for shape in shapes), None)
    if made is None:
        return _packed_by_torch(shapes)
    with made.held() as kept:
        layouts = list[tuple[c_void_p, int]]()
        for found in (_layout(kept, shape) for shape in shapes):
            if found is not None and not any(kept.are_equal(found[0], desc) for desc, _ in layouts):
                layouts.append(found)
        return sum(nbytes for _, nbytes in layouts)


def packed(weight: torch.Tensor) -> "LibraryConvolutionWeight | TorchConvolutionWeight":
    """A weight that convolutions read packed."""
    made = _library(weight.dtype)
    return TorchConvolutionWeight(weight) if made is None else LibraryConvolutionWeight(weight, made)


def _library(kind: torch.dtype) -> Library | None:
    """The library, where it has fast kernels for a dtype on this processor."""
    made = library()
    return made if made is not None and kind in KINDS and _has_kernels(made, kind) else None


@functools.cache
def _has_kernels(made: Library, kind: torch.dtype) -> bool:
    image = (1, 64, 28, 28)
    with made.held() as kept:
        return _layout(kept, Shape(image, (64, 64, 3, 3), image, (1, 1), (1, 1), (1, 1), 1, kind)) is not None


# ---- by a library ----------------------------------------------------------------------------------------------------


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of an image in channels-last."""
    _, channels, height, width = shape
    return height * width * channels, 1, width * channels, channels


def _description(
    kept: Kept, shape: Shape, weight: c_void_p, bias: bool, attr: c_void_p | None
) -> tuple[c_void_p, c_void_p, c_void_p, c_void_p | None] | None:
    """The description of a convolution, and of what it reads, writes and adds; None where there is no fast kernel."""
    kind = KINDS[shape.dtype]
    x, out = (kept.desc(sizes, kind, dense_strides(sizes)) for sizes in (shape.x, shape.out))
    added = kept.desc(shape.out[1:2], kind, (1,)) if bias else None
    desc = kept.convolution(x, weight, added, out, (shape.stride, shape.padding, shape.dilation), attr)
    slow = desc is None or kept.implementation(desc).startswith(("ref", "x64:gemm", "ip:"))
    return None if desc is None or slow else (desc, x, out, added)


def _layout(kept: Kept, shape: Shape) -> tuple[c_void_p, int] | None:
    """How a weight lies that the fast kernel for these sizes reads, and its bytes; None where there is none."""
    found = _description(kept, shape, kept.desc(shape.grouped, KINDS[shape.dtype]), True, None)
    return None if found is None else kept.weights_desc(found[0])


class _Layout:
    """A weight as one kernel reads it, in memory of its own."""

    def __init__(self, made: Library, shape: Shape):
        """Raises OnednnError where there is no fast kernel."""
        self._kept, self._sizes, self._kind = Kept(made), shape.grouped, KINDS[shape.dtype]
        found = _layout(self._kept, shape)
        if found is None:
            raise OnednnError("a fast convolution", UNIMPLEMENTED)
        self.desc, self.nbytes = found
        self.lies = made.blocks(self.desc, len(self._sizes))

    def is_like(self, other: "_Layout") -> bool:
        return self._kept.are_equal(self.desc, other.desc)

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of a weight; the first call finds the memory for them."""
        if not hasattr(self, "memory"):
            self._packed = large_pages.memory(self.nbytes)
            self.memory = self._kept.memory(self.desc, self._packed.data_ptr())
        seen = weight.contiguous().view(self._sizes)
        self._kept.library.rearrange(seen, self._sizes, seen.stride(), self._kind, self.desc, self.memory)


class LibraryConvolutionWeight:
    """The weight of convolutions, in as many forms as their kernels want, at addresses that stay."""

    def __init__(self, weight: torch.Tensor, made: Library):
        self._weight, self.library, self._layouts = weight, made, list[_Layout]()
        self._known = dict[tuple[Shape, int], _Layout]()  # by the number of threads too

    @property
    def nbytes(self) -> int:
        return sum(layout.nbytes for layout in self._layouts)

    def fill(self, weight: torch.Tensor) -> None:
        self._weight = weight
        for layout in self._layouts:
            layout.fill(weight)

    def packed(self, shape: Shape) -> _Layout:
        """As the kernel for these sizes reads it. Raises OnednnError where there is no fast one."""
        key = (shape, torch.get_num_threads())
        if key not in self._known:
            self._known[key] = self._like(_Layout(self.library, shape))
        return self._known[key]

    def _like(self, wanted: _Layout) -> _Layout:
        """The layout that is there already, if one is, else this one, filled."""
        for layout in self._layouts:
            if layout.is_like(wanted):
                return layout
        wanted.fill(self._weight)
        self._layouts.append(wanted)
        return wanted

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], object] | None:
        return functools.partial(op, *args) if _operands(op, args, kwargs, self._weight) else None

    def into(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor
    ) -> Callable[[], object] | None:
        found = _operands(op, args, kwargs, self._weight)
        if found is None or not _is_image(result, found.shape.out, found.shape.dtype):
            return None
        read = [one for one in (found.x, found.bias) if one is not None]
        if not _is_image(found.x, found.shape.x, found.shape.dtype) or any(meet(result, one) for one in read):
            return None
        return _convolution(self, found, result, ())


@dataclass(frozen=True)
class _Operands:
    x: torch.Tensor
    bias: torch.Tensor | None
    shape: Shape


def _operands(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], stored: torch.Tensor
) -> _Operands | None:
    """What a call reads beside the weight, where it fits it."""
    if op.name() != CONVOLUTION or kwargs or len(args) != 9:
        return None
    x, weight, bias, *rest = args
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor) or x.dtype != stored.dtype:
        return None
    if weight.dtype != stored.dtype or weight.numel() != stored.numel() or not weight.is_contiguous():
        return None
    shape = shape_of(x.shape, weight.shape, rest, x.dtype)
    if shape is None or x.device.type != "cpu":
        return None
    if bias is not None and not _is_bias(bias, shape):
        return None
    return _Operands(x, bias if isinstance(bias, torch.Tensor) else None, shape)


def _is_bias(bias: object, shape: Shape) -> bool:
    if not isinstance(bias, torch.Tensor) or bias.dtype != shape.dtype or bias.device.type != "cpu":
        return False
    return bias.shape == shape.out[1:2] and bias.is_contiguous()


def _is_image(given: torch.Tensor, sizes: Sequence[int], kind: torch.dtype) -> bool:
    """Whether a tensor has these sizes and lies in channels-last, without gaps."""
    if given.shape != torch.Size(sizes) or given.dtype != kind or given.device.type != "cpu":
        return False
    return given.is_contiguous(memory_format=_DENSE)


class Convolution(Prepared):
    """A convolution, and what its followers do to its result."""

    def __init__(
        self,
        weight: LibraryConvolutionWeight,
        operands: _Operands,
        out: torch.Tensor,
        followers: tuple[Follower, ...],
    ):
        self._weight, self._operands = weight, operands
        super().__init__(weight.library, out, followers)

    def _with(self, followers: tuple[Follower, ...]) -> Prepared | None:
        return _convolution(self._weight, self._operands, self._result, followers)

    def _layout(self) -> _Layout:
        return self._weight.packed(self._operands.shape)

    def _looks(self) -> tuple[object, ...]:
        return self._operands.shape, self._layout().lies, self._operands.bias is None

    def _given_to(self) -> list[Given]:
        return product_of(self._operands.x, self._layout().memory, self._result, self._operands.bias)

    def _described(self, kept: Kept) -> tuple[c_void_p, Mapping[int, c_void_p]]:
        given, layout = self._operands, self._layout()
        attr, beside = self._attr(kept)
        found = _description(kept, given.shape, layout.desc, given.bias is not None, attr)
        if found is None:
            raise OnednnError("a fast convolution", UNIMPLEMENTED)
        desc, x, out, bias = found
        lies = {onednn.SRC: x, onednn.DST: out} | beside
        return desc, lies if bias is None else lies | {onednn.BIAS: bias}


def _convolution(
    weight: LibraryConvolutionWeight, operands: _Operands, out: torch.Tensor, followers: tuple[Follower, ...]
) -> Prepared | None:
    """The call; None where the library has no fast kernel for that."""
    return where_there_is_one(lambda: Convolution(weight, operands, out, followers))


# ---- by torch --------------------------------------------------------------------------------------------------------


class TorchConvolutionWeight:
    """The same without a library: in forms that torch's oneDNN chooses, whatever the sizes of images."""

    def __init__(self, weight: torch.Tensor):
        self._weight, self._forms = weight, dict[Shape, torch.Tensor]()

    @property
    def nbytes(self) -> int:
        return sum(int(_ops._nbytes(form)) for form in self._forms.values())

    def fill(self, weight: torch.Tensor) -> None:
        self._weight = weight
        for shape, form in self._forms.items():
            form.copy_(_reordered(weight, shape))

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], object] | None:
        found = _operands(op, args, kwargs, self._weight)
        if found is None:
            return None
        key, shape = _form(found.shape), found.shape
        if key not in self._forms:
            self._forms[key] = _reordered(self._weight, key)
        steps = (list(shape.padding), list(shape.stride), list(shape.dilation), shape.groups)
        return functools.partial(
            _ops._convolution_pointwise, found.x, self._forms[key], found.bias, *steps, "none", [], ""
        )

    def into(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor
    ) -> None:
        """`call` allocates its result."""


def _form(shape: Shape) -> Shape:
    """The sizes but for the image's, on which torch's form does not depend."""
    return replace(shape, x=(), out=())


def _reordered(weight: torch.Tensor, form: Shape) -> torch.Tensor:
    steps = (list(form.padding), list(form.stride), list(form.dilation), form.groups)
    made: torch.Tensor = _ops._reorder_convolution_weight(weight.view(form.weight), *steps)
    return made


def _packed_by_torch(shapes: Iterable[Shape]) -> int:
    return sum(_form_bytes(form) for form in {_form(shape) for shape in shapes})


@functools.cache
def _form_bytes(form: Shape) -> int:
    return int(_ops._nbytes(_reordered(torch.empty(form.weight, dtype=form.dtype, device="cpu"), form)))


@functools.cache
def _torch_packs(kind: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not all(hasattr(_ops, name) for name in _NEEDED):
        return False
    return kind == torch.float32 or (kind == torch.bfloat16 and bool(_ops._is_mkldnn_bf16_supported()))
