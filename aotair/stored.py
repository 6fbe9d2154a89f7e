"""Which constants does a program store, and with which values? Weights, each once, and those made of others."""

from collections.abc import Callable

import torch

from aotair_runtime.artifact.ops import resolve
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import CaptureError
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import Constant, Program, Prologue
from aotair_runtime.weights.prologue import derived

from .emit.constants import DistinctTensors
from .emit.emitter import Tables
from .errors import UnsupportedError
from .export.exported import Exported
from .graph.derived import derivations
from .model.tied_names import Names
from .prologue import Derivations


class StoredConstants:
    """The constants of all graphs of a build; `names` and `share` are those of `DistinctTensors`."""

    def __init__(self, names: Names, share: bool):
        self._distinct, self._derivations = DistinctTensors(names, share), Derivations()

    def name_of(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a tensor of the model is stored."""
        return self._distinct.name_of(name, tensor)

    def names(self, exported: Exported) -> dict[str, str]:
        """By placeholder, the names of the constants that a graph reads."""
        found = {p: self.name_of(c.name, c.tensor) for p, c in exported.read_constants().items()}
        for placeholder, derivation, result in derivations(exported.module.graph):
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

    def values(self, program: Program) -> dict[str, torch.Tensor]:
        """The values of the program's constants, by name. Raises UnsupportedError where the prologue fails here."""
        plain = {c.name: self._distinct.tensor(c.name) for c in program.constants if c.kind != "derived"}
        return plain | derived_values(program, self._distinct.tensor)


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
