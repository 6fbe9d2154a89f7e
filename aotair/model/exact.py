"""The original without the rounding of its numbers: how far is what it answers from that?

Each op is made twice: as the model makes it, so that nothing of the model's own is another, and on wider shadows: in
float32 of what was rounded to float16 or bfloat16, or, of a model that has none of these, in float64 of what was
rounded to float32. A shadow belongs to memory, not to a tensor: views of it, and what is written into them, are those
of the tensor. Weights, and what is made of weights and numbers alone, are as they are.

How far one way of rounding is from that may be luck: others are tried, at random up or down at each op.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..log import logger
from .in_float64 import called

_TAKE_BOTH = ("aten", "air", "prims")  # namespaces whose ops take wider numbers too
_OTHERS = 3  # ways to round at random
_SWEPT = 512  # ops between two looks for memory that is free again


@dataclass(frozen=True)
class Widening:
    """Which dtypes have shadows, and of which; how many bits of a shadow's are not those of the dtype."""

    lost: Mapping[torch.dtype, int]
    wide: torch.dtype
    bits: torch.dtype  # whole numbers of the shadow's size

    @property
    def known(self) -> tuple[torch.dtype, ...]:
        return (*self.lost, self.wide)


HALVES = Widening({torch.float16: 13, torch.bfloat16: 16}, torch.float32, torch.int32)
SINGLES = Widening({torch.float32: 29}, torch.float64, torch.int64)


class Exact(TorchDispatchMode):
    """Within it, what `model` computes is computed in wider numbers too. `of` gives that of a tensor. With `rounds`,
    what the model rounds is rounded in that, too: up or down, as often as it is nearer."""

    def __init__(
        self, model: torch.nn.Module, rounds: torch.Generator | None = None, widening: Widening = HALVES
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._narrow, self._wide, self._known = tuple(widening.lost), widening.wide, widening.known
        self._widening = widening
        self._shadows: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self._weights = {_key(one): StorageWeakRef(one.untyped_storage()) for one in model.parameters()}
        self._ops, self._rounds = 0, rounds

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor: a view of its memory's shadow, or else itself, in wider numbers."""
        known = self._shadows.get(_key(tensor))
        if known is not None:
            return known[1].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor.to(self._wide) if tensor.dtype in self._narrow else tensor

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether anything else stands for a tensor."""
        return _key(tensor) in self._shadows

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if all(_key(one) in self._weights for one in given):
            made = func(*args, **kwargs)
            self._weights |= {_key(one): StorageWeakRef(one.untyped_storage()) for one in _tensors(made)}
            return made
        written = [value for value in _written(func, args, kwargs) if isinstance(value, torch.Tensor)]
        for tensor in written:
            self._weights.pop(_key(tensor), None)
        if any(tensor.dtype not in self._known for tensor in written):
            return func(*args, **kwargs)  # what is counted is the model's own
        return self._twice(func, args, kwargs, given, written)

    def _twice(
        self, func: OpOverload, args: Any, kwargs: Any, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> Any:
        for tensor in (*(one for one in given if one.dtype in self._narrow), *written):
            if _key(tensor) not in self._shadows and _key(tensor) not in self._weights:
                self._begin(tensor)
        wide_args, wide_kwargs = tree_map(self._widened, (args, kwargs))
        shadowed = any(_key(tensor) in self._shadows for tensor in given)
        plain = func(*args, **kwargs)
        if shadowed or any(one.dtype in self._narrow for one in _tensors(plain)):
            views = frozenset[int]() if written else frozenset(map(_key, given))
            self._keep(plain, self._made(func, wide_args, wide_kwargs, plain), views)
        self._sweep()
        return plain

    def _made(self, func: OpOverload, args: Any, kwargs: Any, plain: Any) -> Any:
        """The op on shadows; what the model made where the op takes no others."""
        if func.namespace not in _TAKE_BOTH:
            return plain
        try:
            return called(func, args, kwargs)
        except (RuntimeError, ValueError):  # no kernel takes wider numbers
            return plain

    def _widened(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        return self._wide if isinstance(value, torch.dtype) and value in self._narrow else value

    def _begin(self, tensor: torch.Tensor) -> None:
        """A shadow of all of a tensor's memory, which holds what is there."""
        storage = tensor.untyped_storage()
        whole = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
        self._shadows[_key(tensor)] = StorageWeakRef(storage), whole.to(self._wide, copy=True)

    def _keep(self, plain: Any, wide: Any, views: Collection[int]) -> None:
        """What an op made of shadows is the shadow of what it made; `views` of its operands have theirs."""
        for mine, shadow in zip(tree_leaves(plain), tree_leaves(wide), strict=True):
            if not isinstance(mine, torch.Tensor) or mine.dtype not in self._known:
                continue
            if _key(mine) in views or _key(mine) in self._weights:
                continue
            if _key(mine) not in self._shadows:
                self._begin(mine)
            if shadow is not mine:
                self.of(mine).copy_(self._rounded(shadow, mine.dtype))

    def _rounded(self, shadow: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        if self._rounds is None or kind not in self._narrow or shadow.dtype != self._wide:
            return shadow
        lost, whole = self._widening.lost[kind], self._widening.bits
        bits = shadow.contiguous().view(whole)
        bits = (bits + torch.randint(1 << lost, bits.shape, generator=self._rounds, dtype=whole)) >> lost << lost
        return torch.where(shadow.isfinite(), bits.view(self._wide), shadow)

    def _sweep(self) -> None:
        self._ops += 1
        if self._ops % _SWEPT == 0:
            self._shadows = {key: item for key, item in self._shadows.items() if not item[0].expired()}
            self._weights = {key: one for key, one in self._weights.items() if not one.expired()}


def roundings(model: torch.nn.Module, call: Callable[[], Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """By name, how far rounding takes what a call of the model leaves behind, to half precision or, where there is
    none, to float32: the most of the model's own way to round, and of several others. What none of that stands behind
    is not named, nor is anything of a model that fails so: it is excused nothing."""
    try:
        return _roundings(model, call, HALVES) or _roundings(model, call, SINGLES)
    except Exception as error:  # whatever a model raises where it finds itself watched
        logger.debug("the original cannot be computed in wider numbers beside itself: %s", error)
        return {}


def _roundings(
    model: torch.nn.Module, call: Callable[[], Mapping[str, torch.Tensor]], widening: Widening
) -> dict[str, float]:
    plain, exact = _called(model, call, widening)
    found = {name: _distance(plain[name], wanted) for name, wanted in exact.items()}
    if not found:
        return {}
    for seed in range(_OTHERS):
        other = _called(model, call, widening, torch.Generator().manual_seed(seed))[1]
        found = {name: max(far, _distance(other[name], exact[name])) for name, far in found.items()}
    return found


def _called(
    model: torch.nn.Module,
    call: Callable[[], Mapping[str, torch.Tensor]],
    widening: Widening,
    rounds: torch.Generator | None = None,
) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    with Exact(model, rounds, widening) as exact:
        left = call()
    return left, {name: exact.of(tensor) for name, tensor in left.items() if exact.knows(tensor)}


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of what is finite."""
    apart = (one.to(other.dtype) - other).abs()
    return float(torch.where(apart.isfinite(), apart, 0.0).max()) if apart.numel() else 0.0


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that a call writes into."""
    named = zip(op._schema.arguments, args)
    return [value for argument, value in named if argument.is_write] + [
        kwargs[argument.name] for argument in op._schema.arguments if argument.is_write and argument.name in kwargs
    ]


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
