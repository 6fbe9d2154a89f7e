"""Kernels of a library of oneDNN that are prepared once for the memory of a program, write where their results are
planned, and do to them what the next instructions would."""

import abc
import functools
from collections.abc import Callable, Mapping
from ctypes import c_void_p
from typing import NamedTuple

import torch

from . import channel_affine
from . import onednn_library as onednn
from .base import Leading
from .onednn_library import UNIMPLEMENTED, Argument, Description, Kept, Library, OnednnError
from .results import has_no_gaps, meet

_aten = torch.ops.aten
KINDS = {torch.float32: onednn.F32, torch.bfloat16: onednn.BF16}

# Ops that write over their first argument number by number, and the algorithms for them; those with another tensor
# below. Not relu_: oneDNN's makes 0 of NaN, and a slope of 0 below zero, or a hard swish, NaN of minus infinity.
_OVER: Mapping[torch._ops.OpOverload, int] = {
    _aten.tanh_.default: onednn.TANH,
    _aten.sigmoid_.default: onednn.LOGISTIC,
    _aten.silu_.default: onednn.SWISH,
}
_GELU = {"none": onednn.GELU_ERF, "tanh": onednn.GELU_TANH}
_WITH: Mapping[torch._ops.OpOverload, int] = {_aten.add_.Tensor: onednn.ADD, _aten.mul_.Tensor: onednn.MUL}


class Follower(NamedTuple):
    """An algorithm that follows, and the other tensor that it reads: a number for each of the result, or for each of
    its channels."""

    algorithm: int
    other: torch.Tensor | None = None
    of_channels: bool = False


Step = tuple[int, c_void_p | None]  # the same to oneDNN: how the tensor lies
Given = tuple[int, torch.Tensor | c_void_p]  # what something is to a primitive, and the tensor or oneDNN's memory


class Prepared(Leading):
    """`result = …`, and what its followers do to that: a kernel that is prepared once, for as many threads as there
    are; for others it is prepared anew."""

    _threads = 0  # for how many it is prepared

    def __init__(self, library: Library, result: torch.Tensor, followers: tuple[Follower, ...]):
        """Raises OnednnError where there is no fast kernel."""
        self._library, self._result, self._followers = library, result, followers
        self._description = self._found()

    @abc.abstractmethod
    def _looks(self) -> tuple[object, ...]:
        """What the description depends on beside the followers: the same for calls that are alike but for their
        memory."""

    @abc.abstractmethod
    def _described(self, kept: Kept) -> tuple[c_void_p, Mapping[int, c_void_p]]:
        """The description of the primitive, and how each tensor lies that it reads or writes; oneDNN's objects go into
        `kept`. Raises OnednnError where there is no fast kernel."""

    @abc.abstractmethod
    def _given_to(self) -> list[Given]:
        """What the primitive is called with beside what the followers read."""

    @abc.abstractmethod
    def _with(self, followers: tuple[Follower, ...]) -> "Prepared | None":
        """The same with these followers; None where there is no fast kernel for that."""

    def __call__(self) -> None:
        if torch.get_num_threads() != self._threads:
            self.prepare()
        self._execute(self._primitive, self._stream, self._count, self._given)

    def prepare(self) -> None:
        """Let oneDNN write the kernel: milliseconds, and about 128 KiB, which it keeps for others of that shape."""
        kept, self._description = Kept(self._library), self._found()
        lies = self._description.lies
        args = [
            kept.argument(kind, lies[kind], one) if isinstance(one, torch.Tensor) else Argument(kind, one)
            for kind, one in (*self._given_to(), *self._read_beside())
        ]
        self._primitive, self._stream = kept.primitive(self._description.desc), kept.stream()
        self._count, self._given = len(args), (Argument * len(args))(*args)
        self._threads, self._kept, self._execute = torch.get_num_threads(), kept, kept.library.execute

    def then(self, call: Callable[[], object]) -> "Prepared | None":
        """The one that does what the call after it does as well; None where it cannot."""
        if type(call) is not functools.partial or not call.args or not _is_over(call.args[0], self._result):
            return None
        followers = _followers(call, self._result)
        return self._with((*self._followers, *followers)) if followers else None

    def _found(self) -> Description:
        followers = tuple((one.algorithm, one.other is None, one.of_channels) for one in self._followers)
        key = (type(self), torch.get_num_threads(), followers, *self._looks())
        return self._library.described(key, self._described)

    def _attr(self, kept: Kept) -> tuple[c_void_p, dict[int, c_void_p]]:
        """What is done to the result as attributes of the primitive, and how what that reads lies."""
        steps = self._steps(kept)
        read = {_place(number): desc for number, (_, desc) in enumerate(steps) if desc is not None}
        return kept.post_ops(steps), read

    def _read_beside(self) -> list[tuple[int, torch.Tensor]]:
        return [(_place(number), one) for number, one in enumerate(self._beside()) if one is not None]

    def _steps(self, kept: Kept) -> list[Step]:
        """What is done to the result: what the followers do."""
        return [(one.algorithm, self._desc_beside(kept, one)) for one in self._followers]

    def _beside(self) -> list[torch.Tensor | None]:
        """What each of these steps reads."""
        return [one.other for one in self._followers]

    def _desc_beside(self, kept: Kept, follower: Follower) -> c_void_p | None:
        """How the other tensor that a follower reads lies."""
        if follower.other is None:
            return None
        if not follower.of_channels:
            return self._desc(kept)
        channels = len(follower.other)
        sizes = (1, channels, *[1] * (self._result.dim() - 2))
        return kept.desc(sizes, KINDS[follower.other.dtype], (channels, *[1] * (len(sizes) - 1)))

    def _desc(self, kept: Kept) -> c_void_p:
        """How the result lies, and each tensor that is beside it."""
        return kept.desc(self._result.shape, KINDS[self._result.dtype], self._result.stride())


