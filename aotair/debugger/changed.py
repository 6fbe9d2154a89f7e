"""Which calls of a graph made its numbers others than those of the graph before?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx.node import Node

from aotair_runtime.format.schema import Tolerance

from ..graph.operand import results_of
from ..graph.origin import line_of
from ..graph.streams import launches
from .trail import Apart, Trail, worst


@dataclass(frozen=True)
class Culprits:
    """The calls that may have changed the numbers, the likeliest first, with their lines; the first call that both
    graphs have and whose result is another one (empty: none has), and its results. `kernel`: the op whose kernel gives
    other numbers than that of the op it is a form of; `rounds`: what is changed differs by no more than rounding, of
    which a call that is not changed makes more."""

    calls: tuple[str, ...]
    lines: tuple[str, ...]
    seen_at: str
    apart: Apart | None
    kernel: str = ""
    rounds: bool = False


def culprits(
    before: torch.fx.Graph, trail_before: Trail, after: torch.fx.Graph, trail_after: Trail, tolerance: Tolerance
) -> Culprits:
    """Of the first wrong numbers, the calls that lead to them and that the graph `before` has not, or has otherwise."""
    old = {node.name: node for node in before.nodes}
    wrong, found = _first_wrong(after, trail_before, trail_after, tolerance)
    if wrong is None:
        nodes = _returned_or_written(before, after, trail_before, trail_after, tolerance)
        return Culprits(_names(nodes), _lines(nodes), "", None)
    nodes = [node for node in _leading_to([wrong], trail_before, trail_after, tolerance) if _is_changed(node, old)]
    is_changed = _is_changed(wrong, old)
    same_given = not worst(trail_after[wrong.name].given, trail_before[wrong.name].given, tolerance)
    kernel = str(wrong.target) if is_changed and _is_a_form(wrong, old[wrong.name]) else ""
    nodes = nodes or [wrong]
    return Culprits(_names(nodes), _lines(nodes), wrong.name, found, kernel, same_given and not is_changed)


def _returned_or_written(
    before: torch.fx.Graph, after: torch.fx.Graph, trail_before: Trail, trail_after: Trail, tolerance: Tolerance
) -> list[Node]:
    """Where no result of a call that both graphs have is another one: what is returned now that was not, with what it
    follows from, and what is no longer written, or written elsewhere."""
    old, new = ({node.name: node for node in graph.nodes} for graph in (before, after))
    returned = [node for node, was in zip(results_of(after), results_of(before)) if node.name != was.name]
    leading = _leading_to(returned, trail_before, trail_after, tolerance)
    gone = [node for node in before.nodes if _writes(node) and _is_changed(node, new)]
    added = [node for node in after.nodes if _writes(node) and node.name not in old]
    return list(dict.fromkeys([*(node for node in leading if _is_changed(node, old)), *gone, *added]))


def _is_a_form(node: Node, was: Node) -> bool:
    """Whether a call computes what the other did, and differs in where it writes that."""
    names = [str(one.target).split(".")[1].removesuffix("_") for one in (node, was) if "." in str(one.target)]
    return len(set(names)) == 1 and node.target != was.target and (node.args, node.kwargs) == (was.args, was.kwargs)


def _first_wrong(
    graph: torch.fx.Graph, before: Trail, after: Trail, tolerance: Tolerance
) -> tuple[Node | None, Apart | None]:
    for node in graph.nodes:
        seen, was = after.get(node.name), before.get(node.name)
        if seen is not None and was is not None and (found := worst(seen.results, was.results, tolerance)):
            return node, found
    return None, None


def _leading_to(wrong: Sequence[Node], before: Trail, after: Trail, tolerance: Tolerance) -> Iterator[Node]:
    """The calls and those that they follow from, the nearest first, as far as to calls whose results are right."""
    todo, done = list(wrong), set[Node]()
    while todo:
        node = todo.pop(0)
        if node in done or node.op != "call_function":
            continue
        done.add(node)
        seen, was = after.get(node.name), before.get(node.name)
        is_right = (
            node not in wrong and seen and was and seen.results and not worst(seen.results, was.results, tolerance)
        )
        if not is_right:
            yield node
            todo += node.all_input_nodes


def _is_changed(node: Node, old: dict[str, Node]) -> bool:
    """Whether the graph before has no such call, or calls something else there, or with other arguments."""
    was = old.get(node.name)
    return was is None or _text(node) != _text(was)


def _text(node: Node) -> str:
    return f"{node.target} {node.args} {node.kwargs}"


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    """With what works on numbers first: a view alone makes none."""
    return tuple(f"{node.name} ({node.target})" for node in sorted(nodes, key=lambda node: not launches(node)))


def _lines(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(line_of, nodes))))
