"""Which constants does a program store, and with which values? Weights, each once, and those made of others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.artifact.ops import resolve
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import CaptureError
from aotair_runtime.format.mesh import joined, of_rank, ranks_of
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import Axis, Constant, Program, Prologue, Shard
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
        axes = {c.shard.axis for c in tensors(program) if c.shard is not None}
        if not axes:
            return program, plain | derived_values(program, self._distinct.tensor)
        shards, derived = dict[str, Shard](), dict[str, torch.Tensor]()
        for axis in sorted(axes):  # along the others every rank has what the first has
            made = [self._derived_at(program, axis, place) for place in range(self._mesh[axis].size)]
            for name in made[0]:
                parts = _distinct_parts([one[name] for one in made])
                if len(parts) > 1:
                    _refuse_twice(program, name, shards, parts[0])
                    shards[name] = Shard(axis, 0, len(parts))
                    derived[name] = joined(parts, shards[name])
                else:
                    derived.setdefault(name, made[0][name])
        described = tuple(replace(c, shard=shards.get(c.name, c.shard)) for c in program.constants)
        return replace(program, constants=described), plain | derived

    def _derived_at(self, program: Program, axis: int, place: int) -> dict[str, torch.Tensor]:
        """What a rank makes that is at that place along one axis, and the first along all others."""
        rank = place * ranks_of(self._mesh[axis + 1 :])
        known = self._distinct
        return derived_values(program, lambda n: of_rank(known.tensor(n), known.constant(n), self._mesh, rank))


def _distinct_parts(made: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The fewest parts, of which neighbouring ranks have the same: one where all have."""
    ranks = len(made)
    for count in (n for n in range(1, ranks + 1) if not ranks % n):
        parts = [made[number * ranks // count] for number in range(count)]
        if all(same_bytes((one, parts[rank * count // ranks])) for rank, one in enumerate(made)):
            return parts
    return list(made)


def _refuse_twice(program: Program, name: str, shards: Mapping[str, Shard], value: torch.Tensor) -> None:
    """Raises UnsupportedError where a derived constant would have to be cut in two ways, or is one number."""
    if name in shards or not value.dim():
        raise UnsupportedError(
            f"the weight {name}, which is computed before any call, differs between ranks in a way that is not stored",
            where=program.name,
            fix="config.experimental_config.fold_constants: false computes it in each call",
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
