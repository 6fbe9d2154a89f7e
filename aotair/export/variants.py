"""As few graphs as the buckets of an entry point need: one with symbolic sizes where there is one, else some.

Where torch.export finds no graph for all sizes in their ranges, it is asked for one at a bucket's own sizes, which may
assume of a size what it finds there. The assumptions say for which of the other buckets that graph is right too.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from aotair_runtime.format.schema import Expr
from aotair_runtime.format.sizes import evaluate

from ..errors import ExportError, SizesError, UnsupportedError
from ..graph.operand import operands
from ..recipe.entry import EntryJob
from .export import export, export_at
from .exported import Exported
from .guards import Assumption

log = logging.getLogger("aotair")


def export_buckets(model: torch.nn.Module, job: EntryJob) -> list[Exported]:
    """The graphs of an entry point, each with the buckets that it serves. Raises ExportError, UnsupportedError."""
    buckets = job.bucket_sizes()
    try:
        return [replace(export(model, job), buckets=buckets)]
    except SizesError as error:
        if not job.dims():
            raise
        log.info("%s: not one graph for all buckets: %s", job.where, error.got)
    found: list[Exported] = []
    left, why = list(reversed(buckets)), ""
    while left:
        one, assumptions = export_at(model, job, left[0])
        served = [sizes for sizes in left if sizes == left[0] or assumptions.why_not(sizes) is None]
        found.append(replace(one, buckets=tuple(sorted(served)), why=why))
        left = [sizes for sizes in left if sizes not in served]
        why = _why(job, left[0], assumptions.why_not(left[0])) if left else ""
        log.info("%s: %d graphs, %d buckets left%s", job.where, len(found), len(left), f": {why}" if why else "")
    return _with_one_interface(found, job, _smaller(model, job))


def _smaller(model: torch.nn.Module, job: EntryJob) -> dict[tuple[int, ...], Exported]:
    """By sizes, graphs of calls that are padded to the only size which buckets have, where there are such graphs."""
    found = {}
    for sizes in job.smaller_calls():
        try:
            found[sizes], _ = export_at(model, job, sizes)
        except ExportError as error:
            log.info("%s: no graph at %s: %s", job.where, sizes, error.what)
    return found


def _why(job: EntryJob, sizes: Sequence[int], why: Assumption | None) -> str:
    bucket = ", ".join(f"{dim}={size}" for dim, size in zip(job.dims(), sizes))
    return f"{bucket} needs another graph than those before: {why}"


def _with_one_interface(
    found: Sequence[Exported], job: EntryJob, smaller: Mapping[tuple[int, ...], Exported]
) -> list[Exported]:
    """The graphs with output sizes that hold for all of them, and for `smaller` calls. Raises UnsupportedError where
    they return different things."""
    first = found[0]
    for other in found[1:]:
        kinds = [
            [node.meta["val"].dtype for node in operands(one.module.graph.output_node())] for one in (first, other)
        ]
        ranks = [[len(shape) for shape in one.outputs] for one in (first, other)]
        if first.structure != other.structure or kinds[0] != kinds[1] or ranks[0] != ranks[1]:
            raise UnsupportedError(
                "the model returns other things for some sizes than for others",
                where=job.where,
                expected=f"what it returns at {first.buckets[0]}",
                got=f"another structure at {other.buckets[0]}",
                fix="make an entry point of each, with a method of the model for it",
            )
    outputs = tuple(
        tuple(_size(found, job, number, axis, smaller) for axis in range(len(shape)))
        for number, shape in enumerate(first.outputs)
    )
    return [replace(one, outputs=outputs) for one in found]


def _size(
    found: Sequence[Exported], job: EntryJob, number: int, axis: int, smaller: Mapping[tuple[int, ...], Exported]
) -> Expr:
    """The size of an output along an axis, as an expression that is right for every bucket, and smaller calls."""
    wanted = {sizes: evaluate(one.outputs[number][axis], sizes) for sizes, one in smaller.items()}
    wanted |= {sizes: evaluate(one.outputs[number][axis], sizes) for one in found for sizes in one.buckets}
    known = [one.outputs[number][axis] for one in found]
    for expr in (*known, *_guesses(wanted, len(job.dims()))):
        if all(evaluate(expr, sizes) == size for sizes, size in wanted.items()):
            return expr
    raise UnsupportedError(
        f"the size of the output {number} along the axis {axis} follows no formula",
        where=job.where,
        got="; ".join(f"{size} at {sizes}" for sizes, size in list(wanted.items())[:4]),
        expected="a sum, product or quotient of a dimension and a number",
        fix="leave out the buckets that differ, or make an entry point for them",
    )


def _guesses(wanted: Mapping[tuple[int, ...], int], dims: int) -> list[Expr]:
    """Formulas that fit at one bucket and may at all."""
    sizes, size = next(iter(wanted.items()))
    guesses: list[Expr] = []
    for axis in range(dims):
        dim: Expr = ("dim", axis)
        there = sizes[axis]
        guesses += [dim, ("+", dim, size - there)]
        if size % there == 0:
            guesses.append(("*", dim, size // there))
        guesses += [("//", ("+", dim, more), by) for by in range(2, 65) for more in (0, by - 1)]
        for other in range(axis):  # what view(2, -1) makes of two dimensions
            product: Expr = ("*", dim, ("dim", other))
            elements = there * sizes[other]
            if elements % size == 0:
                guesses.append(("//", product, elements // size))
            if size % elements == 0:
                guesses.append(("*", product, size // elements))
    return guesses
