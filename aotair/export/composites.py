"""Composite ops of an exported graph are taken apart, but those that stay whole; and what writes becomes functional."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from torch.export import ExportedProgram, exported_program

from ..graph.kept_whole import KEPT_WHOLE

Composite = torch._ops.OperatorBase
_ASKED = "_collect_all_valid_cia_ops"  # what torch asks for the composite ops that could stay whole


def taken_apart(program: ExportedProgram) -> ExportedProgram:
    """The program in functional ops, of which `KEPT_WHOLE` alone are composite.

    `run_decompositions` prepares each of torch's 500 composite ops, also those that the program does not call: half a
    second, most of the time of a small model's build. It is told of those alone that stay whole; it takes the others
    apart as the dispatcher does. A torch that cannot be told so makes the same graph the long way.
    """
    if not hasattr(exported_program, _ASKED):
        made: ExportedProgram = program.run_decompositions(_decompositions())
        return made
    with _told_of(_kept()):
        made = program.run_decompositions({})
    return made


@contextlib.contextmanager
def _told_of(ops: set[Composite]) -> Iterator[None]:
    """Within the block these are all the composite ops that torch finds."""
    asked = getattr(exported_program, _ASKED)
    setattr(exported_program, _ASKED, lambda: ops)
    try:
        yield
    finally:
        setattr(exported_program, _ASKED, asked)


@functools.cache
def _kept() -> set[Composite]:
    """Ops of torch itself alone, which do not change while a process lives."""
    apart = _decompositions()
    return {op for op in getattr(exported_program, _ASKED)() if op not in apart and op.namespace == "aten"}


def _decompositions() -> dict[Composite, Callable[..., object]]:
    """How each composite op with a kernel of its own, but those of `KEPT_WHOLE`, is taken apart."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if has(op.name(), "CompositeImplicitAutograd") and op._schema.name.split("::")[1] not in KEPT_WHOLE
    }