def product_of(
    x: torch.Tensor, weight: c_void_p, result: torch.Tensor, bias: torch.Tensor | None = None
) -> list[Given]:
    """What a primitive that multiplies by a weight is called with."""
    given: list[Given] = [(onednn.SRC, x), (onednn.WEIGHTS, weight), (onednn.DST, result)]
    return given if bias is None else [*given, (onednn.BIAS, bias)]


def _place(number: int) -> int:
    """What the tensor that a step reads is to a primitive."""
    return onednn.POST_OP * (number + 1) | onednn.SRC_1


def where_there_is_one(make: Callable[[], Prepared]) -> Prepared | None:
    """What `make` gives; None where the library has no fast kernel for that."""
    try:
        return make()
    except OnednnError as error:
        if error.status == UNIMPLEMENTED:
            return None
        raise


def _is_over(given: object, out: torch.Tensor) -> bool:
    """Whether a tensor is all of the result, in its order, whatever its shape."""
    if not isinstance(given, torch.Tensor) or given.dtype != out.dtype or not has_no_gaps(given):
        return False
    return given.data_ptr() == out.data_ptr() and given.numel() == out.numel()


def _followers(call: functools.partial[object], out: torch.Tensor) -> tuple[Follower, ...]:
    """What does the same as a call that writes over the result; nothing where that is not known."""
    if call.func is channel_affine.OVER:
        return _of_channels(call, out)
    follower = _follower(call, out)
    return () if follower is None else (follower,)


def _of_channels(call: functools.partial[object], out: torch.Tensor) -> tuple[Follower, ...]:
    """Of images alone."""
    if call.keywords or len(call.args) != 3 or out.dim() != 4 or call.args[0].shape != out.shape:
        return ()
    factor, term = call.args[1:]
    fits = all(_is_of_channels(one, out) for one in (factor, term))
    return (Follower(onednn.MUL, factor, True), Follower(onednn.ADD, term, True)) if fits else ()


def _is_of_channels(other: object, out: torch.Tensor) -> bool:
    """Whether it is a tensor of a float for each channel of the result, in memory of its own."""
    if not isinstance(other, torch.Tensor) or other.dtype != torch.float32 or other.device != out.device:
        return False
    return other.shape == out.shape[1:2] and other.is_contiguous() and not meet(other, out)


def _follower(call: functools.partial[object], out: torch.Tensor) -> Follower | None:
    op, args, kwargs = call.func, call.args, call.keywords
    if op is _aten.gelu_.default and len(args) == 1 and kwargs.keys() <= {"approximate"}:
        kind = _GELU.get(kwargs.get("approximate", "none"))
        return None if kind is None else Follower(kind)
    if kwargs or not isinstance(op, torch._ops.OpOverload):
        return None
    if op in _OVER and len(args) == 1:
        return Follower(_OVER[op])
    if op in _WITH and len(args) == 2 and isinstance(other := args[1], torch.Tensor):
        return Follower(_WITH[op], other) if _is_beside(other, args[0], out) else None
    return None


def _is_beside(other: torch.Tensor, given: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether another tensor has a number for each of the result, in its order, and none of its memory."""
    if other.dtype != out.dtype or other.shape != given.shape or other.stride() != given.stride():
        return False
    return other.device == out.device and not meet(other, out)
