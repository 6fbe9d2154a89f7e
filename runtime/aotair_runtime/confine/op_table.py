"""Which ops may a program call, and what is demanded of their arguments?

The table lists overloads whose CPU kernels check what they are given, or cannot do harm: hostile calls of each, between
forbidden pages, wrote and read nothing else (`tests/confine`). An NPU's are listed by what torch_npu says of them; they
were called on a simulated one alone. What is not listed is refused, at a build and at a load.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .ops import ATEN, OURS

NAMESPACES = ("aten", "npu", "air")
_RANGE = re.compile(r"(\w+)=(-?[0-9.]+?)\.\.(-?[0-9.]+)")


@dataclass(frozen=True)
class Demands:
    """Of the calls of an op: `ranges` of arguments that are ints or floats, lowest and highest; `indices`: arguments
    that are checked once, so that nothing may be written over them; `tensors`: what holds of its tensors, by name
    (`demands`); `shape`: the rule of `shapes` that gives its results', where it is none of torch's own."""

    ranges: Mapping[str, tuple[float, float]]
    indices: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    shape: str = ""


@dataclass(frozen=True)
class Allowed:
    """What a caller lets programs call beyond the table: ops by name, and all of some namespaces."""

    namespaces: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The namespaces of which programs may call some ops."""
        return (*NAMESPACES, *self.namespaces)

    def vouches(self, name: str) -> bool:
        """Whether the caller stands for an op, `namespace::name.overload`."""
        return name in self.ops or name.partition("::")[0] in self.namespaces

    def holds(self, name: str) -> bool:
        """Whether a program may call an op."""
        return name in _table() or self.vouches(name)


def demands(name: str) -> Demands:
    """What is demanded of the calls of an op; nothing where it is not listed."""
    return _table().get(name, _NOTHING)


def names() -> tuple[str, ...]:
    """All that the table lists."""
    return tuple(_table())


@functools.cache
def _table() -> Mapping[str, Demands]:
    found: dict[str, Demands] = {}
    for namespace, text in (("aten::", ATEN), ("", OURS)):
        for line in text.replace("\n    ", " ").splitlines():
            if line and not line.startswith("#"):
                ops, _, rules = line.partition(";")
                base, _, overloads = ops.partition(": ")
                wanted = _demands(rules)
                for overload in overloads.split():
                    found[f"{namespace}{base}" + (f".{overload}" if overload != "-" else "")] = wanted
    return found


@functools.cache
def _demands(rules: str) -> Demands:
    ranges = {name: (float(low), float(high)) for name, low, high in _RANGE.findall(rules)}
    words = rules.split()
    indices = tuple(name for word in words if word.startswith("indices=") for name in word[8:].split(","))
    shape = "".join(word[6:] for word in words if word.startswith("shape="))
    return Demands(ranges, indices, tuple(word for word in words if "=" not in word), shape)


_NOTHING = Demands({})
