"""How an op that a vendor's package brings is defined where that package is absent: schema, shapes, host kernel."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..errors import UnsupportedError

Kernel: TypeAlias = Callable[..., object]
_libraries: dict[tuple[str, str], torch.library.Library] = {}


class Unserved(UnsupportedError):
    """A host kernel was given what it does not serve. It is raised where shapes are asked for, too: a build stops at
    the call, and plans nothing that the device would make otherwise."""

    def __init__(self, what: str, *, expected: str = "", got: str = ""):
        fix = "call it with what its host kernel serves, which a build proves programs by, or write it with other ops"
        super().__init__(what, expected=expected, got=got, fix=fix)


def refuse(op: str, given: Mapping[str, object]) -> None:
    """Every argument that the host kernel of `npu::op` does not know is at its default; raises Unserved."""
    defaults = {a.name: a.default_value for a in getattr(torch.ops.npu, op).default._schema.arguments}
    for name, value in given.items():
        plain = not isinstance(value, (torch.Tensor, list, tuple))
        if value is not None and not (plain and type(value) is type(defaults[name]) and value == defaults[name]):
            raise Unserved(f"the host kernel of {op} takes no {name}", expected=f"{name}={defaults[name]}")


def only(op: str, name: str, value: object, served: Iterable[object]) -> None:
    """Raises Unserved where an argument of `npu::op` has a value that its host kernel does not serve."""
    known = tuple(served)
    if value not in known:
        raise Unserved(f"the host kernel of {op} knows no {name}={value!r}", expected=", ".join(map(repr, known)))


@dataclass(frozen=True)
class HostOp:
    """`schema` without the namespace; `kernel` takes CPU tensors, and meta tensors where `shape` is None.

    `functional` names the op that returns what this one writes into its first argument: torch.export asks for it.
    """

    schema: str
    kernel: Kernel
    shape: Kernel | None = None
    functional: str | None = None

    @property
    def name(self) -> str:
        """`name` or `name.overload`."""
        return self.schema.partition("(")[0]


def define_op(namespace: str, ops: Iterable[HostOp]) -> None:
    """Define the ops that nobody has defined, and give every one a host kernel where it has none.

    Where the vendor's package is present, its schemas and its Meta kernels stay, and only what it lacks is added.
    """
    library = _libraries.setdefault((namespace, "FRAGMENT"), torch.library.Library(namespace, "FRAGMENT"))
    for op in ops:
        name = f"{namespace}::{op.name}"
        if not _is_defined(name):
            library.define(op.schema)
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
            library.impl(op.name, op.shape or op.kernel, "Meta")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            library.impl(op.name, op.kernel, "CPU")
        if op.functional and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Functionalize"):
            library.impl(op.name, _functionalized(namespace, op.functional), "Functionalize")


def _functionalized(namespace: str, functional: str) -> Kernel:
    """An op that writes into its first argument, as one that does not and a copy."""

    def run(target: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return target.copy_(getattr(getattr(torch.ops, namespace), functional)(target, *args, **kwargs))

    return run


def _is_defined(name: str) -> bool:
    base, _, overload = name.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(base, overload)
    except RuntimeError:
        return False
    return True
