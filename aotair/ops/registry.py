"""How an op that a vendor's package brings is defined where that package is absent: schema, shapes, host kernel."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

_libraries: dict[tuple[str, str], torch.library.Library] = {}


@dataclass(frozen=True)
class HostOp:
    """`schema` without the namespace; `kernel` takes CPU tensors, and meta tensors where `shape` is None.

    `functional` names the op that returns what this one writes into its first argument: torch.export asks for it.
    """

    schema: str
    kernel: Callable
    shape: Callable | None = None
    functional: str | None = None

    @property
    def name(self) -> str:
        """`name` or `name.overload`."""
        return self.schema.partition("(")[0]


def define(namespace: str, ops: Iterable[HostOp]) -> None:
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


def _functionalized(namespace: str, functional: str) -> Callable:
    """An op that writes into its first argument, as one that does not and a copy."""

    def run(target: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        return target.copy_(getattr(getattr(torch.ops, namespace), functional)(target, *args, **kwargs))

    return run


def _is_defined(name: str) -> bool:
    base, _, overload = name.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(base, overload)
    except RuntimeError:
        return False
    return True
