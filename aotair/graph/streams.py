"""Which stream a node runs on, and which nodes make the device work."""

import operator
from collections.abc import Iterable

import torch
from torch.fx.node import Node

from ..ops import air
from .alias import base

air.define()


_air = torch.ops.air


RECORD, WAIT = _air.tagged_event_record.default, _air.tagged_event_wait.default


def stream_of(node: Node) -> int:
    """The stream that a node runs on; 0 is the main one."""
    number: int = node.meta.get("stream", 0)
    return number


def several_streams(nodes: Iterable[Node]) -> bool:
    return any(map(stream_of, nodes))


def launches(node: Node) -> bool:
    """Whether the node makes the device work: it is neither a view, nor a part of a result, nor an event."""
    if (
        node.op != "call_function"
        or node.target is operator.getitem
        or not isinstance(node.target, torch._ops.OpOverload)
    ):
        return False
    return not air.is_marker(node.target) and (base(node) is None or node.target._schema.is_mutable)
