"""Which op an instruction's name stands for, and whether an artifact may use it."""

import re
from collections.abc import Callable, Iterable

import torch

from ..confine.op_table import NAMESPACES, Allowed
from ..devices import attention as _attention  # noqa: F401 (each defines ops of air that every node has)
from ..devices import channel_affine as _channel_affine  # noqa: F401
from ..devices import collectives as _collectives  # noqa: F401
from ..devices import exchange as _exchange  # noqa: F401
from ..devices import grouped as _grouped  # noqa: F401
from ..devices import grouped_int8 as _grouped_int8  # noqa: F401
from ..devices import int8_linear as _int8_linear  # noqa: F401
from ..devices import int8_rows as _int8_rows  # noqa: F401
from ..devices import latent_attention as _latent_attention  # noqa: F401
from ..errors import NamespaceError, RequirementError
from ..format.schema import Op

_HOST = "to try the artifact on the host, pip install aotair and import it, or aotair.ops.npu, first"
_FIXES = {"npu": f"install torch_npu; {_HOST}", "air": _HOST}
# By namespace: what defines its ops for the host, where nobody has. An artifact names ops, never what is imported.
_providers: dict[str, Callable[[], None]] = {}
_NAME = re.compile(r"([A-Za-z0-9_]+)::([A-Za-z0-9_]+)(?:\.([A-Za-z0-9_]+))?")


def provide(namespaces: Iterable[str], define: Callable[[], None]) -> None:
    """Let `define` be called when a load on the CPU needs an op of these namespaces that has no kernel there yet."""
    _providers.update(dict.fromkeys(namespaces, define))


def _runs_on_host(name: str) -> bool:
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return torch._C._dispatch_has_kernel(name) and any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys
    )


def resolve(op: Op, allowed: Allowed, where: str, *, host: bool = False) -> torch._ops.OpOverload:
    """The torch op that `op` names; `host`: it will run on the CPU, with kernels that somebody may `provide`.

    Raises NamespaceError where a program may not use it, RequirementError where this torch lacks it or gives it
    another schema than the one it was built against.
    """
    match = _NAME.fullmatch(op.name)
    if match is None or not allowed.holds(op.name):
        raise _not_allowed(op, match, where)
    namespace, base, overload = match.groups()
    if host and namespace in _providers and not _runs_on_host(op.name):
        _providers[namespace]()
    found = torch._C._dispatch_has_kernel(op.name)
    target = getattr(getattr(getattr(torch.ops, namespace), base, None), overload or "default", None) if found else None
    missing = host and namespace in _FIXES and not _runs_on_host(op.name)
    if missing or not isinstance(target, torch._ops.OpOverload):
        raise RequirementError(
            f"this node has no op {op.name}" + (" for the CPU" if missing else ""),
            where=where,
            fix=_FIXES.get(namespace, f"import the package that defines {namespace}:: ops first")
            + ", or install the torch it was built with",
        )
    if str(target._schema) != op.schema:
        raise RequirementError(
            f"the op {op.name} has another schema here",
            where=where,
            expected=op.schema,
            got=str(target._schema),
            fix=f"build the artifact with torch {torch.__version__}",
        )
    return target


def _not_allowed(op: Op, match: re.Match[str] | None, where: str) -> NamespaceError:
    known = match is not None and match[1] in NAMESPACES
    argument = f"allow_ops=[{op.name!r}]" if known else f"allow_namespaces=[{match[1]!r}]" if match else ""
    option = f"--allow-op {op.name}" if known else f"--allow-namespace {match[1]}" if match else ""
    return NamespaceError(
        f"the program calls the op {op.name[:80]}, which the runtime's table does not hold",
        where=where,
        expected=f"an op of the table, of the namespaces {', '.join(NAMESPACES)}",
        fix=f"if you trust the artifact and know the op: load({argument}), or {option}" if match else "",
    )
