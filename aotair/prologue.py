"""From graphs over constants to the prologue: which derived constants there are, and the programs that make them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx.node import Node, map_arg

from aotair_runtime.format.schema import Bucket, Constant, Part, Prologue, Space

from .emit.emitter import Table, Tables, emit
from .errors import InternalError
from .graph.derived import Derivation
from .graph.fake import fake_mode
from .graph.operand import results_of
from .lower.select import select
from .lower.specialise import specialise
from .passes import reinplace_inplaceable_ops
from .passes.edits import Edits
from .plan.check import violations
from .plan.lifetimes import Home, Lifetimes, Root, lifetimes
from .plan.search.arena import plan_arena
from .target.target import Target

_HOST, _aten = Target("cpu", packs=False), torch.ops.aten


@dataclass(frozen=True)
class _Made:
    """One derivation: its constants' names, by placeholder those of what it reads, and its graph."""

    names: tuple[str, ...]
    reads: Mapping[str, str]
    graph: torch.fx.Graph


class Derivations:
    """The derivations of all graphs of a build, each once: two graphs that compute the same share the constants."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], _Made] = {}
        self._constants: dict[str, Constant] = {}

    def names_of(self, derivation: Derivation, reads: Mapping[str, str]) -> tuple[str, ...]:
        """The names of the constants that it makes; `reads` gives that of each placeholder."""
        key = _text(derivation.graph, reads)
        if key not in self._made:
            mine = {node.name: reads[node.name] for node in derivation.graph.find_nodes(op="placeholder")}
            names = tuple(self._named(result, mine) for result in results_of(derivation.graph))
            self._made[key] = _Made(names, mine, derivation.graph)
        return self._made[key].names

    def _named(self, result: Node, reads: Mapping[str, str]) -> str:
        """A name that says what the constant follows from, and the last op that makes it."""
        op = str(getattr(result.target, "_opname", result.name)).strip("_")
        plain = f"{next(iter(reads.values()), 'computed')}:{op}"
        name, number = plain, 1
        while name in self._constants:
            number += 1
            name = f"{plain}.{number}"
        value = result.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        self._constants[name] = Constant(name, dtype, tuple(value.shape), "derived", ((name,),))
        return name

    def constant(self, name: str) -> Constant | None:
        """A derived constant as the program describes it; None for another."""
        return self._constants.get(name)

    def prologue(self, tables: Tables, described: Callable[[str], Constant], effort: float, alignment: int) -> Prologue:
        """The parts that make what `tables.constants` holds; `described` says what they read. Constants that no
        checkpoint has are stored for them, in `tables`."""
        wanted = set(tables.constants.values())
        parts = [made for made in self._made.values() if wanted.intersection(made.names)]
        for made in parts:
            for name in (*made.names, *(n for n in made.reads.values() if described(n).kind == "fixed")):
                tables.constants.number(name)
        stored = tables.constants.values()
        sources = [n for n in dict.fromkeys(n for made in parts for n in made.reads.values()) if n not in stored]
        number = {name: position for position, name in enumerate((*stored, *sources))}
        found = []
        for made in parts:
            bucket = _emitted(made, tables, effort, alignment)
            reads = tuple(number[name] for name in dict.fromkeys(made.reads.values()))
            found.append(Part(reads, tuple(number[name] for name in made.names), bucket))
        arena = max((part.bucket.height for part in found), default=0)
        return Prologue(tuple(map(described, sources)), tuple(found), -(-arena // alignment) * alignment)


def _text(graph: torch.fx.Graph, reads: Mapping[str, str]) -> tuple[object, ...]:
    """Equal for graphs that make the same of the same constants."""
    known: dict[Node, str] = {}
    lines: list[object] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = reads[node.name]
        else:
            known[node] = f"%{len(lines)}"
            lines.append((str(node.target), repr(map_arg((node.args, node.kwargs), known.__getitem__))))
    return tuple(lines)


def _emitted(made: _Made, tables: Tables, effort: float, alignment: int) -> Bucket:
    """The program that writes the results into its inputs, which are the constants that it makes."""
    graph, outs = _concrete(made.graph)
    local = replace(tables, constants=Table())
    for name in dict.fromkeys(made.reads.values()):
        local.constants.number(name)
    kernels = select(graph, _HOST)
    spaces = dict.fromkeys(made.reads, Space.CONSTANT) | dict.fromkeys(outs, Space.CALLER)
    lives = _into_inputs(graph, lifetimes(graph, spaces, kernels), len(outs))
    plan = plan_arena(lives.intervals, alignment, effort)
    if wrong := violations(lives.intervals, plan, alignment):
        raise InternalError(f"the prologue of {made.names[0]}: the memory plan is wrong: {wrong[0]}")
    graph.output_node().args = ((),)  # whoever runs it has the inputs
    return emit(graph, lives, plan, local, made.reads, outs, (), kernels)


def _concrete(graph: torch.fx.Graph) -> tuple[torch.fx.Graph, Sequence[str]]:
    """The graph, specialised, with a placeholder for each of its results, which have memory of their own without gaps;
    and the placeholders' names."""
    copy = torch.fx.Graph()
    env = {node: copy.node_copy(node) for node in graph.find_nodes(op="placeholder")}
    outs = []
    for number, result in enumerate(results_of(graph)):
        out = copy.placeholder(f"made_{number}")
        out.meta["val"] = _like(result)
        outs.append(out.name)
    for node in graph.nodes:
        if node.op != "placeholder":
            env[node] = copy.node_copy(node, env.__getitem__)
    module = torch.fx.GraphModule({}, copy)
    reinplace_inplaceable_ops.run(module, Edits("reinplace_inplaceable_ops", _HOST))
    concrete = specialise(module, {}, "the prologue", _HOST).graph
    concrete.output_node().args = (tuple(map(_in_memory_of_its_own, results_of(concrete))),)
    return concrete, outs


def _in_memory_of_its_own(result: Node) -> Node:
    """The result, or a copy where it lies with gaps or in a larger tensor."""
    value: torch.Tensor = result.meta["val"]
    if value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes:
        return result
    graph = result.graph
    with graph.inserting_before(graph.output_node()):
        copied = graph.call_function(_aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
    copied.meta["val"] = _like(result)
    return copied


def _like(node: Node) -> torch.Tensor:
    """A fake tensor of the node's shape and dtype, without gaps and in memory of its own."""
    with fake_mode(node.graph):
        return torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)


def _into_inputs(graph: torch.fx.Graph, lives: Lifetimes, count: int) -> Lifetimes:
    """The results lie in the last `count` placeholders, and take no memory of the arena."""
    first = len(graph.find_nodes(op="placeholder")) - count
    moved: dict[Root, Root] = {}
    for number, result in enumerate(results_of(graph)):
        home = lives.home(result)
        if home is None or home.root.space != Space.ARENA or home.root in moved:
            raise InternalError(f"the prologue's result {result.name} has no memory of its own")
        moved[home.root] = Root(Space.CALLER, first + number)
    homes = {key: Home(moved.get(home.root, home.root), home.offset) for key, home in lives.homes.items()}
    gone = {root.index for root in moved}
    intervals = tuple(replace(item, size=0) if n in gone else item for n, item in enumerate(lives.intervals))
    return replace(lives, homes=homes, intervals=intervals)
