"""Which constants does a program store, and with which values? Weights, each once, and those made of others."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.artifact.ops import resolve
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import CaptureError
from aotair_runtime.format.mesh import cuts_of, joined, of_rank, ranks_of
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import Axis, Constant, Cut, Program, Prologue, Shard
from aotair_runtime.weights.prologue import derived

from .emit.constants import DistinctTensors
from .emit.emitter import Tables
from .errors import UnsupportedError
from .export.exported import Exported
from .graph.derived import derivations
from .model.tied_names import Names
from .parallel.split import Part
from .prologue import Derivations


class StoredConstants:
    """The constants of all graphs of a build; `names`, `share` and `parts` are those of `DistinctTensors`."""

    def __init__(self, names: Names, share: bool, parts: Mapping[str, Part], mesh: Sequence[Axis]):
        self._distinct, self._derivations = DistinctTensors(names, share, parts), Derivations()
        self._mesh = mesh

    def name_of(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a tensor of the model is stored."""
        return self._distinct.name_of(name, tensor)

    def names(self, exported: Exported) -> dict[str, str]:
        """By placeholder, the names of the constants that a graph reads."""
        found = {p: self.name_of(c.name, c.tensor) for p, c in exported.read_constants().items()}
        return found | self.made_by(exported.module.graph, exported)

    def made_by(self, graph: torch.fx.Graph, exported: Exported) -> dict[str, str]:
        """By placeholder, the names of those that are made of the constants of `exported`: its graph's, or a
        bucket's."""
        found = {}
        for placeholder, derivation, result in derivations(graph):
            reads = {node.name: exported.constants[node.name] for node in derivation.graph.find_nodes(op="placeholder")}
            known = {p: self.name_of(c.name, c.tensor) for p, c in reads.items()}
            found[placeholder.name] = self._derivations.names_of(derivation, known)[result]
        return found

    def prologue(self, tables: Tables, effort: float, alignment: int) -> Prologue:
        """How the derived ones of `tables.constants` are made; what it needs beside them is added there."""
        return self._derivations.prologue(tables, self._distinct.constant, effort, alignment)

    def constant(self, name: str) -> Constant:
        """A constant as the program describes it."""
        return self._derivations.constant(name) or self._distinct.constant(name)

    def whole(self, program: Program) -> tuple[Program, dict[str, torch.Tensor]]:
        """The program, whose derived constants say how they are shared out too, and the values of its constants by
        name, whole. Raises UnsupportedError where the prologue fails here."""
        plain = {c.name: self._distinct.tensor(c.name) for c in program.constants if c.kind != "derived"}
        shards = [c.shard for c in tensors(program) if c.shard is not None]
        axes = sorted({cut.axis for shard in shards for cut in cuts_of(shard)})
        if not axes:
            return program, plain | derived_values(program, self._distinct.tensor)
        # Along the other axes every rank has what the first has.
        places = list(itertools.product(*(range(self._mesh[axis].size) for axis in axes)))
        made = {place: self._derived_at(program, dict(zip(axes, place))) for place in places}
        found = {name: self._shared_out(program, name, axes, made) for name in made[places[0]]}
        described = tuple(replace(c, shard=found[c.name][0] if c.name in found else c.shard) for c in program.constants)
        return replace(program, constants=described), plain | {name: whole for name, (_, whole) in found.items()}

    def _derived_at(self, program: Program, places: Mapping[int, int]) -> dict[str, torch.Tensor]:
        """What a rank makes that is at these places along some axes, and the first along all others."""
        rank = sum(place * ranks_of(self._mesh[axis + 1 :]) for axis, place in places.items())
        known = self._distinct
        return derived_values(program, lambda n: of_rank(known.tensor(n), known.constant(n), self._mesh, rank))

    def _shared_out(
        self,
        program: Program,
        name: str,
        axes: Sequence[int],
        made: Mapping[tuple[int, ...], Mapping[str, torch.Tensor]],
    ) -> tuple[Shard | None, torch.Tensor]:
        """How ranks share out a derived constant, if they do, and the whole, of what they have at each place along
        these axes. Raises UnsupportedError where it would have to be cut along three axes, or is one number."""
        values = {place: tensors[name] for place, tensors in made.items()}
        sizes = [self._mesh[axis].size for axis in axes]
        counts = [_parts_along(values, number, size) for number, size in enumerate(sizes)]
        cuts = [Cut(axis, 0, count) for axis, count in zip(axes, counts) if count > 1]
        first = next(iter(values.values()))
        if not cuts:
            return None, first
        if len(cuts) > 2 or not first.dim():
            raise UnsupportedError(
                f"the weight {name}, which is computed before any call, differs between ranks in a way that is not "
                "stored",
                where=program.name,
                fix="config.experimental_config.fold_constants: false computes it in each call",
            )
        shard = Shard(cuts[0].axis, 0, cuts[0].parts, again=cuts[1] if len(cuts) > 1 else None)
        owners = itertools.product(*(range(0, size, size // count) for size, count in zip(sizes, counts)))
        return shard, joined([values[place] for place in owners], shard)


def _parts_along(values: Mapping[tuple[int, ...], torch.Tensor], number: int, size: int) -> int:
    """In how few parts ranks have tensors along an axis of that size, the `number`th of their places: neighbours that
    share one have the same; 1 where all have."""

    def owner(place: tuple[int, ...], step: int) -> tuple[int, ...]:
        return (*place[:number], place[number] // step * step, *place[number + 1 :])

    counts = (count for count in range(1, size + 1) if not size % count)
    return next(
        count
        for count in counts
        if all(same_bytes((value, values[owner(place, size // count)])) for place, value in values.items())
    )


def derived_values(program: Program, value: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the program's prologue makes, by name, of the values that `value` gives. Raises UnsupportedError where an
    instruction fails on this machine."""
    there = tensors(program)
    own = Allowed(ops=tuple(op.name for op in program.ops))
    ops = [resolve(op, own, program.name, host=True) for op in program.ops] if program.prologue.parts else []
    try:
        made = derived(program, ops, lambda number: value(there[number].name))
    except CaptureError as error:
        raise UnsupportedError(
            f"weights cannot be computed before a call: {error.what}",
            where=error.where,
            fix="config.experimental_config.fold_constants: false computes them in each call",
        ) from error
    return {there[number].name: tensor for number, tensor in made.items()}
