"""What an export gives: a graph, and what its placeholders and outputs are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.fx.node import Node

from aotair_runtime.format.schema import Expr, Scalar, Tree

from ..graph.derived import mark_constant, mark_fixed
from ..model.tied_names import Names


@dataclass(frozen=True)
class NamedTensor:
    """A parameter, buffer or lifted constant: the model's name for it and its value."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Exported:
    """A graph with symbolic sizes, whose mutations are `copy_` epilogues, and what its placeholders are.

    `constants` and `states` go by placeholder name; `inputs` are the placeholders of the recipe's inputs, by input
    name in the model's signature order; `outputs` are size expressions (schema.Expr); `structure` is a schema.Tree;
    `names` are those of the model's checkpoints. It serves these `buckets` of the entry point, or all where none is
    given; `why` says why another graph does not serve them. `defaults`
    are the plain values that the method gives its other arguments.
    """

    module: torch.fx.GraphModule
    constants: Mapping[str, NamedTensor]
    states: Mapping[str, NamedTensor]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[Expr, ...], ...]
    structure: Tree
    names: Names = field(default_factory=Names)
    entry: str = "forward"
    buckets: tuple[tuple[int, ...], ...] = ()
    why: str = ""
    defaults: tuple[tuple[str, Scalar], ...] = ()

    def serves(self, sizes: tuple[int, ...]) -> bool:
        """Whether the graph is right for a bucket."""
        return not self.buckets or sizes in self.buckets

    def placeholder(self, name: str) -> Node:
        """The placeholder of an input."""
        found: Node = next(node for node in self.module.graph.nodes if node.name == self.inputs[name])
        return found

    def mark_constants(self, tables: bool) -> None:
        """Tell passes which placeholders stand for constants, and of which `tables` may be made."""
        for node in self.module.graph.find_nodes(op="placeholder"):
            if node.name in self.constants:
                fixed = self.names.kind(self.constants[node.name].name) == "fixed"
                (mark_fixed if tables and fixed else mark_constant)(node)

    def read_constants(self) -> dict[str, NamedTensor]:
        """Those of the constants that the graph reads."""
        read = {node.name for node in self.module.graph.find_nodes(op="placeholder") if node.users}
        return {name: constant for name, constant in self.constants.items() if name in read}
