"""Scopes and events become streams and events of the capture, every hazard between streams is found, and every side
stream forks from the main one and joins it.

In: `torch.ops.air` nodes as a pass written for TorchAir leaves them. Out: each node's stream in `meta["stream"]`,
events as `tagged_event_record`/`tagged_event_wait` nodes with numbers in `meta["event"]`, and no other `air` node.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.fx.node import Node

from ..errors import GraphError
from ..graph.alias import base, root, written_by
from ..graph.operand import operand, operands
from ..graph.order import Clock, Order
from ..graph.origin import copied
from ..graph.streams import RECORD, WAIT, launches, stream_of
from ..graph.user_line import source
from ..ops import air
from .edits import Edits

air.define()
_LABEL, _PRIORITY = "_user_stream_label", "_user_stream_priority"
_HINT = "Please check your code or your post_grad_custom_pre_pass post_grad_custom_post_pass!"
Recorded = tuple[Node, Clock]  # an event: the node that records it, and what is done when it does


def run(module: torch.fx.GraphModule, edits: Edits, *, hazards: str = "repair") -> None:
    """`hazards` (the option `stream_hazards`) says what to do with a use on one stream of what another one makes or
    still reads, where no event orders them: "repair" it with an event, "refuse" the graph (GraphError), or "allow" it.
    """
    graph = module.graph
    plan = _Scopes(graph)
    if plan.streams == 1 and not plan.events:
        return
    for node, stream in plan.stream.items():
        node.meta["stream"] = stream
    writer = _Writer(graph, plan, edits, hazards)
    for node in plan.nodes:
        writer.add(node)
    writer.join()
    for node in reversed(plan.consumed):
        graph.erase_node(node)
    graph.output_node().meta["streams"] = plan.streams
    graph.output_node().meta["priorities"] = plan.priorities


def labels(graph: torch.fx.Graph) -> dict[Node, int]:
    """The stream of each node that stands in a scope, before this pass: 0 is the main one. A scope that is still open
    holds all that follows: a pass that comes later may close it."""
    return _Scopes(graph, pairs=False).stream


# ---- what the nodes say ----------------------------------------------------------------------------------------------


@dataclass
class _Scopes:
    """The streams of all nodes by the scopes they stand in, and the events that are asked for."""

    graph: torch.fx.Graph
    pairs: bool = True  # whether every scope has to be closed
    nodes: list[Node] = field(default_factory=list)  # all but scopes, in order
    stream: dict[Node, int] = field(default_factory=dict)  # of those that stand in a scope
    consumed: list[Node] = field(default_factory=list)  # what is removed at the end
    events: int = 0
    priorities: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        labels: dict[str, int] = {}
        stack: list[tuple[Node, int]] = []
        priorities = [0]
        for node in self.graph.nodes:
            current = stack[-1][1] if stack else None
            if node.target is torch.ops.air.scope_enter.default:
                attributes = _attributes(node)
                stream = current or 0
                if _LABEL in attributes:
                    stream = labels.setdefault(attributes[_LABEL], len(labels) + 1)
                    if stream == len(priorities):
                        priorities.append(int(attributes.get(_PRIORITY, 0)))
                stack.append((node, stream))
                self.consumed.append(node)
            elif node.target is torch.ops.air.scope_exit.default:
                if not stack and self.pairs:
                    raise GraphError(
                        f"When you call the torch.ops.air.scope_exit operator: {node.name}, you must first call the "
                        f"torch.ops.air.scope_enter operator, as they must be called in pairs. {_HINT}"
                    )
                del stack[-1:]
                self.consumed.append(node)
            else:
                self.nodes.append(node)
                self.events += air.is_marker(node.target)
                if node.op == "call_function" and (current is not None or "stream" in node.meta):
                    self.stream[node] = stream_of(node) if current is None else current
        if stack and self.pairs:
            raise GraphError(
                "After you call the torch.ops.air.scope_enter operator, there is no paired call to the "
                "torch.ops.air.scope_exit operator. The parameters for these torch.ops.air.scope_enter calls are:"
                f"{[node.args for node, _ in stack]}. {_HINT}"
            )
        self.priorities = tuple(priorities)

    @property
    def streams(self) -> int:
        return 1 + max(self.stream.values(), default=0)


def _attributes(scope: Node) -> dict[str, str]:
    """What a scope says of itself; its op takes two lists of texts."""
    keys, values = cast(tuple[Sequence[str], Sequence[str]], scope.args[:2])
    return dict(zip(keys, values))


def _tag(event: Node) -> str:
    """The name of an event that is recorded or waited for by name."""
    tag = event.args[0]
    assert isinstance(tag, str)  # so the op's schema has it
    return tag


# ---- what is made of it ----------------------------------------------------------------------------------------------


@dataclass
class _Accesses:
    """Of one piece of memory: the last node that wrote it, and those that read it since, as (node, step)."""

    write: tuple[Node, int] | None = None
    reads: list[tuple[Node, int]] = field(default_factory=list)


class _Writer:
    """Goes through the nodes in order, and writes records and waits where they are asked for or needed."""

    def __init__(self, graph: torch.fx.Graph, plan: _Scopes, edits: Edits, hazards: str):
        self._graph, self._plan, self._edits, self._hazards = graph, plan, edits, hazards
        self._order = Order(plan.streams)
        self._memory: dict[Node, _Accesses] = {}
        self._recorded: dict[Node | str, Recorded] = {}  # by the node or the tag that says so
        self._steps: dict[Node, int] = {}
        self._started = {0}
        self._numbers = 1 + max((node.meta["event"] for node in plan.nodes if "event" in node.meta), default=-1)
        self._beginning: Recorded | None = None
        self._begin()

    def add(self, node: Node) -> None:
        if node.op != "call_function":
            return
        if air.is_marker(node.target):
            self._event(node)
        elif launches(node):
            self._start(stream_of(node), node)
            for other, why in self._conflicts(node):
                self._resolve(other, node, why)
            self._note(node)

    def join(self) -> None:
        """At the end the main stream waits for all others."""
        output = self._graph.output_node()
        for stream in sorted(self._started - {0}):
            last = [step for node, step in self._steps.items() if stream_of(node) == stream]
            if last and not self._order.is_before(last[-1], 0):
                end = next(node for node in reversed(self._plan.nodes) if self._steps.get(node) == last[-1])
                self._wait(0, self._record_after(end), output)

    # ---- events -----------------------------------------------------------------------------------------------------

    def _event(self, node: Node) -> None:
        stream, op = stream_of(node), node.target
        if op is torch.ops.air.record.default:
            self._start(stream, node)
            self._recorded[node] = (self._record(stream, node), self._order.now(stream))
        elif op is RECORD:
            self._start(stream, node)
            kept = node if "event" in node.meta else self._record(stream, node)
            self._recorded[_tag(node)] = (kept, self._order.now(stream))
        elif op is torch.ops.air.wait.default:
            for other in operands(node):
                self._wait(
                    stream, self._recorded[other] if other in self._recorded else self._record_after(other), node
                )
        elif op is WAIT:
            if _tag(node) not in self._recorded:
                raise GraphError(f"the event {_tag(node)!r} is waited for before it is recorded{source(node)}")
            self._wait(stream, self._recorded[_tag(node)], node)
        # record_tagged_stream keeps memory alive for a stream; here every stream's use of memory is known anyway.
        if "event" not in node.meta:
            self._plan.consumed.append(node)

    def _begin(self) -> None:
        """The point from which side streams fork, where nothing else has been done yet."""
        first = next((node for node in self._plan.nodes if node.op != "placeholder"), None)
        already = first is not None and first.target is RECORD and "event" in first.meta
        if self._plan.streams > 1 and first is not None and not already:
            self._beginning = (self._record(0, first), self._order.now(0))

    def _start(self, stream: int, node: Node) -> None:
        """Let a side stream take part in the capture before its first work."""
        if stream not in self._started:
            self._started.add(stream)
            if self._beginning is not None:
                self._wait(stream, self._beginning, node)

    def _record(self, stream: int, before: Node) -> Node:
        with self._graph.inserting_before(before):
            return self._make(RECORD, stream, self._next_number(), before)

    def _record_after(self, node: Node) -> Recorded:
        """An event behind a node, on its stream, made once."""
        while node not in self._steps:
            above = base(node) if base(node) is not None else (node.args[0] if node.args else None)
            if not isinstance(above, Node) or above.op == "placeholder":
                raise GraphError(f"nothing computes {node.name}, which is waited for{source(node)}")
            node = above
        if node not in self._recorded:
            with self._graph.inserting_after(node):
                made = self._make(RECORD, stream_of(node), self._next_number(), node)
            self._recorded[node] = (made, self._order.after(self._steps[node]))
        return self._recorded[node]

    def _wait(self, stream: int, recorded: Recorded, before: Node) -> None:
        record, clock = recorded
        self._started.add(stream)
        self._order.wait(stream, clock)
        if "event" in before.meta and before.target is WAIT:
            return  # it is that wait itself, from an earlier run
        with self._graph.inserting_before(before):
            self._make(WAIT, stream, record.meta["event"], before)

    def _make(self, op: torch._ops.OpOverload, stream: int, number: int, like: Node) -> Node:
        node = self._graph.call_function(op, (f"aotair_{number}",))
        node.meta |= {"stream": stream, "event": number, "val": None} | copied(like)
        return node

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    # ---- hazards ----------------------------------------------------------------------------------------------------

    def _conflicts(self, node: Node) -> Iterator[tuple[Node, str]]:
        """Nodes of other streams that must be done before this one, and are not known to be."""
        stream, writes = stream_of(node), {_owner(item) for item in written_by(node)}
        for memory in {_owner(item): None for item in node.all_input_nodes}:
            accesses = self._memory.get(memory)
            if accesses is None:
                continue
            others = [(accesses.write, "uses what it makes")] if accesses.write else []
            if memory in writes:
                others += [(read, "overwrites what it reads") for read in accesses.reads]
            for (other, step), why in others:
                if not self._order.is_before(step, stream):
                    yield other, why

    def _resolve(self, other: Node, node: Node, why: str) -> None:
        stream, theirs = stream_of(node), stream_of(other)
        if self._order.is_before(self._steps[other], stream):
            return  # an event for another conflict of this node orders them too
        what = f"{node.name} on stream {stream} {why}: {other.name} on stream {theirs}, and no event orders them"
        if self._hazards == "refuse":
            raise GraphError(
                what + source(node), fix="record an event after it and wait for it, or let aotair repair hazards"
            )
        if self._hazards == "repair" and self._edits.may(node, f"now waits for {other.name}: {what}"):
            self._wait(stream, self._record_after(other), node)
        elif self._hazards == "allow":
            self._edits.declined(node, what)

    def _note(self, node: Node) -> None:
        step = self._steps[node] = self._order.step(stream_of(node))
        writes = {_owner(item) for item in written_by(node)} | ({node} if base(node) is None else set())
        for memory in {_owner(item): None for item in node.all_input_nodes} | dict.fromkeys(writes):
            accesses = self._memory.setdefault(memory, _Accesses())
            if memory in writes:
                accesses.write, accesses.reads = (node, step), []
            else:
                accesses.reads.append((node, step))


def _owner(node: Node) -> Node:
    """The node that brought the memory; of an op with several results, the op."""
    node = root(node)
    return operand(node) if node.target is operator.getitem else node
