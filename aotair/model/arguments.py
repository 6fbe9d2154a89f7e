"""The arguments of the model's method, made of the recipe's inputs and constants, which are flat and have dotted names.

`batch.ids` lies under "ids" in the argument `batch`: an item of a dict or list, or what the method's annotation or the
recipe's `types` says, a tuple, named tuple or data class.
"""

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.utils import _pytree

from aotair_runtime.format.dotted_names import PLAIN, Branch, tree_of
from aotair_runtime.format.schema import Scalar

from ..errors import ModelError
from ..recipe.entry import EntryJob
from ..recipe.imports import import_callable
from ..recipe.recipe import CONTAINERS

_Make = Callable[[Mapping[str, object]], object]


class MethodArguments:
    """Those of one entry point's method. Raises ModelError where a type of the recipe is not found."""

    def __init__(self, method: Callable[..., object], job: EntryJob):
        self._job = job
        self._constants = job.constant_values()
        self._types = {path: self._imported(path, name) for path, name in job.types.items()}
        parameters, hints = inspect.signature(method).parameters, _hints(method)
        tree = tree_of([*job.inputs, *self._constants])
        self._several = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL and n in tree), None)
        # By position what cannot be passed by name: all before *args, where these are given.
        before = list(parameters)[: list(parameters).index(self._several)] if self._several else []
        self._by_position = [
            n for n, p in parameters.items() if n in tree and (p.kind is p.POSITIONAL_ONLY or n in before)
        ]
        self._defaults = {n: parameters[n].default for n in before if n not in tree}
        self._leading = [n for n in parameters if n in self._by_position or n in self._defaults]
        self._make: dict[str, _Make] = {}
        for name, branch in tree.items():
            if name == self._several:
                self._make[name] = self._made(name, branch, tuple, lambda step: hints.get(name))  # noqa: B023
            else:
                self._make[name] = self._maker(name, branch, hints.get(name))

    def __call__(self, values: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments, of the inputs' values by name."""
        values = {**self._constants, **values}
        found = {name: make(values) for name, make in self._make.items()}
        args = [found.pop(name) if name in found else self._defaults[name] for name in self._leading]
        rest = found.pop(self._several) if self._several else ()
        assert isinstance(rest, tuple), "made so in __init__"
        return (*args, *rest), found

    # ---- structures ----------------------------------------------------------------------------------------------

    def _imported(self, path: str, name: str) -> type:
        if name in CONTAINERS:
            return CONTAINERS[name]
        found = import_callable(name, self._job.folder, self._job.where, f"types.{path}", anew=False)
        if not isinstance(found, type):
            raise ModelError(
                f"types.{path}: {name!r} is no class",
                where=self._job.where,
                expected="dict, list, tuple, or a class (module:Class)",
                got=type(found).__name__,
            )
        return found

    def _maker(self, path: str, branch: Branch, hint: object) -> _Make:
        if not branch:
            return lambda values: values[path]
        kind, inner = _container(hint)
        if path in self._types:
            kind, inner = self._types[path], _children(self._types[path], ())
        return self._made(path, branch, kind, inner)

    def _made(self, path: str, branch: Branch, kind: type | None, inner: Callable[[str], object]) -> _Make:
        parts = {step: self._maker(f"{path}.{step}", child, inner(step)) for step, child in branch.items()}
        put_together = _putting_together(kind, tuple(parts))

        def make(values: Mapping[str, object]) -> object:
            items = {step: part(values) for step, part in parts.items()}
            try:
                return put_together(items)
            except Exception as error:
                raise ModelError(
                    f"inputs.{path}: no {getattr(kind, '__name__', kind)} can be made of {', '.join(items)}: "
                    f"{type(error).__name__}: {error}",
                    where=self._job.where,
                    expected="an input or a constant for each thing that it needs",
                    fix=f"add {path}.NAME to inputs or constants, or say what it is made of with types: {{{path}: …}}",
                ) from error

        return make


def in_signatures_order(method: Callable[..., object], names: Sequence[str]) -> list[str]:
    """The names of inputs in the order in which the method takes them by position; then those that it takes by keyword
    only, in their own order, as those within one argument are."""
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    places = {item.name: place for place, item in enumerate(parameters) if item.kind not in by_keyword}
    return sorted(names, key=lambda name: places.get(name.partition(".")[0], len(places)))


def plain_defaults(method: Callable[..., object], given: Sequence[str]) -> dict[str, Scalar]:
    """The plain values that the method gives those of its arguments that are not `given`."""
    tops = {name.partition(".")[0] for name in given}
    parameters = inspect.signature(method).parameters.values()
    return {item.name: item.default for item in parameters if item.name not in tops and type(item.default) in PLAIN}


def by_name(method: Callable[..., object], job: EntryJob) -> Callable[..., object]:
    """The method, called with the recipe's inputs by name, and nothing else."""
    by_position = any(p.kind is p.POSITIONAL_ONLY for p in inspect.signature(method).parameters.values())
    if not by_position and not job.constants and not any("." in name for name in job.inputs):
        return method
    arguments = MethodArguments(method, job)

    def call(**values: object) -> object:
        args, kwargs = arguments(values)
        return method(*args, **kwargs)

    return call


def register_results(result: object) -> None:
    """Let torch look into the data classes that a model returns, as it looks into dicts: an artifact has records."""
    while kinds := {type(leaf) for leaf in _pytree.tree_leaves(result) if dataclasses.is_dataclass(type(leaf))}:
        for kind in kinds:
            torch.export.register_dataclass(kind)


# ---- what holds an argument's parts ----------------------------------------------------------------------------------


def _container(hint: object) -> tuple[type | None, Callable[[str], object]]:
    """The kind of container that an annotation names (None: it names none), and the annotations of what it holds."""
    hint = _bare(hint)
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or kind is object or issubclass(kind, (torch.Tensor, bool, int, float, str)):
        return None, _nothing
    return kind, _children(kind, typing.get_args(hint))


def _bare(hint: object) -> object:
    """Without Annotated and Optional; of a union, the first thing that holds others."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        plain = (type(None), torch.Tensor, bool, int, float, str)
        return next((_bare(choice) for choice in typing.get_args(hint) if choice not in plain), None)
    return hint


def _children(kind: type, args: Sequence[object]) -> Callable[[str], object]:
    if issubclass(kind, tuple) and args:
        return lambda step: args[0] if args[-1] is ... else args[int(step)] if int(step) < len(args) else None
    if issubclass(kind, collections.abc.Mapping) and len(args) == 2:
        return lambda step: args[1]
    return (lambda step: args[0]) if len(args) == 1 else _hints(kind).get


def _nothing(step: str) -> None:
    return None


def _hints(thing: object) -> dict[str, object]:
    try:
        return typing.get_type_hints(thing)
    except (NameError, TypeError, AttributeError, SyntaxError):  # names that only a type checker knows
        return {}


def _putting_together(named: type | None, steps: Sequence[str]) -> Callable[[dict[str, object]], object]:
    numbered = all(step.isdigit() for step in steps)
    kind: type = named if named is not None else list if numbered else dict
    if typing.is_typeddict(kind) or kind is dict or (inspect.isabstract(kind) and issubclass(kind, Mapping)):
        return (lambda items: {int(step): item for step, item in items.items()}) if numbered else dict
    if numbered and (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind)):
        return lambda items: kind(*items.values())
    if numbered:
        kind = list if inspect.isabstract(kind) else kind
        return lambda items: kind([items[step] for step in sorted(items, key=int)])
    takes_one = issubclass(kind, Mapping) and not dataclasses.is_dataclass(kind)
    return lambda items: kind(items) if takes_one else kind(**items)
