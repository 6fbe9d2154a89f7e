"""Which calls of a bucket belong to which module of the model, and which layers of it are alike?"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..diff.flow import Step

Part: TypeAlias = "int | Module"  # a call by its number, or a module within


@dataclass
class Module:
    """A module of the model with its calls and the modules within, in the order in which they are first called; or,
    where `alike` is not 0, that many layers one after another that make the same calls."""

    name: str
    path: str
    parts: list[Part] = field(default_factory=list)
    alike: int = 0

    @property
    def calls(self) -> int:
        """How many calls it makes in all."""
        return sum(1 if isinstance(part, int) else part.calls for part in self.parts)


def tree(steps: Sequence[Step]) -> Module:
    """The model, whose own calls and modules are its parts. Calls that belong to no module are the model's."""
    root, known = Module("", ""), dict[str, Module]()
    for number, step in enumerate(steps):
        path = "" if step.made.module == "." else step.made.module
        _at(path, root, known).parts.append(number)
    _Alike(steps).gather(root)
    root.parts = [_joined(part) for part in root.parts]
    return root


def _at(path: str, root: Module, known: dict[str, Module]) -> Module:
    """The module of that path, made with all that it lies in where it is not there yet."""
    if not path:
        return root
    if path not in known:
        outer, _, name = path.rpartition(".")
        known[path] = Module(name, path)
        _at(outer, root, known).parts.append(known[path])
    return known[path]


def _joined(part: Part) -> Part:
    """A module that has nothing but one other is shown as that one, with the names of both."""
    if isinstance(part, int):
        return part
    part.parts = [_joined(inner) for inner in part.parts]
    (*more, inner) = part.parts
    if more or isinstance(inner, int) or inner.alike or part.alike:
        return part
    return Module(f"{part.name}.{inner.name}", inner.path, inner.parts)


class _Alike:
    """Gathers layers that make the same calls, with the same arguments and results but for weights."""

    def __init__(self, steps: Sequence[Step]):
        self._steps = steps
        self._kinds: dict[object, int] = {}

    def gather(self, module: Module) -> int:
        """Gather what is alike in a module and below, and give the number of its kind: equal for equal calls."""
        kinds = [(self._kind(part), _layer(part)) for part in module.parts]
        runs = itertools.groupby(zip(kinds, module.parts), key=lambda item: item[0] if item[0][1] else object())
        module.parts = [part for _, run in runs for part in _gathered([part for _, part in run])]
        return self._number(tuple(kinds))

    def _kind(self, part: Part) -> object:
        if isinstance(part, Module):
            return (None if _layer(part) else part.name, self.gather(part))
        step = self._steps[part]
        return (step.computes, step.said, step.writes)

    def _number(self, kind: object) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))


def _layer(part: Part) -> bool:
    """Whether it is one of several that are numbered."""
    return isinstance(part, Module) and part.name.isdigit()


def _gathered(run: list[Part]) -> Iterator[Part]:
    first, last = run[0], run[-1]
    if len(run) == 1 or isinstance(first, int) or isinstance(last, int):
        yield from run
    else:
        yield Module(f"{first.name} to {last.name}", first.path, list(run), len(run))
